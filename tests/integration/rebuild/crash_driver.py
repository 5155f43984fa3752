"""Rebuilds in processes of their own that kill themselves with SIGKILL at a given point. Started by test_rebuild_crashes.

python crash_driver.py URL DDL_FILE TARGET, then on stdin one line per rebuild:

    PROTOCOL WINDOW step 3          die after the step with this number; -1: never
    PROTOCOL WINDOW statement 3     die after the third statement that writes

WINDOW is a day, or `all`. Each gets a child (fork, so that imports are paid once); its exit code is the answer, -9 for a dead one.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.names import parse_qname
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.windows import window_of_key
from resources.clickhouse import Endpoint, Server
from resources.executor import Executor
from resources.rebuild import Rebuilder, whole


class MortalServer(Server):
    """Dies after so many statements."""

    left = -1

    def command(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> str:
        done = super().command(sql, parameters, settings)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def rebuild(url: str, catalog: Catalog, target: str, line: str) -> None:
    protocol, key, what, number = line.split()

    def die(at: int, _step: Step) -> None:
        if what == "step" and at == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    window = None if key == "all" else window_of_key(key, "day", "UTC")
    with MortalServer(Endpoint(url)) as server:
        server.left = int(number) if what == "statement" else -1
        rebuilder = Rebuilder(
            Executor(server, log=lambda _line: None),
            catalog,
            "UTC",
            lambda: datetime.now(timezone.utc),
            lease_seconds=1.0,
        )
        rebuilder.publish(catalog.objects[parse_qname(target, "")], window, protocol, die)  # type: ignore[arg-type]


def main(url: str, ddl: str, target: str) -> None:
    whole.BUSY_SECONDS = -1.0  # rows of a moment ago count as old
    catalog = build_catalog([SourceFile(path="x.sql", text=Path(ddl).read_text(encoding="utf-8"))]).require_sound()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                rebuild(url, catalog, target, line)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
