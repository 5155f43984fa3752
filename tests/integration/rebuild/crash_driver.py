"""A rebuild in a process of its own that kills itself with SIGKILL after a given step. Called by test_rebuild_crashes.

python crash_driver.py URL DDL_FILE TARGET WINDOW STEP      STEP -1: never
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime, timezone
from pathlib import Path

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import parse_qname
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.windows import window_of_key
from resources.clickhouse import Endpoint, Server
from resources.executor import Executor
from resources.rebuild import Rebuilder


def main(url: str, ddl: str, target: str, key: str, fatal: str) -> None:
    def die(number: int, _step: Step) -> None:
        if number == int(fatal):
            os.kill(os.getpid(), signal.SIGKILL)

    catalog = build_catalog([SourceFile(path="x.sql", text=Path(ddl).read_text(encoding="utf-8"))]).require_sound()
    with Server(Endpoint(url)) as server:
        rebuilder = Rebuilder(
            Executor(server, log=lambda _line: None),
            catalog,
            "UTC",
            lambda: datetime.now(timezone.utc),
            lease_seconds=1.0,
        )
        node = catalog.objects[parse_qname(target, "")]
        rebuilder.publish(node, window_of_key(key, "day", "UTC"), "gated", die)


if __name__ == "__main__":
    main(*sys.argv[1:])
