"""What the picture shows, read from a real server: statuses of broken things, rows of edges, and a number of queries that does not grow."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chmv_assets.cli.main import main
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.picture.state import edge_rows, judge_nodes
from chmv_assets.core.settings import Settings
from chmv_assets.core.statements import split_statements
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo
from resources.graph_status import read_graph_status

DDL = """
CREATE TABLE {db}.hits (page String, ms UInt32) ENGINE = MergeTree ORDER BY page;
CREATE TABLE {db}.pages (page String, total UInt64) ENGINE = SummingMergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.pages_mv TO {db}.pages AS SELECT page, count() AS total FROM {db}.hits GROUP BY page;
CREATE TABLE {db}.`odd <b> name` (page String) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.odd_mv TO {db}.`odd <b> name` AS SELECT page FROM {db}.hits;
CREATE TABLE {db}.top (page String) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW {db}.top_mv REFRESH EVERY 1 YEAR TO {db}.top EMPTY AS SELECT page FROM {db}.pages WHERE throwIf(total > 0, 'no') = 0;
CREATE VIEW {db}.shown AS SELECT * FROM {db}.top;
"""


@dataclass
class Counting(Server):
    """A connection that counts what is asked."""

    endpoint: Endpoint
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.endpoint)

    def rows(self, sql: str, *more: Any, **named: Any) -> list[tuple[Any, ...]]:
        self.asked.append(sql)
        return super().rows(sql, *more, **named)

    def command(self, sql: str, *more: Any, **named: Any) -> str:
        self.asked.append(sql)
        return super().command(sql, *more, **named)


@pytest.fixture(scope="module")
def place(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The pipeline on the server and in a folder."""
    database = f"pic_{secrets.token_hex(4)}"
    folder = tmp_path_factory.mktemp("ddl")
    text = DDL.replace("{db}", database)
    (folder / "a.sql").write_text(text)
    server.command(f"CREATE DATABASE {database}")
    statements, _ = split_statements(SourceFile(path="a.sql", text=text))
    for statement in statements:
        server.command(statement.text)
    server.command(f"INSERT INTO {database}.hits SELECT toString(number % 10), 1 FROM numbers(1000)")
    yield database, folder
    server.command(f"DROP DATABASE {database} SYNC")


def catalog_of(place: tuple[str, Path]) -> Catalog:
    text = (place[1] / "a.sql").read_text()
    return build_catalog([SourceFile(path="a.sql", text=text)], default_database=place[0]).require_sound()


def test_rows_through_views_and_broken_things_are_seen(server: Server, place: tuple[str, Path]) -> None:
    catalog, database = catalog_of(place), place[0]
    well = read_graph_status(server, catalog, Settings())
    assert {one.status for one in judge_nodes(catalog, Settings(), well).values()} == {"ACTIVE"}
    rows = {(edge.source.table, edge.dest.table): count for edge, (count, _) in edge_rows(catalog, well).items()}
    assert rows["hits", "pages_mv"] == rows["hits", "odd_mv"] == 1000
    assert (rows["pages_mv", "pages"], rows["odd_mv", "odd <b> name"]) == (10, 1000)
    assert well.rows[QName(database, "hits")][0] == 1000
    assert well.targets[QName(database, "pages")].route == "primary"

    server.command(f"DROP TABLE {database}.pages_mv SYNC")
    server.command(f"SYSTEM REFRESH VIEW {database}.top_mv")
    with pytest.raises(Exception, match="no"):
        server.command(f"SYSTEM WAIT VIEW {database}.top_mv")
    judged = judge_nodes(catalog, Settings(), read_graph_status(server, catalog, Settings()))
    found = {name.table: one.status for name, one in judged.items()}
    assert found == {
        "hits": "ACTIVE", "odd_mv": "ACTIVE", "odd <b> name": "ACTIVE",
        "pages_mv": "DEGRADED", "pages": "DEGRADED", "top_mv": "DEGRADED", "top": "DEGRADED", "shown": "DEGRADED",
    }  # fmt: skip
    assert "its refresh is" in judged[QName(database, "top_mv")].why[0]


def test_the_number_of_queries_does_not_depend_on_the_number_of_objects(
    engine: EngineInfo, place: tuple[str, Path]
) -> None:
    whole = catalog_of(place)
    one = build_catalog([SourceFile(path="a.sql", text=DDL.replace("{db}", place[0]).split(";")[0])])
    counts = []
    for catalog in (one, whole):
        with Counting(Endpoint(engine.url)) as server:
            read_graph_status(server, catalog, Settings())
            counts.append(len(server.asked))
    assert counts[0] == counts[1] <= 22


@pytest.mark.usefixtures("configured")
def test_the_command_writes_the_page_and_paints_the_other_pictures(place: tuple[str, Path], tmp_path: Path) -> None:
    database, folder = place
    page = tmp_path / "graph.html"
    command = ["graph", "--ddl", str(folder), "--live-status", "--format"]
    done = CliRunner().invoke(main, [*command, "html", "-o", str(page)], catch_exceptions=False)
    assert done.exit_code == 0 and done.stdout == "" and "graph.html" in done.stderr
    assert '"status":"DEGRADED"' in page.read_text() and f"{database}.pages_mv" in page.read_text()
    dot = CliRunner().invoke(main, [*command, "dot"], catch_exceptions=False).stdout
    assert "penwidth=" in dot and "1,000 rows" in dot
    mermaid = CliRunner().invoke(main, [*command, "mermaid"], catch_exceptions=False).stdout
    assert "classDef ACTIVE" in mermaid and "linkStyle 0 stroke-width" in mermaid


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--live-status"], "--live-status is for --format html, dot and mermaid."),
        (["--runtime", "-o", "graph.txt"], "--output is for --format json, html, dot and mermaid."),
        (["--format", "html", "--runtime"], "the page takes --live-status"),
        (["--format", "html", "-o", "/nowhere/at/all.html"], "could not be written"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["graph", *arguments])
    assert done.exit_code != 0 and said in done.stderr
