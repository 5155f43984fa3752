"""Facts → samples, purely: what was read from the server becomes the series of `core.metrics`.

Invariants: a family whose facts could not be read is left out, so that a gap shows as a gap; series of declared objects are there from the
first scrape on, with 0 where that is the truth; names that are not declared give none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.backlog import Fullest
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.freshness import Lag, Seen, decode_journal
from chmv_assets.core.freshness_reach import Reach, build_reach, refresh_periods
from chmv_assets.core.metrics import BUCKETS, BY_NAME, Family, Sample, Spread
from chmv_assets.core.model import VIEW_KINDS, family
from chmv_assets.core.names import QName
from chmv_assets.core.outages import OPEN
from chmv_assets.core.recovery import KINDS
from chmv_assets.core.serving import serving_targets
from chmv_assets.core.settings import Settings

Row = tuple[str, Sequence[str], Sequence[float]]  # about what, labels, numbers
ROUTES = ("primary", "snapshot")
ENDED = ("published", "rolled_back")  # a rebuild stays what it is from here on
_OPEN_REBUILDS = ("running", "unverified")
_OPEN_REPAIRS = ("running", "failed", "isolated")
_DEPLOYS = ("running", "failed", "done", "rolled_back")
_NOTHING: Sequence[float] = (0.0, 0.0)
_BATCHES = ("planned", "staged", "committed", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the pipeline declares, as far as metrics are named after it."""

    sla: Mapping[QName, float]  # targets with readers
    kinds: Mapping[QName, str]  # views and MergeTree tables: view, target or source
    reach: Reach
    periods: Mapping[QName, float]
    by_name: Mapping[str, QName]

    @property
    def databases(self) -> list[str]:
        return sorted({name.database for name in self.kinds})

    @property
    def tables(self) -> list[QName]:
        return [name for name, kind in self.kinds.items() if kind != "view"]


