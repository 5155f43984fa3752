"""What a target should hold, what it holds, and how it is damaged.

The oracle is a twin of the target, filled by the server from the live views' own SELECTs over the whole source; both sides
are read with FINAL. Untouched means: the checksum of the raw rows of every other partition is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window, window_of_key
from resources.clickhouse import Server
from resources.executor import Executor
from resources.rebuild import Rebuilder

UTC = timezone.utc


NOW = datetime(2026, 8, 1, tzinfo=UTC)


@dataclass
class Pipe:
    """One case on the server, with everything a test asks of it."""

    client: Client
    server: Server
    database: str
    case: str
    catalog: Catalog
    target: str = "target"
    protocol: Protocol = "closed"
    logged: list[str] = field(default_factory=list)

    def name(self, suffix: str) -> QName:
        return QName(self.database, f"{self.case}_{suffix}")

    def run(self, sql: str) -> None:
        self.client.command(sql.replace("{db}", self.database).replace("{case}", self.case))

    def rebuilder(self, executor: Executor | None = None, **options: Any) -> Rebuilder:
        executor = executor or Executor(self.server, log=self.logged.append)
        return Rebuilder(
            executor, self.catalog, options.pop("timezone", "UTC"), options.pop("now", lambda: NOW), **options
        )

    def publish(self, window: Window | None, **options: Any) -> Any:
        return self.rebuilder(**options).publish(self.catalog.objects[self.name(self.target)], window, self.protocol)

    def rows(self, table: QName) -> dict[str, list[Any]]:
        """Finalised rows per partition."""
        described = self.client.query(
            "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String} ORDER BY position",
            parameters={"d": table.database, "t": table.table},
        ).result_rows
        columns = ", ".join(
            f"arraySort(finalizeAggregation({n}))" if "groupArray" in t
            else f"finalizeAggregation({n})" if t.startswith("AggregateFunction") else n
            for n, t in described
        )  # fmt: skip
        engine = self.catalog.objects[self.name(self.target)].engine
        final = "" if engine == "MergeTree" else "FINAL"
        found: dict[str, list[Any]] = {}
        for partition, *row in self.client.query(
            f"SELECT _partition_id, {columns} FROM {table.sql} {final} ORDER BY ALL",
            settings={"do_not_merge_across_partitions_select_final": 1},
        ).result_rows:
            found.setdefault(partition, []).append(row)
        return found

    def truth(self) -> dict[str, list[Any]]:
        """What the target should hold, by the server's own words about its views."""
        twin = self.name("twin")
        self.client.command(f"DROP TABLE IF EXISTS {twin.sql} SYNC")
        self.client.command(f"CREATE TABLE {twin.sql} AS {self.name(self.target).sql}")
        for view in self.catalog.views_into(self.name(self.target)):
            (select,) = self.client.query(
                "SELECT as_select FROM system.tables WHERE database = {d:String} AND name = {t:String}",
                parameters={"d": view.name.database, "t": view.name.table},
            ).result_rows[0]
            columns = ", ".join(f"`{row[0]}`" for row in self.client.query(f"DESCRIBE ({select})").result_rows)
            self.client.command(f"INSERT INTO {twin.sql} ({columns}) SELECT {columns} FROM ({select})")
        return self.rows(twin)

    def checksums(self) -> dict[str, tuple[int, int]]:
        """Raw rows per partition."""
        rows = self.client.query(
            f"SELECT _partition_id, count(), sum(cityHash64(*)) FROM {self.name(self.target).sql} GROUP BY ALL"
        ).result_rows
        return {partition: (count, checksum) for partition, count, checksum in rows}

    def damage(self, how: str, partitions: Sequence[str]) -> None:
        table = self.name(self.target).sql
        for partition in partitions:
            if how == "drop" or (how == "delete" and self.checksums()[partition][0] == 1):
                self.client.command(f"ALTER TABLE {table} DROP PARTITION ID '{partition}'")
            elif how == "delete":  # every second row; a mutation would do the same but waits for its turn
                half = self.name("half").sql
                self.client.command(f"CREATE TABLE {half} AS {table}")
                self.client.command(
                    f"INSERT INTO {half} SELECT * FROM {table} WHERE _partition_id = '{partition}' AND rowNumberInAllBlocks() % 2"
                )
                self.client.command(f"ALTER TABLE {table} REPLACE PARTITION ID '{partition}' FROM {half}")
                self.client.command(f"DROP TABLE {half} SYNC")
            else:
                columns = self.client.command(
                    f"SELECT arrayStringConcat(groupArray(name), ', ') FROM system.columns WHERE database = '{self.database}' AND table = '{self.case}_{self.target}'"
                )
                self.client.command(
                    f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE _partition_id = '{partition}'"
                )


def apply_ddl(client: Client, text: str) -> Catalog:
    """Create the objects one by one and read the same text into a catalog."""
    for statement in text.split(";\n"):
        if statement.strip(" \n;"):
            client.command(statement.strip(" \n;"))
    return build_catalog([SourceFile(path="ddl.sql", text=text)]).require_sound()


def covered(pipe: Pipe, window: Window | None) -> list[str]:
    """Partitions of the truth that hold rows of the window, by the target's own time column."""
    scheme = pipe.catalog.schemes.get(pipe.name("target"))
    if scheme is None or window is None:
        return sorted(pipe.truth())
    start, end = (f"toDateTime({int(at.timestamp())}, 'UTC')" for at in (window.start, window.end))
    column = f"toDateTime(toString({scheme.column}) || ' 00:00:00', 'UTC')" if scheme.is_date else scheme.column
    rows = pipe.client.query(
        f"SELECT DISTINCT _partition_id FROM {pipe.name('twin').sql} WHERE {column} >= {start} AND {column} < {end}"
    ).result_rows
    return sorted(partition for (partition,) in rows)


def day(key: str) -> Window:
    return window_of_key(key, "day", "UTC")
