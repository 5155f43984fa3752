"""The law of `chmv pull`: the folder compares equal with what was there, and makes it again on an empty server."""

from __future__ import annotations

from pathlib import Path

from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import natural_key
from chmv_assets.core.names import quote_identifier
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.live import compare_with_live
from chmv_assets.pipeline import Pipeline, load_pipeline
from chmv_assets.pull import PullReport, pull
from resources.clickhouse import Server
from resources.introspect import fetch_objects

DEMO = Path(__file__).parents[3] / "chmv_assets" / "ddl"


def split(text: str) -> list[str]:
    return [statement.text for statement in split_statements(SourceFile(path="x.sql", text=text))[0]]


def texts(client: Client, databases: list[str]) -> dict[tuple[str, str], str]:
    rows = client.query(
        "SELECT database, name, create_table_query FROM system.tables WHERE database IN {d:Array(String)} AND NOT startsWith(name, '.')",
        parameters={"d": databases},
    ).result_rows
    return {(str(database), str(name)): str(sql) for database, name, sql in rows}


def states(server: Server, pipeline: Pipeline, databases: list[str]) -> dict[str, str]:
    objects = fetch_objects(server, databases)
    names = [name for name, made in pipeline.catalog.objects.items() if made.sql and made.kind != "inner_table"]
    verdicts = compare_with_live(pipeline.catalog, objects, server, names)
    return {str(name): f"{found.state} {'; '.join(map(str, found.differences))}".strip() for name, found in verdicts.items()}  # fmt: skip


def drop(client: Client, databases: list[str]) -> None:
    for database in databases:
        client.command(f"DROP DATABASE IF EXISTS {quote_identifier(database)} SYNC")


def create_again(client: Client, folder: Path, skip: tuple[str, ...] = ()) -> None:
    for path in sorted(folder.rglob("*.sql"), key=lambda path: natural_key(path.relative_to(folder).as_posix())):
        if path.stem not in skip:
            for statement in split(path.read_text()):
                client.command(statement)


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def hold_law(client: Client, server: Server, folder: Path, databases: list[str], skip: tuple[str, ...] = ()) -> PullReport:  # fmt: skip
    """Pull, load, compare, pull again, drop, create from the folder, compare texts."""
    before = texts(client, databases)
    report = pull(server, folder, databases)
    assert report.conflicts == () and report.findings == ()
    assert {step.action for step in report.steps} <= {"new"}
    pipeline = load_pipeline(folder, cache=folder.parent / "cache").require_sound()
    found = states(server, pipeline, databases)
    assert set(found.values()) <= {"equal", "cannot tell"}, found
    assert {(name.database, name.table) for name, made in pipeline.catalog.objects.items() if made.place.file.endswith(".sql") and made.sql and made.kind != "inner_table"} == set(before)  # fmt: skip
    files = snapshot(folder)
    again = pull(server, folder, databases)
    assert {step.action for step in again.steps} <= {"unchanged"}
    assert snapshot(folder) == files
    drop(client, databases)
    create_again(client, folder, skip)
    made = texts(client, databases)
    assert made == {name: sql for name, sql in before.items() if name[1] not in skip}
    return report
