"""A pipeline whose source stamps arrivals, writers that know no retry, and an account of every row. For the tests of the fenced protocol."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.statements import split_statements
from chmv_assets.core.windows import Window, window_of_key
from resources.clickhouse import Server
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild import Published, Rebuilder

DAYS, HOT_DAY = ("2026-07-04", "2026-07-05", "2026-07-06"), "2026-07-05"
HOT: Window = window_of_key(HOT_DAY, "day", "UTC")
LEAD = 1.5
BASE_ROWS = 3000
ARRIVAL = "arrival DateTime64(6, 'UTC') DEFAULT now64(6, 'UTC')"
SOURCE = f"CREATE TABLE {{db}}.{{s}} (d Date, id UInt64, {ARRIVAL}, double UInt64 ALIAS id * 2) ENGINE = MergeTree PARTITION BY d ORDER BY id;"
TARGET = (
    "CREATE TABLE {db}.{t} (d Date, id UInt64, n UInt64) ENGINE = SummingMergeTree PARTITION BY d ORDER BY (d, id);"
)
VIEW = "CREATE MATERIALIZED VIEW {db}.{v} TO {db}.{t} AS SELECT d, id, {n} AS n FROM {db}.{s} GROUP BY d, id;"


def text(template: str, **names: str) -> str:
    for key, value in names.items():
        template = template.replace("{" + key + "}", value)
    return template


ONE = text(SOURCE, s="s") + text(TARGET, t="t") + text(VIEW, v="v", t="t", s="s", n="count()")
TWO = (
    text(SOURCE, s="s") + text(SOURCE, s="s2") + text(TARGET, t="t") + text(VIEW, v="v", t="t", s="s", n="count()")
    + "CREATE MATERIALIZED VIEW {db}.v2 TO {db}.t AS WITH x AS (SELECT * FROM {db}.s2 AS a) SELECT x.d AS d, id, count() AS n FROM x GROUP BY d, id;"
)  # fmt: skip
CHAIN = (
    text(SOURCE, s="s") + "".join(text(TARGET, t=t) for t in ("t", "t2", "t3"))
    + text(VIEW, v="v", t="t", s="s", n="count()") + text(VIEW, v="v2", t="t2", s="t", n="sum(n)")
    + text(VIEW, v="v3", t="t3", s="t2", n="sum(n)")
)  # fmt: skip


@dataclass
class Site:
    """One pipeline with its writers."""

    port: int
    server: Server
    database: str
    ddl: str
    sources: tuple[str, ...] = ("s",)
    targets: tuple[str, ...] = ("t",)
    sent: dict[int, int] = field(default_factory=dict)  # id → times
    broken: list[BaseException] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server.command(f"CREATE DATABASE {self.database}")
        self.ddl = self.ddl.replace("{db}", self.database)
        for statement in split_statements(SourceFile(path="x.sql", text=self.ddl))[0]:
            self.server.command(statement.text)
        for source in self.sources:
            self.server.command(
                f"INSERT INTO {self.database}.{source} (d, id) SELECT toDate('{DAYS[0]}') + number % 3, number FROM numbers({BASE_ROWS})"
            )
        self.sent = dict.fromkeys(range(BASE_ROWS), len(self.sources))
        self.before = self.definitions()

    @property
    def catalog(self) -> Catalog:
        return build_catalog([SourceFile(path="x.sql", text=self.ddl)]).require_sound()

    def client(self, user: str = "default") -> Client:
        return clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, username=user, autogenerate_session_id=False
        )

    def rebuilder(self, **options: object) -> Rebuilder:
        executor = Executor(self.server, log=self.logged.append)
        options = {"fence_lead_seconds": LEAD, "lease_seconds": 15.0, **options}
        return Rebuilder(executor, self.catalog, "UTC", lambda: datetime.now(timezone.utc), **options)  # type: ignore[arg-type]

    def publish(self, **options: object) -> Published:
        catalog = self.catalog
        return self.rebuilder().publish(catalog.objects[QName(self.database, "t")], HOT, "fenced", **options)  # type: ignore[arg-type]

    def damage(self) -> None:
        """Doubled rows in the hot day of the first target; attached, so that nothing behind it is fired."""
        t, extra = f"{self.database}.t", f"{self.database}.extra"
        self.server.command(f"CREATE TABLE {extra} AS {t}")
        self.server.command(f"INSERT INTO {extra} SELECT * FROM {t} WHERE d = '{HOT_DAY}' AND id < 100")
        self.server.command(f"ALTER TABLE {t} ATTACH PARTITION '{HOT_DAY}' FROM {extra}")
        self.server.command(f"DROP TABLE {extra} SYNC")

    def send(self, client: Client, source: str, rows: list[tuple[str, int]], arrival: str = "") -> None:
        """One insert that must not fail and is never repeated."""
        columns = "(d, id, arrival)" if arrival else "(d, id)"
        values = ", ".join(f"('{day}', {row}{f', {arrival}' if arrival else ''})" for day, row in rows)
        client.command(f"INSERT INTO {self.database}.{source} {columns} VALUES {values}", settings={"async_insert": 0})
        for _, row in rows:
            self.sent[row] = self.sent.get(row, 0) + 1

    def definitions(self) -> dict[str, str]:
        rows = self.server.rows(
            "SELECT name, create_table_query FROM system.tables WHERE database = {d:String}", {"d": self.database}
        )
        return {str(name): str(sql) for name, sql in rows}

    def account(self, target: str) -> Counter[str]:
        """Rows that are lost or doubled in a target; empty if all is well."""
        rows = self.server.rows(f"SELECT id, sum(n) FROM {self.database}.{target} GROUP BY id")
        found = {int(row): int(n) for row, n in rows}
        wrong: Counter[str] = Counter()
        for row in set(found) | set(self.sent):
            have, want = found.get(row, 0), self.sent.get(row, 0)
            wrong["lost"] += max(0, want - have)
            wrong["doubled"] += max(0, have - want)
        return +wrong

    def forget_leases(self) -> None:
        """Those of a process that died, without waiting for their end."""
        names = [f"rebuild {self.database}.{target}" for target in self.targets]
        names += [f"commits {self.database}.{source}" for source in self.sources]
        for name in names:
            Journal(self.server).locks.forget(name)

    def left(self) -> list[str]:
        """What rebuilds have left in our database."""
        rows = self.server.rows(
            "SELECT name FROM system.tables WHERE database = 'chmv' AND match(name, '^(fence|shadow|twin|scratch)[.]')"
        )
        return [str(name) for (name,) in rows]

    def check(self) -> None:
        """Exact, as it was, and nothing left."""
        if self.broken:
            raise self.broken[0]
        assert {target: dict(self.account(target)) for target in self.targets} == {t: {} for t in self.targets}
        assert self.definitions() == self.before
        assert self.left() == []

    @contextmanager
    def under_fire(self, writers: int = 4, user: str = "default", pause_seconds: float = 0.0) -> Iterator[None]:
        """Writers that never send again, and for whom any error is the end."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._write, args=(number, stop, user, pause_seconds), daemon=True)
            for number in range(writers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)

    def _write(self, number: int, stop: threading.Event, user: str, pause_seconds: float) -> None:
        chance = random.Random(number)
        source = self.sources[number % len(self.sources)]
        try:
            with closing(self.client(user)) as client:
                for turn in itertools.count():
                    if stop.wait(pause_seconds):
                        return
                    first = BASE_ROWS + (turn * 10 + number) * 10
                    self.send(
                        client, source, [(chance.choice((HOT_DAY, *DAYS)), first + offset) for offset in range(10)]
                    )
        except BaseException as error:
            self.broken.append(error)
