"""What the soak works on: the site with more targets, its clients, one chance for everything, and the timeline.

Three sources, since rebuild protocols ask for different writers (docs/rebuild.md): `events` has writers that repeat what has no answer and comes over a
connection that breaks; `clicks` has one that never repeats a finished insert, for `fenced`; `orders` one that commits under chmv's lock, for `owned`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TextIO

from chmv_assets.pipeline import load_pipeline
from soak.clients import Reader, Writer
from soak.proxy import ResettingProxy
from soak.site import BASE_ROWS, DAYS, DDL, READS, ROOT, WINDOW, Site, base_rows

_SOURCE = f"""
CREATE TABLE shop.{{name}} (id UInt64, user UInt32, kind LowCardinality(String), amount UInt32, at DateTime('UTC'),
  arrived DateTime64(6, 'UTC') DEFAULT now64(6)) ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY (user, at) {WINDOW};
"""
_LEDGER = f"""
CREATE TABLE shop.{{ledger}} (day Date, id UInt64, n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, id) {WINDOW};
CREATE MATERIALIZED VIEW shop.{{ledger}}_mv TO shop.{{ledger}} AS SELECT toDate(at) AS day, id, count() AS n FROM shop.{{name}} GROUP BY day, id;
"""
LEDGERS = {
    "events": "ledger",
    "clicks": "clicks_ledger",
    "orders": "orders_ledger",
}  # of each source: the target that counts its ids
SOAK_DDL = DDL + "".join(
    (_SOURCE if name != "events" else "").format(name=name) + _LEDGER.format(name=name, ledger=ledger)
    for name, ledger in LEDGERS.items()
)
SOURCES = "".join(f"  shop.{name}: {{event_time: at, arrival: arrived}}\n" for name in ("clicks", "orders"))
SOAK_READS = {
    **READS,
    **{one: f"SELECT toString(day), sum(n) FROM serving.{one} GROUP BY 1" for one in LEDGERS.values()},
}
COUNTED = ("hourly", "monthly", "by_country", "checked", "ledger")  # all rows of events, each once


@dataclass
class Timeline:
    """Everything that happened, one JSON document per line; also told to whoever watches."""

    file: TextIO
    echo: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._guard = threading.Lock()

    def note(self, event: str, **facts: Any) -> None:
        with self._guard:
            document = {"t": round(time.time() - self.started, 1), "event": event, **facts}
            self.events.append(document)
            self.file.write(json.dumps(document, default=str) + "\n")
            self.file.flush()
        if self.echo:
            told = " ".join(f"{name}={str(value)[:140]}" for name, value in facts.items())
            sys.stderr.write(f"{document['t']:8.1f} s  {event:<20} {told}\n")


@dataclass
class Scene:
    """The running system and everybody in it."""

    site: Site
    timeline: Timeline
    chance: random.Random
    proxy: ResettingProxy
    writers: list[Writer] = field(default_factory=list)
    reader: Reader = field(init=False)
    landed: set[int] = field(default_factory=set)
    variants: frozenset[str] = frozenset()  # of the DDL, as the folder declares it
    stopped_merges: set[str] = field(default_factory=set)
    modified: bool = (
        False  # a view's query was changed since the server started, by hand, by a repair or by a deployment
    )

    def __post_init__(self) -> None:
        seeds = [self.chance.randrange(1 << 30) for _ in range(4)]
        self.writers = [
            Writer(self.site, 0.3, 0, late_share=0.05, url=self.proxy.url, seed=seeds[0]),
            Writer(self.site, 0.4, 1, url=self.proxy.url, seed=seeds[1]),
            Writer(self.site, 0.5, 2, table="shop.clicks", seed=seeds[2]),
            Writer(self.site, 2.0, 3, table="shop.orders", owned=True, seed=seeds[3]),
        ]
        counted = dict.fromkeys(COUNTED, self.most)
        self.reader = Reader(self.site, SOAK_READS, counted, 0.7, note=self.timeline.note)

    def most(self) -> int:
        """Rows of events that may be anywhere by now."""
        mine = [one for one in self.writers if one.table == "shop.events"]
        return BASE_ROWS * DAYS + len(self.landed) + sum(len(one.sent) + len(one.doubt) for one in mine)

    def expected(self, source: str) -> set[int]:
        """Every id that was taken."""
        found: set[int] = set().union(*(one.sent for one in self.writers if one.table == f"shop.{source}"))
        if source == "events":
            now = datetime.now(timezone.utc)
            found |= {first + at for first, _ in base_rows(now) for at in range(BASE_ROWS)} | self.landed
        return found

    def in_doubt(self, source: str) -> set[int]:
        """Ids whose insert never got an answer: they may be there, once, or not."""
        return set().union(*(one.doubt for one in self.writers if one.table == f"shop.{source}"))

    def day(self, back: int) -> str:
        return f"{datetime.now(timezone.utc) - timedelta(days=back):%Y-%m-%d}"

    # --- processes ---------------------------------------------------------------------------------------------------

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        """A `chmv` command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "chmv_assets.cli.main", *arguments],
            cwd=ROOT, env={**self.site.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def chmv(self, *arguments: str, timeout_seconds: float = 180.0) -> tuple[int, str]:
        """Run a `chmv` command; gives its exit code and what it said last."""
        process = self.spawn(*arguments)
        try:
            said, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            return 124, f"not within {timeout_seconds:.0f} s: {last_line(said)}"
        return process.returncode, last_line(said)

    def kill_half_way(self, arguments: Sequence[str], begun: str, most_seconds: float) -> str:
        """Start a command, wait until the journal says that it works (`begun`, with {pid}), and kill it a moment later."""
        process = self.spawn(*arguments)
        pause = self.chance.uniform(0, most_seconds)
        deadline = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(Exception):  # a server that is just coming back
                if self.site.rows(begun.format(pid=process.pid)):
                    time.sleep(pause)
                    break
            time.sleep(0.03)
        if process.poll() is not None:
            said, _ = process.communicate()
            return f"ended by itself with {process.returncode}: {last_line(said)}"
        process.kill()
        process.communicate()
        return f"killed {pause:.2f} s after it had begun"

    def reload(self) -> None:
        """Read the folder anew; the daemon does so by itself every minute."""
        self.site.pipeline = load_pipeline(self.site.folder / "ddl", cache=self.site.folder / "cache")

    def runs_under_way(self) -> list[tuple[str, str]]:
        """Dagster's runs that are not over: job and status."""
        found = self.site.ui.graphql(
            "{runsOrError(filter: {statuses: [QUEUED, NOT_STARTED, STARTING, STARTED, CANCELING]}) {... on Runs {results {jobName status}}}}"
        )
        return [(one["jobName"], one["status"]) for one in found["data"]["runsOrError"]["results"]]


def last_line(said: str) -> str:
    """What a command said last: its result, or its error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][-400:] if lines else ""


def _ancestors(pid: int) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return


def marked_processes(folder: Path) -> dict[int, str]:
    """Processes that belong to a site, by the folder in their environment or command line; not ourselves, nor who has started us."""
    found: dict[int, str] = {}
    ours = set(_ancestors(os.getpid()))
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            mark = str(folder / "ddl").encode()
            is_marked = mark in (entry / "environ").read_bytes() or str(folder) in command
            if command and is_marked and int(entry.name) not in ours:
                found[int(entry.name)] = command
    return found
