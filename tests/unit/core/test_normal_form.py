"""Normal forms by engine: keys, measures, what is left out and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.measures import LeftOut
from chmv_assets.core.model import Object
from chmv_assets.core.normal_form import CannotCompare, NormalForm, build_normal_form, engine_arguments
from chmv_assets.core.rebuild import Feed, render_share
from chmv_assets.core.reconcile import (
    Share,
    StoredColumn,
    build_comparison,
    eaten_by_ttl,
    source_filters,
)
from chmv_assets.core.reconcile_sql import render_counts, render_samples
from chmv_assets.core.volatile import volatile_outputs
from chmv_assets.core.window_text import parse_window


def table(columns: str, engine: str, keys: str = "ORDER BY k") -> Object:
    text = f"CREATE TABLE d.t ({columns}) ENGINE = {engine} {keys}"
    return build_catalog([SourceFile(path="a.sql", text=text)]).get("d.t")


def form_of(target: Object, left_out: tuple[LeftOut, ...] = ()) -> NormalForm:
    return build_normal_form(target, {column.name: column.type for column in target.columns}, left_out)


def measures(form: NormalForm) -> dict[str, tuple[str, str, str]]:
    return {one.label: (one.sql, one.mode, one.direction) for one in form.measures}


MEASURES = [
    ("k UInt8, n UInt64", "MergeTree", {"rows": ("count()", "exact", "up")}),
    ("k UInt8, n UInt64", "SummingMergeTree", {"n": ("sumWithOverflow(`n`)", "exact", "up")}),
    ("k UInt8, n Float64", "SummingMergeTree", {"n": ("sumWithOverflow(`n`)", "near", "up")}),
    ("k UInt8, n UInt8, m UInt8", "SummingMergeTree((n))", {"n": ("sumWithOverflow(`n`)", "exact", "up"), "m": ("groupUniqArray(2)(`m`)", "single", "none")}),
    ("k UInt8, s String", "SummingMergeTree", {"s": ("groupUniqArray(2)(`s`)", "single", "none")}),
    ("k UInt8, n UInt64", "AggregatingMergeTree", {"n": ("groupUniqArray(2)(`n`)", "single", "none")}),
    ("k UInt8, n SimpleAggregateFunction(sum, UInt64)", "AggregatingMergeTree", {"n": ("sum(`n`)", "exact", "up")}),
    ("k UInt8, n SimpleAggregateFunction(min, Date)", "AggregatingMergeTree", {"n": ("min(`n`)", "exact", "down")}),
    ("k UInt8, n SimpleAggregateFunction(max, Float32)", "AggregatingMergeTree", {"n": ("max(`n`)", "near", "up")}),
    ("k UInt8, n SimpleAggregateFunction(anyLast, String)", "AggregatingMergeTree", {"n": ("groupUniqArray(2)(`n`)", "single", "none")}),
    ("k UInt8, u AggregateFunction(uniqIf, UInt64, UInt8)", "AggregatingMergeTree", {"u": ("uniqIfMerge(`u`)", "exact", "up")}),
    ("k UInt8, u AggregateFunction(quantilesTiming(0.5, 0.9), UInt32)", "AggregatingMergeTree", {"u": ("quantilesTimingMerge(0.5, 0.9)(`u`)", "near", "none")}),
    ("k UInt8, u AggregateFunction(groupArray, UInt8)", "AggregatingMergeTree", {"u": ("arraySort(groupArrayMerge(`u`))", "exact", "none")}),
    ("k UInt8, u AggregateFunction(any, UInt8)", "AggregatingMergeTree", {"u": ("groupUniqArray(2)(finalizeAggregation(`u`))", "single", "none")}),
    ("k UInt8, u AggregateFunction(argMax, UInt8, UInt8)", "AggregatingMergeTree", {}),
    ("k UInt8, u AggregateFunction(quantileTDigest, UInt8)", "AggregatingMergeTree", {}),
    ("k UInt8, s Int8", "CollapsingMergeTree(s)", {"s": ("sum(`s`)", "sign", "up")}),
    ("k UInt8, s Int8, v UInt8", "VersionedCollapsingMergeTree(s, v)", {"s": ("sum(`s`)", "exact", "up")}),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "engine", "wanted"), MEASURES)
def test_measures_by_engine_and_type(columns: str, engine: str, wanted: dict[str, tuple[str, str, str]]) -> None:
    assert measures(form_of(table(columns, engine))) == wanted


def test_replacing_takes_the_newest_row_and_knows_ties_and_deletions() -> None:
    form = form_of(table("k UInt8, s String, v UInt8, d UInt8", "ReplacingMergeTree(v, d)"))
    assert measures(form)["v"] == ("max(`v`)", "exact", "up")
    assert measures(form)["s"][0].startswith("argMax(tuple(`s`), (`v`, `chmv row hash`))")
    assert form.tie and form.having.startswith("NOT argMax(`d`") and form.maybe
    bare = form_of(table("k UInt8, s String", "ReplacingMergeTree"))
    assert set(measures(bare)) == {"s"} and "no version" in bare.notes[0]


def test_rows_of_different_partitions_are_different_keys() -> None:
    form = form_of(table("d Date, k UInt8, n UInt8", "SummingMergeTree", "PARTITION BY toYYYYMM(d) ORDER BY (k, d)"))
    assert [label for label, _ in form.keys] == ["k", "d", "partition toYYYYMM(d)"]
    assert form.hidden_keys == ("partition toYYYYMM(d)",)
    assert set(measures(form)) == {"n"}


def test_columns_inside_a_key_expression_are_not_summed() -> None:
    form = form_of(table("a UInt8, n UInt8", "SummingMergeTree", "ORDER BY a % 2"))
    assert measures(form)["a"][1] == "single" and measures(form)["n"][1] == "exact"


def test_replicas_paths_are_no_columns() -> None:
    target = table("k UInt8, v UInt8", "ReplicatedReplacingMergeTree('/clickhouse/{shard}', '{replica}', v)")
    assert engine_arguments(target) == ("v",)


@pytest.mark.parametrize(
    ("engine", "left_out", "words"),
    [
        ("GraphiteMergeTree('x')", (), "leave nothing"),
        (
            "SummingMergeTree",
            (LeftOut("k", "it is made of now()"),),
            "key column k cannot be computed again: it is made",
        ),
        ("ReplacingMergeTree(v)", (LeftOut("v", "it is made of now()"),), "version or deletion column v"),
    ],
)
def test_what_has_no_form_says_why(engine: str, left_out: tuple[LeftOut, ...], words: str) -> None:
    with pytest.raises(CannotCompare, match=words):
        form_of(table("k UInt8, v UInt8", engine), left_out)


def test_columns_go_by_name_with_defaults_and_casts() -> None:
    target = table("k UInt8, n UInt64", "MergeTree")
    columns = [
        StoredColumn(name="k", type="UInt8"),
        StoredColumn(name="n", type="UInt64"),
        StoredColumn(name="twice", type="UInt64", default_kind="DEFAULT", default="k * 2"),
        StoredColumn(name="at", type="DateTime", default_kind="DEFAULT", default="now()"),
        StoredColumn(name="empty", type="String"),
    ]
    view = replace(target, kind="materialized_view", select="SELECT 1")
    share = Share(view=view, facts=None, select="SELECT 1", outputs=(("n", "UInt32"), ("k", "UInt8")))
    found = build_comparison(target, columns, [share], "k = 1")
    assert found.actual == "SELECT `k`, `n`, `twice`, `empty` FROM `d`.`t` WHERE k = 1"
    assert found.expected == (
        "SELECT `k`, `n`, `twice`, `empty` FROM (SELECT *, CAST(k * 2, 'UInt64') AS `twice`, CAST(now(), 'DateTime') AS `at` FROM "
        "(SELECT `k` AS `k`, CAST(`n`, 'UInt64') AS `n`, defaultValueOfTypeName('String') AS `empty` FROM (SELECT 1)))"
    )
    assert [left.column for left in found.form.left_out] == ["at"]
    assert found.opaque and "its SELECT could not be read" in found.opaque[0]
    assert "countIf(missing)" in render_counts(found) and render_samples(found, 3).endswith("LIMIT 3")


def feed(view: Object, source: Object, target: Object, condition: str) -> Feed:
    return Feed(view=view, target=target, source=source, window=None, time_column="", source_filter=condition)


def test_filters_of_one_source_are_joined_and_lookups_forbid_them() -> None:
    catalog = build_catalog(
        [
            SourceFile(
                path="a.sql",
                text="CREATE TABLE d.s (k UInt8) ENGINE = MergeTree ORDER BY k; CREATE TABLE d.l (k UInt8) ENGINE = MergeTree ORDER BY k; "
                "CREATE TABLE d.t (k UInt8) ENGINE = MergeTree ORDER BY k; "
                "CREATE MATERIALIZED VIEW d.a TO d.t AS SELECT k FROM d.s; CREATE MATERIALIZED VIEW d.b TO d.t AS SELECT k FROM d.s; "
                "CREATE MATERIALIZED VIEW d.j TO d.t AS SELECT k FROM d.s WHERE k IN (SELECT k FROM d.l);",
            )
        ]
    ).require_sound()
    source, target = catalog.get("d.s"), catalog.get("d.t")
    a, b, j = (catalog.get(f"d.{name}") for name in "abj")
    both = [feed(a, source, target, "x"), feed(b, source, target, "y")]
    assert source_filters(target.name, both) == {source.name: "x OR y"}
    assert source_filters(target.name, [both[0], feed(b, source, target, "")]) == {}
    assert source_filters(target.name, [feed(j, source, target, "x")]) == {source.name: "x"}
    assert source_filters(target.name, [both[0], feed(j, source, target, "x")]) == {}
    assert (
        render_share(both[0], [("k", "UInt8"), ("z", "UInt8")], ["k"], "UTC") == "SELECT `k` FROM (SELECT k FROM d.s)"
    )


def test_a_ttl_that_reaches_into_the_window_is_told_with_its_dates() -> None:
    from datetime import datetime, timezone

    source = table("k UInt8, ts DateTime", "MergeTree", "ORDER BY k TTL ts + INTERVAL 10 DAY")
    now = datetime(2026, 11, 16, tzinfo=timezone.utc)
    assert eaten_by_ttl(source, parse_window("2026-11-06"), now) == ""
    assert "starts 2026-11-05 00:00 but d.t keeps rows only since 2026-11-06 00:00" in eaten_by_ttl(
        source, parse_window("2026-11-05"), now
    )
    assert "the whole table" in eaten_by_ttl(source, None, now)


def test_volatile_calls_belong_to_their_column_or_to_the_rest() -> None:
    select = (
        "WITH today() AS t SELECT a, toDate(now()) AS `d`, (SELECT max(x) FROM y) AS m, rand() FROM s WHERE b < now64()"
    )
    assert volatile_outputs(select) == ({"d": "now"}, ("today", "now64", "rand"))
