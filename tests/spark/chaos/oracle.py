"""What has to be true once everything is recovered. Asks the server itself, past the proxy.

Nothing is left out: every materialized view of the demo is compared. The refreshable one is refreshed first, since it is due once an
hour only; the views that look up users and products are compared with what these hold now, which does not change during the test.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

from clickhouse_connect.driver.client import Client

from chaos.files import BAD_ID, KEY_COLUMNS, SOURCES, Book, Key
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.windows import period_start, scheme_zone
from chmv_assets.pipeline import Pipeline

T = TypeVar("T")
_MERGING = ("SummingMergeTree", "AggregatingMergeTree")
Columns = Sequence[tuple[str, str, bool]]  # name, type, whether part of the sorting key


def check_rows(client: Client, book: Book) -> None:
    """The sources hold the good rows of the files, quarantine the bad ones, each of them once."""
    for source in SOURCES:
        name, at, money = KEY_COLUMNS[source]
        version = "version" if source == "shop.order_changes" else "0"
        found = client.query(
            f"SELECT {name}, {version}, user_id, toUnixTimestamp64Milli({at}), toInt64({money} * 100) FROM {source}"
        )
        _same(f"rows of {source}", Counter(_key(row) for row in found.result_rows), book.good[source])
        bad = client.query("SELECT row FROM chmv.quarantine WHERE source = {source:String}", {"source": source})
        ids = Counter(match.group() for (row,) in bad.result_rows if (match := BAD_ID.search(row)))
        assert ids.total() == len(bad.result_rows), f"quarantine of {source} holds rows that were not bad"
        _same(f"quarantined rows of {source}", ids, book.bad[source])


def _same(what: str, found: Counter[T], wanted: Counter[T]) -> None:
    if found == wanted:
        return
    missing, extra = wanted - found, found - wanted
    raise AssertionError(
        f"{what}: {found.total()} found, {wanted.total()} wanted; {missing.total()} missing such as {list(missing)[:3]}, "
        f"{extra.total()} too many such as {list(extra)[:3]}"
    )


def _key(row: Sequence[Any]) -> Key:
    number, version, user, millis, cents = map(int, row)
    return number, version, user, millis, cents


def check_targets(client: Client) -> tuple[str, ...]:
    """Every target equals what its views' queries give over their sources now; gives the targets compared."""
    client.command("SYSTEM REFRESH VIEW shop.customer_value_mv")
    client.command("SYSTEM WAIT VIEW shop.customer_value_mv")
    tables = client.query(
        "SELECT name, engine, as_select, target_table FROM system.tables WHERE database = 'shop' ORDER BY name"
    ).result_rows
    engines = {str(name): str(engine) for name, engine, _, _ in tables}
    columns: dict[str, list[tuple[str, str, bool]]] = {}
    for table, name, kind, key in client.query(
        "SELECT table, name, type, is_in_sorting_key FROM system.columns WHERE database = 'shop' ORDER BY table, position"
    ).result_rows:
        columns.setdefault(table, []).append((name, kind, bool(key)))
    branches: dict[str, list[str]] = {}
    for view, engine, select, target in tables:
        if engine == "MaterializedView":
            branches.setdefault(target, []).append(_branch(select, columns[view], columns[target]))
    defects = [
        defect
        for target, queries in branches.items()
        if (defect := _compare(client, target, engines[target], columns[target], queries))
    ]
    assert not defects, "\n".join(defects)
    return tuple(f"shop.{target}" for target in branches)


def _compare(client: Client, target: str, engine: str, columns: Columns, queries: Sequence[str]) -> str:
    """What is wrong with a target, or nothing."""
    held = _comparable(f"SELECT * FROM shop.{target}", engine, columns)
    asked = _comparable(" UNION ALL ".join(queries), engine, columns)
    found = client.query(
        f"SELECT 'held', * FROM (({held}) EXCEPT DISTINCT ({asked})) LIMIT 3 "
        f"UNION ALL SELECT 'asked', * FROM (({asked}) EXCEPT DISTINCT ({held})) LIMIT 3"
    ).result_rows
    return f"target shop.{target}: what it holds and what its views give differ: {found}" if found else ""


