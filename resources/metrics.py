"""Read what the metrics show: five queries whatever the number of tables, at most every ten seconds. Writes nothing, starts nothing.

Invariants: `collect` never raises, whatever the server does: what cannot be read is missing, `chmv_up` and the error counter tell; a scrape
waits at most `BUDGET_SECONDS` for the server; one read at a time, whoever asks meanwhile gets its result; what is a counter never falls as long
as the process lives.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from chmv_assets import __version__
from chmv_assets.core.backlog import Fullest, parts_per_second, seconds_to_delay
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import ChmvError, EngineError
from chmv_assets.core.freshness import Lag, decode_refreshes, read_refreshes
from chmv_assets.core.metrics import Family, Sample, Spread
from chmv_assets.core.metrics_samples import Declared, Facts, Row, build_declared, build_families
from chmv_assets.core.metrics_sql import read_journal_counts, read_objects, read_server
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import Statement
from chmv_assets.core.settings import Settings
from resources.backlog import read_fullest
from resources.clickhouse import Endpoint, Server, endpoint_from_environment, endpoint_of
from resources.engine import find_engine
from resources.engine.model import URL_VARIABLE
from resources.journal import cluster_from_environment
from resources.metrics_endpoint import LOGGER

CACHE_SECONDS = 10.0
BUDGET_SECONDS = 8.0  # Prometheus gives up after ten by default
_TREND_SECONDS = 30.0  # as often as the merge backlog sensor looks
PARTS = ("connect", "objects", "server", "parts", "journal", "refreshes")
T = TypeVar("T")


def find_endpoint() -> Endpoint:
    """The configured server, or the embedded one if it runs. A scrape starts nothing."""
    if os.environ.get(URL_VARIABLE):
        return endpoint_from_environment()
    info = find_engine()
    if info is None:
        raise EngineError("server: found none that runs but wanted one to read metrics from. `chmv engine start`, or set CHMV_CLICKHOUSE_URL.")  # fmt: skip
    return endpoint_of(info)


@dataclass
class MetricsCollector:
    """The metrics of one pipeline on one server; threads may share it."""

    catalog: Catalog
    settings: Settings
    endpoint: Callable[[], Endpoint] = find_endpoint
    cluster: str = field(default_factory=cluster_from_environment)
    cache_seconds: float = CACHE_SECONDS
    budget_seconds: float = BUDGET_SECONDS
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _declared: Declared | None = None
    _server: Server | None = None
    _kept: tuple[Family, ...] = ()
    _kept_at: float | None = None
    _errors: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(PARTS, 0)))
    _looks: deque[tuple[float, Mapping[QName, Fullest]]] = field(default_factory=deque)
    _first_seen: dict[QName, int] = field(default_factory=dict)  # refreshes that never went well
    _high: dict[tuple[str, tuple[str, ...]], Sample | Spread] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failing: set[str] = field(default_factory=set)  # parts that were told about

    def collect(self) -> tuple[Family, ...]:
        """The present numbers, or those of a moment ago."""
        with self._lock:
            now = self.monotonic()
            if self._kept_at is None or now - self._kept_at >= self.cache_seconds:
                self._kept = self._rising(build_families(self._read(), self._known()))
                self._kept_at = self.monotonic()
            return self._kept

    @property
    def is_up(self) -> bool:
        """Whether the server answered when it was asked last."""
        return any(one.spec.name == "chmv_up" and one.samples[0].value == 1.0 for one in self._kept)

    def close(self) -> None:
        """Give the connection back."""
        if self._server is not None:
            self._server.close()
        self._server = None

    def _known(self) -> Declared:
        """Worked out by the first scrape: most processes that load a location never need it."""
        self._declared = self._declared or build_declared(self.catalog, self.settings)
        return self._declared

    def _read(self) -> Facts:
        declared, started = self._known(), self.monotonic()
        deadline = started + self.budget_seconds
        facts = Facts(now=self.clock(), version=__version__)
        server = self._try("connect", self._connect)
        if server is not None:
            facts = replace(facts, server_version=server.version)
            facts = self._ask(facts, declared, server, deadline)
        if facts.objects is None:
            self.close()  # the next scrape begins with a new connection: the server may be another by then
        return replace(facts, seconds=self.monotonic() - started, errors=dict(self._errors))

    def _ask(self, facts: Facts, declared: Declared, server: Server, deadline: float) -> Facts:
        databases, now_ms = declared.databases, int(facts.now * 1000)

        def limits() -> dict[str, float]:
            return {"max_execution_time": max(0.1, deadline - self.monotonic())}  # the server does not go on without us

        def rows(statement: Statement) -> list[tuple[Any, ...]]:
            return server.rows(statement.sql, statement.parameters, {**statement.settings, **limits()})

        objects = self._try("objects", lambda: _rows_of(rows(read_objects(databases))))
        if objects is None:
            return facts
        present = [labels[0] for about, labels, _ in objects if about == "journal"]
        counts = read_journal_counts(present, now_ms, self.cluster)
        numbers = self._try(
            "server", lambda: {str(name): float(value) for name, value in rows(read_server(databases))}, deadline
        )
        fullest = self._try("parts", lambda: read_fullest(server, declared.tables, limits()), deadline)
        refreshes: Sequence[Lag] | None = ()
        if declared.periods:
            refreshes = self._try(
                "refreshes", lambda: decode_refreshes(rows(read_refreshes(self.cluster)), declared.periods), deadline
            )
        journal = self._try("journal", lambda: _rows_of(rows(counts)) if counts else [], deadline)
        return replace(
            facts, objects=objects, server=numbers, fullest=fullest, journal=journal, refreshes=self._since_seen(refreshes or (), now_ms),
            forecast=self._forecast(fullest or {}),
        )  # fmt: skip

    def _try(self, part: str, read: Callable[[], T], deadline: float | None = None) -> T | None:
        """What a read gives; None if it failed or if there is no time left for it, which is counted and told once."""
        try:
            if deadline is not None and self.monotonic() >= deadline:
                raise EngineError(f"metrics: no time left for {part} after {self.budget_seconds:g} s. The server is slow; the rest is shown.")  # fmt: skip
            found = read()
        except Exception as error:
            self._errors[part] += 1
            if part not in self._failing:
                what = str(error) if isinstance(error, ChmvError) else type(error).__name__
                logging.getLogger(LOGGER).warning("metrics: %s could not be read: %s", part, what)
            self._failing.add(part)
            return None
        self._failing.discard(part)
        return found

    def _connect(self) -> Server:
        if self._server is None:
            seconds = max(1, int(self.budget_seconds / 2))  # of silence: two such reads use up the budget
            self._server = Server(
                self.endpoint(), log_comment={"chmv": "metrics"}, timeout_seconds=seconds, connect_seconds=seconds
            )
        return self._server

    def _forecast(self, fullest: Mapping[QName, Fullest]) -> dict[QName, float | None]:
        """By the trend since the youngest look that is old enough to show one."""
        now = self.monotonic()
        while len(self._looks) > 1 and now - self._looks[1][0] >= _TREND_SECONDS:
            self._looks.popleft()
        then, before = self._looks[0] if self._looks and now - self._looks[0][0] >= _TREND_SECONDS else (now, {})
        found: dict[QName, float | None] = {}
        for name, one in fullest.items():
            was = before.get(name)
            rate = parts_per_second(one, was.partition_id, was.parts, now - then) if was else 0.0
            found[name] = seconds_to_delay(one, rate)
        self._looks.append((now, fullest))
        return found

    def _since_seen(self, refreshes: Sequence[Lag], now_ms: int) -> list[Lag]:
        """Refreshes that never went well count from when they were first seen."""
        waiting = {lag.subject: self._first_seen.get(lag.subject, now_ms) for lag in refreshes if lag.since_ms is None}
        self._first_seen = waiting
        return [replace(lag, since_ms=waiting[lag.subject]) if lag.subject in waiting else lag for lag in refreshes]

    def _rising(self, families: tuple[Family, ...]) -> tuple[Family, ...]:
        """Hold counters of the journal at the highest that was seen: a repair that is done once more leaves its count meanwhile."""
        return tuple(self._held(one) if one.spec.kind != "gauge" and one.spec.name not in _SERVERS else one for one in families)  # fmt: skip

    def _held(self, one: Family) -> Family:
        samples = tuple(self._highest(one.spec.name, sample) for sample in one.samples)
        return replace(
            one, samples=samples, spreads=tuple(self._highest(one.spec.name, spread) for spread in one.spreads)
        )

    def _highest(self, name: str, found: Any) -> Any:
        before = self._high.get((name, found.labels), found)
        high = highest(before, found)
        self._high[name, found.labels] = high
        return high


_SERVERS = ("chmv_inserts_delayed_total", "chmv_inserts_rejected_total")  # begin at 0 when the server does


def highest(one: Sample | Spread, other: Sample | Spread) -> Sample | Spread:
    """Number by number the higher one; buckets stay in order, since both are.

    >>> highest(Sample(("a",), 3.0), Sample(("a",), 2.0))
    Sample(labels=('a',), value=3.0)
    """
    if isinstance(one, Sample) and isinstance(other, Sample):
        return one if one.value > other.value else other
    assert isinstance(one, Spread) and isinstance(other, Spread)
    counts = tuple(max(pair) for pair in zip(one.counts, other.counts, strict=True))
    return Spread(one.labels, counts, max(one.count, other.count), max(one.total, other.total))


def _rows_of(rows: Sequence[Sequence[Any]]) -> list[Row]:
    return [
        (str(about), [str(one) for one in labels], [float(one) for one in numbers]) for about, labels, numbers in rows
    ]
