"""What a target holds and its source has forgotten: whose TTL counts, which partitions, and when that is left to people."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.deploy.changes import Cutover
from chmv_assets.core.deploy.forgotten import (
    Edge,
    Forgotten,
    Partition,
    find_edge,
    find_irrecoverable,
    select_forgotten,
)
from chmv_assets.core.names import QName

NOW = datetime(2026, 8, 11, 12, tzinfo=timezone.utc)
S, T = QName("d", "s"), QName("d", "t")
SOURCE = "CREATE TABLE d.s (ts DateTime('UTC'), born Date, arrived DateTime DEFAULT now(), k UInt8) ENGINE = MergeTree ORDER BY k {ttl};\n"
TARGET = "CREATE TABLE d.t (day Date, k UInt8) ENGINE = MergeTree PARTITION BY toYYYYMMDD(day) ORDER BY k {ttl};\n"
VIEW = "CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT {day} AS day, k FROM d.s;"
TEN_DAYS = datetime(2026, 8, 1, 12, tzinfo=timezone.utc)
WHY = "keeps rows only since 2026-08-01 12:00 (TTL)"


def catalog(ttl: str = "", kept: str = "", day: str = "toDate(ts)") -> Catalog:
    text = SOURCE.format(ttl=ttl) + TARGET.format(ttl=kept) + VIEW.format(day=day)
    return build_catalog([SourceFile(path="a.sql", text=text)]).require_sound()


def edge(made: Catalog) -> Edge | None:
    return find_edge(made, made.objects, T, NOW)


def test_a_source_that_keeps_everything_has_no_edge() -> None:
    assert edge(catalog()) is None
    assert edge(catalog("TTL ts + INTERVAL 1 DAY TO DISK 'cold'")) is None
    assert find_edge(catalog("TTL ts + INTERVAL 10 DAY"), {}, T, NOW) is None, "nothing is there yet"


@pytest.mark.parametrize(
    ("ttl", "day", "is_timed"),
    [
        ("TTL ts + INTERVAL 10 DAY", "toDate(ts)", True),
        ("TTL arrived + INTERVAL 10 DAY", "toDate(ts)", True),
        ("TTL born + INTERVAL 10 DAY", "toDate(ts)", False),
        ("TTL ts + INTERVAL 10 DAY", "born", False),
        ("TTL ts + INTERVAL 10 DAY", "toDate('2026-01-01')", False),
    ],
)
def test_partitions_tell_what_is_older_if_they_go_by_the_time_of_the_ttl(ttl: str, day: str, is_timed: bool) -> None:
    assert edge(catalog(ttl, day=day)) == Edge(source=S, since=TEN_DAYS, why=WHY, is_timed=is_timed)


def test_a_ttl_that_does_not_tell_may_have_taken_anything() -> None:
    found = edge(catalog("TTL arrived"))
    assert found is not None and (found.since, found.is_timed) == (NOW, False) and "does not tell" in found.why
    assert edge(catalog("TTL ts + INTERVAL 10 DAY", "TTL day")) is not None, (
        "nor is it known that the target has forgotten"
    )


def test_a_target_that_forgets_as_soon_loses_nothing() -> None:
    assert edge(catalog("TTL ts + INTERVAL 10 DAY", "TTL day + INTERVAL 10 DAY")) is None
    assert edge(catalog("TTL ts + INTERVAL 10 DAY", "TTL day + INTERVAL 11 DAY")) is not None


def test_the_ttl_of_the_live_table_counts_not_that_of_the_folder() -> None:
    declared, live = catalog("TTL ts + INTERVAL 99 DAY"), catalog("TTL ts + INTERVAL 10 DAY")
    assert find_edge(declared, live.objects, T, NOW) == Edge(source=S, since=TEN_DAYS, why=WHY, is_timed=True)
    assert find_edge(live, catalog().objects, T, NOW) is None


def select(*held: Partition, is_timed: bool = True) -> Forgotten | None:
    made = catalog()
    return select_forgotten(
        Edge(source=S, since=TEN_DAYS, why=WHY, is_timed=is_timed), made.schemes[T], held, "UTC", "UTC"
    )


def test_what_begins_before_the_edge_is_forgotten_the_day_of_the_edge_too() -> None:
    found = select(
        ("20260731", "20260731", 4),
        ("20260801", "20260801", 5),
        ("20260802", "20260802", 6),
        ("20260730", "20260730", 0),
    )
    assert found is not None and (found.partitions, found.rows, found.edge.is_timed) == (
        ("20260731", "20260801"),
        9,
        True,
    )
    assert select(("20260802", "20260802", 6)) is None and select() is None


def test_where_it_cannot_be_told_all_of_it_is() -> None:
    for found in (
        select(("20260731", "20260731", 4), ("20260802", "20260802", 6), is_timed=False),
        select(("20260731", "20260731", 4), ("x", "('DE','FR')", 6)),
    ):
        assert found is not None and found.rows == 10 and not found.edge.is_timed


def test_only_partitions_of_a_table_that_stays_can_be_left_alone() -> None:
    timed, untimed = select(("20260731", "20260731", 4)), select(("20260731", "20260731", 4), is_timed=False)
    assert timed is not None and untimed is not None
    stays, goes = Cutover(roots=(S,), targets=(T,)), Cutover(roots=(S,), targets=(T,), storage=(T,))
    assert find_irrecoverable({T: timed}, stays) == find_irrecoverable({}, goes) == ""
    assert find_irrecoverable({T: timed}, goes).startswith(
        "d.t has to become another table, but d.s keeps rows only since 2026-08-01 12:00 (TTL), and 1 partition(s) of d.t with 4 rows reach further back"
    )
    assert "do not tell which of its 4 rows are older" in find_irrecoverable({T: untimed}, stays)