def build_declared(catalog: Catalog, settings: Settings) -> Declared:
    """The objects that get series."""
    kinds: dict[QName, str] = {}
    for name, made in sorted(catalog.objects.items()):
        if made.kind in VIEW_KINDS:
            kinds[name] = "view"
        elif made.kind == "table" and family(made.engine):
            kinds[name] = "target" if catalog.views_into(name) else "source"
    return Declared(
        sla={one.name: float(settings.policy(one.name).sla_seconds) for one in serving_targets(catalog)},
        kinds=kinds,
        reach=build_reach(catalog),
        periods=refresh_periods(catalog),
        by_name={str(name): name for name in kinds},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one collection has read; None: it could not be read."""

    now: float
    version: str
    server_version: str = ""
    seconds: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)  # by part, since the process began
    objects: Sequence[Row] | None = None
    server: Mapping[str, float] | None = None
    fullest: Mapping[QName, Fullest] | None = None
    forecast: Mapping[QName, float | None] = field(default_factory=dict)
    journal: Sequence[Row] | None = None
    refreshes: Sequence[Lag] = ()


def build_families(facts: Facts, declared: Declared) -> tuple[Family, ...]:
    """All that can be told."""
    up = facts.objects is not None
    found = [
        _one("chmv_up", [((), float(up))]),
        _one("chmv_build_info", [((facts.version, facts.server_version), 1.0)]),
        _one("chmv_collected_timestamp_seconds", [((), facts.now)]),
        _one("chmv_collection_duration_seconds", [((), facts.seconds)]),
        _one("chmv_collection_errors_total", [((part,), float(count)) for part, count in facts.errors.items()]),
        _one("chmv_target_sla_seconds", [((str(name),), sla) for name, sla in declared.sla.items()]),
    ]
    if facts.objects is not None:
        found += _of_objects(facts.objects, declared)
    if facts.server is not None:
        found += [_one(name, [((), value)]) for name, value in facts.server.items() if name in BY_NAME]
    if facts.fullest is not None:
        found += _of_parts(facts.fullest, facts.forecast)
    if facts.journal is not None:
        found += _of_journal(facts.journal, declared, facts)
    return tuple(found)


def _one(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    return Family(spec=BY_NAME[name], samples=tuple(Sample(labels, value) for labels, value in samples))


def _of_objects(rows: Sequence[Row], declared: Declared) -> list[Family]:
    there = {QName(*labels) for about, labels, _ in rows if about == "object"}
    locks: dict[str, float] = {}
    for about, labels, numbers in rows:
        if about == "lock":
            locks[labels[0]] = locks.get(labels[0], 0) + numbers[0]
    present = [((str(name), kind), float(name in there)) for name, kind in declared.kinds.items()]
    held = [((lock,), count) for lock, count in sorted(locks.items())]
    return [_one("chmv_object_present", present), _one("chmv_locks_held", held)]


def _of_parts(fullest: Mapping[QName, Fullest], forecast: Mapping[QName, float | None]) -> list[Family]:
    shown: Mapping[str, Callable[[Fullest], float]] = {
        "chmv_partition_parts_max": lambda one: one.parts,
        "chmv_parts_to_delay_insert": lambda one: one.parts_to_delay,
        "chmv_parts_to_throw_insert": lambda one: one.parts_to_throw,
        "chmv_parts_delay_forecast_seconds": lambda one: _ahead(forecast.get(one.table)),
    }
    return [
        _one(name, [((str(table),), float(value(one))) for table, one in fullest.items()])
        for name, value in shown.items()
    ]


def _ahead(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


def _of_journal(rows: Sequence[Row], declared: Declared, facts: Facts) -> list[Family]:
    by_part: dict[str, list[tuple[Sequence[str], Sequence[float]]]] = {}
    for about, labels, numbers in rows:
        by_part.setdefault(about, []).append((labels, numbers))
    lags = decode_journal(
        (*labels[:2], int(labels[2]), labels[3], int(labels[4])) for labels, _ in by_part.get("lag", ())
    )
    seen = Seen(lags=(*lags.lags, *facts.refreshes), routes=lags.routes)
    return [
        *_of_watermarks(by_part.get("watermark", ()), declared, facts.now),
        *_of_lags(seen, declared, facts.now),
        *_of_rebuilds(by_part.get("rebuild", ())),
        *_of_recoveries(by_part.get("recovery", ())),
        *_of_late(by_part.get("late", ()), declared),
        *_of_batches(by_part.get("batch", ()), by_part.get("quarantine", ()), declared),
        _one("chmv_deployments", _all_of(_DEPLOYS, {labels[0]: numbers[0] for labels, numbers in by_part.get("deploy", ())})),
    ]  # fmt: skip


Part = Iterable[tuple[Sequence[str], Sequence[float]]]


def _all_of(words: Iterable[str], found: Mapping[str, float]) -> list[tuple[tuple[str, ...], float]]:
    """Every word of a closed list, 0 where nothing was found."""
    return [((word,), found.get(word, 0.0)) for word in words]


def _of_watermarks(rows: Part, declared: Declared, now: float) -> list[Family]:
    """A target is as far as the source that is furthest behind; a source that is declared no longer holds nothing back."""
    newest: dict[str, dict[str, float]] = {}
    windows: dict[tuple[str, str], float] = {}
    for (target, source, status), (moment, count) in rows:
        if target not in declared.by_name or source not in declared.by_name:
            continue
        windows[target, status] = windows.get((target, status), 0) + count
        if moment:
            sources = newest.setdefault(target, {})
            sources[source] = max(moment, sources.get(source, 0))
    marks = {target: min(sources.values()) for target, sources in sorted(newest.items())}
    return [
        _one("chmv_watermark_timestamp_seconds", [((target,), moment) for target, moment in marks.items()]),
        _one("chmv_watermark_lag_seconds", [((target,), max(0.0, now - moment)) for target, moment in marks.items()]),
        _one("chmv_windows", sorted(windows.items())),
    ]


def _of_lags(seen: Seen, declared: Declared, now: float) -> list[Family]:
    now_ms = now * 1000
    behind = dict.fromkeys(declared.sla, 0.0)
    ages: dict[tuple[str, ...], float] = {}
    diverted: set[str] = set()
    outages: dict[str, float] = dict.fromkeys(OPEN, 0.0)
    for lag in seen.lags:
        age = max(0.0, (now_ms - (lag.since_ms or now_ms)) / 1000)
        if lag.kind == "outage" and str(lag.subject) in declared.by_name:
            status = "isolated" if lag.what.rstrip(")").endswith(", isolated") else "open"
            outages[status] += 1
            ages[str(lag.subject), status] = max(age, ages.get((str(lag.subject), status), 0.0))
        if lag.kind == "diverted":
            diverted.add(str(lag.subject))
        if lag.kind != "repair":
            for target in declared.reach(lag.subject):
                if target in behind:
                    behind[target] = max(behind[target], age)
    routes = {name: seen.routes[name].route if name in seen.routes else "primary" for name in declared.sla}
    sources = [str(name) for name, kind in declared.kinds.items() if kind == "source"]
    return [
        _one("chmv_target_behind_seconds", [((str(name),), age) for name, age in behind.items()]),
        _one("chmv_route", [((str(name), one), float(one == route)) for name, route in routes.items() for one in ROUTES]),
        _one("chmv_source_diverted", [((name,), float(name in diverted)) for name in sources]),
        _one("chmv_outages", _all_of(OPEN, outages)),
        _one("chmv_outage_age_seconds", sorted(ages.items())),
    ]  # fmt: skip


def _of_rebuilds(rows: Part) -> list[Family]:
    ended, spreads, running = [], [], dict.fromkeys(_OPEN_REBUILDS, 0.0)
    for (protocol, status), (count, *rest) in sorted(rows, key=lambda row: tuple(row[0])):
        if status in ENDED:
            ended.append(((protocol, status), count))
            spreads.append(_spread((protocol, status), rest))
        elif status in running:
            running[status] += count
    return [
        _one("chmv_rebuilds_total", ended),
        Family(spec=BY_NAME["chmv_rebuild_duration_seconds"], spreads=tuple(spreads)),
        _one("chmv_rebuilds_open", _all_of(_OPEN_REBUILDS, running)),
    ]


def _of_recoveries(rows: Part) -> list[Family]:
    """Only what was repaired is a duration: a repair that failed is tried again under the same key, and a count would fall."""
    width = len(BUCKETS) + 2
    detected = dict.fromkeys(KINDS, 0.0)
    standing = {(kind, status): 0.0 for kind in KINDS for status in _OPEN_REPAIRS}
    lasted: dict[str, Sequence[float]] = dict.fromkeys(KINDS, _NOTHING)
    since: dict[str, Sequence[float]] = dict.fromkeys(KINDS, _NOTHING)
    for (kind, status), (count, *rest) in sorted(rows, key=lambda row: tuple(row[0])):
        if kind not in detected:
            continue
        detected[kind] += count
        if status == "repaired":
            lasted[kind], since[kind] = rest[:width], rest[width:]
        elif (kind, status) in standing:
            standing[kind, status] = count
    return [
        _one("chmv_recovery_detections_total", _all_of(KINDS, {str(kind): count for kind, count in detected.items()})),
        Family(spec=BY_NAME["chmv_recovery_duration_seconds"], spreads=_spreads(lasted)),
        Family(spec=BY_NAME["chmv_recovery_since_detection_seconds"], spreads=_spreads(since)),
        _one("chmv_recoveries", standing.items()),
    ]


def _spreads(found: Mapping[str, Sequence[float]]) -> tuple[Spread, ...]:
    return tuple(_spread((word,), numbers) for word, numbers in found.items())


def _spread(labels: tuple[str, ...], numbers: Sequence[float]) -> Spread:
    """Count, sum, buckets; no buckets were summed up where nothing was counted."""
    count, total, *counts = numbers
    return Spread(labels, tuple(counts) or (0.0,) * len(BUCKETS), count, total)


def _of_late(rows: Part, declared: Declared) -> list[Family]:
    mine = [((str(labels[0]), str(labels[1])), numbers) for labels, numbers in rows if labels[0] in declared.by_name]
    return [
        _one("chmv_late_rows_total", sorted((labels, numbers[0]) for labels, numbers in mine)),
        _one("chmv_late_windows_total", sorted((labels, numbers[1]) for labels, numbers in mine)),
    ]


def _of_batches(batches: Part, quarantine: Part, declared: Declared) -> list[Family]:
    found = {(labels[0], labels[1]): numbers for labels, numbers in batches if labels[0] in declared.by_name}
    sources = sorted({source for source, _ in found})
    bad = sorted((str(labels[0]), numbers[0]) for labels, numbers in quarantine if labels[0] in declared.by_name)
    counts = [((one, status), found.get((one, status), (0.0,))[0]) for one in sources for status in _BATCHES]
    return [
        _one("chmv_batches", counts),
        _one("chmv_batch_rows_total", [((one,), found.get((one, "committed"), (0.0, 0.0))[1]) for one in sources]),
        _one("chmv_quarantined_rows", [((source,), count) for source, count in bad]),
    ]
