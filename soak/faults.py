"""What is done to the pipeline: damage, kills, resets, rebuilds, files. Each returns facts for the timeline; chance comes from the scene.

What an operator has to undo stands here too (merges that were stopped by hand); everything else is left to the sensors.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.serving import ANY_BLOCK
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import window_of_key
from chmv_assets.rebuilders import open_rebuilder
from soak.scene import Scene, marked_processes

Facts = Mapping[str, Any]
VIEWS = ("hourly_mv", "latest_mv", "by_country_mv", "checked_mv", "ledger_mv", "clicks_ledger_mv")
DAILY = ("hourly", "latest", "by_country", "checked", "ledger")  # of events, by day
_ALTERED = {
    "by_country_mv": "SELECT toDate(at) AS day, 'XX' AS country, count() AS n, sum(amount) AS amount FROM shop.events WHERE user = 0 GROUP BY day",
    "ledger_mv": "SELECT toDate(at) AS day, id, toUInt64(2) AS n FROM shop.events WHERE id % 4 = 0",  # less in all, or the reader would call it doubled
    "checked_mv": "SELECT toDate(at) AS day, count() AS n FROM shop.events WHERE user > 100 GROUP BY day",
}
STOPPED_SECONDS = 20.0
_REBUILDING = (
    "SELECT 1 FROM chmv.rebuilds FINAL WHERE status = 'running' AND endsWith(splitByChar(' ', owner)[1], ':{pid}')"
)


def view_dropped(scene: Scene) -> Facts:
    view = scene.chance.choice(VIEWS)
    scene.site.run(f"DROP TABLE IF EXISTS shop.{view} SYNC")
    return {"view": view}


def view_detached(scene: Scene) -> Facts:
    view = scene.chance.choice(VIEWS)
    with suppress(ChmvError):  # it may be away already
        scene.site.run(f"DETACH TABLE shop.{view} PERMANENTLY")
    return {"view": view}


def view_altered(scene: Scene) -> Facts:
    view = scene.chance.choice(sorted(_ALTERED))
    scene.modified = True
    try:
        scene.site.run(f"ALTER TABLE shop.{view} MODIFY QUERY {_ALTERED[view]}")
    except ChmvError as error:  # it is away
        return {"view": view, "refused": str(error)[:120]}
    return {"view": view}


def partition_dropped(scene: Scene) -> Facts:
    target, back = scene.chance.choice(DAILY), scene.chance.randrange(4)
    if not _is_guarded(scene, target, scene.day(back).replace("-", "")):
        return {"target": "", "skipped": f"{target} {scene.day(back)} was rebuilt since its last snapshot"}
    scene.site.run(f"ALTER TABLE shop.{target} DROP PARTITION ID '{scene.day(back).replace('-', '')}'")
    return {"target": target, "day": scene.day(back)}


def _is_guarded(scene: Scene, target: str, partition: str) -> bool:
    """Whether readers would be led to the snapshot also if somebody writes into the partition again; see docs/soak.md."""
    found = scene.site.rows(
        f"SELECT max_block FROM chmv.guards FINAL WHERE target = 'shop.{target}' AND partition_id = '{partition}'"
    )
    return bool(found) and 0 <= int(found[0][0]) < ANY_BLOCK


def merges_stopped(scene: Scene) -> Facts:
    target = scene.chance.choice(DAILY)
    scene.site.run(f"SYSTEM STOP MERGES shop.{target}")
    scene.stopped_merges.add(f"shop.{target}")
    return {"target": target}


def start_merges(scene: Scene) -> None:
    """The operator's part: nobody can tell from outside that merges were stopped by hand."""
    for name in sorted(scene.stopped_merges):
        scene.site.run(f"SYSTEM START MERGES {name}")
        scene.timeline.note("merges started", target=name)
    scene.stopped_merges.clear()


def connections_reset(scene: Scene) -> Facts:
    """Some times in a row, so that some hit an insert in the middle."""
    broken = 0
    for _ in range(10):
        broken += scene.proxy.reset()
        time.sleep(scene.chance.uniform(0.02, 0.3))
    return {"connections": broken}


