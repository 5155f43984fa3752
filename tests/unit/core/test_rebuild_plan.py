"""Plans of rebuilds: which filter narrows the source, what is refused, and the SQL that comes out."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import Feed, covered_window, plan_feed, render_feed, scratch_name
from chmv_assets.core.windows import Window, window_of_key

UTC = timezone.utc
NOW = datetime(2026, 8, 1, tzinfo=UTC)
DAY = window_of_key("2026-07-05", "day", "UTC")


def catalog(
    select: str,
    *,
    ts: str = "DateTime('UTC')",
    target: str = "day Date, n UInt64",
    by: str = "toYYYYMMDD(day)",
    engine: str = "MergeTree ORDER BY ts",
) -> Catalog:
    text = f"""CREATE TABLE d.s (ts {ts}, other DateTime('UTC'), k UInt8) ENGINE = {engine};
    CREATE TABLE d.t ({target}) ENGINE = SummingMergeTree PARTITION BY {by} ORDER BY tuple();
    CREATE MATERIALIZED VIEW d.v TO d.t AS {select};"""
    return build_catalog([SourceFile(path="x.sql", text=text)])


def plan(made: Catalog, window: Window | None = DAY, zone: str = "UTC", server: str = "UTC") -> Feed:
    view = made.objects[QName("d", "v")]
    covered, _ = covered_window(made.scheme(view.name), window, zone, server)
    return plan_feed(made, view, covered, zone, server, NOW)


def between(column: str, start: str, end: str) -> str:
    return f"(`{column}` >= toDateTime('{start}', 'UTC') AND `{column}` < toDateTime('{end}', 'UTC'))"


BY_DAY = "SELECT toDate(ts) AS day, count() AS n FROM d.s GROUP BY day"
EXACT = between("ts", "2026-07-05 00:00:00", "2026-07-06 00:00:00")


@pytest.mark.parametrize(
    ("select", "options", "wanted"),
    [
        (BY_DAY, {}, EXACT),
        ("SELECT toDate(toStartOfHour(ts)) AS day, 1 AS n FROM d.s", {}, EXACT),
        ("SELECT day, 1 AS n FROM (SELECT toDate(ts) AS day FROM d.s)", {}, EXACT),
        ("SELECT ts AS day, 1 AS n FROM d.s", {}, EXACT),
        ("SELECT toDate(ts) AS day, 1 AS n FROM d.s", {"ts": "DateTime('Europe/Berlin')"}, ""),
        ("SELECT ts AS day, 1 AS n FROM d.s", {"ts": "DateTime('Europe/Berlin')"}, ""),
        ("SELECT toDate(ts, 'UTC') AS day, 1 AS n FROM d.s", {"ts": "DateTime('Europe/Berlin')"}, EXACT),
        ("SELECT toDate(ts) + 1 AS day, 1 AS n FROM d.s", {}, ""),
        ("SELECT toMonday(ts) AS day, 1 AS n FROM d.s", {}, ""),
        ("SELECT greatest(toDate(ts), toDate(other)) AS day, 1 AS n FROM d.s", {}, ""),
        ("SELECT toDate('2026-07-05') AS day, 1 AS n FROM d.s", {}, ""),
        (BY_DAY, {"by": "toYYYYMM(day)"}, between("ts", "2026-07-01 00:00:00", "2026-08-01 00:00:00")),
        ("SELECT toMonday(ts) AS day, 1 AS n FROM d.s", {"by": "toMonday(day)"}, between("ts", "2026-06-29 00:00:00", "2026-07-06 00:00:00")),
        ("SELECT ts AS at, 1 AS n FROM d.s", {"ts": "Date", "target": "at DateTime('UTC'), n UInt8", "by": "toYYYYMMDD(at)"}, ""),
        ("SELECT ts AS day, 1 AS n FROM d.s", {"ts": "Date"}, "(`ts` >= toDate('2026-07-05') AND `ts` < toDate('2026-07-06'))"),
    ],
)  # fmt: skip
def test_source_filter_selects_the_same_rows_or_is_left_out(select: str, options: dict[str, str], wanted: str) -> None:
    assert plan(catalog(select, **options)).source_filter == wanted


def test_bare_columns_follow_the_server_and_dates_the_location() -> None:
    assert plan(catalog(BY_DAY, ts="DateTime"), server="Asia/Tokyo").source_filter == ""
    tokyo = plan(
        catalog(BY_DAY, ts="DateTime"), window_of_key("2026-07-05", "day", "Asia/Tokyo"), "Asia/Tokyo", "Asia/Tokyo"
    )
    assert tokyo.source_filter == between("ts", "2026-07-04 15:00:00", "2026-07-05 15:00:00")


def test_sql_goes_by_name_and_by_the_targets_time() -> None:
    feed = plan(catalog(BY_DAY))
    sql = render_feed(
        feed, QName("x", "y`z"), [("day", "Date"), ("n", "UInt64"), ("gone", "UInt8")], ["n", "day"], "UTC"
    )
    assert sql == (
        f"INSERT INTO `x`.`y\\`z` (`day`, `n`) SELECT `day`, `n` FROM ({BY_DAY}) "
        "WHERE (`day` >= toDate('2026-07-05') AND `day` < toDate('2026-07-06'))"
    )


def test_condition_converts_as_the_insert_does() -> None:
    feed = plan(catalog("SELECT ts AS day, 1 AS n FROM d.s"))
    sql = render_feed(
        feed, QName("x", "y"), [("day", "DateTime('Europe/Berlin')"), ("n", "UInt8")], ["day", "n"], "UTC"
    )
    assert sql.endswith(
        "WHERE (CAST(`day`, 'Date') >= toDate('2026-07-05') AND CAST(`day`, 'Date') < toDate('2026-07-06'))"
    )


def test_whole_target_has_no_condition() -> None:
    feed = plan(catalog(BY_DAY), None)
    assert (feed.window, feed.source_filter) == (None, "")
    assert "WHERE" not in render_feed(feed, QName("x", "y"), [("day", "Date")], ["day"], "UTC")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (catalog(BY_DAY, engine="Null"), "d.s is a Null table but wanted a table that holds its rows"),
        (catalog(BY_DAY, engine="Log"), "d.s is Log but wanted a MergeTree table, whose parts tell of every insert"),
        (catalog(BY_DAY, engine="Kafka('a', 'b', 'c', 'd')"), "is a Kafka queue"),
        (catalog(BY_DAY.replace("d.s", "e.x")), "e.x is not declared here"),
        (catalog(BY_DAY.replace("d.s", "url('http://x', CSV)")), "found no table that fires it"),
        (catalog(BY_DAY, engine="MergeTree ORDER BY ts TTL ts + INTERVAL 20 DAY"), "2026-07-05 00:00 but d.s keeps rows only since 2026-07-12 00:00"),
        (catalog(BY_DAY, engine="MergeTree ORDER BY ts TTL until"), "but d.s deletes rows at times that its TTL does not tell beforehand (TTL until)"),
    ],
)  # fmt: skip
def test_refusals_say_why_and_what_next(made: Catalog, why: str) -> None:
    with pytest.raises(RebuildRefused) as caught:
        plan(made)
    assert why in str(caught.value)
    assert str(caught.value).startswith("view d.v: ")


HIDDEN = (
    "CREATE TABLE d.s (ts DateTime) ENGINE = MergeTree ORDER BY ts;"
    "CREATE MATERIALIZED VIEW d.v ENGINE = SummingMergeTree ORDER BY day AS SELECT toDate(ts) AS day, count() AS n FROM d.s GROUP BY day;"
    "CREATE TABLE d.t (n UInt64) ENGINE = SummingMergeTree ORDER BY tuple();"
    "CREATE MATERIALIZED VIEW d.behind TO d.t AS SELECT sum(n) AS n FROM d.`.inner.v`;"
)


def test_hidden_tables_are_rebuilt_but_not_read() -> None:
    made = build_catalog([SourceFile(path="x.sql", text=HIDDEN)])
    assert plan(made, None).target.name == QName("d", ".inner.v")
    with pytest.raises(RebuildRefused, match="reads the hidden inner table of another view"):
        plan_feed(made, made.objects[QName("d", "behind")], None, "UTC", "UTC", NOW)


def test_view_without_the_time_column_is_refused() -> None:
    feed = plan(catalog("SELECT k AS n FROM d.s"))
    with pytest.raises(RebuildRefused, match=r"does not give day, by which d\.t is partitioned"):
        render_feed(feed, QName("x", "y"), [("n", "UInt8")], ["day", "n"], "UTC")
    with pytest.raises(RebuildRefused, match=r"none of its columns is in d\.t"):
        render_feed(feed, QName("x", "y"), [("q", "UInt8")], ["day", "n"], "UTC")


def test_scratch_names_differ_by_target_and_view() -> None:
    names = {scratch_name(QName("a", t), v) for t in ("t", "u") for v in (None, QName("a", "v"), QName("b", "v"))}
    assert len(names) == 6
    assert {name.database for name in names} == {"chmv"}
