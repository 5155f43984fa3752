"""Declared edges against what the logs saw, row by row."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.render import render_dot, render_mermaid
from chmv_assets.core.runtime_graph import (
    REFRESH,
    EdgeRow,
    Fired,
    Observed,
    Queries,
    build_runtime_graph,
    dashed_edges,
    runtime_document,
)

CATALOG = build_catalog([SourceFile(path="a.sql", text="""
CREATE TABLE d.s (k String, v Int64) ENGINE = MergeTree ORDER BY k;
CREATE TABLE d.b (k String, v Int64) ENGINE = Buffer(d, s, 1, 1, 1, 1, 1, 1, 1);
CREATE TABLE d.look (k String) ENGINE = MergeTree ORDER BY k;
CREATE TABLE d.t (k String, n UInt64) ENGINE = SummingMergeTree ORDER BY k;
CREATE DICTIONARY d.d_look (k String) PRIMARY KEY k SOURCE(CLICKHOUSE(DB 'd' TABLE 'look')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(0);
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT k, count() AS n FROM d.s
WHERE k IN (SELECT k FROM d.look) AND dictHas('d.d_look', tuple(k)) GROUP BY k;
CREATE TABLE d.r (k String) ENGINE = MergeTree ORDER BY k;
CREATE MATERIALIZED VIEW d.r_mv REFRESH EVERY 1 HOUR TO d.r AS SELECT k FROM d.t;
CREATE TABLE d.t2 (n UInt64) ENGINE = SummingMergeTree ORDER BY tuple();
CREATE MATERIALIZED VIEW d.v2 TO d.t2 AS SELECT sum(n) AS n FROM d.t;
CREATE VIEW d.shown AS SELECT * FROM d.t2;
CREATE MATERIALIZED VIEW d.own ENGINE = MergeTree ORDER BY k AS SELECT k FROM d.s;
""")])  # fmt: skip
UNTIL = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)


def name(table: str) -> QName:
    return QName("d", table)


def fired(view: str, target: str | None, count: int = 3, wrote: int = 3) -> Fired:
    return Fired(view=name(view), target=name(target) if target else None, count=count, wrote=wrote, last=UNTIL)


def queries(
    kind: str, *tables: str, written: str = "", views: tuple[str, ...] = (), named: tuple[str, ...] = (), client: str = "app",
    count: int = 2,
) -> Queries:  # fmt: skip
    return Queries(
        kind=kind, user="u", client=client, ours=client == "chmv", tables=frozenset(map(name, tables)),
        views=frozenset(map(name, views)), written=name(written) if written else None,
        named=frozenset(map(name, named)), count=count, last=UNTIL,
    )  # fmt: skip


def observed(fires: tuple[Fired, ...] | None = (), groups: tuple[Queries, ...] | None = (), **more: object) -> Observed:
    return Observed(since=UNTIL - timedelta(hours=24), until=UNTIL, fired=fires, queries=groups, **more)  # type: ignore[arg-type]


def rows(seen: Observed) -> dict[tuple[str, str], EdgeRow]:
    found = build_runtime_graph(CATALOG, seen).edges
    return {(row.edge.source.table, row.edge.dest.table): row for row in found}


def test_an_edge_that_fired_is_seen_with_count_and_time() -> None:
    found = rows(observed((fired("v", "t"), fired("own", ".inner_id.7f"))))
    assert (found["s", "v"].sight, found["s", "v"].count, found["s", "v"].last) == ("seen", 3, UNTIL)
    assert found["v", "t"].sight == "seen"
    assert found["own", ".inner.own"].sight == "seen"


def test_never_seen_is_suspicious_only_if_the_source_was_written() -> None:
    quiet = rows(observed())["s", "v"]
    assert (quiet.sight, quiet.source_inserts, quiet.suspicious) == ("never seen", 0, False)
    written = rows(observed(groups=(queries("Insert", "s", written="s"),)))
    assert (written["s", "v"].source_inserts, written["s", "v"].suspicious) == (2, True)
    assert written["v", "t"].suspicious


def test_inserts_through_views_and_buffers_count() -> None:
    by_view = rows(observed((fired("v", "t"),)))["t", "v2"]
    assert (by_view.source_inserts, by_view.suspicious) == (3, True)
    empty = rows(observed((fired("v", "t", wrote=0),)))["t", "v2"]
    assert (empty.source_inserts, empty.suspicious) == (0, False)
    by_buffer = rows(observed(groups=(queries("Insert", "b", written="b"),)))["s", "v"]
    assert by_buffer.suspicious


def test_a_view_that_writes_elsewhere_is_both_missing_and_undeclared() -> None:
    seen = observed((fired("v", "t2"),))
    assert rows(seen)["v", "t"].sight == "never seen"
    (found,) = build_runtime_graph(CATALOG, seen).undeclared
    assert (found.source, found.dest, found.kind, found.count) == (name("v"), name("t2"), "writes", 3)


def test_a_view_that_nobody_declared() -> None:
    seen = observed((fired("rogue", "loot"),), hooks={name("s"): (name("rogue"), name("v"))})
    found = build_runtime_graph(CATALOG, seen).undeclared
    assert [(one.source.table, one.dest.table, one.kind) for one in found] == [
        ("rogue", "loot", "writes"),
        ("s", "rogue", "trigger"),
    ]


def test_insert_select_is_an_edge_but_what_its_views_touch_is_not() -> None:
    group = queries("Insert", "s", "t2", "t", "look", written="s", views=("v",), named=("s", "t2"))
    graph = build_runtime_graph(CATALOG, observed((fired("v", "t"),), (group,)))
    assert [(one.source.table, one.dest.table, one.kind, one.by) for one in graph.undeclared] == [
        ("t2", "s", "insert", (("u", "app"),))
    ]
    assert {(one.table.table, one.what) for one in graph.uses} == {("s", "written"), ("t2", "read")}


def test_our_own_queries_are_no_use_of_others_but_they_are_inserts() -> None:
    graph = build_runtime_graph(CATALOG, observed(groups=(queries("Insert", "s", written="s", client="chmv"),)))
    assert graph.uses == () and graph.undeclared == ()
    assert any(row.suspicious for row in graph.edges)


def test_uses_are_counted_per_user_and_client() -> None:
    groups = (
        queries("Select", "t"), queries("Select", "t", "look", count=5), queries("Alter", "t"),
        queries("Select", "stranger", client="other"),
    )  # fmt: skip
    uses = build_runtime_graph(CATALOG, observed(groups=groups)).uses
    told = {(one.table.table, one.what, one.client): (one.count, one.declared) for one in uses}
    assert told == {
        ("t", "read", "app"): (7, True),
        ("look", "read", "app"): (5, True),
        ("t", "changed", "app"): (2, True),
        ("stranger", "read", "other"): (2, False),
    }


def test_an_insert_whose_table_cannot_be_told_is_not_made_an_edge() -> None:
    graph = build_runtime_graph(CATALOG, observed(groups=(queries("Insert", "s", "t2"),)))
    assert graph.undeclared == ()


def test_plain_views_are_seen_by_the_queries_that_read_through_them() -> None:
    seen = rows(observed(groups=(queries("Select", "t2", "shown"),)))["t2", "shown"]
    assert (seen.sight, seen.count) == ("seen", 2)
    assert rows(observed())["t2", "shown"].sight == "never seen"


def test_lookups_are_seen_beside_the_view_that_reads_them() -> None:
    group = queries("Insert", "s", "look", "t", written="s", views=("v",))
    assert rows(observed((fired("v", "t"),), (group,)))["look", "v"].sight == "seen"
    assert rows(observed())["look", "v"] == EdgeRow(edge=rows(observed())["look", "v"].edge, sight="never seen")


def test_refreshes_are_seen_and_are_no_use_of_others() -> None:
    seen = observed(groups=(queries(REFRESH, "t", "r_mv", client="server"),))
    assert {pair: rows(seen)[pair].sight for pair in (("t", "r_mv"), ("r_mv", "r"))} == {("t", "r_mv"): "seen", ("r_mv", "r"): "seen"}  # fmt: skip
    assert build_runtime_graph(CATALOG, seen).uses == ()
    assert rows(observed())["r_mv", "r"].sight == "never seen"


def test_what_no_log_tells_is_called_so() -> None:
    assert rows(observed())["b", "s"].sight == "not logged"
    assert rows(observed())["d_look", "v"].sight == "not logged"
    assert {row.sight for row in rows(observed(None, None)).values()} == {"not logged"}
    assert rows(observed((), None))["s", "v"] == EdgeRow(edge=rows(observed())["s", "v"].edge, sight="never seen")


def test_document_and_pictures() -> None:
    seen = observed((fired("rogue", "loot"),), (queries("Select", "t"),), notes=("hm",))
    graph = build_runtime_graph(CATALOG, seen)
    document = runtime_document(seen, graph)
    assert json.loads(json.dumps(document)) == document
    assert set(document) == {"known", "since", "until", "notes", "edges", "undeclared_edges", "uses"}
    assert document["undeclared_edges"][0]["from"] == "d.rogue"
    dashed = dashed_edges(graph)
    assert '"d.rogue" -> "d.loot" [style=dashed, color=red, label="undeclared writes"];' in render_dot(CATALOG, dashed)
    assert "-.->|undeclared writes|" in render_mermaid(CATALOG, dashed)
    assert "undeclared" not in render_dot(CATALOG) + render_mermaid(CATALOG)
