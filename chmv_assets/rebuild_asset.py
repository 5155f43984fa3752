"""Materializing views and targets: what a run asks for in its tags, what an earlier try has done already, numbers as metadata.

Here is the step between Dagster and `resources.rebuild`. Run tags, not op config: a backfill's dialog offers tags and no config, and
a config field on each of 2,000 ops makes loading slower for everyone. Invariant: a window counts as done for a run and its
re-executions if the journal says so, under this run's id and this definition of the target; Dagster's own events may be lost
with a process, the journal is written before the window is swapped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.settings_values import FEEDS, PROTOCOLS, FeedChoice, Protocol
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from resources.rebuild import Published, Rebuilder
from resources.scratch_marks import window_key

PROTOCOL_TAG = "chmv/protocol"
FEED_TAG = "chmv/feed"
ALLOW_EMPTY_TAG = "chmv/allow_empty"
AS_SETTINGS = "settings"
MAX_ANCESTORS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How the windows of a run are to be rebuilt."""

    protocol: Protocol
    feed: FeedChoice = "auto"
    allow_empty: bool = False  # over the settings, which may allow it too


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDone:
    """What happened to one window, for the log and for Dagster's page of its partition."""

    rows: int
    numbers: Mapping[str, float] = field(default_factory=dict)  # summed up over the windows of a run
    words: Mapping[str, str] = field(default_factory=dict)
    line: str = ""

    def metadata(self) -> dict[str, Any]:
        told: dict[str, Any] = {f"chmv/{name}": value for name, value in (*self.numbers.items(), *self.words.items())}
        return {**told, "dagster/partition_row_count": self.rows}


WindowStep = Callable[[Rebuilder, Object, Asked, Window | None], WindowDone]


def read_tags(tags: Mapping[str, str], declared: Protocol) -> Asked:
    """What a run asks for; without a tag, what the settings declare.

    >>> read_tags({"chmv/feed": "replay"}, "auto")
    Asked(protocol='auto', feed='replay', allow_empty=False)
    """
    protocol = _read_tag(tags, PROTOCOL_TAG, PROTOCOLS, declared)
    feed = _read_tag(tags, FEED_TAG, FEEDS, "auto")
    allowed = _read_tag(tags, ALLOW_EMPTY_TAG, ("true", "false"), "false") == "true"
    return Asked(protocol=protocol, feed=feed, allow_empty=allowed)


def _read_tag(tags: Mapping[str, str], name: str, valid: Sequence[Any], otherwise: Any) -> Any:
    value = tags.get(name, AS_SETTINGS)
    if value == AS_SETTINGS:
        return otherwise
    if value not in valid:
        raise RebuildRefused(
            f"run tag {name}: found {value!r} but wanted one of {', '.join((AS_SETTINGS, *valid))}. Nothing was done. "
            "Correct the tag in the launchpad or the backfill's dialog and launch again."
        )
    return value


def origin_of(run_id: str, pipeline: Pipeline, target: Object) -> str:
    """How the journal names the work of a run on a target: under another definition the same window is not the same work."""
    digests = [target.digest, *(view.digest for view in pipeline.catalog.views_into(target.name))]
    definition = hashlib.sha256("\0".join(digests).encode()).hexdigest()[:12]
    return f"run {run_id} definition {definition}"


def target_of(pipeline: Pipeline, node: Object) -> Object:
    """The target whose windows a node's materialization is about: a view's share is published there."""
    found = pipeline.catalog.objects.get(node.target) if node.target is not None else None
    return found or node


def tries_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[str]:
    """Ids of the run and of those that it goes on from, newest first: its parents, as long as they failed or were cancelled.

    Whoever re-executes a run that succeeded wants its windows rebuilt once more.
    """
    ids = [run.run_id]
    parent = run.parent_run_id
    while parent is not None and parent not in ids and len(ids) < MAX_ANCESTORS:
        found = instance.get_run_by_id(parent)
        if found is None or found.status == dg.DagsterRunStatus.SUCCESS:
            break
        ids.append(parent)
        parent = found.parent_run_id
    return ids


def read_done(
    rebuilder: Rebuilder, pipeline: Pipeline, target: Object, windows: Sequence[Window | None], tries: Sequence[str]
) -> dict[str, str]:
    """Windows of a run that it or a run before it has published already: key in the journal → run id."""
    origins = {origin_of(run_id, pipeline, target): run_id for run_id in tries}
    wanted = {window_key(window) for window in windows}
    found = rebuilder.windows_published_for(target, list(origins))
    return {key: origins[origin] for key, origin in found.items() if key in wanted}


def skipped(rebuilder: Rebuilder, target: Object, window: Window | None, run_id: str) -> WindowDone:
    """A window that a run before has published."""
    rows = sum(state.rows for state in rebuilder.target_states(target, window))
    line = f"skipped, run {run_id} has published it ({rows} rows now)"
    return WindowDone(rows=rows, words={"published_by_run": run_id}, line=line)


def build_scratch(rebuilder: Rebuilder, node: Object, _asked: Asked, window: Window | None) -> WindowDone:
    """Compute a view's share; readers see nothing of it."""
    result = rebuilder.build_scratch(node, window)
    numbers = {"rows": result.rows, "seconds": round(result.seconds, 3), "reused": int(result.reused)}
    how = "kept, nothing has changed since" if result.reused else "computed"
    return WindowDone(rows=result.rows, numbers=numbers, line=f"{result.rows} rows {how}, {result.seconds:.2f} s")


def publish(rebuilder: Rebuilder, node: Object, asked: Asked, window: Window | None) -> WindowDone:
    """Replace a window of a target."""
    return published(rebuilder.publish(node, window, asked.protocol, feed=asked.feed))


def published(result: Published) -> WindowDone:
    """A publication as numbers and words."""
    numbers = {
        "rows_before": result.rows_before,
        "rows_after": result.rows_after,
        "partitions": len(result.partitions),
        "tries": result.tries,
        "gate_seconds": round(result.gate_seconds, 3),
        "seconds": round(result.seconds, 3),
    }
    tries = f", {result.tries} tries" if result.tries > 1 else ""
    gate = f", gate {result.gate_seconds:.2f} s" if result.gate_seconds else ""
    line = (
        f"rows {result.rows_before} → {result.rows_after}, {result.seconds:.2f} s{tries}{gate}, {result.protocol}: {result.why}"
    )  # fmt: skip
    words = {"protocol": result.protocol, "why": result.why}
    return WindowDone(rows=result.rows_after, numbers=numbers, words=words, line=line)
