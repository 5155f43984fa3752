"""Which landing files have rows of a window: from Parquet footers, else by reading the event times with Spark.

A file is loaded whole or not at all, so a file that touches the window brings its neighbours along. When in doubt (no
statistics, no readable time) a file counts as touching: its rows have to be judged by somebody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from urllib.parse import unquote, urlsplit

from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from chmv_assets.core.landing import LandingFile, LandingRefused
from chmv_assets.core.watermarks import from_micros
from chmv_assets.core.windows import Window
from chmv_assets.load import Columns, LoadSite
from spark_jobs.landing_reader import FILE, quote_column, read_landing
from spark_jobs.parquet_files import open_parquet

Range = tuple[datetime, datetime]  # first and last event time


def files_in_window(
    site: LoadSite, files: Sequence[LandingFile], columns: Columns, window: Window
) -> list[LandingFile]:
    """The files that have, or may have, rows of the window."""
    event = site.policy.event_time
    if event is None:
        raise LandingRefused(
            f"source {site.source.name}: found no event_time in chmv.yaml but wanted one. Without it no row belongs to a window. "
            "Declare it, or ingest without a window."
        )
    ranges = (
        _parquet_ranges(site, files, event)
        if site.landing.format == "parquet"
        else _text_ranges(site, files, columns, event)
    )
    return [file for file in files if _touches(ranges.get(file.path), window)]


def _touches(found: Range | None, window: Window) -> bool:
    return found is None or (found[0] < window.end and found[1] >= window.start)


def _parquet_ranges(site: LoadSite, files: Sequence[LandingFile], event: str) -> Mapping[str, Range]:
    ranges: dict[str, Range] = {}
    for file in files:
        with open_parquet(site.url(file.path)) as opened:
            metadata = opened.metadata
            names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
            if event not in names:
                continue
            at = names.index(event)
            found = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
        if found and all(one is not None and one.has_min_max for one in found):
            ranges[file.path] = (min(_moment(one.min) for one in found), max(_moment(one.max) for one in found))
    return ranges


def _moment(value: object) -> datetime:
    """A statistic as an aware moment; dates and times without a zone are in UTC, as everywhere here."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    return datetime.min.replace(tzinfo=timezone.utc)


def _text_ranges(site: LoadSite, files: Sequence[LandingFile], columns: Columns, event: str) -> Mapping[str, Range]:
    """One pass of Spark over files with the same columns."""
    groups: dict[tuple[str, ...], list[LandingFile]] = {}
    for file in files:
        groups.setdefault(columns[file.path], []).append(file)
    ranges: dict[str, Range] = {}
    for found, alike in groups.items():
        loaded = site.loaded_columns(found)
        if event not in {column.name for column in loaded}:
            continue
        urls = [site.url(file.path) for file in alike]
        frame = read_landing(site.spark(), urls, site.landing.format, found, loaded)
        micros = F.unix_micros(F.col(quote_column(event)).cast("timestamp"))
        spans = frame.groupBy(FILE).agg(F.min(micros), F.max(micros)).collect()
        for url, first, last in spans:
            path = next((file.path for file in alike if _same(url, site.url(file.path))), None)
            if path is not None and first is not None:
                ranges[path] = (from_micros(first), from_micros(last))
    return ranges


def _same(spark_url: str, url: str) -> bool:
    """Spark writes `file:///a%20b` for `/a b`."""
    return unquote(urlsplit(spark_url).path) == (urlsplit(url).path if "://" in url else url)
