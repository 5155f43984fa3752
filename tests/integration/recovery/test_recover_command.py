"""`chmv recover` on the real server: what it mends, what it says, how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from view_site import ViewSite, insert, make_site

from chmv_assets.cli.main import main
from resources.clickhouse import Server
from resources.engine import EngineInfo


@pytest.fixture(scope="module")
def site(
    engine: EngineInfo, server: Server, database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ViewSite]:
    yield make_site(server, database, Path(tmp_path_factory.mktemp("ddl")))
    server.command("TRUNCATE TABLE chmv.outages")


@pytest.fixture(autouse=True)
def _connected(configured: EngineInfo) -> None:
    """The command reads the environment."""


def recover(site: ViewSite, table: str, *arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["recover", f"{site.database}.{table}", "--ddl", str(site.pipeline.ddl_dir), *arguments]
    )


def test_a_dropped_view_is_made_again_and_what_it_missed_is_rebuilt(site: ViewSite) -> None:
    insert(site.server, site.database, 1, [])
    site.run("DROP TABLE {db}.daily_mv SYNC")
    insert(site.server, site.database, 2, [])
    assert site.differences() == ["daily", "monthly"]
    result = recover(site, "daily_mv", "--since", "10m", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["status"], told["tier"]) == ("repaired", 2)
    assert told["windows_rebuilt"] == told["windows_equal"] == 4, "three days, one month"
    assert site.differences() == []
    assert "repaired, tier 2" in recover(site, "daily_mv").stdout, "a second call is a repair of its own"


def test_windows_of_a_target_are_rebuilt_and_compared(site: ViewSite) -> None:
    insert(site.server, site.database, 3, [])
    site.run("ALTER TABLE {db}.daily DROP PARTITION ID '20261115'")
    result = recover(site, "daily", "--window", "2026-11-15")
    assert result.exit_code == 0, result.output
    assert "2 window(s) rebuilt, 2 equal" in result.stdout
    assert site.differences() == []


def test_a_dropped_target_comes_back(site: ViewSite) -> None:
    insert(site.server, site.database, 4, [])
    site.run("DROP TABLE {db}.both SYNC")
    result = recover(site, "both")
    assert result.exit_code == 0, result.output
    assert site.differences() == []


@pytest.mark.parametrize(
    ("table", "arguments", "said", "code"),
    [
        ("events", (), "found no view that writes into it but wanted a view or a target", 1),
        ("daily_mv", ("--window", "2026-11-15"), "found --window but wanted --since", 1),
        ("daily_mv", ("--damage", "deficit"), "found --damage 'deficit' but wanted one of rows missed, throws", 1),
        ("daily_mv", ("--since", "soon"), "--since", 2),
        ("dayly_mv", (), "daily_mv", 1),
    ],
)
def test_what_cannot_be_repaired_is_refused(
    site: ViewSite, table: str, arguments: tuple[str, ...], said: str, code: int
) -> None:
    result = recover(site, table, *arguments)
    assert (result.exit_code, said in result.output) == (code, True), result.output