def _branch(select: str, view: Columns, columns: Columns) -> str:
    """A view's query in the columns of its target; what it does not give, the server fills with the type's default."""
    given = {name for name, _, _ in view}
    values = (
        f"CAST({f'v.{name}' if name in given else f'defaultValueOfTypeName($${kind}$$)'}, $${kind}$$) AS {name}"
        for name, kind, _ in columns
    )
    return f"SELECT {', '.join(values)} FROM ({select}) AS v"


def _comparable(relation: str, engine: str, columns: Columns) -> str:
    """Finalised rows, each with how often it is there: EXCEPT alone would overlook doubles."""
    names = ", ".join(name for name, _, _ in columns)
    if engine in _MERGING:
        keys = ", ".join(name for name, _, is_key in columns if is_key)
        values = ", ".join(f"{_merged(name, kind)} AS merged_{name}" for name, kind, is_key in columns if not is_key)
        return f"SELECT {keys}, {values} FROM ({relation}) GROUP BY {keys}"
    if engine == "ReplacingMergeTree":
        keys = ", ".join(name for name, _, is_key in columns if is_key)
        return f"SELECT {names} FROM ({relation}) ORDER BY version DESC LIMIT 1 BY {keys}"
    return f"SELECT {names}, count() AS times FROM ({relation}) GROUP BY {names}"


def _merged(column: str, kind: str) -> str:
    if match := re.match(r"SimpleAggregateFunction\((\w+),", kind):
        return f"{match.group(1)}({column})"
    if match := re.match(r"AggregateFunction\((\w+)(\([^)]*\))?,", kind):
        return f"{match.group(1)}Merge{match.group(2) or ''}({column})"
    return f"sum({column})"


def check_settled(client: Client, pipeline: Pipeline) -> None:
    """Nothing is left half done: no staging, no open batch, no held lock, and every window with rows has its watermark."""
    staging = client.query("SELECT name FROM system.tables WHERE database = 'chmv' AND startsWith(name, 'stage.')")
    assert not staging.result_rows, f"staging left: {staging.result_rows}"
    left = client.query("SELECT source, batch_id, status, detail FROM chmv.batches FINAL WHERE status != 'committed'")
    assert not left.result_rows, f"batches left: {left.result_rows}"
    for source in SOURCES:
        _check_watermarks(client, pipeline, parse_qname(source, ""))


def _check_watermarks(client: Client, pipeline: Pipeline, source: QName) -> None:
    at = pipeline.settings.policy(source).event_time
    assert at is not None
    hours = client.query(
        f"SELECT toUnixTimestamp(toStartOfHour({at})) AS hour, max(toUnixTimestamp64Milli({at})) FROM {source.sql} GROUP BY hour"
    ).result_rows
    marks = client.query(
        "SELECT target_table, toUnixTimestamp64Milli(window_start), toUnixTimestamp64Milli(last_processed_ts) "
        "FROM chmv.watermarks FINAL WHERE source_id = {source:String}",
        {"source": str(source)},
    ).result_rows
    found = {(str(target), int(start)): int(newest) for target, start, newest in marks}
    wanted: dict[tuple[str, int], int] = {}
    for target in _reached(pipeline, source):
        scheme = pipeline.catalog.schemes[target]
        zone = scheme_zone(scheme, pipeline.settings.timezone)
        for hour, newest in hours:
            start = period_start(datetime.fromtimestamp(hour, timezone.utc), scheme.unit, zone, scheme.week_mode)
            key = (str(target), int(start.timestamp() * 1000))
            wanted[key] = max(wanted.get(key, 0), int(newest))
    wrong = {key: (found.get(key), newest) for key, newest in wanted.items() if found.get(key) != newest}
    assert not wrong, (
        f"watermarks of {source} (found, wanted newest event): {dict(list(wrong.items())[:3])}, {len(wrong)} in all"
    )
    assert found.keys() == wanted.keys(), (
        f"watermarks of {source} for windows without rows: {found.keys() - wanted.keys()}"
    )


def _reached(pipeline: Pipeline, source: QName) -> list[QName]:
    """The source and all targets that its inserts reach, through chains too, as far as they have time partitions."""
    catalog, found = pipeline.catalog, [source]
    for table in found:  # grows while we walk
        hooked = [edge.dest for edge in catalog.edges if edge.kind == "trigger" and edge.source == table]
        targets = [target for view in hooked if (target := catalog.objects[view].target) is not None]
        found += [target for target in dict.fromkeys(targets) if target not in found]
    return [name for name in found if name in catalog.schemes]
