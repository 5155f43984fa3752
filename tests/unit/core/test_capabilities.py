"""What a source needs to take batches exactly once, judged from facts; and the rules of locks as data."""

from __future__ import annotations

import pytest

from chmv_assets.core.capabilities import (
    TableFacts,
    decide_capability,
    decode_capability,
    needed_settings,
    read_setting,
    table_facts,
    walk_targets,
)
from chmv_assets.core.errors import IngestRefused
from chmv_assets.core.locks import (
    FREE,
    LockState,
    decode_generation,
    lock_table,
    plan_acquire,
    plan_release,
    plan_renew,
)
from chmv_assets.core.names import QName

SOURCE, TARGET = QName("d", "s"), QName("d", "odd`t")
GOOD = TableFacts(name=SOURCE, engine="MergeTree", window=10_000)
KNOWN = needed_settings()


def test_a_source_of_which_everything_deduplicates_is_taken() -> None:
    found = decide_capability(SOURCE, "26.7.2.1", [GOOD], KNOWN)
    assert (found.strategy, found.problems, found.statements) == ("token_slices", (), ())
    found.require()


def test_all_problems_come_at_once_with_the_statements_that_cure_them() -> None:
    replicated = TableFacts(name=TARGET, engine="ReplicatedSummingMergeTree", window=1_000, window_seconds=3_600)
    found = decide_capability(
        SOURCE, "26.7.2.1", [TableFacts(name=SOURCE, engine="MergeTree", window=0), replicated], KNOWN
    )
    assert found.strategy == "refuse"
    assert found.statements == (
        "ALTER TABLE `d`.`s` MODIFY SETTING non_replicated_deduplication_window = 10000",
        "ALTER TABLE `d`.`odd\\`t` MODIFY SETTING replicated_deduplication_window = 10000, "
        "replicated_deduplication_window_seconds = 604800",
    )
    with pytest.raises(IngestRefused, match=r"(?s)source d\.s: .*would double rows.*ALTER TABLE"):
        found.require()


def test_an_old_server_is_refused_by_what_it_lacks() -> None:
    found = decide_capability(SOURCE, "24.3.1", [GOOD], set(KNOWN) - {"deduplicate_insert"})
    assert "older than 24.8" in found.problems[0] and "deduplicate_insert" in found.problems[1]
    with pytest.raises(IngestRefused):
        found.require()


def test_engines_without_a_log_are_refused_and_null_passes_through() -> None:
    log, null = (TableFacts(name=TARGET, engine=engine, window=0) for engine in ("Log", "Null"))
    assert "engine Log" in decide_capability(SOURCE, "26.7", [GOOD, log], KNOWN).problems[0]
    assert decide_capability(SOURCE, "26.7", [GOOD, null], KNOWN).strategy == "token_slices"


def test_chains_and_diamonds_are_walked_once() -> None:
    s, a, b, c = (QName("d", name) for name in "sabc")
    views = {name: QName("d", f"{name}_mv") for name in ("a", "b", "c", "c2")}
    hooks = {s: [views["a"], views["b"]], a: [views["c"]], b: [views["c2"], QName("d", "plain_view")]}
    targets = {views["a"]: a, views["b"]: b, views["c"]: c, views["c2"]: c}
    assert sorted(walk_targets(s, hooks, targets)) == sorted([s, a, b, c])


def test_a_tables_own_window_comes_before_the_servers_default() -> None:
    name = QName("d", "t")
    defaults = {"replicated_deduplication_window": 10000, "replicated_deduplication_window_seconds": 3600}
    own = table_facts(
        name, "MergeTree", "MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 7", defaults
    )
    assert (own.window, own.window_seconds) == (7, None)
    assert table_facts(name, "MergeTree", "MergeTree ORDER BY a", defaults).window == 0
    shared = table_facts(name, "ReplicatedMergeTree", "ReplicatedMergeTree ORDER BY a", defaults)
    assert (shared.window, shared.window_seconds) == (10000, 3600)


def test_rows_of_the_server_become_a_judgement_of_the_source_and_what_is_behind_it() -> None:
    window = "SETTINGS non_replicated_deduplication_window = 10000"
    tables = [
        ("d", "s", "MergeTree", f"MergeTree ORDER BY a {window}", [("d", "mv"), ("d", "plain")], "", "", "0"),
        ("d", "mv", "MaterializedView", "", [], "", "", "17"),
        ("d", ".inner_id.17", "MergeTree", "MergeTree ORDER BY a", [], "", "", "0"),
        ("d", "plain", "View", "", [], "", "", "0"),
        ("d", "elsewhere", "Log", "Log", [], "", "", "0"),
    ]
    rows = {"tables": tables, "defaults": [("non_replicated_deduplication_window", 7)]}
    found = decode_capability(QName("d", "s"), "26.7", **rows, known_settings=[(name,) for name in KNOWN])
    assert [(one.name.table, one.window) for one in found.tables] == [("s", 10000), (".inner_id.17", 7)]
    assert found.problems == ("d.`.inner_id.17` remembers 7 blocks, fewer than 10000",)
    missing = decode_capability(QName("d", "no"), "26.7", **rows, known_settings=[(name,) for name in KNOWN])
    assert missing.problems == ("there is no such table on the server",)


def test_settings_are_read_from_the_settings_clause_only() -> None:
    assert read_setting("MergeTree ORDER BY window SETTINGS index_granularity = 8192", "window", 4) == 4
    assert read_setting("MergeTree ORDER BY x SETTINGS window = '12'", "window", 4) == 12


def test_a_lock_goes_from_hand_to_hand_with_rising_tokens() -> None:
    first = plan_acquire(FREE, "a", 0, 100)
    assert first is not None and first.token == 1
    assert plan_acquire(first, "b", 99, 100) is None
    renewed = plan_renew(first, 90, 100)
    assert (renewed.generation, renewed.token, renewed.expires_us) == (2, 1, 190)
    second = plan_acquire(renewed, "b", 190, 100)
    assert second is not None and second.token == 3
    third = plan_acquire(plan_release(second), "c", 191, 100)
    assert third is not None and (third.token, third.owner) == (5, "c")


def test_generations_sort_by_name_and_are_short_for_any_lock() -> None:
    tables = [lock_table("x" * 5_000 + "/'`", number).table for number in (9, 10, 99_999)]
    assert tables == sorted(tables) and all(len(table) < 60 for table in tables)
    assert decode_generation("", "") == FREE
    state = decode_generation(tables[1], '{"lock": "x", "owner": "a", "token": 3, "expires_us": 7}')
    assert state == LockState(generation=10, owner="a", token=3, expires_us=7)
