"""Memory, open files and disk of the engine and of Dagster's processes over time, and the switches of routes. A thread that only looks.

Dagster's code servers come and go every minute, so the least of the first and of the last third is compared, never a single look.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from chmv_assets.core.errors import ChmvError
from soak.scene import Scene, marked_processes
from soak.verdict import Growth

MIB = 2**20
# Per measure: unit, bound, and what the bound allows more per minute of the soak (logs and kept history grow by design).
BOUNDS: dict[str, tuple[str, float, float]] = {
    "engine memory": ("MiB", 768, 15),
    "engine open files": ("files", 600, 10),
    "engine disk": ("MiB", 256, 30),
    "dagster memory": ("MiB", 512, 5),
    "dagster open files": ("files", 300, 3),
    "dagster disk": ("MiB", 64, 15),
    "dagster processes": ("processes", 6, 0),
}


def tree_size(folder: Path) -> float:
    """Bytes of all files below; those that go meanwhile do not count."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total


def memory_of(pid: int) -> float:
    """Resident bytes; 0 if it is gone."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return 0.0


def files_of(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


@dataclass
class Sampler(threading.Thread):
    """Looks every few seconds."""

    scene: Scene
    every_seconds: float = 5.0
    samples: dict[str, list[float]] = field(default_factory=dict)
    routes: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)  # target and moment → route, reason

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self._looks = 0

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        while not self.ended.wait(self.every_seconds):
            self.look()

    def look(self) -> None:
        site = self.scene.site
        engine = site.engine.pid
        if engine is not None and (held := memory_of(engine)):  # not while it is away
            self._add("engine memory", held / MIB)
            self._add("engine open files", files_of(engine))
        dagster = [pid for pid, command in marked_processes(site.folder).items() if is_dagster(command)]
        self._add("dagster memory", sum(map(memory_of, dagster)) / MIB)
        self._add("dagster open files", sum(map(files_of, dagster)))
        self._add("dagster processes", len(dagster))
        if self._looks % 6 == 0:
            self._add("engine disk", tree_size(site.folder / "engine") / MIB)
            self._add("dagster disk", tree_size(site.folder / "home") / MIB)
        self._looks += 1
        with suppress(ChmvError, OSError):
            for target, route, reason, at in site.rows(
                "SELECT target, route, reason, toUnixTimestamp64Milli(switched_at) FROM chmv.routes ORDER BY switched_at"
            ):
                self.routes[(str(target), int(at))] = (str(route), str(reason))

    def _add(self, what: str, value: float) -> None:
        self.samples.setdefault(what, []).append(value)

    def stop(self) -> None:
        self.ended.set()
        self.join(60)

    def growths(self, minutes: float) -> tuple[Growth, ...]:
        """First and last of every measure, each the least of a third of the looks."""
        found = []
        for what, (unit, bound, per_minute) in BOUNDS.items():
            seen = self.samples.get(what, [])
            third = max(1, len(seen) // 3)
            first, last = (min(seen[:third]), min(seen[-third:])) if seen else (0.0, 0.0)
            found.append(Growth(what=what, unit=unit, first=first, last=last, bound=bound + per_minute * minutes))
        return tuple(found)


def is_dagster(command: str) -> bool:
    """Whether a command line is one of those that stay: web server, daemon, code servers; not a run, not Spark."""
    return "dagster" in command and "spawn_main" not in command and "java" not in command.split(" ")[0]
