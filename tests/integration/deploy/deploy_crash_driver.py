"""Applies a plan, and kills itself with SIGKILL after so many steps. `python deploy_crash_driver.py URL PLAN STEPS`; 0: never."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from chmv_assets.core.deploy.codec import decode_plan
from chmv_assets.deploy import open_applier
from resources.clickhouse import Endpoint, Server
from resources.deploy import Progress


def main(url: str, path: str, steps: int) -> None:
    told = 0

    def on_progress(progress: Progress) -> None:
        nonlocal told
        told += 1
        print(f"{progress.title} / {progress.step}", flush=True)
        if told == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    with Server(Endpoint(url)) as server:
        applier = open_applier(server, lambda _line: None, on_progress)
        applier.apply(decode_plan(Path(path).read_text(encoding="utf-8")), ("rewrites data", "destructive"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
