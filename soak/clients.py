"""Who writes and who reads. A writer knows every id that it sent; a reader knows what it saw before.

A writer sends each insert until it is taken, with a token, like any careful client. A reader polls `serving.*`. An answer below what was there when
it began, or below what it has seen for longer than a snapshot may be old, is a hole; one above all rows that were ever sent is a double.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import parse_qname
from chmv_assets.core.rebuild_journal import commit_lock
from resources.clickhouse import Endpoint, Server
from resources.journal import Journal
from soak.site import READS, USERS, Site

ROWS = 10  # per insert
LATE_DAYS = 3
AGE_SECONDS = 600.0  # how far readers may be sent back: the oldest snapshot that can serve while a repair is under way


@dataclass
class Writer(threading.Thread):
    """Sends known rows until it is stopped; every insert is sent again until it is taken."""

    site: Site
    pause_seconds: float = 0.25
    number: int = 0
    table: str = "shop.events"
    late_share: float = 0.0  # of inserts have rows of some days ago
    url: str = ""  # another way to the server
    owned: bool = False  # commits under chmv's lock, as its own ingest does
    seed: int = 7
    rows: int = 0
    refusals: int = 0
    errors: set[str] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)  # taken by the server, as far as it said
    doubt: frozenset[int] = frozenset()  # of the insert that has no answer yet

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.paused = threading.Event()
        self.idle = threading.Event()
        self._chance = random.Random(self.seed)
        self._server: Server | None = None

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        turn = 0
        while not self.ended.wait(self.pause_seconds):
            if self.paused.is_set():
                self.idle.set()
                continue
            self.idle.clear()
            turn += 1
            first = (self.number + 1) * 10**12 + turn * ROWS
            self.doubt = frozenset(range(first, first + ROWS))
            late = self._chance.random() < self.late_share
            values = ", ".join(self._row(one, late) for one in range(first, first + ROWS))
            if self._send(
                f"INSERT INTO {self.table} (id, user, kind, amount, at) VALUES {values}", f"w{self.number}-{turn}"
            ):
                self.sent |= self.doubt
                self.rows += ROWS
                self.doubt = frozenset()

    def _send(self, sql: str, token: str) -> bool:
        while not self.ended.is_set() or self._is_soon():
            try:
                self._server = self._server or self._connect()
                self._insert(self._server, sql, {"insert_deduplication_token": token, "async_insert": 0})
                return True
            except (ChmvError, OSError) as error:
                self.refusals += 1
                self.errors.add(f"{getattr(error, 'code', '')} {str(error)[:160]}")
                self._server = None
                time.sleep(0.2)
        return False

    def _is_soon(self) -> bool:
        """One that is stopped has some time to learn what became of its last insert."""
        return time.monotonic() < self._deadline

    _deadline = 0.0

    def _connect(self) -> Server:
        return Server(Endpoint(self.url or self.site.engine.url), timeout_seconds=60)

    def _insert(self, server: Server, sql: str, settings: Mapping[str, object]) -> None:
        if not self.owned:
            server.command(sql, settings=settings)
            return
        journal = Journal(server)
        held = journal.locks.acquire(commit_lock(parse_qname(self.table, "shop")), journal.owner, wait_seconds=60)
        try:
            server.command(sql, settings=settings)
        finally:
            with suppress(ChmvError, OSError):  # its lease ends by itself
                journal.locks.release(held)

    def _row(self, row: int, late: bool) -> str:
        # Rows of this hour or the one before are not late: the tolerance is 15 minutes.
        back = timedelta(days=self._chance.randrange(1, LATE_DAYS + 1)) if late else timedelta(0)
        at = datetime.now(timezone.utc) - timedelta(seconds=self._chance.randrange(600)) - back
        user = self._chance.randrange(USERS)
        return f"({row}, {user}, 'k{user % 3}', {self._chance.randrange(1, 100)}, {int(at.timestamp())})"

    def rest(self) -> None:
        """Let the insert under way end and send no more, until `paused` is cleared."""
        self.paused.set()
        self.idle.wait(60)

    def stop(self) -> None:
        self._deadline = time.monotonic() + 45
        self.ended.set()
        self.join(60)


@dataclass
class Reader(threading.Thread):
    """Polls serving.* and notes answers that cannot be right."""

    site: Site
    reads: Mapping[str, str] = field(default_factory=lambda: READS)
    counted: Mapping[str, Callable[[], int]] = field(default_factory=dict)  # per table that counts: the rows ever sent
    pause_seconds: float = 0.4
    floor: dict[tuple[str, str], int] = field(default_factory=dict)
    polls: int = 0
    steps_back: int = 0  # answers below the last one: a snapshot served, which is allowed
    holes: list[str] = field(default_factory=list)
    doubles: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # answers that are errors while the server is up
    note: Callable[..., None] = lambda _event, **_facts: (
        None
    )  # to the timeline, when a table's answers turn wrong and when they turn right again

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.server_down = threading.Event()
        self._seen: dict[tuple[str, str], list[tuple[float, int]]] = {}
        self._wrong: set[str] = set()

    def __hash__(self) -> int:
        return id(self)

    def take_floor(self) -> None:
        with self.site.server() as server:
            for table, sql in self.reads.items():
                self.floor |= {(table, str(key)): int(total) for key, total in server.rows(sql)}

    def run(self) -> None:
        server: Server | None = None
        while not self.ended.wait(self.pause_seconds):
            for table, sql in self.reads.items():
                try:
                    server = server or self.site.server()
                    found = {str(key): int(total) for key, total in server.rows(sql)}
                except (ChmvError, OSError) as error:
                    if not self.server_down.is_set():
                        self.errors.append(f"{table}: {str(error)[:200]}")
                        self.note("reader: error", table=table, error=str(error)[:300])
                    server = None
                    break
                self.polls += 1
                before = len(self.holes) + len(self.doubles)
                self.judge(table, found, time.monotonic())
                self._tell(table, found, before < len(self.holes) + len(self.doubles), server)

    def _tell(self, table: str, found: Mapping[str, int], wrong: bool, server: Server) -> None:
        """When it begins and when it ends, with what the target itself holds."""
        if wrong == (table in self._wrong):
            return
        if not wrong:
            self._wrong.discard(table)
            self.note("reader: right again", table=table, found=dict(found))
            return
        self._wrong.add(table)
        with suppress(ChmvError, OSError):
            target = {
                str(key): int(total) for key, total in server.rows(self.reads[table].replace("serving.", "shop."))
            }
            guards = server.rows(f"SELECT partition_id, max_block FROM chmv.guards FINAL WHERE target = 'shop.{table}'")
            self.note("reader: wrong", table=table, found=dict(found), target=target, guards=guards)

    def judge(self, table: str, found: Mapping[str, int], now: float) -> None:
        """Compare one answer with what was there before."""
        for (name, key), least in self.floor.items():
            if name == table and found.get(key, 0) < least:
                self.holes.append(f"{table} {key}: {found.get(key, 0)} < {least}")
        if table not in self.counted:
            return
        total, most = sum(found.values()), self.counted[table]()
        if total > most:
            self.doubles.append(f"{table}: {total} > {most} that were sent")
        seen = self._seen.setdefault((table, ""), [])
        if seen and total < seen[-1][1]:
            self.steps_back += 1
        while len(seen) > 1 and seen[1][0] <= now - AGE_SECONDS:
            seen.pop(0)
        if seen and seen[0][0] <= now - AGE_SECONDS and total < seen[0][1]:
            self.holes.append(f"{table}: {total} < {seen[0][1]} of {now - seen[0][0]:.0f} s ago")
        seen.append((now, total))

    def stop(self) -> None:
        self.ended.set()
        self.join(60)
