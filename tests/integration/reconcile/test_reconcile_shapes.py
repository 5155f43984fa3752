"""Every shape of pipeline that can be rebuilt can be reconciled: equal after the load, and its damage is found."""

from __future__ import annotations

import pytest
from clickhouse_connect.driver.client import Client
from rebuild_cases import CASES, ODD, ROWS, Case
from reconcile_bench import NOW, numbers

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.model import Object
from resources.clickhouse import Server
from resources.reconcile import Reconciled, Reconciler
from resources.reconcile_windows import fetch_windows

WALKED = ("berlin_days", "weekly", "dimensions")  # of which every window is compared


class Shape:
    """One case on the server."""

    def __init__(self, client: Client, server: Server, database: str, name: str, case: Case) -> None:
        self.client, self.server, self.case = client, server, case
        text = (case.source.strip() + "\n" + case.ddl).replace("{db}", database).replace("{case}", name)
        for statement in [*text.split(";\n"), *(one.format(db=database, case=name) for one in case.prepare)]:
            if statement.strip(" \n;"):
                client.command(statement.strip(" \n;"))
        self.catalog: Catalog = build_catalog([SourceFile(path="ddl.sql", text=text)]).require_sound()
        self.target: Object = self.catalog.get(f"{database}.{name}_target")
        self.sql = self.target.name.sql

    def verdict(self) -> Reconciled:
        return Reconciler(self.server, self.catalog, self.case.timezone, now=lambda: NOW).run(
            self.target, self.case.window
        )

    def all_windows(self) -> list[Reconciled]:
        windows = fetch_windows(self.server, self.catalog, self.target, None, self.case.timezone)
        return [
            Reconciler(self.server, self.catalog, self.case.timezone, now=lambda: NOW).run(self.target, window)
            for window in windows
        ]


@pytest.mark.parametrize("name", CASES)
def test_equal_after_the_load_and_a_lost_table_is_a_deficit(
    clickhouse: Client, server: Server, database: str, name: str
) -> None:
    shape = Shape(clickhouse, server, database, name, CASES[name])
    for first in (0, 700):
        clickhouse.command(ROWS.format(db=database, case=name, first=first, count=700))
    found = shape.verdict()
    assert found.status == "equal" and found.keys > 0, found.sentence()
    whole = shape.all_windows() if name in WALKED else []
    assert {one.status for one in whole} <= {"equal"}
    clickhouse.command(f"TRUNCATE TABLE {shape.sql} SYNC")
    lost = shape.verdict()
    assert numbers(lost) == {"missing": found.keys} and lost.status == "different"
    if whole:  # the windows of a target without rows are those of its source
        assert sum(one.deficit for one in shape.all_windows()) == sum(one.keys for one in whole) > found.keys


def test_any_name_can_be_compared(clickhouse: Client, server: Server, database: str) -> None:
    shape = Shape(clickhouse, server, database, "odd", ODD)
    clickhouse.command(
        f"INSERT INTO {database}.`odd_sour.ce ``x``` SELECT number, toDateTime('2026-07-05 00:00:00', 'UTC') + number FROM numbers(5)"
    )
    assert (shape.verdict().status, shape.verdict().keys) == ("equal", 1)
    clickhouse.command(f"INSERT INTO {shape.sql} SELECT * FROM {shape.sql}")
    assert numbers(shape.verdict()) == {"larger": 1}
