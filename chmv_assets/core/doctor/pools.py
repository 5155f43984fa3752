"""Rules about the merge pool: large enough for what an insert sets off, not full, and running with what its configuration says."""

from __future__ import annotations

import math
from collections.abc import Iterator

from chmv_assets.core.doctor.facts import Facts, read_number
from chmv_assets.core.doctor.finding import SERVER, Ailment, Rule


def concurrency_ratio(facts: Facts) -> float:
    """Merges per thread of the pool."""
    return read_number(facts.server.get("background_merges_mutations_concurrency_ratio", ""), 2) or 2


def _size(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if 0 < facts.pool_size < facts.wanted_pool:
        threads = math.ceil(facts.wanted_pool / concurrency_ratio(facts))
        widest = max(facts.reached, key=lambda name: len(facts.reached[name]))
        yield rule.ailment(
            SERVER, f"{facts.pool_size} merges side by side, and an insert into {widest} writes {facts.fan_out} tables",
            f"at least {facts.wanted_pool}", f"<!-- config.d --> <background_pool_size>{threads}</background_pool_size>",
        )  # fmt: skip


def _busy(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if not facts.pool_size:
        return
    most = facts.limits.pool_peak
    fix = "chmv doctor --config-d DIR  # then copy the pool sizes into the server's config.d"
    if facts.pool_peak is not None and facts.pool_peak / facts.pool_size > most:
        share = facts.pool_peak / facts.pool_size
        yield rule.ailment(
            SERVER, f"{share:.0%} of the merge pool at the peak of the last day", f"at most {most:.0%}", fix
        )
    elif facts.pool_tasks / facts.pool_size > most:
        share = facts.pool_tasks / facts.pool_size
        yield rule.ailment(
            SERVER,
            f"{share:.0%} of the merge pool at this moment",
            f"at most {most:.0%} at peak",
            fix,
            severity="advice",
        )


def _applied(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    configured = int(read_number(facts.server.get("background_pool_size", "")) * concurrency_ratio(facts))
    if facts.pool_size and configured and configured != facts.pool_size:
        yield rule.ailment(
            SERVER,
            f"{facts.pool_size} merges side by side run, {configured} are configured",
            "the same",
            "-- restart the server off peak",
        )


def _held_back(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if facts.rejected_inserts or facts.delayed_inserts:
        yield rule.ailment(
            SERVER, f"{facts.delayed_inserts} inserts delayed and {facts.rejected_inserts} refused for their parts since the server started",
            "none", "-- write fewer, larger batches: `chmv ingest` adapts its own by the server's pressure",
        )  # fmt: skip


RULES = (
    Rule(
        id="merge-pool-size", severity="warn", measured="BackgroundMergesAndMutationsPoolSize against the tables that one insert writes",
        wanted="`pool_per_table` merges for each of them", judge=_size,
        why="Every insert leaves a part in each of these tables, and rebuilds may take half the pool: with fewer, parts pile up.",
    ),
    Rule(
        id="merge-pool-busy", severity="warn", measured="BackgroundMergesAndMutationsPoolTask: the peak of a day (metric_log), else now (advice)",
        wanted="at most `pool_peak` of the pool", judge=_busy,
        why="What is left of the pool is what a rebuild, a mutation or a burst of inserts can use.",
    ),
    Rule(
        id="pool-not-applied", severity="warn", measured="background_pool_size × ratio against the running pool", wanted="the same", judge=_applied,
        why="A pool only grows by a reload of the configuration; what was lowered or set beside a reload holds from the next restart on.",
    ),
    Rule(
        id="inserts-held-back", severity="advice", measured="DelayedInserts, RejectedInserts in system.events", wanted="none", judge=_held_back,
        why="Writers that do not adapt to the server's pressure run into the part limits.",
    ),
)  # fmt: skip
