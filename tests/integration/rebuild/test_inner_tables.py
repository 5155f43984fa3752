"""Materialized views without TO: their hidden tables are rebuilt and reconciled under the name that they have on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from rebuild_cases import ROWS, SOURCE
from rebuild_oracle import NOW, apply_ddl, day

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from resources.clickhouse import Server
from resources.executor import Executor
from resources.inner_tables import fetch_inner_table
from resources.rebuild import Rebuilder
from resources.reconcile import Reconciler
from resources.reconcile_windows import fetch_windows

VIEW = """
CREATE MATERIALIZED VIEW {db}.{case}_mv ENGINE = SummingMergeTree PARTITION BY {key} ORDER BY (day, country) AS
SELECT toDate(ts) AS day, country, count() AS events, sum(amount) AS amount FROM {db}.{case}_source GROUP BY day, country;
"""


class Hidden:
    """One pipeline whose target has no name of its own."""

    def __init__(self, client: Client, server: Server, database: str, case: str, key: str = "day") -> None:
        text = SOURCE.strip() + "\n" + VIEW.replace("{key}", key)
        self.text = text.replace("{db}", database).replace("{case}", case)
        self.client, self.server = client, server
        self.view, self.source = QName(database, f"{case}_mv"), QName(database, f"{case}_source")
        self.catalog: Catalog = apply_ddl(client, self.text)
        client.command(ROWS.format(db=database, case=case, first=0, count=2000))
        self.target = self.catalog.objects[QName(database, f".inner.{case}_mv")]

    @property
    def real(self) -> QName:
        found = fetch_inner_table(self.server, self.view)
        assert found is not None
        return found

    def rows(self) -> list[Any]:
        sql = f"SELECT day, country, sum(events), sum(amount) FROM {self.view.sql} GROUP BY ALL ORDER BY ALL"
        return list(self.client.query(sql).result_rows)

    def truth(self) -> list[Any]:
        sql = (
            f"SELECT toDate(ts) AS day, country, count(), sum(amount) FROM {self.source.sql} GROUP BY ALL ORDER BY ALL"
        )
        return list(self.client.query(sql).result_rows)

    def damage(self, partition_id: str) -> None:
        self.client.command(f"ALTER TABLE {self.real.sql} DROP PARTITION ID '{partition_id}'")
        assert self.rows() != self.truth()

    def publish(self, window: Window | None, protocol: Protocol, **options: Any) -> Any:
        executor = Executor(self.server, log=lambda _line: None)
        rebuilder = Rebuilder(executor, self.catalog, "UTC", lambda: NOW)
        return rebuilder.publish(self.target, window, protocol, **options)

    def create_anew(self) -> None:
        """The same view with a new hidden table, filled like the old one."""
        self.client.command(f"DROP TABLE {self.view.sql} SYNC")
        self.client.command(self.text.split(";\n")[1].strip(" \n;"))
        self.client.command(
            f"INSERT INTO {self.view.sql} SELECT toDate(ts) AS day, country, count(), sum(amount) FROM {self.source.sql} GROUP BY ALL"
        )


@pytest.mark.parametrize("protocol", ["closed", "gated", "owned"])
def test_hidden_table_is_rebuilt(
    clickhouse: Client, server: Server, database: str, left_over: Callable[[], list[str]], protocol: Protocol
) -> None:
    hidden = Hidden(clickhouse, server, database, f"hidden_{protocol}")
    assert hidden.real.table.startswith(".inner_id.")
    hidden.damage("20260705")
    assert day("2026-07-05") in fetch_windows(server, hidden.catalog, hidden.target, None, "UTC")
    verdict = Reconciler(server, hidden.catalog, "UTC", now=lambda: NOW).run(hidden.target, day("2026-07-05"))
    assert verdict.status == "different", verdict.sentence()
    assert verdict.deficit > 0
    assert hidden.publish(day("2026-07-05"), protocol).partitions == ("20260705",)
    assert hidden.rows() == hidden.truth()
    verdict = Reconciler(server, hidden.catalog, "UTC", now=lambda: NOW).run(hidden.target, day("2026-07-05"))
    assert verdict.status == "equal", verdict.sentence()
    assert left_over() == []


def test_hidden_table_without_partitions_is_rebuilt_as_a_whole(
    clickhouse: Client, server: Server, database: str, left_over: Callable[[], list[str]]
) -> None:
    hidden = Hidden(clickhouse, server, database, "hidden_whole", "tuple()")
    hidden.damage("all")
    hidden.publish(None, "gated")
    assert hidden.rows() == hidden.truth()
    assert left_over() == []


def test_hidden_table_in_an_ordinary_database_is_found_by_its_other_name(
    clickhouse: Client, server: Server, database: str, left_over: Callable[[], list[str]]
) -> None:
    plain = f"{database}_ordinary"
    settings = {"allow_deprecated_database_ordinary": 1}
    clickhouse.command(f"CREATE DATABASE {plain} ENGINE = Ordinary", settings=settings)
    try:
        hidden = Hidden(clickhouse, server, plain, "old")
        assert hidden.real == QName(plain, ".inner.old_mv")
        hidden.damage("20260705")
        hidden.publish(day("2026-07-05"), "closed")
        assert hidden.rows() == hidden.truth()
    finally:
        clickhouse.command(f"DROP DATABASE {plain} SYNC")


@pytest.mark.parametrize("protocol", ["closed", "gated"])
def test_view_that_is_created_anew_between_two_windows_is_followed(
    clickhouse: Client, server: Server, database: str, protocol: Protocol
) -> None:
    hidden = Hidden(clickhouse, server, database, f"anew_{protocol}")
    rebuilder = Rebuilder(Executor(server, log=lambda _line: None), hidden.catalog, "UTC", lambda: NOW)
    rebuilder.publish(hidden.target, day("2026-07-05"), protocol)
    before = hidden.real
    hidden.create_anew()
    assert hidden.real != before
    hidden.damage("20260706")
    rebuilder.publish(hidden.target, day("2026-07-06"), protocol)
    assert hidden.rows() == hidden.truth()


def test_view_that_is_created_anew_during_the_rebuild_is_noticed(
    clickhouse: Client, server: Server, database: str, left_over: Callable[[], list[str]]
) -> None:
    """What was computed for the old table does not go into the new one; the next try does."""
    hidden = Hidden(clickhouse, server, database, "meanwhile")
    times = [1]

    def meddle(_number: int, step: Step) -> None:
        if step.kind == "drain" and times:
            times.pop()
            hidden.client.command(f"DROP TABLE {hidden.view.sql} SYNC")
            hidden.client.command(hidden.text.split(";\n")[1].strip(" \n;"))

    published = hidden.publish(day("2026-07-05"), "gated", on_step=meddle)
    assert published.tries == 2
    found = [row for row in hidden.rows() if str(row[0]) == "2026-07-05"]
    assert found == [row for row in hidden.truth() if str(row[0]) == "2026-07-05"]
    assert hidden.rows() == found
    assert left_over() == []


def test_hidden_table_that_is_not_there_is_said(clickhouse: Client, server: Server, database: str) -> None:
    hidden = Hidden(clickhouse, server, database, "absent")
    clickhouse.command(f"DROP TABLE {hidden.view.sql} SYNC")
    with pytest.raises(RebuildRefused, match="found no inner table of it on the server but wanted one"):
        hidden.publish(day("2026-07-05"), "closed")
