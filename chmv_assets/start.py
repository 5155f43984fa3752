"""Where partitions begin when the settings do not say: the first live partition, snapped to its month and frozen.

A start that moves later breaks running backfills, so once found it is written down beside the engine's state and never
asked again. The location must load without a server, so failing to ask one is not an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path

from chmv_assets.core.errors import ChmvError
from chmv_assets.pipeline import Pipeline
from resources.toolchain import cache_dir

START_VARIABLE = "CHMV_START"
Probe = Callable[[Pipeline], "date | None"]


def resolve_start(pipeline: Pipeline, probe: Probe, today: date, folder: Path | None = None) -> date:
    """The declared start, else the frozen one, else the first live partition, else a year before this month."""
    if pipeline.settings.start is not None:
        return pipeline.settings.start
    file = (folder or cache_dir(os.environ)) / "starts.json"
    key = str(pipeline.ddl_dir.resolve())
    frozen = _read(file)
    if (kept := _frozen_day(frozen.get(key))) is not None:
        return kept
    found = probe(pipeline)
    if found is None:
        return date(today.year - 1, today.month, 1)
    snapped = found.replace(day=1)
    _write(file, {**frozen, key: snapped.isoformat()})
    return snapped


def with_start(pipeline: Pipeline, start: date) -> Pipeline:
    """The same pipeline with another start for all objects that declare none of their own."""
    return replace(pipeline, settings=replace(pipeline.settings, start=start))


def start_from_environment(environ: Mapping[str, str]) -> date | None:
    """CHMV_START, for deployments that share a settings file but not a history."""
    text = environ.get(START_VARIABLE)
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ChmvError(
            f"environment {START_VARIABLE}: found {text!r} but wanted a date like 2026-07-01. Partitions begin there. Correct or unset it."
        ) from error


def probe_server(pipeline: Pipeline) -> date | None:
    """Ask the configured server, or a running embedded one, for its oldest time partition; never start one."""
    from resources.clickhouse import Server, endpoint_of
    from resources.engine import describe_engine
    from resources.inner_tables import fetch_states

    try:
        info = describe_engine()
        if info is None:
            return None
        with Server(endpoint_of(info)) as server:
            states = fetch_states(server, pipeline.catalog, pipeline.catalog.schemes)
    except ChmvError:
        return None
    return oldest_day(state.partition for found in states.values() for state in found)


def oldest_day(partitions: Iterable[str]) -> date | None:
    """The earliest day among printed partition values, whatever their form.

    >>> oldest_day(["202607", "(20260715,'DE')", "2026-06-29"])
    datetime.date(2026, 6, 29)
    """
    pieces = (piece.strip(" '") for text in partitions for piece in text.strip("()").split(","))
    return min((day for piece in pieces if (day := _day(piece)) is not None), default=None)


def _day(text: str) -> date | None:
    for form in ("%Y%m%d", "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y%m"):
        try:
            parsed = datetime.strptime(text, form).replace(tzinfo=timezone.utc)
        except ValueError:
            continue
        return parsed.date() if 1990 <= parsed.year <= 2100 else None
    return None


def _frozen_day(value: object) -> date | None:
    """A day as we wrote it; anything else counts as not written, and is asked again."""
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _read(file: Path) -> dict[str, str]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(file: Path, starts: dict[str, str]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(starts, indent=1), encoding="utf-8")
    except OSError:
        return
