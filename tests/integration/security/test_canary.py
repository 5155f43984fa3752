"""No secret anywhere but where it was put: canaries in the password, in the DDL, in the address of alerts and in Spark's settings.

Everything that chmv writes or prints is searched for them: output of commands, plans, the journal, the caches, Dagster's database and logs, the server's
logs, command lines. The server keeps what it must (its own metadata of objects), and is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from chmv_assets.assets import build_assets
from chmv_assets.cli.main import main
from chmv_assets.core.errors import DeployRefused, ServerError
from chmv_assets.deploy import make_plan, open_applier
from chmv_assets.deploy_job import build_deploy_job
from chmv_assets.pipeline import load_pipeline
from resources.clickhouse import Endpoint, Server
from resources.clickhouse_resource import ClickHouseResource
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

CANARY = "Kanarienvogel7"  # in every secret
PASSWORD = f"{CANARY}Login"
DDL = f"""
-- Comments of a file are not shown either.
CREATE TABLE canary.hits (at DateTime('UTC'), page String) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at
SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE canary.daily (day Date, hits UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day
SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW canary.daily_mv TO canary.daily AS SELECT toDate(at) AS day, count() AS hits FROM canary.hits GROUP BY day;
CREATE TABLE canary.pages (page String, title String) ENGINE = MergeTree ORDER BY page;
CREATE DICTIONARY canary.pages_dict (page String, title String DEFAULT '') PRIMARY KEY page
SOURCE(CLICKHOUSE(USER 'keeper' PASSWORD '{PASSWORD}' DB 'canary' TABLE 'pages')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(0);
CREATE TABLE canary.far (x UInt8) ENGINE = MySQL('127.0.0.1:1', 'd', 't', 'u', '{CANARY}Mysql');
CREATE TABLE canary.pg (x UInt8) ENGINE = PostgreSQL('127.0.0.1:1', 'd', 't', 'u', '{CANARY}Pg');
CREATE TABLE canary.bucket (x UInt8) ENGINE = S3('http://127.0.0.1:1/bucket/x.csv', 'AKIA', '{CANARY}S3', 'CSV');
CREATE TABLE canary.web (x UInt8) ENGINE = URL('http://user:{CANARY}Url@127.0.0.1:1/x.csv', 'CSV');
CREATE VIEW canary.elsewhere AS SELECT * FROM url('http://127.0.0.1:1/x?token={CANARY}Token', 'CSV', 'x UInt8', headers('Authorization' = 'Bearer {CANARY}Header'));
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineInfo]:
    folder = tmp_path_factory.mktemp("engine")
    users = folder / "config" / "users.d"
    users.mkdir(parents=True)
    login = f"<password_sha256_hex>{hashlib.sha256(PASSWORD.encode()).hexdigest()}</password_sha256_hex><networks><ip>127.0.0.1</ip></networks>"
    rest = "<profile>default</profile><quota>default</quota><grants><query>GRANT ALL ON *.*</query></grants>"
    (users / "keeper.xml").write_text(f"<clickhouse><users><keeper>{login}{rest}</keeper></users></clickhouse>")
    yield start_engine(EngineOptions(data_dir=folder))
    stop_engine(folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, engine: EngineInfo) -> Iterator[Path]:
    """A folder for all that is written, with the environment of a user who keeps every secret where it belongs."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "ddl").mkdir()
    (folder / "ddl" / "all.sql").write_text(DDL)
    (folder / "dagster").mkdir()
    (folder / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "CHMV_CLICKHOUSE_URL": engine.url,
            "CHMV_CLICKHOUSE_USER": "keeper",
            "CHMV_CLICKHOUSE_PASSWORD": PASSWORD,
            "CHMV_DDL_DIR": str(folder / "ddl"),
            "CHMV_CACHE_DIR": str(folder / "cache"),
            "DAGSTER_HOME": str(folder / "dagster"),
            "CHMV_ALERT_URL": f"http://127.0.0.1:1/{CANARY}Alert",
            "CHMV_SPARK_CONF": json.dumps({"spark.hadoop.fs.s3a.secret.key": f"{CANARY}Spark"}),
        }.items():
            patch.setenv(name, value)
        yield folder  # fmt: skip


def leaks(*texts: str | bytes) -> list[str]:
    """What stands around each canary."""
    found = []
    for text in texts:
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        found += [shown[max(0, at - 120) : at + 20] for at in range(len(shown)) if shown.startswith(CANARY, at)]
    return found


def chmv(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def files(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    for folder in folders:
        yield from ((path, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file())


def test_no_command_prints_or_writes_a_secret_and_a_plan_without_them_can_be_applied(site: Path) -> None:
    plan = site / "plan.json"
    printed = [
        chmv("check"),
        chmv("check", "--json"),
        chmv("plan", "--out", str(plan), "--steps"),
        chmv("plan", "--json"),
    ]
    assert "[HIDDEN 0]" in plan.read_text() and "secret-in-ddl" in printed[0]
    applied = chmv("apply", str(plan))
    assert "done" in applied, applied
    with Server(Endpoint(os.environ["CHMV_CLICKHOUSE_URL"], "keeper", PASSWORD)) as server:
        server.command("INSERT INTO canary.pages VALUES ('a', 'A')")
        server.command("SYSTEM RELOAD DICTIONARY canary.pages_dict")  # the real password was sent
        assert server.rows("SELECT dictGet('canary.pages_dict', 'title', tuple('a'))") == [("A",)]
        server.command("INSERT INTO canary.hits SELECT '2026-11-10 10:00:00', 'x' FROM numbers(10)")
    for arguments in (
        ("graph",), ("graph", "--format", "dot"), ("graph", "--format", "mermaid"), ("graph", "--live"), ("graph", "--runtime"), ("drift",), ("drift", "--json"),
        ("plan",), ("deploys", "--json"), ("status",), ("thresholds",), ("watermarks",), ("batches",), ("grants",), ("grants", "--format", "users_xml"),
        ("rebuild", "canary.daily", "--window", "2026-11-10"), ("reconcile", "canary.daily"), ("recover", "canary.daily_mv"), ("engine", "status"),
        ("pull", "--ddl", str(site / "pulled"), "--database", "canary"), ("rollback", "--dry-run"),
    ):  # fmt: skip
        printed.append(chmv(*arguments))
    assert leaks(applied, *printed) == []
    written = {path: content for path, content in files(site) if path.parent != site / "ddl"}
    # What the server itself shows is pulled as it is: it hides passwords and keys, but not a parameter of an address.
    pulled = site / "pulled"
    shown = [content for path, content in written.items() if pulled not in path.parents]
    assert leaks(*shown) == []
    assert [one for one in leaks(*written.values()) if "x?token=" not in one] == []


def test_a_changed_secret_is_not_applied_by_an_old_plan(site: Path) -> None:
    plan, ddl = site / "later.json", site / "ddl" / "all.sql"
    ddl.write_text(DDL.replace("title String DEFAULT ''", "title String DEFAULT 'none'"))
    chmv("plan", "--out", str(plan))
    ddl.write_text(ddl.read_text().replace(PASSWORD, f"{PASSWORD}Other"))
    refused = chmv("apply", str(plan))
    assert "other secrets" in refused and leaks(refused) == []
    ddl.write_text(DDL + "-- more\n")
    assert "is not the one it was made of" in chmv("apply", str(plan))
    ddl.write_text(DDL)


def test_errors_do_not_repeat_the_secrets_of_a_statement(site: Path) -> None:
    endpoint = Endpoint(os.environ["CHMV_CLICKHOUSE_URL"], "keeper", PASSWORD)
    with Server(endpoint) as server:
        for sql in (
            f"CREATE DICTIONARY canary.x (a UInt8) PRIMARY KEY a SOURCE(CLICKHOUSE(PASSWORD '{CANARY}' nonsense nonsense",
            f"CREATE TABLE canary.x (a UInt8) ENGINE = MySQL('h', 'd', 't', 'u', '{CANARY}') ORDER BY nonsense(",
            f"SELECT * FROM url('http://u:{CANARY}@127.0.0.1:1/x', CSV, 'a UInt8') WHERE",
        ):
            with pytest.raises(ServerError) as caught:
                server.command(sql)
            chain = [
                caught.value,
                caught.value.__cause__ or "",
                "" if caught.value.__suppress_context__ else caught.value.__context__,
            ]
            assert leaks(*map(str, chain)) == [], sql
    with pytest.raises(ServerError) as refused:
        Server(Endpoint(endpoint.url, "keeper", f"{CANARY}Wrong"))
    assert leaks(str(refused.value), repr(endpoint)) == []
    with pytest.raises(Exception, match="found a user or password in the URL") as refused_url:
        Server(Endpoint(endpoint.url.replace("//", f"//u:{CANARY}@")))
    assert leaks(str(refused_url.value)) == []


def test_dagster_keeps_no_secret_in_definitions_events_or_logs(site: Path) -> None:
    pipeline = load_pipeline(site / "ddl").require_sound()
    definitions = build_assets(pipeline, date(2026, 11, 1)).assets
    shown = [str(spec.metadata) for made in definitions for spec in getattr(made, "specs", [made])]
    assert any("[HIDDEN]" in text for text in shown) and leaks(*shown) == []
    with dg.DagsterInstance.get() as instance:
        job = build_deploy_job(pipeline)
        resources = {"clickhouse": ClickHouseResource()}
        done = job.execute_in_process(instance=instance, resources=resources, raise_on_error=False)
        assert done.success
        (site / "ddl" / "all.sql").write_text(
            DDL.replace("LIFETIME(0)", f"LIFETIME(0) SETTINGS(nonsense = 'x' PASSWORD '{CANARY}'")
        )
        broken = load_pipeline(site / "ddl")
        (site / "ddl" / "all.sql").write_text(DDL)
        assert leaks(*(str(one) for one in broken.catalog.findings)) == []
    time.sleep(0.2)
    searched = list(files(site / "dagster"))
    assert searched
    assert {str(path): found for path, content in searched if (found := leaks(content))} == {}


def test_the_journal_and_the_logs_of_the_server_hold_no_secret(site: Path, engine: EngineInfo) -> None:
    with Server(Endpoint(engine.url, "keeper", PASSWORD)) as server:
        server.command("SYSTEM FLUSH LOGS")
        for (table,) in server.rows(
            "SELECT name FROM system.tables WHERE database = 'chmv' AND engine LIKE '%MergeTree'"
        ):
            rows = server.rows(f"SELECT * FROM chmv.`{table}`")
            assert leaks(*map(str, rows)) == [], table
        assert server.rows("SELECT count() FROM chmv.plans WHERE plan LIKE '%[HIDDEN 0]%'") != [(0,)]
        logged = server.rows(
            "SELECT query FROM system.query_log WHERE query LIKE {c:String} AND query NOT LIKE '%query_log%' AND exception_code != 62 "
            "AND log_comment LIKE '%chmv%'",
            {"c": f"%{CANARY}%"},
        )
        assert logged == []


def test_no_process_shows_a_secret_on_its_command_line(site: Path, engine: EngineInfo) -> None:
    """Commands and the server; the environment of the server has a hash of the password only."""
    seen: list[bytes] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.extend(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path))
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        subprocess.run(
            [sys.executable, "-m", "chmv_assets.cli.main", "drift"], capture_output=True, check=False, timeout=60
        )
    finally:
        done.set()
        watcher.join()
    assert seen and leaks(*seen) == []
    assert leaks(Path(f"/proc/{engine.pid}/environ").read_bytes()) == []


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_secret_that_nobody_knows_is_not_sent_to_the_server(site: Path) -> None:
    pipeline = load_pipeline(site / "ddl")
    with Server(Endpoint(os.environ["CHMV_CLICKHOUSE_URL"], "keeper", PASSWORD)) as server:
        (site / "ddl" / "all.sql").write_text(
            DDL.replace(f"{CANARY}Mysql", "[HIDDEN]").replace(
                "'d', 't', 'u', '[HIDDEN]'", "'d', 'other', 'u', '[HIDDEN]'"
            )
        )
        try:
            plan = make_plan(server, load_pipeline(site / "ddl"))
            assert [str(change.name) for change in plan.changes] == ["canary.far"]
            with pytest.raises(DeployRefused):
                open_applier(server, lambda _line: None).apply(plan, ("rewrites data", "destructive"))
        finally:
            (site / "ddl" / "all.sql").write_text(DDL)
    assert pipeline.catalog.objects
