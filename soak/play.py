"""The soak from beginning to end: start everything, do things to it for a while, let it be repaired, count.

What is done comes from a shuffled deck, so that every action has its turn before one has its second. The seed decides what and in which
order; when exactly things meet is left to the machine.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from chmv_assets.core.errors import ChmvError
from chmv_assets.deploy import open_applier
from soak.account import compare_targets, count_rows, find_open, read_left, read_not_active, targets_of
from soak.clients import Reader, Writer
from soak.deploys import DEPLOYS, apply_folder, settle_deploys
from soak.faults import CHEAP, DEAR, STOPPED_SECONDS, Action, start_merges
from soak.growth import Sampler
from soak.proxy import ResettingProxy
from soak.report import match_repairs, render
from soak.scene import SOAK_DDL, SOURCES, Scene, Timeline, marked_processes
from soak.site import LATE_AGAIN, running_site
from soak.verdict import Findings, Reads, judge

_POLL_SECONDS = 3.0
_RIPE_SECONDS = LATE_AGAIN + 15.0  # the last late rows may wait so long for their repair, and nobody can see that
GAPS = (3.0, 9.0)  # seconds between two actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long and how hard."""

    seconds: float = 1800.0
    seed: int | None = None
    everything: bool = True
    gaps: tuple[float, float] = GAPS
    settle_seconds: float = 420.0
    echo: bool = True
    actions: Mapping[str, Action] = field(default_factory=dict)  # instead of ours: a harness must be seen to fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    findings: Findings
    why: tuple[str, ...]
    done: Counter[str]
    text: str


def play(folder: Path, timeline_path: Path, options: Options) -> Result:
    """Run a soak; gives its verdict."""
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # connections break here all the time
    with timeline_path.open("w", encoding="utf-8") as file:
        timeline = Timeline(file, options.echo)
        timeline.note("seed", seed=seed, seconds=options.seconds, everything=options.everything)
        done: Counter[str] = Counter()
        with _running_scene(folder, timeline, random.Random(seed)) as (scene, sampler):
            _act(scene, options, done)
            settled = _settle(scene, options.settle_seconds)
            sampler.stop()
            scene.reader.stop()
            findings = _find(scene, sampler, options)
            repairs = match_repairs(_recoveries(scene), timeline.events, timeline.started)
        orphans = _orphans(folder)
        findings = replace(findings, left=(*findings.left, *orphans))
        why = judge(findings)
        facts = {
            "seed": seed, "seconds of activity": round(options.seconds), "settled after": settled, "timeline": timeline_path,
            "inserts refused, broken off or sent again": sum(one.refusals for one in scene.writers),
            "rows sent": sum(one.rows for one in scene.writers), "rows landed through Spark": len(scene.landed),
        }  # fmt: skip
        timeline.note("verdict", why=why)
        return Result(
            findings=findings, why=why, done=done, text=render(findings, repairs, sampler.routes, done, facts)
        )


@contextmanager
def _running_scene(folder: Path, timeline: Timeline, chance: random.Random) -> Iterator[tuple[Scene, Sampler]]:
    with running_site(folder, SOAK_DDL, SOURCES) as site:
        proxy = ResettingProxy(lambda: site.engine.http_port)
        scene = Scene(site, timeline, chance, proxy)
        done, said = apply_folder(scene)  # so that the journal knows what was deployed
        timeline.note("started", deployed=done, said=said)
        _wait_for_first_look(scene)
        scene.reader.take_floor()
        sampler = Sampler(scene)
        threads: list[Writer | Reader | Sampler] = [*scene.writers, scene.reader, sampler]
        for thread in threads:
            thread.start()
        try:
            yield scene, sampler
        finally:
            for thread in threads:
                thread.stop()
            proxy.close()