def server_killed(scene: Scene) -> Facts:
    """Its supervisor starts it again. Inserts are under way, unless that is known not to be exact (docs/soak.md, "What it does not do")."""
    resting = [one for one in scene.writers if one.table == "shop.clicks" or scene.modified]
    for one in resting:
        one.rest()
    started = time.monotonic()
    scene.reader.server_down.set()
    scene.site.kill_engine()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(ChmvError, OSError):
            scene.site.rows("SELECT 1")
            break
        time.sleep(0.2)
    facts = {"seconds_away": round(time.monotonic() - started, 1), "writers_at_rest": len(resting)}
    scene.stopped_merges.clear()  # a server that starts merges everything
    scene.modified = False
    time.sleep(1)  # answers that were under way when it died
    scene.reader.server_down.clear()
    for one in resting:
        one.paused.clear()
    return facts


def worker_killed(scene: Scene) -> Facts:
    """A process that executes a run, if one appears soon; a view is dropped to have one."""
    facts = view_dropped(scene)
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        # A code server executes a run in a child that `multiprocessing` has spawned.
        found = [pid for pid, command in marked_processes(scene.site.folder).items() if "spawn_main" in command]
        if found:
            time.sleep(scene.chance.uniform(0, 4))
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
                return {**facts, "killed": found[0]}
        time.sleep(0.3)
    return {**facts, "killed": None}


def rebuild_killed(scene: Scene) -> Facts:
    target, day = scene.chance.choice(DAILY), scene.day(scene.chance.randrange(3))
    protocol = scene.chance.choice(("closed", "gated", "auto"))
    what = ("rebuild", f"shop.{target}", "--window", day, "--protocol", protocol)
    return {"target": target, "day": day, "protocol": protocol, "outcome": scene.kill_half_way(what, _REBUILDING, 0.6)}


def rebuilt(scene: Scene, protocol: Protocol, target: str = "", *, downstream: bool = False) -> Facts:
    """A window by a protocol, here in this process."""
    table = target or scene.chance.choice(DAILY)
    day = scene.day(scene.chance.randrange(3) if not target or table == "hourly" else 0)
    window = None if protocol == "whole" else window_of_key(day, "day", "UTC")
    facts = {"target": table, "window": day if window else "whole", "protocol": protocol}
    node = scene.site.pipeline.catalog.get(f"shop.{table}")
    with scene.site.server() as server, open_rebuilder(scene.site.pipeline, server, lambda _line: None) as rebuilder:
        done = rebuilder.publish_chain(node, window) if downstream else rebuilder.publish(node, window, protocol)
    return {**facts, "rows": done.rows_after, "seconds": round(done.seconds, 1), "gate": round(done.gate_seconds, 2)}


def file_landed(scene: Scene) -> Facts:
    """A file of rows, some of them late, for the landing sensor and Spark."""
    first = 5 * 10**14 + len(scene.landed)
    now = datetime.now(timezone.utc)
    rows = [
        {"id": first + at, "user": at % 200, "kind": f"k{at % 3}", "amount": 3,
         "at": f"{now - timedelta(days=at % 3, seconds=at):%Y-%m-%d %H:%M:%S}"}
        for at in range(200)
    ]  # fmt: skip
    scene.landed |= {int(one["id"]) for one in rows}  # type: ignore[call-overload]
    scene.site.land(f"soak_{first}", rows)
    return {"rows": len(rows)}


Action = Callable[[Scene], Facts]
CHEAP: Mapping[str, Action] = {
    "view dropped": view_dropped,
    "partition dropped": partition_dropped,
    "rebuild gated": lambda scene: rebuilt(scene, "gated"),
    "connections reset": connections_reset,
    "view altered": view_altered,
    "rebuild closed": lambda scene: rebuilt(scene, "auto"),
    "merges stopped": merges_stopped,
    "rebuild killed": rebuild_killed,
    "view detached": view_detached,
    "rebuild owned": lambda scene: rebuilt(scene, "owned", "orders_ledger"),
}
DEAR: Mapping[str, Action] = {
    "server killed": server_killed,
    "worker killed": worker_killed,
    "rebuild fenced": lambda scene: rebuilt(scene, "fenced", "clicks_ledger"),
    "rebuild whole": lambda scene: rebuilt(scene, "whole"),
    "rebuild chain": lambda scene: rebuilt(scene, "gated", "hourly", downstream=True),
    "file landed": file_landed,
}
