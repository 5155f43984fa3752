"""Fenced rebuilds in processes that kill themselves with SIGKILL after a given step. Called by test_fenced_crashes.

python fenced_driver.py URL DDL_FILE TARGET WINDOW LEAD      one step per line of input (-1: never, `resume N`: die in the N-th statement
                                                            of the recovery); the exit code of each comes back as a line
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime, timezone
from pathlib import Path

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.names import parse_qname
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.windows import window_of_key
from resources.clickhouse import Endpoint, Server
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild import Rebuilder
from resources.rebuild.recovery import recover_rebuilds


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def rebuild(url: str, catalog: Catalog, target: str, key: str, lead: float, fatal: int) -> None:
    def on_step(number: int, _step: Step) -> None:
        if number == fatal:
            die()

    with Server(Endpoint(url)) as server:
        rebuilder = Rebuilder(
            Executor(server, log=lambda _line: None),
            catalog,
            "UTC",
            lambda: datetime.now(timezone.utc),
            lease_seconds=10.0,
            fence_lead_seconds=lead,
        )
        rebuilder.publish(catalog.objects[parse_qname(target, "")], window_of_key(key, "day", "UTC"), "fenced", on_step)


def resume(url: str, fatal: int) -> None:
    seen = 0

    def log(_line: str) -> None:
        nonlocal seen
        seen += 1
        if seen == fatal:
            die()

    with Server(Endpoint(url)) as server:
        recover_rebuilds(Executor(server, log=log), Journal(server, owner=f"resumer-{os.getpid()}"))


def main(url: str, ddl: str, target: str, key: str, lead: str) -> None:
    catalog = build_catalog([SourceFile(path="x.sql", text=Path(ddl).read_text(encoding="utf-8"))]).require_sound()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            if line.startswith("resume"):
                resume(url, int(line.split()[1]))
            else:
                rebuild(url, catalog, target, key, float(lead), int(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
