"""Each engine by itself: what counts as equal whatever merges have done, what does not, and what cannot be told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from reconcile_bench import Bench, bench_of, numbers

from resources.clickhouse import Server

Make = Callable[..., Bench]
SOURCE = """
CREATE TABLE {db}.NAME_source (ts DateTime('UTC'), k UInt32, n Int64, f Float64, s String, v UInt32, d UInt8, sign Int8, o Nullable(UInt32))
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY k;
"""
ROW = "INSERT INTO {db}.NAME_source (ts, k, n, f, s, v, d, sign) VALUES "


@pytest.fixture(scope="module")
def make(clickhouse: Client, server: Server, database: str) -> Make:
    def build(name: str, columns: str, engine: str, select: str, rows: str, *, grouped: bool = False) -> Bench:
        ddl = SOURCE + (
            f"CREATE TABLE {{db}}.NAME (ts DateTime('UTC'), {columns}) ENGINE = {engine} PARTITION BY toYYYYMMDD(ts) ORDER BY k;\n"
            f"CREATE MATERIALIZED VIEW {{db}}.NAME_mv TO {{db}}.NAME AS SELECT {select} FROM {{db}}.NAME_source"
            f"{' GROUP BY ts, k' if grouped else ''};"
        )
        bench = bench_of(clickhouse, server, database, ddl.replace("NAME", name))
        for one in rows.split(";"):  # each part is an insert of its own, so that partial rows arise
            if one.strip():
                bench.run(ROW.replace("NAME", name) + one)
        return bench

    return build


T = "'2026-11-01 10:00:00'"


def test_summing_is_equal_before_and_after_merges_and_zero_sums_count_as_absent(make: Make) -> None:
    rows = f"({T}, 1, 5, 0.1, '', 0, 0, 1); ({T}, 1, -5, 0.2, '', 0, 0, 1); ({T}, 2, 7, 0, '', 0, 0, 1); ({T}, 2, 1, 0, '', 0, 0, 1)"
    bench = make("summing", "k UInt32, n Int64", "SummingMergeTree", "ts, k, n", rows)
    assert (bench.verdict("summing").status, bench.verdict("summing").keys) == ("equal", 1)
    bench.run("OPTIMIZE TABLE {db}.summing FINAL")
    assert bench.rows("SELECT count() FROM {db}.summing") == [(1,)]
    assert (bench.verdict("summing").status, bench.verdict("summing").keys) == ("equal", 1)


def test_summing_wraps_around_with_its_type_and_sums_named_columns_only(make: Make) -> None:
    rows = f"({T}, 1, 200, 0, 'a', 3, 0, 1); ({T}, 1, 100, 0, 'a', 3, 0, 1)"
    bench = make(
        "wraps", "k UInt32, n UInt8, s String, v UInt32", "SummingMergeTree(n)", "ts, k, toUInt8(n) AS n, s, v", rows
    )
    for _ in range(2):
        found = bench.verdict("wraps")
        assert found.status == "equal"
        bench.run("OPTIMIZE TABLE {db}.wraps FINAL")
    assert bench.rows("SELECT n, v FROM {db}.wraps") == [(44, 3)]
    bench.add("wraps", f"VALUES ({T}, 1, 1, 'b', 4)")
    found = bench.verdict("wraps")  # which of two texts stays is open
    assert (numbers(found), found.counts.undecided) == ({"larger": 1}, 1)  # type: ignore[union-attr]
    bench.delete("wraps", "s = 'a'")
    assert numbers(bench.verdict("wraps")) == {"smaller": 1, "changed": 1}


def test_states_are_finalised_and_what_depends_on_order_is_left_out(make: Make) -> None:
    columns = (
        "k UInt32, c AggregateFunction(count), u AggregateFunction(uniqExact, String), a AggregateFunction(groupArray, Int64), "
        "q AggregateFunction(quantile, Int64), m AggregateFunction(avg, Float64), x SimpleAggregateFunction(min, Int64), "
        "y SimpleAggregateFunction(any, String), z AggregateFunction(sum, Float64)"
    )
    select = (
        "ts, k, countState() AS c, uniqExactState(s) AS u, groupArrayState(n) AS a, quantileState(n) AS q, avgState(f) AS m, min(n) AS x, "
        "any(s) AS y, sumState(f) AS z"
    )
    rows = "; ".join(f"({T}, {i % 3}, {i}, {i / 7}, 's{i % 5}', 0, 0, 1)" for i in range(9))
    bench = make("states", columns, "AggregatingMergeTree", select, rows, grouped=True)
    for _ in range(2):
        found = bench.verdict("states")
        assert (found.status, found.keys) == ("equal", 3), found.sentence()
        bench.run("OPTIMIZE TABLE {db}.states FINAL")
    assert {left.column for left in found.left_out} == {"q", "y"}
    assert "another value when states merge in another order" in found.left_out[-1].reason + found.left_out[0].reason
    bench.delete("states", "k = 1")
    bench.add("states", f"SELECT {select} FROM {{db}}.states_source WHERE k = 1 AND n != 1 GROUP BY ts, k")
    found = bench.verdict("states")  # a lost minimum is larger in the target, and still something it lacks
    assert numbers(found) == {"smaller": 1, "changed": 1} and found.samples[0].kind == "smaller"


def test_replacing_keeps_the_newest_version_and_does_not_judge_ties(make: Make) -> None:
    rows = (
        f"({T}, 1, 1, 0, 'old', 1, 0, 1); ({T}, 1, 1, 0, 'new', 2, 0, 1); ({T}, 2, 1, 0, 'a', 1, 0, 1); ({T}, 2, 1, 0, 'b', 1, 0, 1); "
        f"({T}, 3, 1, 0, 'x', 1, 0, 1)"
    )
    bench = make("replacing", "k UInt32, s String, v UInt32", "ReplacingMergeTree(v)", "ts, k, s, v", rows)
    for _ in range(2):
        found = bench.verdict("replacing")
        assert (found.status, found.keys, found.counts.undecided) == ("equal", 3, 1)  # type: ignore[union-attr]
        bench.run("OPTIMIZE TABLE {db}.replacing FINAL")
    bench.delete("replacing", "k = 1")
    bench.add("replacing", f"VALUES ({T}, 1, 'old', 1), ({T}, 3, 'y', 5)")
    found = bench.verdict("replacing")
    assert numbers(found) == {"smaller": 1, "larger": 1}
    bench.delete("replacing", "k = 3")
    bench.add("replacing", f"VALUES ({T}, 3, 'other', 1)")
    assert numbers(bench.verdict("replacing")) == {"smaller": 1, "changed": 1}


def test_replacing_without_version_compares_values_only_where_rows_agree(make: Make) -> None:
    rows = f"({T}, 1, 1, 0, 'a', 0, 0, 1); ({T}, 1, 1, 0, 'b', 0, 0, 1); ({T}, 2, 1, 0, 'c', 0, 0, 1)"
    bench = make("last_wins", "k UInt32, s String", "ReplacingMergeTree", "ts, k, s", rows)
    bench.run("OPTIMIZE TABLE {db}.last_wins FINAL")
    found = bench.verdict("last_wins")
    assert (found.status, found.counts.undecided) == ("equal", 1)  # type: ignore[union-attr]
    bench.delete("last_wins", "k = 2")
    bench.add("last_wins", f"VALUES ({T}, 2, 'd')")
    assert numbers(bench.verdict("last_wins")) == {"changed": 1}


def test_deleted_rows_count_as_absent(make: Make) -> None:
    rows = f"({T}, 1, 1, 0, 'a', 1, 0, 1); ({T}, 1, 1, 0, 'a', 2, 1, 1); ({T}, 2, 1, 0, 'b', 1, 0, 1); ({T}, 3, 1, 0, 'c', 1, 0, 1); ({T}, 3, 1, 0, 'c', 1, 1, 1)"
    bench = make("deleted", "k UInt32, s String, v UInt32, d UInt8", "ReplacingMergeTree(v, d)", "ts, k, s, v, d", rows)
    assert bench.verdict("deleted").status == "equal"
    bench.delete("deleted", "k IN (1, 3)")  # of 3 nobody knows whether it is there
    assert bench.verdict("deleted").status == "equal"
    bench.add("deleted", f"VALUES ({T}, 2, 'b', 9, 1)")
    assert numbers(bench.verdict("deleted")) == {"missing": 1}


def test_collapsing_compares_sums_of_signs(make: Make) -> None:
    rows = f"({T}, 1, 1, 0, '', 1, 0, 1); ({T}, 1, 1, 0, '', 1, 0, -1); ({T}, 2, 1, 0, '', 1, 0, 1)"
    for name, engine in (
        ("collapsing", "CollapsingMergeTree(sign)"),
        ("versioned", "VersionedCollapsingMergeTree(sign, v)"),
    ):
        bench = make(name, "k UInt32, n Int64, v UInt32, sign Int8", engine, "ts, k, n, v, sign", rows)
        for _ in range(2):
            found = bench.verdict(name)
            assert (found.status, found.keys) == ("equal", 1)
            bench.run(f"OPTIMIZE TABLE {{db}}.{name} FINAL")
        assert {left.column for left in found.left_out} >= {"n"}
        bench.add(name, f"VALUES ({T}, 2, 1, 1, 1)")
        assert numbers(bench.verdict(name)) == {"larger": 1}


def test_plain_rows_are_a_multiset_with_defaults_as_an_insert_fills_them(make: Make) -> None:
    columns = (
        "k UInt32, o UInt32, twice UInt64 DEFAULT k * 2, made UInt64 MATERIALIZED k + 1, at DateTime DEFAULT now(), "
        "id UUID DEFAULT generateUUIDv4(), shown String ALIAS toString(k), other String, seen DateTime"
    )
    rows = f"({T}, 1, 1, 0, '', 0, 0, 1); ({T}, 1, 1, 0, '', 0, 0, 1), ({T}, 2, 1, 0, '', 0, 0, 1)"
    bench = make("plain", columns, "MergeTree", "ts, k, ifNull(o, 0) AS o, now() AS seen", rows)
    found = bench.verdict("plain")
    assert (found.status, found.keys) == ("equal", 2), found.sentence()
    assert {left.column for left in found.left_out} == {"at", "id", "shown", "seen"}
    assert set(found.compared) == {"ts", "k", "o", "twice", "made", "other", "rows"}
    bench.add("plain", f"(ts, k, twice) VALUES ({T}, 2, 5)")
    bench.delete("plain", "k = 1")
    assert numbers(bench.verdict("plain")) == {"missing": 1, "extra": 1}


def test_a_null_that_the_view_could_not_write_is_a_missing_row(make: Make) -> None:
    bench = make("nulls", "k UInt32, o UInt32", "MergeTree", "ts, k, o", "")
    bench.run(f"INSERT INTO {{db}}.nulls_source (ts, k, o) VALUES ({T}, 1, 5)")
    assert bench.verdict("nulls").status == "equal"
    with pytest.raises(DatabaseError, match="Cannot convert NULL"):
        bench.run(f"INSERT INTO {{db}}.nulls_source (ts, k, o) VALUES ({T}, 2, NULL)")
    assert numbers(bench.verdict("nulls")) == {"missing": 1}


def cannot(bench: Bench, table: str, words: str, window: str | None = "2026-11-01") -> None:
    found = bench.verdict(table, window)
    assert found.status == "cannot tell" and words in found.sentence(), found.sentence()


def test_what_cannot_be_told_says_why(clickhouse: Client, server: Server, database: str) -> None:
    ddl = """
    CREATE TABLE {db}.ct_source (ts DateTime('UTC'), k UInt32) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY k TTL ts + INTERVAL 10 DAY;
    CREATE TABLE {db}.ct_short (ts DateTime('UTC'), k UInt32) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY k;
    CREATE MATERIALIZED VIEW {db}.ct_short_mv TO {db}.ct_short AS SELECT ts, k FROM {db}.ct_source;
    CREATE TABLE {db}.ct_null (ts DateTime('UTC'), k UInt32) ENGINE = Null;
    CREATE TABLE {db}.ct_fed (ts DateTime('UTC'), k UInt32) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY k;
    CREATE MATERIALIZED VIEW {db}.ct_fed_mv TO {db}.ct_fed AS SELECT ts, k FROM {db}.ct_null;
    CREATE TABLE {db}.ct_kept (ts DateTime('UTC'), k UInt32) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY k;
    CREATE TABLE {db}.ct_clock (ts DateTime('UTC'), at DateTime, k UInt32) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY at;
    CREATE MATERIALIZED VIEW {db}.ct_clock_mv TO {db}.ct_clock AS SELECT ts, now() AS at, k FROM {db}.ct_kept;
    CREATE TABLE {db}.ct_log (ts DateTime('UTC'), k UInt32) ENGINE = Log;
    CREATE MATERIALIZED VIEW {db}.ct_log_mv TO {db}.ct_log AS SELECT ts, k FROM {db}.ct_kept;
    CREATE TABLE {db}.ct_grows (k UInt32) ENGINE = MergeTree ORDER BY k;
    CREATE MATERIALIZED VIEW {db}.ct_grows_mv REFRESH EVERY 1 YEAR APPEND TO {db}.ct_grows AS SELECT k FROM {db}.ct_kept;
    CREATE TABLE {db}.ct_whole (k UInt32) ENGINE = MergeTree ORDER BY k;
    CREATE MATERIALIZED VIEW {db}.ct_whole_mv REFRESH EVERY 1 YEAR TO {db}.ct_whole AS SELECT k FROM {db}.ct_kept;
    """
    bench = bench_of(clickhouse, server, database, ddl)
    cannot(bench, "ct_short", "the window starts 2026-11-01 00:00 but")
    cannot(bench, "ct_short", "keeps rows only since 2026-11-06 00:00 (TTL")
    assert bench.verdict("ct_short", "2026-11-10").status == "equal"
    cannot(bench, "ct_fed", "is a Null table")
    cannot(bench, "ct_clock", "its key column at cannot be computed again")
    cannot(bench, "ct_log", "wanted a MergeTree table")
    cannot(bench, "ct_grows", "appends to it with every refresh")
    cannot(bench, "ct_source", "no view writes into")
    bench.run("SYSTEM WAIT VIEW {db}.ct_whole_mv")
    bench.run("INSERT INTO {db}.ct_kept VALUES ('2026-11-01 00:00:00', 1)")
    cannot(bench, "ct_whole", "ct_kept may have changed since")
    bench.run("DROP TABLE {db}.ct_short SYNC")
    cannot(bench, "ct_short", "is not on the server", "2026-11-10")
