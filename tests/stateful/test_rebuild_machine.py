"""Anything that can happen to a pipeline, in any order: inserts, late ones, repeated ones, ones that break half way, damage, noise, rebuilds,
rebuilds that others disturb and rebuilds that die. After every step each target holds what `rebuild_model` says.

The data is checked always, also while a dead rebuild waits for its recovery; leftovers (gates, scratches, running rebuilds, stopped
merges) are checked when none waits. CHMV_STATEFUL_EXAMPLES=200 plays longer and with new examples; on a failure it also looks for a shorter one.
"""

from __future__ import annotations

import os
import time
from datetime import date
from typing import get_args

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from mortal_server import Moment
from rebuild_model import (
    BROKEN,
    COUNTRIES,
    DAYS,
    OLD_DAY,
    SOURCES,
    TARGETS,
    Row,
    partition_of,
    partitions_of,
    window_of,
)
from rebuild_stage import DEAD_LEASE, KNOWN, LEASE, Draft, RebuildStage

from chmv_assets.core.errors import ServerError
from chmv_assets.core.rebuild_plan import StepKind
from chmv_assets.core.settings_values import PROTOCOLS, Protocol
from resources.clickhouse import Endpoint
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild.recovery import recover_rebuilds

EXAMPLES = os.environ.get("CHMV_STATEFUL_EXAMPLES")
TRAPPED = 395  # the code of the view that throws

