"""`chmv drift` as CI uses it: exit codes first, then what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from declared import declared_folder

from chmv_assets.cli.drift import exit_code
from chmv_assets.cli.main import main
from chmv_assets.core.compare import Comparison
from chmv_assets.core.names import QName
from chmv_assets.drift import Drift
from resources.clickhouse import Server
from resources.engine import EngineInfo

DDL = """
CREATE TABLE {db}.hits (page String, ms UInt32) ENGINE = MergeTree ORDER BY page;
CREATE TABLE {db}.pages (page String, total UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.hits GROUP BY page;
CREATE MATERIALIZED VIEW {db}.own ENGINE = MergeTree ORDER BY page AS SELECT page FROM {db}.hits;
"""


@dataclass
class Folder:
    """A folder that is on the server as declared."""

    path: Path
    database: str
    server: Server

    def command(self, sql: str) -> None:
        self.server.command(sql.replace("{db}", self.database))

    def drift(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["drift", "--ddl", str(self.path), *arguments], catch_exceptions=False)


@pytest.fixture
def folder(configured: EngineInfo, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("CHMV_CACHE_DIR", str(tmp_path / "cache"))
    with declared_folder(server.command, tmp_path, "drift", DDL) as (path, name):
        yield Folder(path, name, server)


def test_no_drift_exits_0(folder: Folder) -> None:
    result = folder.drift()
    assert result.exit_code == 0, result.stdout
    assert "4 objects declared (4 equal), 0 not declared." in result.stdout
    assert "No drift." in result.stdout


def test_a_changed_and_a_missing_object_exit_1_and_say_what_to_do(folder: Folder) -> None:
    folder.command("ALTER TABLE {db}.pages MODIFY COLUMN total UInt32")
    folder.command("DROP VIEW {db}.pages_mv SYNC")
    result = folder.drift()
    assert result.exit_code == 1
    assert "type of total" in result.stdout and "UInt64" in result.stdout and "UInt32" in result.stdout
    assert "(2 equal, 1 changed, 1 missing)" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert "chmv plan" in last and "chmv pull --accept" in last
    document = json.loads(folder.drift("--json").stdout)
    assert document["drift"] is True and document["undeclared"] == []
    states = {one["name"].split(".")[1]: one for one in document["objects"]}
    assert {name: one["state"] for name, one in states.items()} == {
        "hits": "equal", "own": "equal", "pages": "changed", "pages_mv": "missing"
    }  # fmt: skip
    assert (states["pages"]["file"], states["pages"]["line"]) == ("all.sql", 3)
    assert {"what": "type of total", "declared": "UInt64", "live": "UInt32"} in states["pages"]["differences"]


def test_undeclared_objects_are_listed_and_count_only_if_asked_for(folder: Folder) -> None:
    folder.command("CREATE TABLE {db}.extra (x UInt8) ENGINE = Log")
    result = folder.drift()
    assert result.exit_code == 0
    assert "extra" in result.stdout and "undeclared" in result.stdout and "1 not declared" in result.stdout
    assert folder.drift("--undeclared").exit_code == 1
    document = json.loads(folder.drift("--json", "--undeclared").stdout)
    assert document["undeclared"] == [{"name": f"{folder.database}.extra", "engine": "Log", "referred": False}]


def test_a_folder_that_shrank_finds_its_old_objects_undeclared(folder: Folder) -> None:
    text = (folder.path / "all.sql").read_text()
    (folder.path / "all.sql").write_text(text[: text.index("CREATE MATERIALIZED")])
    document = json.loads(folder.drift("--json").stdout)
    assert [one["name"].split(".")[1] for one in document["undeclared"]] == ["own", "pages_mv"]


def test_a_folder_whose_texts_are_long_is_compared_in_shares(folder: Folder) -> None:
    column = "x" * 200
    columns = ", ".join(f"{column}{at} UInt8" for at in range(100))
    for at in range(8):
        statement = f"CREATE TABLE {folder.database}.wide{at} ({columns}) ENGINE = MergeTree ORDER BY tuple()"
        folder.command(statement)
        (folder.path / f"wide{at}.sql").write_text(statement)
    result = folder.drift()
    assert result.exit_code == 0, result.stderr
    assert "12 objects declared (12 equal)" in result.stdout


def test_a_wrong_command_line_exits_2(folder: Folder) -> None:
    assert folder.drift("--nonsense").exit_code == 2


def test_a_server_that_does_not_answer_exits_3(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", "http://127.0.0.1:9")
    result = folder.drift()
    assert result.exit_code == 3
    assert "no usable answer" in result.stderr


def test_a_folder_that_is_not_sound_exits_3(folder: Folder) -> None:
    (folder.path / "bad.sql").write_text("nonsense;")
    result = folder.drift()
    assert result.exit_code == 3 and "defect" in result.stderr


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((), 0),
        (("equal",), 0),
        (("equal", "cannot tell"), 3),
        (("cannot tell", "changed"), 1),
        (("missing",), 1),
    ],
)
def test_exit_codes(states: tuple[str, ...], code: int) -> None:
    found = {QName("d", str(at)): Comparison(state) for at, state in enumerate(states)}  # type: ignore[arg-type]
    assert exit_code(Drift(comparisons=found), undeclared=True) == code
