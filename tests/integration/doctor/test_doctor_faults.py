"""`chmv doctor` on a server and a pipeline with twelve planted faults: each is found once, and nothing else. And the files that it writes work.

The faults are in the server's config.d and users.d, in the user's grants and in the DDL; the engine is one of its own.
"""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chmv_assets.cli.main import main
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.pipeline import load_pipeline
from resources.clickhouse import Endpoint, Server
from resources.doctor import read_facts
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

HERE = Path(__file__).parent
FAULTY = HERE / "faulty"
AT_ONCE = 0.2  # nobody needs its rows any more
PLANTED = {
    ("merge-pool-size", "server"),  # config.d: a pool of two, and an insert writes six tables
    ("logs-missing", "server"),  # users.d: what views do is not logged
    ("views-ignore-errors", "user sloppy"),
    ("quorum-without-replicas", "user sloppy"),
    ("recovery-bounds", "user sloppy"),  # users.d: no statement may run for longer than a minute
    ("privilege-missing", "user sloppy"),  # OPTIMIZE is not granted
    ("privilege-excess", "user sloppy"),  # may make users
    ("parts-limits-crossed", "faulty.by_page"),
    ("dedup-window", "faulty.by_country"),
    ("partitions-per-insert", "faulty.by_user_mv"),  # a partition per user
    ("ttl-shorter-than-target", "faulty.clicks_daily_mv"),
    ("order-by-lacks-group-key", "faulty.by_device_mv"),
}


@pytest.fixture(scope="module")
def bad_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineInfo]:
    folder = tmp_path_factory.mktemp("faulty")
    shutil.copytree(FAULTY / "server", folder / "config")
    info = start_engine(EngineOptions(data_dir=folder))
    try:
        with Server(Endpoint(info.url)) as server:
            for file in sorted((FAULTY / "ddl").glob("*.sql")):
                for statement in split_statements(SourceFile(path=file.name, text=file.read_text()))[0]:
                    server.command(statement.text)
            # Without the setting the target refuses 150 partitions when the rows are in the source already (doctor's reason for this rule).
            server.command(
                "INSERT INTO faulty.events SETTINGS max_partitions_per_insert_block = 200 "
                "SELECT now() - number, number % 150, 'p', 'c', 'd' FROM numbers(3000)"
            )
        yield info
    finally:
        stop_engine(folder, timeout_seconds=AT_ONCE)


@pytest.fixture
def sloppy(bad_engine: EngineInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", bad_engine.url)
    monkeypatch.setenv("CHMV_CLICKHOUSE_USER", "sloppy")
    monkeypatch.delenv("CHMV_CLICKHOUSE_PASSWORD", raising=False)


def doctor(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["doctor", "--ddl", str(FAULTY / "ddl"), *words])
    return result.exit_code, result.output


def test_the_twelve_faults_are_found_and_nothing_else(sloppy: None) -> None:
    code, output = doctor("--json")
    document: dict[str, Any] = json.loads(output)
    found = document["findings"]
    assert code == 1
    assert sorted((one["rule"], one["subject"]) for one in found) == sorted(PLANTED)
    assert len(found) == 12 and document["counts"] == {"error": 6, "warn": 6, "advice": 0}
    assert all(one["measured"] and one["wanted"] and one["why"] and one["fix"] for one in found)
    by_rule = {one["rule"]: one for one in found}
    assert "give 150 partitions of faulty.by_user" in by_rule["partitions-per-insert"]["measured"]
    assert by_rule["privilege-missing"]["measured"] == "lacks OPTIMIZE on chmv, faulty, serving"
    assert (
        "2 merges side by side, and an insert into faulty.events writes 6 tables"
        in by_rule["merge-pool-size"]["measured"]
    )


def test_the_table_groups_them_and_statements_can_be_copied(sloppy: None) -> None:
    code, output = doctor()
    assert code == 1
    assert output.index("errors: 6") < output.index("warnings: 6")
    assert "\nALTER TABLE `faulty`.`by_country` MODIFY SETTING non_replicated_deduplication_window = 10000\n" in output
    assert "\nGRANT OPTIMIZE ON `faulty`.* TO `sloppy`\n" in output


def test_statements_of_tables_mend_what_they_were_given_for(bad_engine: EngineInfo) -> None:
    pipeline = load_pipeline(FAULTY / "ddl").require_sound()
    with Server(Endpoint(bad_engine.url, "sloppy")) as server:
        from chmv_assets.core.doctor import examine

        found = {one.rule: one for one in examine(read_facts(server, pipeline.catalog, pipeline.settings))}
        with Server(Endpoint(bad_engine.url)) as operator:
            for rule in ("parts-limits-crossed", "dedup-window"):
                for statement in found[rule].fix:
                    operator.command(statement)
        after = {one.rule for one in examine(read_facts(server, pipeline.catalog, pipeline.settings))}
    assert set(found) - after == {"parts-limits-crossed", "dedup-window"} and not after - set(found)


def test_the_written_files_are_taken_by_a_server(sloppy: None, tmp_path: Path) -> None:
    """The doctor's files in the folders of a fresh engine: it starts, and runs with what they say."""
    code, output = doctor("--json", "--config-d", str(tmp_path / "config"))
    assert code == 1
    written = [Path(one) for one in json.loads(output)["written"]]
    assert sorted(path.relative_to(tmp_path).as_posix() for path in written) == [
        "config/config.d/chmv_merge_tree.xml", "config/config.d/chmv_pools.xml", "config/users.d/chmv_profiles.xml",
    ]  # fmt: skip
    for user in ("chmv_recovery", "chmv_ingest"):  # accounts are the operator's, these are the test's
        (tmp_path / "config" / "users.d" / f"{user}.xml").write_text(
            f"<clickhouse><users><{user}><password></password><networks><ip>127.0.0.1</ip></networks><profile>{user}</profile><quota>default</quota></{user}></users></clickhouse>"
        )
    info = start_engine(EngineOptions(data_dir=tmp_path))
    try:
        with Server(Endpoint(info.url)) as server:
            for file, table in (("chmv_pools", "server_settings"), ("chmv_merge_tree", "merge_tree_settings")):
                root = ET.parse(tmp_path / "config" / "config.d" / f"{file}.xml").getroot()
                values = root if table == "server_settings" else root[0]
                assert {one.tag: one.text for one in values} == read(server, table, [one.tag for one in values])
            server.command("CREATE TABLE made (x UInt8) ENGINE = MergeTree ORDER BY x")
            assert server.rows(
                "SELECT value FROM system.metrics WHERE metric = 'BackgroundMergesAndMutationsPoolSize'"
            ) >= [(3,)]
        profiles = ET.parse(tmp_path / "config" / "users.d" / "chmv_profiles.xml").getroot()[0]
        assert [profile.tag for profile in profiles] == ["chmv_recovery", "chmv_ingest"]
        for profile in profiles:
            with Server(Endpoint(info.url, profile.tag)) as server:
                assert {one.tag: one.text for one in profile} == read(server, "settings", [one.tag for one in profile])
    finally:
        stop_engine(tmp_path, timeout_seconds=AT_ONCE)


def read(server: Server, table: str, names: list[str]) -> dict[str, str]:
    rows = server.rows(
        f"SELECT name, value FROM system.{table} WHERE name IN {{names:Array(String)}}", {"names": names}
    )
    return {str(name): str(value) for name, value in rows}


def test_a_server_that_does_not_answer_is_not_called_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    code, output = doctor()
    assert code == 3 and "no usable answer" in output