# When something happens during a rebuild: before its n-th statement, before its n-th change of a partition, or after a kind of step.
moments = st.one_of(
    st.tuples(st.just("statement"), st.integers(0, 100)),
    st.tuples(st.just("swap"), st.integers(0, 4)),
    st.tuples(st.just("step"), st.sampled_from(get_args(StepKind))),
)
drafts = st.lists(
    st.tuples(
        st.sampled_from(DAYS),
        st.integers(0, 86_399),
        st.integers(0, 9),
        st.sampled_from(sorted(COUNTRIES)),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=4,
)
sources = st.sampled_from(("s", "s", "s2"))
targets, days = st.sampled_from(TARGETS), st.sampled_from((*DAYS, OLD_DAY))
protocols: st.SearchStrategy[Protocol] = st.sampled_from(PROTOCOLS)
deeds = st.sampled_from(("insert", "insert", "optimize", "comment"))


class RebuildMachine(RebuildStage):
    """What happens, and what must be true."""

    @initialize()
    def begin(self) -> None:
        self.server.command(f"INSERT INTO {self.db}.names VALUES ('DE', 'Germany'), ('FR', 'France')")
        for source in SOURCES:
            self.send(self.draft(source, [(day, 3600 * at, at, "DE", 1) for at, day in enumerate((*DAYS, OLD_DAY))]))

    @rule(source=sources, rows=drafts)
    def insert(self, source: str, rows: list[Draft]) -> None:
        self.send(self.draft(source, rows))

    @rule(source=sources, rows=drafts)
    def insert_late(self, source: str, rows: list[Draft]) -> None:
        self.send(self.draft(source, [(OLD_DAY, *rest) for _, *rest in rows]))  # type: ignore[misc]

    @precondition(lambda self: self.sent)
    @rule(at=st.integers(0, 99))
    def insert_again(self, at: int) -> None:
        if known := [one for one in self.sent if one.token not in self.forgotten]:
            self.try_insert(self.server, known[at % len(known)])

    @precondition(lambda self: self.doubt is None)
    @rule(rows=drafts)
    def insert_breaks_half_way(self, rows: list[Draft]) -> None:
        insert = self.draft("s", rows)
        try:
            accepted = self.try_insert(self.server, insert, log_comment=BROKEN)
        except ServerError as error:
            assert error.code == TRAPPED, error
            self.doubt = insert
        else:
            assert not accepted, "the trap did not work"

    @precondition(lambda self: self.doubt is not None)
    @rule()
    def broken_insert_is_sent_again(self) -> None:
        assert self.doubt is not None
        if self.try_insert(self.server, self.doubt):
            self.model.add(self.doubt)
            self.sent.append(self.doubt)
            self.doubt = None

    @rule(table=targets, day=days, how=st.sampled_from(("drop", "halve", "double")))
    def damage(self, table: str, day: date, how: str) -> None:
        """Views do not fire on this. Only a rebuild of the window makes it right again."""
        partition, name, helper = partition_of(table, day), f"{self.db}.{table}", f"{self.db}.helper"
        mine = f"SELECT * FROM {name} WHERE _partition_id = '{partition}'"
        count = int(self.server.rows(f"SELECT count() FROM ({mine})")[0][0])
        if not count:
            return
        self.damaged.add((table, partition))
        if how == "drop" or (how == "halve" and count == 1):
            self.server.command(f"ALTER TABLE {name} DROP PARTITION ID '{partition}'")
            # The server forgets the tokens of parts that are dropped by hand, so these may not be sent again.
            self.sent = [one for one in self.sent if partition not in {partition_of(table, day) for day in one.days}]
            return
        self.server.command(f"CREATE TABLE {helper} AS {name}")
        half = " AND rowNumberInAllBlocks() % 2" if how == "halve" else ""
        self.server.command(f"INSERT INTO {helper} {mine}{half}")
        verb = "REPLACE" if how == "halve" else "ATTACH"
        self.server.command(f"ALTER TABLE {name} {verb} PARTITION ID '{partition}' FROM {helper}")
        self.server.command(f"DROP TABLE {helper} SYNC")

    @rule(
        table=st.sampled_from((*SOURCES, *TARGETS)), day=days, what=st.sampled_from(("optimize", "comment", "release"))
    )
    def noise(self, table: str, day: date, what: str) -> None:
        self.make_noise(table, partition_of(table, day), what, merges_may_rest=self.is_pending())

    @rule(
        table=targets, day=days, length=st.integers(1, 2), protocol=protocols, moment=moments, deed=deeds, rows=drafts
    )
    def rebuild(
        self, table: str, day: date, length: int, protocol: Protocol, moment: Moment, deed: str,
        rows: list[Draft],
    ) -> None:  # fmt: skip
        """Somebody does something in between."""
        window = window_of(table, day, length)
        self.publish(table, window, protocol, {moment: self.disturbance(table, day, deed, rows)})

    @precondition(lambda self: self.damaged)
    @rule(at=st.integers(0, 99), protocol=protocols)
    def repair(self, at: int, protocol: Protocol) -> None:
        target, partition = sorted(self.damaged)[at % len(self.damaged)]
        self.publish(target, self.window_of_partition(target, partition), protocol)

    @rule(
        table=targets, day=days, length=st.integers(1, 2), protocol=protocols, moment=moments,
        arrival=st.none() | moments, rows=drafts,
    )  # fmt: skip
    def rebuild_dies(
        self, table: str, day: date, length: int, protocol: Protocol, moment: Moment, arrival: Moment | None,
        rows: list[Draft],
    ) -> None:  # fmt: skip
        """Each partition is as it was, or right, also if a row arrived before."""
        if self.is_pending() and moment[0] == "statement":
            return  # whoever dies while recovering another one's holds that one's lease for a minute
        window, before, known = window_of(table, day, length), self.read(table), len(self.sent)
        insert = {arrival: self.disturbance(table, day, "insert", rows)} if arrival else {}
        outcome = self.publish(table, window, protocol, insert | {moment: self.mortal.kill}, lease_seconds=DEAD_LEASE)
        if outcome == "dead" and protocol not in KNOWN:
            self.recover()  # a protocol that keeps fresh rows apart may need that
        if len(self.sent) > known:
            behind_a_gate = protocol in ("gated", "whole")
            if outcome == "dead" and not behind_a_gate:  # swapped, perhaps, and nobody looked afterwards: it is noted
                touched = {(table, partition) for partition in partitions_of(table, window)} - self.damaged
                assert self.is_pending() or not self.wrong(table) & {partition for _, partition in touched}
                self.damaged |= touched
            return
        after, right = self.read(table), self.model.expected(table)
        made_of_damage = table == "monthly" and any(name == "hours" for name, _ in self.damaged)
        for partition in partitions_of(table, window) - self.in_doubt(table):
            found = after.get(partition)
            assert found in (before.get(partition), right.get(partition)) or made_of_damage, partition

    @rule(table=targets, day=days, protocol=protocols, source=sources, rows=drafts)
    def rebuild_while_somebody_writes(
        self, table: str, day: date, protocol: Protocol, source: str, rows: list[Draft]
    ) -> None:
        if self.is_pending():
            return  # a dead one's gate would hold the writer back until it is recovered
        with self.writing(source, [(day, *rest) for _, *rest in rows]):  # type: ignore[misc]
            self.publish(table, window_of(table, day, 1), protocol, busy=True)

    @rule(day=days, moment=moments, deed=deeds, rows=drafts, dies=st.booleans())
    def rebuild_chain(self, day: date, moment: Moment, deed: str, rows: list[Draft], dies: bool) -> None:
        """Both links behind one gate."""
        if self.is_pending():
            return
        done = self.mortal.kill if dies else self.disturbance("hours", day, deed, rows)
        lease = DEAD_LEASE if dies else LEASE
        self.publish("hours", window_of("hours", day, 1), "gated", {moment: done}, chain=True, lease_seconds=lease)

    @precondition(lambda self: self.is_pending())
    @rule()
    def recover(self) -> None:
        executor = Executor(self.server, log=lambda _line: None)
        deadline = time.monotonic() + 10 * DEAD_LEASE
        while self.is_pending():
            recover_rebuilds(executor, Journal(self.server))
            assert time.monotonic() < deadline, "a dead rebuild was not recovered"
            time.sleep(0.05)

    # What must be true

    @invariant()
    def sources_hold_what_was_sent(self) -> None:
        for source in SOURCES:
            found = [
                Row(*row)
                for row in self.server.rows(
                    f"SELECT id, toUnixTimestamp(ts), country, amount, version FROM {self.db}.{source}"
                )
            ]
            wanted = [sorted(self.model.rows[source])]
            if self.doubt is not None and source == self.doubt.source:
                wanted.append(sorted([*self.model.rows[source], *self.doubt.rows]))
            assert sorted(found) in wanted, source

    @invariant()
    def targets_hold_what_their_views_give(self) -> None:
        for target in TARGETS:
            skipped = {partition for name, partition in self.damaged if name == target} | self.in_doubt(target)
            assert self.wrong(target) <= skipped, target

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if self.is_pending():
            return
        gates = self.server.rows(
            f"SELECT name FROM system.tables WHERE database = '{self.db}' AND position(create_table_query, '__chmv_fence_') > 0"
        )
        assert gates == []
        kept = tuple(f"scratch.{self.db}.{target}" for target, _ in self.unpublished)
        found = [name for name in self.scratches() if name not in self.others_scratches | self.unions]
        assert [name for name in found if not (kept and name.startswith(kept))] == []

    def teardown(self) -> None:
        """Clear up, repair everything, look once more; then nothing may be damaged, in doubt or left."""
        try:
            self.recover()
            if self.doubt is not None:
                self.broken_insert_is_sent_again()
            windows = {(target, self.window_of_partition(target, partition)) for target, partition in self.damaged}
            for target, window in sorted(
                windows | self.unpublished, key=lambda one: (TARGETS.index(one[0]), one[1].start)
            ):
                assert self.publish(target, window, "gated") == "done"
            assert not self.damaged and not self.unpublished and not self.is_pending()
            self.sources_hold_what_was_sent()
            self.targets_hold_what_their_views_give()
            self.nothing_is_left_behind()
            for source in SOURCES:
                self.make_noise(source, partition_of(source, DAYS[0]), "optimize", merges_may_rest=False)
        finally:
            for name in self.unions:
                self.server.command(f"DROP TABLE IF EXISTS chmv.`{name}` SYNC")
            self.server.command(f"DROP DATABASE {self.db} SYNC")
            self.server.close()
            self.mortal.close()


@pytest.mark.timeout(300 + 60 * int(EXAMPLES or 0))
def test_whatever_happens_targets_hold_what_their_views_give(engine: EngineInfo) -> None:
    run_state_machine_as_test(
        lambda: RebuildMachine(Endpoint(engine.url)),  # type: ignore[arg-type]
        settings=settings(
            max_examples=int(EXAMPLES or 5),
            stateful_step_count=30,
            derandomize=EXAMPLES is None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            database=None,
        ),
    )
