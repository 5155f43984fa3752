"""What a cutover replaces, kept aside: for the soak time, and as the way back while it goes on.

Invariant: a table of the name `kept_name` is whole and of before the deployment; no later try of the cutover touches it. What is not that yet, or not
that at all, stands beside it under that name with a UUID behind it: of the target that it was made for. Whether it is the target that was
exchanged (it has this UUID itself), or a copy of it, or a new table that never took its place (the target still has it), can be told after any crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.deploy.deploy_journal import kept_name
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import OWN_DATABASE
from resources.clickhouse import Server
from resources.rebuild.swap import SWAP_AT_ONCE
from resources.rebuild.workbench import Workbench


@dataclass
class KeptCopies:
    """The tables that a deployment keeps of the targets of a cutover."""

    bench: Workbench
    deploy_id: str
    targets: Sequence[QName]
    storage: Collection[QName]  # those of them that are exchanged
    _aside: dict[QName, QName] = field(default_factory=dict)  # target → a copy of what this try replaces
    _spent: set[QName] = field(default_factory=set)  # copies of what stands again

    def are_there(self) -> bool:
        """Whether an earlier try has come so far that it kept something."""
        there = self._there()
        return any(kept_name(self.deploy_id, target).table in there for target in self.targets)

    def link(self, made: Object, check_time: Callable[[], None]) -> None:
        """Link what a target holds now into a table of its own; the first time of a deployment that is what is kept."""
        target, executor = made.name, self.bench.executor
        kept, copy = kept_name(self.deploy_id, target), self._name(target, uuid_of(executor.server, target))
        self.bench.catch_up(made)
        executor.drop_table(copy)
        executor.create_like(copy, target)
        rows = executor.server.rows(
            "SELECT DISTINCT partition_id FROM system.parts WHERE active AND database = {d:String} AND table = {t:String} ORDER BY partition_id",
            {"d": target.database, "t": target.table},
        )
        ids = [str(one) for (one,) in rows]
        for first in range(0, len(ids), SWAP_AT_ONCE):
            check_time()
            executor.attach_partitions_from(copy, ids[first : first + SWAP_AT_ONCE], target)
        if not uuid_of(executor.server, kept):
            executor.rename_here(copy, kept)
            copy = kept
        self._aside[target] = copy

    def exchange(self, target: QName, scratch: QName, before: str) -> None:
        """The new table takes the name in one statement; the one of before, of that UUID, is put aside."""
        aside, executor = self._name(target, before), self.bench.executor
        executor.run_ddl(f"keep {target}", f"RENAME TABLE {scratch.sql} TO {aside.sql}")
        executor.run_ddl(f"exchange {target}", f"EXCHANGE TABLES {target.sql} AND {aside.sql}")

    def restore(self, made: Object, before: str) -> None:
        """A target as it was when this try began, wherever it stopped: by the identity of the table, or partition by partition."""
        target, executor = made.name, self.bench.executor
        if target not in self.storage:
            aside = self._aside[target]
            self.bench.swap(made, None, [aside])
            self._spent.add(aside)
        elif uuid_of(executor.server, target) != before:
            if before:
                aside = self._name(target, before)
                executor.run_ddl(f"exchange {target} back", f"EXCHANGE TABLES {target.sql} AND {aside.sql}")
            else:
                executor.drop_table(target)

    def tidy(self) -> None:
        """What was exchanged first is what is kept. Drop what a later try replaced, what never took the target's place, and copies that nobody needs."""
        executor, there = self.bench.executor, self._there()
        for spent in self._spent:
            executor.drop_table(spent)
        self._spent.clear()
        mine = {kept_name(self.deploy_id, target).table: target for target in self.targets}
        for name, uuid in there.items():
            stem, _, made_for = name.rpartition(".")
            if name in mine or stem not in mine:
                continue
            aside, kept = QName(OWN_DATABASE, name), QName(OWN_DATABASE, stem)
            if made_for == uuid and stem not in there:
                executor.run_ddl(f"keep {mine[stem]}", f"RENAME TABLE {aside.sql} TO {kept.sql}")
            elif made_for in (uuid, uuid_of(executor.server, mine[stem])):
                executor.drop_table(aside)

    def try_to_tidy(self) -> None:
        """The same after a failure: the next try does it again."""
        try:
            self.tidy()
        except ChmvError as error:
            self.bench.executor.log(f"deployment {self.deploy_id}: what it put aside was not tidied up: {error}")

    def _name(self, target: QName, uuid: str) -> QName:
        kept = kept_name(self.deploy_id, target)
        return QName(kept.database, f"{kept.table}.{uuid}")

    def _there(self) -> dict[str, str]:
        """All that the deployment has put aside, with the identity of each."""
        rows = self.bench.executor.server.rows(
            "SELECT name, toString(uuid) FROM system.tables WHERE database = {d:String} AND startsWith(name, {p:String}) ORDER BY name",
            {"d": OWN_DATABASE, "p": kept_name(self.deploy_id, QName("", "")).table[:-1]},
        )
        return {str(name): str(uuid) for name, uuid in rows}


def uuid_of(server: Server, table: QName) -> str:
    """Which table has a name; nothing if none has."""
    rows = server.rows(
        "SELECT toString(uuid) FROM system.tables WHERE database = {d:String} AND name = {t:String}",
        {"d": table.database, "t": table.table},
    )
    return str(rows[0][0]) if rows else ""
