"""Watermarks on an asset's page: what the journal knows of a partition, as metadata.

One journal query per run, however many windows. A partition shows every watermark whose window it overlaps; where several
sources feed it, it counts as far as the slowest of them. The rules of watermarks live in `core.watermarks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.watermarks import Watermark, WatermarkStatus
from chmv_assets.core.windows import Window
from resources.clickhouse import Server
from resources.journal import open_journal

_WORST_FIRST: tuple[WatermarkStatus, ...] = ("stale", "reopened", "open", "processed", "sealed")


def read_table_watermarks(server: Server, table: QName, log: Callable[[str], None]) -> list[Watermark]:
    """All watermarks of a source or target. A journal that cannot be read is said in the log: the run's own work stands."""
    try:
        return open_journal(server).read_watermarks(target=table)
    except ServerError as error:
        log(f"{table}: its watermarks are not shown, the journal gave no answer: {error}")
        return []


def watermark_metadata(marks: Sequence[Watermark], window: Window) -> dict[str, Any]:
    """What the asset's page shows for one partition; nothing if the journal has no watermark there."""
    inside = [mark for mark in marks if Window(mark.window_start, mark.window_end).overlaps(window)]
    if not inside:
        return {}
    newest = max(inside, key=lambda mark: mark.version)
    found: dict[str, Any] = {
        "chmv/watermark_status": min((mark.status for mark in inside), key=_WORST_FIRST.index),
        "chmv/watermark_batch": newest.batch_id,
        "chmv/watermarks": dg.MetadataValue.table([_record(mark) for mark in sorted(inside, key=_order)]),
    }
    if (processed := _processed_by_all(inside)) is not None:
        found["chmv/last_processed_ts"] = processed.isoformat()
    arrivals = [mark.last_arrival_ts for mark in inside if mark.last_arrival_ts is not None]
    if arrivals:
        found["chmv/last_arrival_ts"] = max(arrivals).isoformat()
    return found


def _processed_by_all(marks: Sequence[Watermark]) -> datetime | None:
    """How far every source has come: the slowest one counts, and one that has not begun means: not at all."""
    furthest: dict[QName, datetime | None] = {}
    for mark in marks:
        before = furthest.setdefault(mark.source_id, mark.last_processed_ts)
        if mark.last_processed_ts is not None and (before is None or mark.last_processed_ts > before):
            furthest[mark.source_id] = mark.last_processed_ts
    reached = [moment for moment in furthest.values() if moment is not None]
    return min(reached) if len(reached) == len(furthest) else None


def _order(mark: Watermark) -> tuple[datetime, QName]:
    return mark.window_start, mark.source_id


def _record(mark: Watermark) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "source": str(mark.source_id),
            "window": str(Window(mark.window_start, mark.window_end)),
            "status": mark.status,
            "last_processed_ts": _shown(mark.last_processed_ts),
            "last_arrival_ts": _shown(mark.last_arrival_ts),
            "batch": mark.batch_id,
        }
    )


def _shown(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()
