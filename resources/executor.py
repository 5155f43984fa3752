"""The only writer of DDL and partitions.

Every verb is one statement, told with object, step and seconds. Nothing here decides: plans come from `core`, the order
of steps from `resources.rebuild`. Sensors never import this module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chmv_assets.core.cluster import SPREAD_SETTINGS, Topology, spread
from chmv_assets.core.errors import ChmvError, ServerError
from chmv_assets.core.names import QName, quote_identifier, quote_map, quote_string
from chmv_assets.core.own_tables import on_cluster
from chmv_assets.core.replication import unreplicated
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tunings import TABLE_SETTINGS
from resources.clickhouse import Server
from resources.topology import fetch_topology

Log = Callable[[str], None]
_NO_QUEUE = 36
# Bounds of every statement that computes (docs/rebuild.md); those that a server does not know are left out.
BOUNDS: dict[str, Any] = {
    "max_execution_time": 300,
    "timeout_overflow_mode": "throw",
    "sort_overflow_mode": "throw",
    "async_insert": 0,
    "deduplicate_insert": "disable",
    "deduplicate_insert_select": "disable",
    "insert_deduplicate": 0,
    "max_partitions_per_insert_block": 10_000,  # a whole target from a source without partitions
    # A scratch does not merge while it is filled, and nobody reads it: its parts are counted after each fill instead.
    "parts_to_delay_insert": 1_000_000,
    "parts_to_throw_insert": 1_000_000,
}


def recovery_bounds(limits: Limits) -> dict[str, Any]:
    """The bounds with what the settings file says."""
    return {**BOUNDS, "max_execution_time": int(limits.recovery_seconds)}


@dataclass
class Executor:
    """Writes, one verb each."""

    server: Server
    log: Log = logging.getLogger("chmv").info  # what somebody who waits wants to know
    trace: Log | None = None  # every statement, and what else is read afterwards; where nobody says, with the rest
    bounds: Mapping[str, Any] = field(default_factory=lambda: BOUNDS)
    clock: Callable[[], float] = time.monotonic
    cluster: str = ""  # of the tables, one shard (`core.cluster`); scratches live on this server only
    real_names: dict[QName, QName] = field(default_factory=dict)  # of inner tables, for as long as their views live
    _known: dict[str, Any] | None = field(default=None, repr=False)
    _topology: Topology | None = field(default=None, repr=False)

    def _run(
        self,
        step: str,
        name: QName | str,
        sql: str,
        settings: Mapping[str, Any] | None = None,
        session: str = "",
        *,
        here: bool = False,
    ) -> None:
        """One statement, on a cluster for as many replicas as it takes (`core.cluster.spread`), unless it is for this server (`here`)."""
        started = self.clock()
        if self.cluster and not here and "ON CLUSTER" in (wide := spread(sql, self.cluster)):
            sql = spread(wide, self.cluster, self.topology.self_spreading, session)
            settings = {**SPREAD_SETTINGS, **(settings or {})}
        self.server.command(sql, settings=settings)
        self.detail(f"{step} {name}: {self.clock() - started:.2f} s")

    def detail(self, line: str) -> None:
        """Tell what is read afterwards, if at all."""
        (self.trace or self.log)(line)

    @property
    def topology(self) -> Topology:
        """The cluster that we work on, asked for once; one that cannot be worked on is refused."""
        if self._topology is None:
            self._topology = fetch_topology(self.server, self.cluster)
        return self._topology

    def _bounds(self) -> dict[str, Any]:
        if self._known is None:
            known = self.server.knows_settings(list(self.bounds))
            self._known = {name: value for name, value in self.bounds.items() if name in known}
        return self._known

    def _sql(self, name: QName) -> str:
        return self.real_names.get(name, name).sql

    def run_ddl(self, name: str, sql: str, database: str = "") -> None:
        """Run a declared statement as it is written; on a cluster, until every replica has it.

        Unqualified names in it belong to `database`, as where it was declared.
        """
        settings = {**({"alter_sync": 2} if self.cluster else {}), **({"database": database} if database else {})}
        self._run("run DDL", name, sql, settings or None, database)

    def create_database(self, database: str) -> None:
        self._run("create database", database, f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database)}")

    def create_like(self, new: QName, model: QName) -> None:
        """Make an empty table of the same structure, keys, engine and settings; on this server only."""
        sql = f"CREATE TABLE IF NOT EXISTS {new.sql} AS {self._sql(model)}{self._own_engine(model)}"
        self._run("create", new, sql, here=True)

    def _own_engine(self, model: QName) -> str:
        """The engine of a scratch, where it cannot be the model's: a replicated one would take the model's path in Keeper."""
        if not self.cluster:
            return ""
        name = self.real_names.get(model, model)
        rows = self.server.rows(
            "SELECT engine_full FROM system.tables WHERE database = {d:String} AND name = {t:String} AND engine LIKE 'Replicated%'",
            {"d": name.database, "t": name.table},
        )
        return f" ENGINE = {unreplicated(str(rows[0][0]))}" if rows else ""

    def rename_here(self, name: QName, to: QName) -> None:
        """Give a table that stands on this server only another name."""
        self._run("rename", name, f"RENAME TABLE {name.sql} TO {to.sql}", here=True)

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
        sql = f"ALTER TABLE {self._sql(target)} REPLACE PARTITION ID {quote_string(partition_id)} FROM {scratch.sql}"
        self._run(f"replace partition {partition_id} of", target, sql)

    def replace_partitions(self, target: QName, partition_ids: Sequence[str], scratch: QName) -> None:
        """Swap partitions in one statement, one after another; each is atomic for readers."""
        if len(partition_ids) == 1:
            self.replace_partition(target, partition_ids[0], scratch)
        elif partition_ids:
            swaps = [f"REPLACE PARTITION ID {quote_string(one)} FROM {scratch.sql}" for one in partition_ids]
            self._run(
                f"replace {len(swaps)} partitions of", target, f"ALTER TABLE {self._sql(target)} {', '.join(swaps)}"
            )

    def attach_partition_from(self, target: QName, partition_id: str, scratch: QName) -> None:
        """Add a scratch's partition to another scratch; parts are linked, not copied."""
        sql = f"ALTER TABLE {target.sql} ATTACH PARTITION ID {quote_string(partition_id)} FROM {scratch.sql}"
        self._run(f"attach partition {partition_id} to", target, sql)

    def attach_partitions_from(self, target: QName, partition_ids: Sequence[str], source: QName) -> None:
        """Link partitions of a table into another one of the same shape, in one statement."""
        if partition_ids:
            links = [f"ATTACH PARTITION ID {quote_string(one)} FROM {self._sql(source)}" for one in partition_ids]
            self._run(f"link {len(links)} partitions into", target, f"ALTER TABLE {target.sql} {', '.join(links)}")

    def drop_partition(self, name: QName, partition_id: str) -> None:
        self._run(
            f"drop partition {partition_id} of",
            name,
            f"ALTER TABLE {self._sql(name)} DROP PARTITION ID {quote_string(partition_id)}",
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

    def set_table_setting(self, name: QName, setting: str, value: int | None) -> None:
        """Change a numeric setting of a table at run time; with None it is not set any more and the server's default holds."""
        where = f"ALTER TABLE {self._sql(name)}"
        change = f"RESET SETTING {setting}" if value is None else f"MODIFY SETTING {setting} = {int(value)}"
        if setting not in TABLE_SETTINGS:
            raise ChmvError(
                f"setting {setting} of {name}: found no setting that chmv tunes but wanted one of {', '.join(TABLE_SETTINGS)}. Its name is part of "
                "the statement. Nothing was changed."
            )
        self._run(change.lower(), name, f"{where} {change}")

    def stop_merges(self, name: QName) -> None:
        """Keep the parts of a table as they are; forgotten when the server restarts."""
        self._run("stop merges of", name, f"SYSTEM STOP MERGES {self._sql(name)}")

    def start_merges(self, name: QName) -> None:
        self._run("start merges of", name, f"SYSTEM START MERGES {self._sql(name)}")

    def optimize_partition(self, name: QName, partition_id: str, *, final: bool = True) -> None:
        """Merge parts of one partition, with `final` all of them into one; never those of a whole table.

        No time limit bounds it: the server does not look at max_execution_time during a merge (26.7: 2.4 s with a limit of 1 s).
        """
        where = f"{self._sql(name)} PARTITION ID {quote_string(partition_id)}"
        self._run("merge", f"{name} partition {partition_id}", f"OPTIMIZE TABLE {where}{' FINAL' if final else ''}")

    def flush_async_inserts(self) -> None:
        """Write what waits in the queue of asynchronous inserts."""
        try:
            self._run("flush", "asynchronous inserts", "SYSTEM FLUSH ASYNC INSERT QUEUE")
        except ServerError as error:
            if error.code != _NO_QUEUE:  # the embedded server has none
                raise

    def sync_replica(self, name: QName) -> None:
        """Wait until this replica has the parts that the others have written so far."""
        self._run("sync", name, f"SYSTEM SYNC REPLICA {name.sql} LIGHTWEIGHT")

    def flush_distributed(self, name: QName) -> None:
        """Send what waits in the files of a Distributed table, on every replica that holds some."""
        self._run("flush", name, f"SYSTEM FLUSH DISTRIBUTED {name.sql}")

    def flush_buffer(self, name: QName) -> None:
        """Write what waits in the memory of a Buffer table, on every replica: no other statement of this kind is ON CLUSTER."""
        self._run("flush", name, f"OPTIMIZE TABLE {name.sql}{on_cluster(self.cluster)}")

    def refresh_view(self, view: QName) -> None:
        """Ask for a refresh of a refreshable view; it runs on its own (`resources.refresh` waits and verifies)."""
        self._run("refresh", view, f"SYSTEM REFRESH VIEW {view.sql}")

    def wait_view(self, view: QName) -> None:
        """Wait until no refresh of a view runs; one that failed is raised as code 730."""
        self._run("wait for", view, f"SYSTEM WAIT VIEW {view.sql}")
