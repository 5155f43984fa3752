"""Dagster's side of time: partitions definitions, the mappings between them, and the windows of a run.

The invariant: one definition object per cadence, start, zone and first weekday, so that assets of one cadence share
runs and jobs. Keys keep Dagster's default format; `core.windows` reads the same keys without Dagster. Which cadence a
table has is decided in `core.cadence` and the settings, not here.
"""

from __future__ import annotations

import warnings
from datetime import date, datetime
from functools import cache
from zoneinfo import ZoneInfo

import dagster as dg

from chmv_assets.core.cadence import Unit, WeekMode
from chmv_assets.core.windows import DATE_KEY_FORMAT, HOUR_KEY_FORMAT, Window, period_start

# Backfill policies and tolerant mappings are beta in Dagster 1.13; chosen on purpose, so no warning per asset.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

_CRON: dict[Unit, str] = {
    "hour": "0 * * * *",
    "day": "0 0 * * *",
    "week": "0 0 * * 1",
    "month": "0 0 1 * *",
    "quarter": "0 0 1 */3 *",
    "year": "0 0 1 1 *",
}
_SUNDAY_CRON = "0 0 * * 0"
# Dagster writes 26–54 ms of events per partition on SQLite: a run stays within seconds of bookkeeping.
_MAX_PARTITIONS_PER_RUN: dict[Unit, int] = {"hour": 168, "day": 92, "week": 52, "month": 12, "quarter": 8, "year": 5}


def partitions_definition(
    unit: Unit, start: datetime | date, timezone: str = "UTC", week_mode: WeekMode | None = None
) -> dg.TimeWindowPartitionsDefinition:
    """Give the one definition of a cadence; `start` is moved back to the start of its period."""
    mode: WeekMode | None = (week_mode or "monday") if unit == "week" else None
    zone = ZoneInfo(timezone)
    if not isinstance(start, datetime):
        start = datetime(start.year, start.month, start.day, tzinfo=zone)
    elif start.tzinfo is None:
        start = start.replace(tzinfo=zone)
    return _definition(unit, period_start(start, unit, timezone, mode), timezone, mode)


@cache
def _definition(
    unit: Unit, start: datetime, timezone: str, week_mode: WeekMode | None
) -> dg.TimeWindowPartitionsDefinition:
    return dg.TimeWindowPartitionsDefinition(
        start=start.astimezone(ZoneInfo(timezone)),
        fmt=HOUR_KEY_FORMAT if unit == "hour" else DATE_KEY_FORMAT,
        cron_schedule=_SUNDAY_CRON if week_mode == "sunday" else _CRON[unit],
        timezone=timezone,
        end_offset=1,
    )


@cache
def _overlap() -> dg.TimeWindowPartitionMapping:
    return dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)


@cache
def _everything() -> dg.AllPartitionMapping:
    return dg.AllPartitionMapping()


def mapping_between(
    upstream: dg.PartitionsDefinition[str] | None,
    downstream: dg.PartitionsDefinition[str] | None,
    *,
    lookup: bool = False,
) -> dg.PartitionMapping | None:
    """Choose how partitions of two assets depend on each other; None leaves Dagster's default, which is right then.

    A lookup is read as a whole. Different cadences map by overlap and tolerate upstream windows that do not exist yet,
    else the open month could not be launched. Zones that differ cannot be mapped by Dagster: everything, then.
    """
    if upstream is None or downstream is None:
        return None
    if lookup:
        return _everything()
    if upstream == downstream:
        return None
    return _overlap() if _zone_of(upstream) == _zone_of(downstream) != "" else _everything()


def _zone_of(definition: dg.PartitionsDefinition[str]) -> str:
    return definition.timezone if isinstance(definition, dg.TimeWindowPartitionsDefinition) else ""


def max_partitions_per_run(unit: Unit) -> int:
    """Tell how many windows one run of a backfill may take."""
    return _MAX_PARTITIONS_PER_RUN[unit]


@cache
def backfill_policy(unit: Unit | None) -> dg.BackfillPolicy | None:
    """Give the one backfill policy of a cadence; unpartitioned assets need none."""
    return dg.BackfillPolicy.multi_run(max_partitions_per_run(unit)) if unit else None


def windows_of_run(context: dg.AssetExecutionContext) -> list[tuple[str, Window]]:
    """List the partitions of a run with their windows, oldest first; an unpartitioned asset has none.

    `context.partition_key` is never asked: it raises in range runs, even when the range holds one key.
    """
    definition = context.assets_def.partitions_def
    if definition is None:
        return []
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        raise TypeError(f"{context.assets_def.key.to_user_string()} is partitioned, but not by time")
    windows = ((key, definition.time_window_for_partition_key(key)) for key in context.partition_keys)
    return [(key, Window(window.start, window.end)) for key, window in windows]
