"""What a benchmark leaves for others to read: ratios first, tables as context, and the machine it ran on.

Every benchmark takes `--json FILE` and writes one record there; `bench.run_all` makes `bench/results.md` of them. A ratio is of two sides that were
measured in the same run, so other load hits both; seconds stand in tables only. Nothing here judges.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

PACKAGES = ("chmv", "dagster", "clickhouse-connect", "pyspark", "sqlglot")
BUSY_LOAD = 1.5  # with more than this before it begins, the machine had other work


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure that may be compared between machines."""

    what: str
    value: float | None  # none: it cannot be had
    wanted: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """A table."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass
class Record:
    """One run of one benchmark."""

    name: str
    title: str
    quick: bool = False
    machine: dict[str, Any] = field(default_factory=lambda: read_machine())
    ratios: list[Ratio] = field(default_factory=list)
    tables: list[Figures] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)  # every turn, for who wants to reckon for himself

    def ratio(self, what: str, value: float | None, wanted: str = "", note: str = "") -> None:
        self.ratios.append(Ratio(what, None if value is None else round(value, 3), wanted, note))

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.tables.append(Figures(title, tuple(headings), tuple(tuple(str(cell) for cell in row) for row in rows)))

    def write(self, path: Path | None) -> None:
        """The record as JSON, if somebody asked for it."""
        if path is None:
            return
        self.machine["load_after"] = [round(one, 1) for one in os.getloadavg()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self), indent=1, default=_plain) + "\n", encoding="utf-8")


def read_machine() -> dict[str, Any]:
    """Cores, memory, load and versions, before anything is measured."""
    return {
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": [round(one, 1) for one in os.getloadavg()],
        "versions": {"python": platform.python_version()} | {name: found for name in PACKAGES if (found := _of(name))},
    }


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Ratio | Figures) else str(value)


def _of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the figures here.",
)
