"""The only writer of DDL and partitions.

Every verb is one statement, logged with object, step and seconds. Nothing here decides: plans come from `core`, the order
of steps from `resources.rebuild`. Sensors never import this module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName, quote_identifier, quote_string
from resources.clickhouse import Server

Log = Callable[[str], None]
_NO_QUEUE = 36
# Bounds of every statement that computes (requirements 32); those that a server does not know are left out.
BOUNDS: dict[str, Any] = {
    "max_execution_time": 300,
    "timeout_overflow_mode": "throw",
    "sort_overflow_mode": "throw",
    "async_insert": 0,
    "deduplicate_insert": "disable",
    "deduplicate_insert_select": "disable",
    "insert_deduplicate": 0,
    "max_partitions_per_insert_block": 1000,
}


@dataclass
class Executor:
    """Writes, one verb each."""

    server: Server
    log: Log = logging.getLogger("chmv").info
    bounds: Mapping[str, Any] = field(default_factory=lambda: BOUNDS)
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Any] | None = field(default=None, repr=False)

    def _run(self, step: str, name: QName | str, sql: str, settings: Mapping[str, Any] | None = None) -> None:
        started = self.clock()
        self.server.command(sql, settings=settings)
        self.log(f"{step} {name}: {self.clock() - started:.2f} s")

    def _bounds(self) -> dict[str, Any]:
        if self._known is None:
            known = self.server.knows_settings(list(self.bounds))
            self._known = {name: value for name, value in self.bounds.items() if name in known}
        return self._known

    def run_ddl(self, name: str, sql: str) -> None:
        """Run a declared statement as it is written."""
        self._run("run DDL", name, sql)

    def create_database(self, database: str) -> None:
        self._run("create database", database, f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database)}")

    def create_like(self, new: QName, model: QName) -> None:
        """Make an empty table of the same structure, keys, engine and settings."""
        self._run("create", new, f"CREATE TABLE IF NOT EXISTS {new.sql} AS {model.sql}")

    def drop_table(self, name: QName) -> None:
        self._run("drop", name, f"DROP TABLE IF EXISTS {name.sql} SYNC")

    def insert_select(self, into: QName, sql: str, source: QName, source_filter: str, database: str = "") -> None:
        """Fill a scratch table; the filter narrows the reads of the source without touching the view's SQL.

        Unqualified names in the SQL belong to `database`, as they did when the view was created.
        """
        settings = {**self._bounds(), **({"database": database} if database else {})}
        if source_filter:
            settings["additional_table_filters"] = quote_map({f"{source.database}.{source.table}": source_filter})
        self._run("insert into", into, sql, settings)

    def replace_partition(self, target: QName, partition_id: str, scratch: QName) -> None:
        """Swap one partition of the target for that of the scratch, atomically for readers."""
        sql = f"ALTER TABLE {target.sql} REPLACE PARTITION ID {quote_string(partition_id)} FROM {scratch.sql}"
        self._run(f"replace partition {partition_id} of", target, sql)

    def attach_partition_from(self, target: QName, partition_id: str, scratch: QName) -> None:
        """Add a scratch's partition to another scratch; parts are linked, not copied."""
        sql = f"ALTER TABLE {target.sql} ATTACH PARTITION ID {quote_string(partition_id)} FROM {scratch.sql}"
        self._run(f"attach partition {partition_id} to", target, sql)

    def drop_partition(self, name: QName, partition_id: str) -> None:
        self._run(
            f"drop partition {partition_id} of",
            name,
            f"ALTER TABLE {name.sql} DROP PARTITION ID {quote_string(partition_id)}",
        )

    def keep_only(self, name: QName, parts: Collection[str]) -> None:
        """Drop every part of a scratch but these: what a statement that failed has left in it."""
        rows = self.server.rows(
            "SELECT name FROM system.parts WHERE active AND database = {d:String} AND table = {t:String}",
            {"d": name.database, "t": name.table},
        )
        for (part,) in rows:
            if part not in parts:
                self._run(f"drop part {part} of", name, f"ALTER TABLE {name.sql} DROP PART {quote_string(part)}")

    def stop_merges(self, name: QName) -> None:
        """Keep the parts of a table as they are; forgotten when the server restarts."""
        self._run("stop merges of", name, f"SYSTEM STOP MERGES {name.sql}")

    def start_merges(self, name: QName) -> None:
        self._run("start merges of", name, f"SYSTEM START MERGES {name.sql}")

    def flush_async_inserts(self) -> None:
        """Write what waits in the queue of asynchronous inserts."""
        try:
            self._run("flush", "asynchronous inserts", "SYSTEM FLUSH ASYNC INSERT QUEUE")
        except ServerError as error:
            if error.code != _NO_QUEUE:  # the embedded server has none
                raise

    def refresh_view(self, view: QName) -> None:
        """Refresh a refreshable view and wait until it is done."""
        self._run("refresh", view, f"SYSTEM REFRESH VIEW {view.sql}")
        self._run("wait for", view, f"SYSTEM WAIT VIEW {view.sql}")


def quote_map(values: Mapping[str, str]) -> str:
    """A map literal of strings, as settings take it."""
    return "{" + ", ".join(f"{quote_string(key)}: {quote_string(value)}" for key, value in values.items()) + "}"
