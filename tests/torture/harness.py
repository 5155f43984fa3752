"""Writers that never stop, a reader that never looks away, and an account of every row. For tests of rebuilds.

Each writer sends small inserts with ids of its own and a token, and sends again what was refused or broke off, as a good client
does. The target counts ids, so a lost row is a missing id and a doubled one counts two. The reader polls rows that were there
from the beginning: any other number than theirs is a hole or a double that a dashboard would have shown.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import commit_lock
from resources.clickhouse import Endpoint, Server
from resources.journal import Journal

BASE_ROWS = 60_000
HOT_SHARE = 0.6  # of all rows are in the day that is rebuilt
HOT_DAY, DAYS = "2026-07-05", ("2026-07-04", "2026-07-05", "2026-07-06")
WINDOW = "SETTINGS non_replicated_deduplication_window = 100000"
REFUSED = (469, 774)


@dataclass
class Site:
    """One pipeline under fire."""

    port: int
    database: str
    targets: tuple[str, ...]  # each with columns d, id, n
    sources: tuple[str, ...] = ("s",)
    owned: bool = False  # writers commit under chmv's lock, as its own ingest does
    sent: set[int] = field(default_factory=set)
    refusals: int = 0
    latencies: list[float] = field(default_factory=list)
    wrong_reads: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    broken: list[BaseException] = field(default_factory=list)

    def client(self) -> Client:
        return clickhouse_connect.get_client(host="127.0.0.1", port=self.port, autogenerate_session_id=False)

    def base(self, source: str) -> None:
        """Rows that are there before anything happens; ids below BASE_ROWS."""
        with closing(self.client()) as client:
            for day in DAYS:
                client.command(
                    f"INSERT INTO {self.database}.{source} SELECT '{day}', number FROM numbers({BASE_ROWS}) "
                    f"WHERE number % {len(DAYS)} = {DAYS.index(day)}"
                )


@contextmanager
def under_fire(site: Site, *, writers: int = 4) -> Iterator[Site]:
    """Writers and a reader run for the length of the block."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_guarded, args=(site, _write, site, number, stop), daemon=True)
        for number in range(writers)
    ]
    threads += [
        threading.Thread(target=_guarded, args=(site, _read, site, target, stop), daemon=True)
        for target in site.targets
    ]
    for thread in threads:
        thread.start()
    try:
        yield site
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    if site.broken:
        raise site.broken[0]


def _guarded(site: Site, work: object, *arguments: object) -> None:
    try:
        work(*arguments)  # type: ignore[operator]
    except BaseException as error:
        site.broken.append(error)


def _write(site: Site, number: int, stop: threading.Event) -> None:
    chance = random.Random(number)
    source = site.sources[number % len(site.sources)]
    with closing(site.client()) as client, Server(Endpoint(f"http://127.0.0.1:{site.port}")) as server:
        journal = Journal(server)
        journal.prepare()
        lock = commit_lock(QName(site.database, source))
        for round_number in itertools.count():
            if stop.is_set():
                return
            first = BASE_ROWS + (round_number * 100 + number) * 10
            rows = [(HOT_DAY if chance.random() < HOT_SHARE else chance.choice(DAYS), first + at) for at in range(10)]
            values = ", ".join(f"('{day}', {row})" for day, row in rows)
            started = time.perf_counter()
            with journal.locks.hold(lock, journal.owner, wait_seconds=60) if site.owned else nullcontext():
                _insert(site, client, source, values, f"w{number}-{round_number}")
            site.latencies.append(time.perf_counter() - started)
            site.sent.update(row for _, row in rows)


def _insert(site: Site, client: Client, source: str, values: str, token: str) -> None:
    """Send until it is in; gates are sent again at once, as their sentence asks for."""
    while True:
        try:
            client.command(
                f"INSERT INTO {site.database}.{source} VALUES {values}",
                settings={"insert_deduplication_token": token, "async_insert": 0},
            )
        except ClickHouseError as error:
            if error.code not in REFUSED:
                raise
            site.refusals += 1
            time.sleep(0.05)
        else:
            return


def _read(site: Site, target: str, stop: threading.Event) -> None:
    expected = len(range(DAYS.index(HOT_DAY), BASE_ROWS, len(DAYS))) * len(site.sources)
    sql = f"SELECT sum(n) FROM {site.database}.{target} WHERE d = '{HOT_DAY}' AND id < {BASE_ROWS}"
    with closing(site.client()) as client:
        while not stop.is_set():
            found = int(client.query(sql).result_rows[0][0])
            site.reads += 1
            if found != expected:
                site.wrong_reads[f"{target}: {found} instead of {expected}"] += 1


@dataclass(frozen=True, slots=True)
class Account:
    """Rows of one target against what was sent."""

    lost: int
    doubled: int
    foreign: int


def account(site: Site, target: str) -> Account:
    """Count every id that was sent: once in the sources, once in the target."""
    with closing(site.client()) as client:
        source = " UNION ALL ".join(f"SELECT id, 1 AS n FROM {site.database}.{name}" for name in site.sources)
        rows = client.query(f"SELECT id, sum(n) FROM ({source}) WHERE id >= {BASE_ROWS} GROUP BY id").result_rows
        assert {int(row): int(n) for row, n in rows} == dict.fromkeys(site.sent, 1), "the writers lost or doubled rows"
        found = {
            int(row): int(n)
            for row, n in client.query(f"SELECT id, sum(n) FROM {site.database}.{target} GROUP BY id").result_rows
        }
    wanted = Counter({row: len(site.sources) for row in range(BASE_ROWS)}) + Counter(dict.fromkeys(site.sent, 1))
    return Account(
        lost=sum(max(0, n - found.get(row, 0)) for row, n in wanted.items()),
        doubled=sum(max(0, found.get(row, 0) - n) for row, n in wanted.items()),
        foreign=sum(row not in wanted for row in found),
    )
