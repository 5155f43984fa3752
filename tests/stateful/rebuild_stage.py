"""The stage of the state machine: a database of its own, writers, noise, rebuilds with other people's deeds in between, and the account.

Nothing here decides what happens next or what must be true; that is `test_rebuild_machine`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Literal
from unittest.mock import patch

from hypothesis.stateful import RuleBasedStateMachine
from mortal_server import Killed, Moment, MortalServer
from rebuild_model import (
    DDL,
    READS,
    TRAP,
    UTC,
    Insert,
    Model,
    Row,
    Rows,
    partition_of,
    partitions_of,
    sort_rows,
    window_of,
)

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.errors import LockRefused, RebuildDisturbed, RebuildRefused, ServerError
from chmv_assets.core.gate import REFUSED_CODES
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from resources.clickhouse import Endpoint, Server
from resources.executor import Executor
from resources.rebuild import Rebuilder, settle

MERGES_STOPPED = 236
DEAD_LEASE, LEASE = 1.0, 4.0  # seconds; the lease of one that dies has to end before anybody goes on
VERIFIED: tuple[Protocol, ...] = ("closed", "owned")  # they look afterwards whether somebody came in between
# These may not refuse without a reason of ours.
KNOWN: tuple[Protocol, ...] = ("closed", "gated", "owned", "whole", "auto")
NO_DEEDS: Mapping[Moment, Callable[[], None]] = MappingProxyType({})
Draft = tuple[date, int, int, str, int]  # day, second, id, country, amount
Outcome = Literal["done", "dead", "refused"]


class RebuildStage(RuleBasedStateMachine):
    """One database; the server and the journal are shared with other machines, one after the other."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.db = f"machine_{secrets.token_hex(4)}"
        self.server = Server(endpoint)  # ours, and that of everybody else in the story
        self.mortal = MortalServer(endpoint)  # the rebuilds'
        self.model = Model()
        self.sent: list[Insert] = []  # what may be sent again and must then change nothing
        self.forgotten: set[str] = set()  # tokens from before the end of a fenced rebuild
        self.doubt: Insert | None = None  # failed half way, to be sent again
        self.damaged: set[tuple[str, str]] = set()  # target, partition
        self.unpublished: set[tuple[str, Window]] = set()  # what a dead rebuild left for the next one of that window
        self.unions: set[str] = set()
        self.version = 0
        self.others_scratches = set(self.scratches())
        text = DDL.replace("{db}", self.db)
        self.server.command(f"CREATE DATABASE {self.db}")
        for statement in (text + TRAP.replace("{db}", self.db)).split(";\n"):
            if statement.strip():
                self.server.command(statement)
        self.catalog = build_catalog([SourceFile(path="x.sql", text=text)]).require_sound()

    def draft(self, source: str, rows: list[Draft]) -> Insert:
        made = []
        for day, second, number, country, amount in rows:
            self.version += 1
            at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=second)
            made.append(Row(number, int(at.timestamp()), country, amount, self.version))
        return Insert(source, f"{self.db}-{self.version}", tuple(made))

    def try_insert(self, server: Server, insert: Insert, **more: str) -> bool:
        """False if a gate refused it: then nothing of it is anywhere."""
        try:
            server.command(insert.sql(self.db), settings={"insert_deduplication_token": insert.token, **more})
        except ServerError as error:
            if error.code not in REFUSED_CODES:
                raise
            return False
        return True

    def send(self, insert: Insert) -> bool:
        accepted = self.try_insert(self.server, insert)
        if accepted:
            self.model.add(insert)
            self.sent.append(insert)
        else:
            assert self.is_pending() or self.mortal.statements, "a gate was shut and no rebuild runs"
        return accepted

    @contextmanager
    def writing(self, source: str, rows: list[Draft]) -> Iterator[None]:
        """A writer of its own that sends such rows without end, and again what a gate refused."""
        stop, begun = threading.Event(), threading.Event()
        done: list[Insert] = []
        broken: list[BaseException] = []

        def write() -> None:
            try:
                with Server(self.server.endpoint) as server:
                    while not stop.wait(0.01):
                        insert = self.draft(source, rows)
                        while not self.try_insert(server, insert):
                            time.sleep(0.01)
                        done.append(insert)
                        begun.set()
            except BaseException as error:
                broken.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            begun.wait(10)
            yield
        finally:
            stop.set()
            thread.join(60)
            for insert in done:
                self.model.add(insert)
                self.sent.append(insert)
            self.forgotten |= {insert.token for insert in done}  # the rebuild beside them may have been a fenced one
        assert not broken and not thread.is_alive(), broken

    def disturbance(self, target: str, day: date, deed: str, rows: list[Draft]) -> Callable[[], None]:
        def disturb() -> None:
            if deed == "insert":
                self.send(self.draft("s", [(day, *rest) for _, *rest in rows]))  # type: ignore[misc]
            elif deed == "comment":
                self.make_noise(target, "", deed)
            else:
                self.make_noise("s", partition_of("s", day), "release")
                self.make_noise("s", partition_of("s", day), deed)

        return disturb

    def make_noise(self, table: str, partition: str, what: str, *, merges_may_rest: bool = True) -> None:
        name = f"{self.db}.{table}"
        if what == "release":
            self.server.command(f"SYSTEM START MERGES {name}")
        elif what == "comment":
            column = {"s": "id", "s2": "id"}.get(table) or READS[table].split(", ")[1].split("(")[-1].rstrip(")")
            self.server.command(f"ALTER TABLE {name} COMMENT COLUMN {column} '{secrets.token_hex(2)}'")
            self.server.command(f"ALTER TABLE {name} MODIFY COMMENT '{secrets.token_hex(2)}'")
        else:
            try:
                self.server.command(f"OPTIMIZE TABLE {name} PARTITION ID '{partition}' FINAL")
            except ServerError as error:
                if error.code != MERGES_STOPPED or not merges_may_rest:
                    raise

    def publish(
        self, target: str, window: Window, protocol: Protocol, deeds: Mapping[Moment, Callable[[], None]] = NO_DEEDS,
        *, chain: bool = False, lease_seconds: float = LEASE, busy: bool = False,
    ) -> Outcome:  # fmt: skip
        """Rebuild a window, with deeds at moments, and keep account of what that means."""
        waiting, before, in_doubt = dict(deeds), self.read(target), self.doubt is not None

        def on_step(_number: int, step: Step) -> None:
            waiting.pop(("step", step.kind), lambda: None)()

        rebuilder = Rebuilder(
            Executor(self.mortal, log=lambda _line: None), self.catalog, "UTC", lambda: datetime.now(UTC),
            lease_seconds=lease_seconds, sleep=lambda seconds: time.sleep(min(seconds, 0.05)), fence_lead_seconds=0.4,
        )  # fmt: skip
        node = self.catalog.objects[QName(self.db, target)]
        windows = {target: window} | ({"monthly": window_of("monthly", window.start.date(), 1)} if chain else {})
        self.mortal.reset(deeds)
        try:
            with patch.object(settle, "SETTLE_SECONDS", 0.2 if in_doubt else settle.SETTLE_SECONDS):
                if chain:
                    rebuilder.publish_chain(node, window, on_step)
                else:
                    rebuilder.publish(node, window, protocol, on_step)
        except Killed:
            if protocol != "gated":
                self.expect_shares(target, window)
            for name, its_window in windows.items():
                self.taint(name, its_window)
            return "dead"
        except RebuildRefused as error:
            self.account_for_refusal(target, window, protocol, error, before, busy=busy or bool(deeds))
            return "refused"
        except LockRefused:
            if lease_seconds > DEAD_LEASE:
                raise
            return "refused"  # a slow machine; it was to die anyway
        finally:
            self.mortal.reset()
            if protocol == "fenced":
                self.forgotten |= {insert.token for insert in self.sent}
        assert not in_doubt, "rebuilt although an insert was in doubt"
        self.unpublished.discard((target, window))
        for name, its_window in windows.items():
            self.account_for_success(name, its_window)
        return "done"

    def account_for_success(self, target: str, window: Window) -> None:
        rebuilt = partitions_of(target, window)
        self.damaged -= {(target, partition) for partition in rebuilt}
        self.taint(target, window)

    def expect_shares(self, target: str, window: Window) -> None:
        """Shares that nobody published wait for the next rebuild of that window, their union for a closed one."""
        self.unpublished.add((target, window))
        self.unions.add(f"scratch.{self.db}.{target}")

    def taint(self, target: str, window: Window) -> None:
        """The end of the chain is as right as what it was made of."""
        if target == "monthly":
            months = {partition[:6] for name, partition in self.damaged if name == "hours"}
            self.damaged |= {(target, month) for month in months & partitions_of(target, window)}

    def account_for_refusal(
        self, target: str, window: Window, protocol: Protocol, error: RebuildRefused, before: Rows, *, busy: bool
    ) -> None:
        if isinstance(error, RebuildDisturbed) and busy and protocol in VERIFIED:
            self.expect_shares(target, window)
            self.damaged |= {(target, partition) for partition in partitions_of(target, window)}
            return
        emptied = target == "monthly" and any(name == "hours" for name, _ in self.damaged)
        if not (self.doubt or emptied or protocol not in KNOWN):
            raise error
        if not busy:
            assert self.read(target) == before, "refused, but the target was touched"

    def read(self, target: str) -> Rows:
        return sort_rows(self.server.rows(READS[target].replace("{t}", f"{self.db}.{target}")))

    def wrong(self, target: str) -> set[str]:
        """Partitions that are not what the model says."""
        found, wanted = self.read(target), self.model.expected(target)
        return {
            partition for partition in found.keys() | wanted.keys() if found.get(partition) != wanted.get(partition)
        }

    def in_doubt(self, target: str) -> set[str]:
        return {partition_of(target, day) for day in self.doubt.days} if self.doubt is not None else set()

    def window_of_partition(self, target: str, partition: str) -> Window:
        return window_of(target, date(int(partition[:4]), int(partition[4:6]), int(partition[6:] or 1)), 1)

    def is_pending(self) -> bool:
        """Whether a dead rebuild of ours has not been recovered yet."""
        if not self.server.rows("EXISTS TABLE chmv.rebuilds")[0][0]:
            return False
        return bool(
            self.server.rows(
                f"SELECT 1 FROM chmv.rebuilds FINAL WHERE status = 'running' AND startsWith(target, '{self.db}.') LIMIT 1"
            )
        )

    def scratches(self) -> list[str]:
        found = self.server.rows("SELECT name FROM system.tables WHERE database = 'chmv' AND name LIKE 'scratch.%'")
        return sorted(str(name) for (name,) in found)
