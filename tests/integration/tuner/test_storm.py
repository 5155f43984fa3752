"""A real insert storm: the tuner acts, the pressure recovers, it takes everything back. The log of numbers is printed (`-s`).

In every run the windows are seconds and sleeping mutations take the merge pool, so that it costs little. `CHMV_THOROUGH=1` takes the
thresholds as they are: five minutes of a storm that keeps the pool busy by its own merges, a watch of 60 s, real seconds all along.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from storm import HEAVY, LIGHT, STORMY, Storm
from tuner_site import TunerSite

from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tuner import Sample, Tunable, decide, per_second, trim
from chmv_assets.core.tunings import DELAY, Tuning
from chmv_assets.tuning import Tuner
from resources.engine import EngineInfo
from resources.tuning_reads import read_sample

THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))
LIMITS = (
    Limits() if THOROUGH else Limits(tuner_window=1.5, tuner_watch=1.2, tuner_cooldown=60)
)  # one step is enough here
LOOK = LIMITS.tuner_watch / 8
MARK = 0.5


@dataclass
class Log:
    """What happened when, for people."""

    site: TunerSite
    table: QName
    storm: Storm
    began: float

    def line(self, sample: Sample, word: str = "") -> None:
        reading = sample.readings.get(self.table)
        parts, delay = (reading.parts, reading.parts_to_delay) if reading else (0, 0)
        print(
            f"{sample.at - self.began:7.1f} s  parts {parts:4d} (delayed from {delay:3d})  pool {sample.pool_tasks} of {sample.pool_size}  "
            f"inserted {self.storm.inserted:6d}  delayed {sample.delayed:6d}  refused {self.storm.refused:3d}  {word}"
        )


def play(site: TunerSite, tuner: Tuner, log: Log, until: Callable[[], bool], limit: float) -> list[Tuning]:
    """Look, decide, act and watch as sensor and run do, until something is so."""
    deadline, done = time.monotonic() + limit, list[Tuning]()
    samples: tuple[Sample, ...] = ()
    while time.monotonic() < deadline and not until():
        samples = trim((*samples, read_sample(site.server, tuner.tables, time.time())), time.time(), LIMITS)
        decision = decide(
            samples, tuner.store.read([log.table]), [Tunable(table=log.table)], now=samples[-1].at, limits=LIMITS
        )
        log.line(samples[-1], "; ".join(decision.orders))
        done += tuner.end(decision.backs)
        if decision.actions:
            applied = tuner.act(decision.actions)
            done += applied
            before = len(tuner.samples)
            done += tuner.watch(applied)
            for one in tuner.samples[before:]:
                log.line(one, "watching")
            samples = (*samples, *tuner.samples[before:])
        time.sleep(LOOK)
    return done


def merged(site: TunerSite, table: QName, limit: float) -> Sample:
    """The first look that finds the pressure gone: a table that had to wait for the merge pool asks again some seconds later."""
    deadline = time.monotonic() + limit
    while (sample := read_sample(site.server, [table], time.time())).readings[table].parts >= MARK * 60:
        assert time.monotonic() < deadline, f"{sample.readings[table].parts} parts are left"
        time.sleep(LOOK)
    return sample


@pytest.mark.timeout(900)
def test_a_real_insert_storm_is_slowed_and_let_go_again(site: TunerSite, engine: EngineInfo) -> None:
    columns, select = HEAVY if THOROUGH else LIGHT
    site.command("CREATE TABLE {db}.stormy " + STORMY.format(columns=columns, delay=60, throw=120))
    before, table = site.engine_of("stormy"), site.name("stormy")
    tuner = site.tuner(LIMITS)
    tuner.tables = [table]
    if not THOROUGH:
        site.fill_pool()
    storm = Storm(engine, table.sql, select, writers=8 if THOROUGH else 4, pause=0 if THOROUGH else 0.03)
    log = Log(site, table, storm, time.time())
    print()

    def active() -> bool:
        return any(one.is_active for one in tuner.store.read([table]))

    with storm:
        acted = play(site, tuner, log, active, limit=600 if THOROUGH else 15)
        assert (acted[0].setting, acted[0].previous, acted[0].value, acted[0].status) == (DELAY, 60, 30, "applied")
        numbers = acted[0].numbers
        assert numbers["parts_average"] > 1.2 * MARK * 60 and numbers["pool_average"] >= 0.36, numbers
        assert tuner.samples[-1].delayed > tuner.samples[0].delayed, "writers are delayed while it is watched"
        if not THOROUGH:
            assert per_second(tuner.samples, "inserts") < numbers["inserts_per_second"]
            site.empty_pool()
    ended = time.time()
    undone = play(site, tuner, log, lambda: not active(), limit=60 if THOROUGH else 10)
    rolled_back = time.time() - ended
    last = merged(site, table, limit=60)
    log.line(last, f"all is back {rolled_back:.1f} s after the storm")
    statuses = [one.status for one in (*acted, *undone)]
    assert statuses[0] == "applied" and statuses[-1] == "rolled_back", statuses
    assert site.engine_of("stormy") == before
    assert rolled_back < 60