def _wait_for_first_look(scene: Scene) -> None:
    """A sensor repairs only what it has once seen right."""
    query = (
        '{sensorOrError(sensorSelector:{repositoryName:"__repository__",repositoryLocationName:"chmv",sensorName:"view_health_sensor"})'
        "{... on Sensor{sensorState{ticks(limit:1){status}}}}}"
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ticks = scene.site.ui.graphql(query)["data"]["sensorOrError"].get("sensorState", {}).get("ticks", [])
        if any(one["status"] in ("SKIPPED", "SUCCESS") for one in ticks):
            return
        time.sleep(1)
    raise ChmvError(
        "soak: found no tick of view_health_sensor within 120 s but wanted one. Nothing would be repaired. See home/ui.log."
    )


def _act(scene: Scene, options: Options, done: Counter[str]) -> None:
    actions = options.actions or {**CHEAP, **({**DEAR, **DEPLOYS} if options.everything else {})}
    deck: list[str] = []
    ends = time.monotonic() + options.seconds
    stopped_at = 0.0
    while time.monotonic() < ends:
        if not deck:
            deck = sorted(actions)
            scene.chance.shuffle(deck)
        name = deck.pop()
        _do(scene, name, actions[name], done)
        if name == "merges stopped":
            stopped_at = time.monotonic()
        elif scene.stopped_merges and time.monotonic() - stopped_at > STOPPED_SECONDS:
            start_merges(scene)
        time.sleep(max(0.0, min(scene.chance.uniform(*options.gaps), ends - time.monotonic())))


def _do(scene: Scene, name: str, action: Action, done: Counter[str]) -> None:
    started = time.monotonic()
    scene.timeline.note(f"{name} …")
    try:
        facts = dict(action(scene))
        done[name] += 1
    except (ChmvError, OSError) as error:  # refused, as it may be while something is broken or another one works on it
        facts = {"refused": str(error)[:3000]}
        done[f"{name}, refused"] += 1
    scene.timeline.note(name, **facts, took=round(time.monotonic() - started, 1))


def _settle(scene: Scene, seconds: float) -> str:
    """Do what operators do, let the sensors do the rest under load, then without writers until everything is equal."""
    started = time.monotonic()
    deadline = started + seconds
    for writer in scene.writers:
        writer.late_share = 0.0
    start_merges(scene)
    settle_deploys(scene)
    _wait_until_quiet(scene, deadline - seconds / 3, _POLL_SECONDS)
    for writer in scene.writers:
        writer.stop()
    scene.timeline.note("writers stopped")
    _clear_up(scene)
    while True:
        quiet = _wait_until_quiet(scene, deadline, _RIPE_SECONDS)
        wrong = [sentence for one in compare_targets(scene) for sentence in one.wrong]
        scene.timeline.note("compared", wrong=wrong[:5])
        if quiet and not wrong:
            return f"{time.monotonic() - started:.0f} s"
        if time.monotonic() >= deadline:
            return f"not within {seconds:.0f} s"
        time.sleep(_POLL_SECONDS)


def _wait_until_quiet(scene: Scene, deadline: float, calm_seconds: float) -> bool:
    """Wait until nothing has been open for so long."""
    last: tuple[str, ...] = ()
    calm_since = time.monotonic()
    while time.monotonic() - calm_since < calm_seconds:
        found = find_open(scene)
        if found:
            calm_since = time.monotonic()
        if found != last:
            scene.timeline.note("open", what=found[:6])
        last = found
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _clear_up(scene: Scene) -> None:
    """What docs/rebuild.md asks of operators: windows that a killed rebuild left unverified are rebuilt, which clears away what dead ones left."""
    unverified = scene.site.rows("SELECT DISTINCT target, window FROM chmv.rebuilds FINAL WHERE status = 'unverified'")
    days = {(str(target), str(window)[:10]) for target, window in unverified if str(window)[:4].isdigit()}
    for target, day in sorted(days | {("shop.checked", scene.day(0))}):
        code, said = scene.chmv("rebuild", target, "--window", day)
        scene.timeline.note("cleared up", target=target, day=day, code=code, said=said)
    with scene.site.server() as server:
        applier = open_applier(server, lambda _line: None)
        swept = applier.store.sweep(applier.executor, 0.0)
    scene.timeline.note("swept", tables=[str(name) for name in swept])


def _find(scene: Scene, sampler: Sampler, options: Options) -> Findings:
    reader = scene.reader
    tables = [f"shop.{source}" for source in ("events", "clicks", "orders")] + [
        str(one.name) for one in targets_of(scene)
    ]
    scene.timeline.note("processes", commands=sorted(marked_processes(scene.site.folder).values()))
    with scene.site.server() as server:
        left = read_left(server, tables)
    doubtful = [
        f"writer {one.number} never learned what became of {len(one.doubt)} rows" for one in scene.writers if one.doubt
    ]
    return Findings(
        accounts=count_rows(scene), compared=compare_targets(scene), not_active=read_not_active(scene),
        left=(*left, *doubtful), growths=sampler.growths(options.seconds / 60),
        reads=Reads(
            polls=reader.polls, steps_back=reader.steps_back, holes=tuple(reader.holes), doubles=tuple(reader.doubles), errors=tuple(reader.errors)
        ),
    )  # fmt: skip


def _recoveries(scene: Scene) -> list[tuple[object, ...]]:
    return scene.site.rows(
        "SELECT kind, subject, damage, status, detected_ms, ended_ms FROM chmv.recoveries FINAL ORDER BY detected_ms"
    )


def _orphans(folder: Path) -> tuple[str, ...]:
    """Processes that are still there when all were told to end; they have a little time."""
    deadline = time.monotonic() + 20
    while (found := marked_processes(folder)) and time.monotonic() < deadline:
        time.sleep(1)
    return tuple(f"process {pid}: {command[:120]}" for pid, command in found.items())
