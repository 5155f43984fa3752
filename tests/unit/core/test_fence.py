"""The fence as text and records: what is stamped, what is routed, what a crash leaves to know, and what is refused."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.fence import (
    Arrival,
    Diverted,
    FenceState,
    Shadow,
    decode_state,
    encode_state,
    fence_table,
    find_arrival,
    plan_fenced,
    plan_way_out,
    render_before,
    render_close,
    render_condition,
    render_moment,
    render_moment_ahead,
    render_pair,
)
from chmv_assets.core.fence_rules import Grant, check_layers, check_rights, downstream_views
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import decode_steps, encode_steps
from chmv_assets.core.retarget import narrow

S, T, V = QName("d", "s"), QName("d", "t"), QName("d", "v")
STATE = FenceState(
    fence=fence_table("ab"),
    scratch=QName("chmv", "scratch.ab.0"),
    views=(Diverted(V, "SELECT 'it''s' FROM d.s"),),
    twins=(QName("chmv", "twin.ab.0"),),
    shadows=(Shadow(QName("chmv", "shadow.ab.0"), T),),
    arrivals=(Arrival(S, "at", True),),
    from_us=5,
    doubt="late",
)


def catalog(
    source: str = "at DateTime64(3) DEFAULT now64(3)", target: str = "SummingMergeTree", more: str = ""
) -> Catalog:
    ddl = (
        f"CREATE TABLE d.s (day Date, id UInt64, {source}) ENGINE = MergeTree PARTITION BY day ORDER BY id;"
        f"CREATE TABLE d.t (day Date, n UInt64) ENGINE = {target} PARTITION BY day ORDER BY day;"
        f"CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT day, count() AS n FROM d.s GROUP BY day;{more}"
    )
    return build_catalog([SourceFile(path="x.sql", text=ddl)]).require_sound()


@pytest.mark.parametrize(
    ("column", "found"),
    [
        ("at DateTime64(6, 'UTC') DEFAULT now64(6, 'UTC')", Arrival(S, "at", True)),
        ("at DateTime64(3) MATERIALIZED now64()", Arrival(S, "at", False)),
        ("a DateTime64(3) DEFAULT now64(3), b DateTime64(3) MATERIALIZED now64(3)", Arrival(S, "b", False)),
        ("at DateTime DEFAULT now()", None),
        ("at Nullable(DateTime64(3)) DEFAULT now64(3)", None),
        ("at DateTime64(3) DEFAULT now64(3) - 5", None),
        ("at DateTime64(3) ALIAS now64(3)", None),
        ("at DateTime64(3)", None),
    ],
)
def test_arrival_is_what_the_server_stamps(column: str, found: Arrival | None) -> None:
    assert find_arrival(catalog(column).objects[S]) == found


def test_moments_are_whole_seconds_ahead_of_the_servers_clock() -> None:
    moment = "fromUnixTimestamp64Micro(intDiv(toUnixTimestamp64Micro(now64(6)) + 1499999, 1000000) * 1000000, 'UTC')"
    never = "fromUnixTimestamp64Micro(7258118400000000, 'UTC')"
    insert = "INSERT INTO `chmv`.`fence.ab` (chmv_from, chmv_until) SELECT"
    assert render_moment_ahead(STATE.fence, 0.5, raised=True) == f"{insert} {moment}, {never}"
    assert render_moment_ahead(STATE.fence, 0.5, raised=False) == f"{insert} {never}, {moment}"


def test_fence_is_read_as_one_pair_and_closed_for_good() -> None:
    fence = STATE.fence
    assert render_pair(fence) == "(SELECT (min(chmv_from), min(chmv_until)) FROM `chmv`.`fence.ab`) AS chmv_fence"
    inside = "chmv_narrowed.`at` >= chmv_fence.1 AND chmv_narrowed.`at` < chmv_fence.2"
    assert render_condition("at", inside=True) == inside
    assert render_condition("at", inside=False) == f"NOT ({inside})"
    assert render_before("at", 7, table="") == "`at` < fromUnixTimestamp64Micro(7, 'UTC')"
    assert render_close(fence) == render_moment(fence, 7_258_118_400_000_000, 0)


def test_state_survives_the_journal() -> None:
    assert decode_state(encode_state(STATE)) == STATE


def test_plan_ends_with_the_way_out_and_survives_the_journal() -> None:
    steps = plan_fenced(STATE, T, [V], [S])
    way_out = plan_way_out(STATE, [S])
    assert steps[-len(way_out) :] == way_out
    assert [step.kind for step in way_out] == [
        "lower fence", "close fence", "release commits", "move back", "restore view", "drop twin", "drop shadow",
        "drop scratch", "drop fence",
    ]  # fmt: skip
    assert decode_steps(encode_steps(steps)) == steps
    assert all(str(step) for step in steps)


def test_view_over_a_part_of_its_rows_keeps_everything_else() -> None:
    view = catalog().objects[V]
    columns = [("day", ""), ("id", ""), ("at", "DEFAULT"), ("twice", "ALIAS"), ("gone", "EPHEMERAL")]
    assert narrow(view, S, columns, "chmv_narrowed.`at` > 1", "2 AS two") == (
        "SELECT day, count() AS n FROM (WITH 2 AS two SELECT chmv_narrowed.`day` AS `day`, chmv_narrowed.`id` AS `id`, "
        "chmv_narrowed.`at` AS `at`, chmv_narrowed.`twice` AS `twice` FROM `d`.`s` AS chmv_narrowed "
        "WHERE chmv_narrowed.`at` > 1) AS `s` GROUP BY day"
    )


@pytest.mark.parametrize(
    ("select", "listed"),
    [
        ("SELECT * FROM d.s AS a", False),
        ("SELECT a.*, 1 FROM d.s AS a", False),
        ("SELECT COLUMNS('.*') FROM d.s AS a", False),
        ("SELECT day * 2 AS x FROM d.s AS a", True),
    ],
)
def test_star_does_not_get_hidden_columns(select: str, listed: bool) -> None:
    from dataclasses import replace

    view = replace(catalog().objects[V], select=select)
    text = narrow(view, S, [("day", ""), ("hidden", "MATERIALIZED")], "1")
    assert ("`hidden`" in text) is listed
    assert text.endswith("WHERE 1) AS a")


@pytest.mark.parametrize("tail", ["FINAL", "AS a FINAL", "SAMPLE 0.1", "PREWHERE day > 1"])
def test_modifiers_of_the_table_are_refused(tail: str) -> None:
    from dataclasses import replace

    view = replace(catalog().objects[V], select=f"SELECT day FROM d.s {tail}")
    with pytest.raises(RebuildRefused, match=r"but wanted the bare table.*--protocol gated"):
        narrow(view, S, [("day", "")], "1")


def check(made: Catalog, cluster: str = "") -> None:
    check_layers(made, made.views_into(T), [made.objects[T]], cluster)


def test_what_a_fence_can_hold_apart() -> None:
    check(catalog())
    more = (
        "CREATE TABLE d.t2 (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day;"
        "CREATE MATERIALIZED VIEW d.v2 TO d.t2 AS SELECT day, sum(n) AS n FROM d.t GROUP BY day;"
    )
    made = catalog(more=more)
    check(made)
    assert [view.name.table for view in downstream_views(made, [T])] == ["v2"]


def test_what_a_fence_cannot_hold_apart_is_refused() -> None:
    for made, cluster, message in (
        (catalog(), "main", r"found a cluster \(main\) but wanted one server"),
        (catalog("x UInt8"), "", "no arrival column"),
        (catalog(target="ReplicatedSummingMergeTree"), "", "found ReplicatedSummingMergeTree"),
        (catalog(target="VersionedCollapsingMergeTree(s, v)"), "", "found"),
    ):
        with pytest.raises(RebuildRefused, match=message) as refusal:
            check(made, cluster)
        assert "--protocol gated" in str(refusal.value)


ALL: tuple[Grant, ...] = (("root", "SELECT", None, None, False), ("root", "INSERT", None, None, False))


@pytest.mark.parametrize(
    ("definer", "grants", "message"),
    [
        (None, (), ""),
        ("root", (("writer", "INSERT", "d", "s", False),), ""),
        ("", (("writer", "INSERT", "d", "s", False),), ""),
        (None, (("writer", "INSERT", "d", "s", False),), "no SQL SECURITY, and writer who may insert"),
        (None, (("role r", "INSERT", None, None, False),), "and role r who may insert"),
        (None, (("writer", "INSERT", "d", "other", False),), ""),
        (None, (("writer", "INSERT", "d", None, False), ("writer", "SELECT", "chmv", None, False)), ""),
        (
            None,
            (("writer", "ALL", None, None, False), ("writer", "SELECT", "chmv", None, True)),
            "writer who may insert",
        ),
        ("somebody", (), "definer somebody but wanted one with SELECT on chmv"),
        ("we", (), ""),
    ],
)
def test_nobody_may_fail_to_read_the_fence(definer: str | None, grants: tuple[Grant, ...], message: str) -> None:
    if not message:
        check_rights({V: definer}, [S], [*ALL, *grants], "we")
        return
    with pytest.raises(RebuildRefused, match=message):
        check_rights({V: definer}, [S], [*ALL, *grants], "we")
