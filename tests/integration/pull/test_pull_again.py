"""`chmv pull` into a folder that is there: edits stay, changes of the server arrive, what cannot be told is said."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from clickhouse_connect.driver.client import Client
from pull_folder import drop, snapshot, states

from chmv_assets.cli.main import main
from chmv_assets.core.errors import PullRefused
from chmv_assets.pipeline import load_pipeline
from chmv_assets.pull import PullReport, pull
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.introspect import fetch_objects


@pytest.fixture
def small(name: str, clickhouse: Client) -> str:
    for statement in (
        "CREATE TABLE {d}.s (ts DateTime, k UInt64, n UInt64) ENGINE = MergeTree PARTITION BY toDate(ts) ORDER BY k",
        "CREATE TABLE {d}.t (k UInt64, n UInt64) ENGINE = SummingMergeTree ORDER BY k",
        "CREATE MATERIALIZED VIEW {d}.v TO {d}.t AS SELECT k, sum(n) AS n FROM {d}.s GROUP BY k",
    ):
        clickhouse.command(statement.format(d=name))
    return name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pull", *arguments], catch_exceptions=False)


def actions(report: PullReport) -> dict[str, str]:
    return {step.subject.rpartition(".")[2]: step.action for step in report.steps if step.action not in ("unchanged", "declared")}  # fmt: skip


def test_a_change_on_the_server_reaches_untouched_files_only(
    small: str, clickhouse: Client, server: Server, tmp_path: Path
) -> None:
    pull(server, tmp_path, [small])
    tables = tmp_path / "10_tables" / small
    edited = (tables / "t.sql").read_text().replace("ENGINE", "-- mine\nENGINE")
    (tables / "t.sql").write_text(edited)
    assert actions(pull(server, tmp_path, [small])) == {}
    for table in "st":
        clickhouse.command(f"ALTER TABLE {small}.{table} ADD COLUMN extra String")
    before = snapshot(tmp_path)
    dry = pull(server, tmp_path, [small], dry_run=True)
    assert actions(dry) == {"s": "updated", "t": "conflict"} and snapshot(tmp_path) == before
    report = pull(server, tmp_path, [small])
    assert actions(report) == {"s": "updated", "t": "conflict"}
    assert "+    `extra` String" in next(step.diff for step in report.steps if step.action == "updated")
    assert "extra" in (tables / "s.sql").read_text()
    assert (tables / "t.sql").read_text() == edited
    assert actions(pull(server, tmp_path, [small])) == {"t": "conflict"}
    forced = pull(server, tmp_path, [small], force=True)
    assert actions(forced) == {"t": "accepted"} and forced.verdicts == ()
    assert "extra" in (tables / "t.sql").read_text()
    assert actions(pull(server, tmp_path, [small])) == {}


def test_what_is_gone_is_reported_and_kept(small: str, clickhouse: Client, server: Server, tmp_path: Path) -> None:
    pull(server, tmp_path, [small])
    clickhouse.command(f"DROP VIEW {small}.v SYNC")
    assert actions(pull(server, tmp_path, [small])) == {"v": "gone"}
    assert (tmp_path / "30_views" / small / "v.sql").is_file()
    (tmp_path / "10_tables" / small / "t.sql").unlink()
    assert actions(pull(server, tmp_path, [small])) == {"t": "deleted", "v": "gone"}
    assert not (tmp_path / "10_tables" / small / "t.sql").exists()


def test_settings_are_written_until_they_are_edited(
    small: str, clickhouse: Client, server: Server, tmp_path: Path
) -> None:
    clickhouse.command(f"INSERT INTO {small}.s VALUES ('2026-10-05 00:00:00', 1, 1), ('2026-10-09 00:00:00', 1, 1)")
    pull(server, tmp_path, [small])
    file = tmp_path / "chmv.yaml"
    first = file.read_text()
    assert 'start: "2026-10-05"' in first
    clickhouse.command(f"ALTER TABLE {small}.s DROP PARTITION '2026-10-05'")
    assert actions(pull(server, tmp_path, [small])) == {}  # a start that moved would break backfills
    clickhouse.command(f"CREATE TABLE {small}.s2 AS {small}.s")
    clickhouse.command(f"CREATE MATERIALIZED VIEW {small}.v2 TO {small}.t AS SELECT k, n FROM {small}.s2")
    report = pull(server, tmp_path, [small])
    assert actions(report) == {"s2": "new", "v2": "new", "yaml": "updated"}
    file.write_text(first + "  # mine\n")
    report = pull(server, tmp_path, [small], force=True)
    assert actions(report) == {}
    assert report.notes == (f"chmv.yaml is yours; it does not mention {small}.s2",)
    assert file.read_text() == first + "  # mine\n"


def test_an_object_of_a_hand_written_folder_is_adopted_in_its_place(
    small: str, clickhouse: Client, server: Server, tmp_path: Path
) -> None:
    head = f"-- ours, since 2019\nCREATE DATABASE IF NOT EXISTS {small};\nCREATE TABLE s (ts DateTime, k UInt64, n UInt64) ENGINE MergeTree PARTITION BY toDate(ts) ORDER BY k ; -- fast\n"
    old = "CREATE  MATERIALIZED VIEW v ON CLUSTER main TO t AS\n  SELECT k, max(n) n FROM s GROUP BY k"
    tail = f" ; /* end */\nCREATE TABLE {small}.t (k UInt64, n UInt64) ENGINE = SummingMergeTree ORDER BY k"
    file = tmp_path / "all.sql"
    file.write_text(head + old + tail)
    (tmp_path / "chmv.yaml").write_text(f"version: 1\ndefault_database: {small}\n")
    report = pull(server, tmp_path, [small])
    assert actions(report) == {"v": "conflict"}
    assert [step.note for step in report.conflicts] == ["differs in query"]
    assert [path.name for path in tmp_path.rglob("*.sql")] == ["all.sql"]
    taken = pull(server, tmp_path, [small], accept=[f"{small}.v"])
    assert actions(taken) == {"v": "accepted"} and taken.verdicts == ()
    text = file.read_text()
    assert text.startswith(head) and text.endswith(tail)
    assert "ON CLUSTER `main`" in text and "sum(n) AS n" in text and "max" not in text


def test_names_without_a_database_belong_to_the_one_in_use(
    small: str, clickhouse: Client, server: Server, tmp_path: Path
) -> None:
    texts_there = [one.sql.replace(f"{small}.", "") for one in fetch_objects(server, [small])]
    (tmp_path / "all.sql").write_text(f"USE {small};\n" + ";\n".join(texts_there) + ";\n", encoding="utf-8")
    report = pull(server, tmp_path, [small])
    assert set(actions(report)) == {small, "yaml"}  # the database and the settings are new, the objects declared
    assert set(states(server, load_pipeline(tmp_path), [small]).values()) == {"equal"}


def test_a_view_that_needs_more_moves_with_its_file(
    small: str, clickhouse: Client, server: Server, tmp_path: Path
) -> None:
    pull(server, tmp_path, [small])
    clickhouse.command(f"CREATE VIEW {small}.w AS SELECT k, n FROM {small}.s")
    clickhouse.command(f"DROP VIEW {small}.v SYNC")
    clickhouse.command(f"CREATE MATERIALIZED VIEW {small}.v TO {small}.t AS SELECT k, n FROM {small}.w")
    report = pull(server, tmp_path, [small])
    assert actions(report)["v"] == "moved" and report.verdicts == ()
    assert sorted(path.parts[-3] for path in tmp_path.rglob("*.sql") if path.stem in "vw") == ["30_views", "31_views"]
    assert set(actions(pull(server, tmp_path, [small])).values()) == set()


def test_two_pulls_share_a_folder(shop: str, clickhouse: Client, server: Server, tmp_path: Path) -> None:
    """What another pull wrote stays, in the settings too."""
    other = f"pull_{secrets.token_hex(3)}"
    try:
        clickhouse.command(f"CREATE DATABASE {other}")
        clickhouse.command(f"CREATE TABLE {other}.s (d Date, k UInt8) ENGINE = MergeTree PARTITION BY d ORDER BY k")
        clickhouse.command(f"CREATE MATERIALIZED VIEW {other}.v ENGINE = Log AS SELECT k FROM {other}.s")
        pull(server, tmp_path, [shop])
        before = snapshot(tmp_path / "10_tables" / shop)
        report = pull(server, tmp_path, [other])
        assert set(actions(report).values()) == {"new", "updated"} and report.findings == ()
        assert snapshot(tmp_path / "10_tables" / shop) == before
        said = load_pipeline(tmp_path, cache=tmp_path / "cache").require_sound().settings
        assert {name.database for name, _ in said.sources} == {shop, other} and said.default_database == shop
        assert set(actions(pull(server, tmp_path, [shop, other]))) == set()
    finally:
        drop(clickhouse, [other])


def test_a_statement_that_is_altered_later_is_not_half_adopted(
    small: str, clickhouse: Client, server: Server, tmp_path: Path, configured: EngineInfo
) -> None:
    text = f"CREATE TABLE {small}.t (k UInt64) ENGINE = SummingMergeTree ORDER BY k;\nALTER TABLE {small}.t ADD COLUMN m String;\n"
    (tmp_path / "a.sql").write_text(text)
    result = run("--ddl", str(tmp_path), "--database", small, "--accept", f"{small}.t")
    assert result.exit_code == 1 and "Later statements" in result.stderr
    assert (tmp_path / "a.sql").read_text() == text


@pytest.mark.parametrize(("name", "content"), [("a.sql", "SELECT 'never closed"), ("chmv.yaml", "a: [")])
def test_a_folder_that_cannot_be_read_is_not_written_to(
    name: str, content: str, server: Server, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PullRefused, match="cannot be read"):
        pull(server, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_start_is_written_once_there_is_data(small: str, clickhouse: Client, server: Server, tmp_path: Path) -> None:
    pull(server, tmp_path, [small])
    clickhouse.command(f"INSERT INTO {small}.s VALUES ('2026-10-05 00:00:00', 1, 1)")
    assert actions(pull(server, tmp_path, [small])) == {"yaml": "updated"}
    clickhouse.command(f"INSERT INTO {small}.s VALUES ('2026-10-01 00:00:00', 1, 1)")
    assert actions(pull(server, tmp_path, [small])) == {}


def test_our_own_things_are_left_out(
    small: str, clickhouse: Client, server: Server, tmp_path: Path, configured: EngineInfo
) -> None:
    clickhouse.command(
        f"ALTER TABLE {small}.s ADD CONSTRAINT `__chmv_fence_x1` CHECK now64(3) >= fromUnixTimestamp64Milli(1)"
    )
    clickhouse.command("CREATE DATABASE chmv")
    clickhouse.command("CREATE TABLE chmv.`fence.pull` (f UInt8) ENGINE = Memory")
    fenced = f"SELECT k, n FROM {small}.s WHERE 1 > (SELECT min(f) FROM chmv.`fence.pull`)"
    clickhouse.command(f"ALTER TABLE {small}.v MODIFY QUERY {fenced}")
    clickhouse.command("CREATE DATABASE serving")
    clickhouse.command(
        f"CREATE OR REPLACE VIEW serving.{small} AS SELECT 1 AS x COMMENT 'made by chmv 0123456789abcdef'"
    )
    try:
        report = pull(server, tmp_path)
        assert "fence" not in (tmp_path / "10_tables" / small / "s.sql").read_text()
        assert not [step for step in report.steps if "serving" in step.path]
        assert [one.subject for one in report.left_out] == [f"{small}.v"] and "rebuild" in report.left_out[0].why
        assert run("--ddl", str(tmp_path), "--database", "system").exit_code == 2
    finally:
        clickhouse.command("DROP DATABASE serving SYNC")
        clickhouse.command(f"DROP VIEW {small}.v SYNC")
        clickhouse.command("DROP DATABASE chmv SYNC")


def test_the_command(small: str, clickhouse: Client, tmp_path: Path, configured: EngineInfo) -> None:
    folder = tmp_path / "ddl"
    arguments = ("--ddl", str(folder), "--database", small)
    dry = run(*arguments, "--dry-run", "--json")
    assert dry.exit_code == 0 and json.loads(dry.stdout)["written"] == 5 and not folder.exists()
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert "5 new." in first.stdout
    manifest = json.loads((folder / ".chmv-pull.json").read_text())
    assert set(manifest) == {"version", "files"} and len(manifest["files"]) == 5
    assert run(*arguments).exit_code == 0
    view = folder / "30_views" / small / "v.sql"
    view.write_text(view.read_text().replace("sum(n)", "max(n)"))
    assert run(*arguments).exit_code == 0  # edited here, unchanged there
    clickhouse.command(f"ALTER TABLE {small}.v MODIFY QUERY SELECT k, min(n) AS n FROM {small}.s GROUP BY k")
    stopped = run(*arguments)
    assert stopped.exit_code == 1
    assert "-    max(n) AS n" in stopped.stdout and "+    min(n) AS n" in stopped.stdout
    document = json.loads(run(*arguments, "--json").stdout)
    assert document["conflicts"] == 1 and document["sound"] is True
    assert run(*arguments, "--accept", f"{small}.v").exit_code == 0
    assert "min(n)" in view.read_text() and run(*arguments).exit_code == 0


@pytest.mark.parametrize(
    "arguments", [("--force", "--accept", "a.b"), ("--database", "no_such"), ("--accept", "no.such"), ("--nonsense",)]
)
def test_wrong_command_lines_exit_2(arguments: tuple[str, ...], tmp_path: Path, configured: EngineInfo) -> None:
    assert run("--ddl", str(tmp_path), *arguments).exit_code == 2


def test_a_folder_has_to_be_named(configured: EngineInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHMV_DDL_DIR", raising=False)
    assert run().exit_code == 2
