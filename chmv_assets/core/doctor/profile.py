"""Rules about the user's profile: settings that make rows disappear or double, bounds that our statements cannot set, quorum."""

from __future__ import annotations

from collections.abc import Iterator

from chmv_assets.core.doctor.facts import Facts, Setting, read_number
from chmv_assets.core.doctor.finding import SERVER, Ailment, Rule
from chmv_assets.core.quorum import JOURNAL_QUORUM, needed, quorum_of
from chmv_assets.core.retry import client_timeout_seconds

# Overflow modes under which a query gives a part of its result as if it were all of it.
_SILENT = {
    "timeout_overflow_mode": ("break",), "sort_overflow_mode": ("break",), "group_by_overflow_mode": ("any", "break"),
    "read_overflow_mode": ("break",), "result_overflow_mode": ("break",), "join_overflow_mode": ("break",),
    "set_overflow_mode": ("break",), "distinct_overflow_mode": ("break",),
}  # fmt: skip


def _profile(facts: Facts, name: str, value: object) -> str:
    return f"<!-- users.d, in the profile of {facts.user} --> <{name}>{value}</{name}>"


def _must_be(setting: str, bad: tuple[str, ...], good: str, rule: Rule, facts: Facts) -> Iterator[Ailment]:
    if facts.value(setting) in bad:
        user = f"user {facts.user}"
        yield rule.ailment(
            user, f"{setting} = {facts.value(setting)}", f"{setting} = {good}", _profile(facts, setting, good)
        )


def _ignored(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    yield from _must_be("materialized_views_ignore_errors", ("1",), "0", rule, facts)


def _views_dedup(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    yield from _must_be("deduplicate_blocks_in_dependent_materialized_views", ("0",), "1", rule, facts)


def _dedup_off(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if "deduplicate_insert" in facts.session:
        yield from _must_be("deduplicate_insert", ("disable",), "enable", rule, facts)
    else:
        yield from _must_be("insert_deduplicate", ("0",), "1", rule, facts)


def _async(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if facts.value("async_insert") == "1":
        yield from _must_be("wait_for_async_insert", ("0",), "1", rule, facts)


def _overflow(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for setting, bad in _SILENT.items():
        yield from _must_be(setting, bad, "throw", rule, facts)


def _bounds(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if facts.value("readonly") in ("1", "2"):
        yield rule.ailment(
            f"user {facts.user}", f"readonly = {facts.value('readonly')}", "0", _profile(facts, "readonly", 0)
        )
        return
    seconds = int(facts.limits.recovery_seconds)
    wanted = {
        "max_execution_time": seconds,
        "max_partitions_per_insert_block": 10_000,
        "async_insert": 0,
        "max_threads": 1,
    }
    for name, value in wanted.items():
        found = facts.session.get(name)
        if found is not None and not _may_set(found, value):
            lowest, highest = found.lowest or "any", found.highest or "any"
            held = f"fixed at {found.value}" if found.is_fixed else f"between {lowest} and {highest}"
            yield rule.ailment(
                f"user {facts.user}", f"{name} may only be {held}", f"{name} = {value} may be set",
                f"<!-- users.d, in the profile of {facts.user} --> <constraints><{name} remove=\"1\"/></constraints>",
            )  # fmt: skip


def _may_set(setting: Setting, value: float) -> bool:
    if read_number(setting.value, -1) == value:
        return True
    low, high = read_number(setting.lowest or "", float("-inf")), read_number(setting.highest or "", float("inf"))
    return not setting.is_fixed and low <= value <= high


def _is_on(facts: Facts) -> bool:
    return facts.value("insert_quorum") not in ("", "0")


def _unreachable(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    wanted = facts.value("insert_quorum")
    for table in facts.replicated:
        need = needed(quorum_of({"insert_quorum": wanted or 0}), table.replicas)
        if _is_on(facts) and table.active_replicas < need:
            fits = needed(JOURNAL_QUORUM, table.replicas)
            yield rule.ailment(
                str(table.name), f"insert_quorum = {wanted}, {table.active_replicas} of {table.replicas} replicas are alive",
                f"{need} alive replicas", _profile(facts, "insert_quorum", min(fits, need)) if need > table.replicas else "-- bring the replicas back",
            )  # fmt: skip


def _of_all(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    quorum = quorum_of({"insert_quorum": facts.value("insert_quorum") or 0})
    every = [table for table in facts.replicated if 1 < table.replicas == needed(quorum, table.replicas)]
    if _is_on(facts) and every and all(table.active_replicas == table.replicas for table in every):
        yield rule.ailment(
            f"user {facts.user}", f"insert_quorum = {quorum.size}, and {len(every)} tables have no more than {every[0].replicas} replicas",
            "one replica more than the quorum", "-- add a replica",
        )  # fmt: skip


def _pointless(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if _is_on(facts) and facts.tables and not facts.replicated:
        yield rule.ailment(
            f"user {facts.user}", f"insert_quorum = {facts.value('insert_quorum')}, and none of {len(facts.tables)} tables is replicated",
            "0, or replicated tables", _profile(facts, "insert_quorum", 0),
        )  # fmt: skip


def _timeout(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    waits = facts.number("insert_quorum_timeout") / 1000
    bounds = [
        ("max_execution_time", facts.number("max_execution_time")),
        ("our statements' timeout", float(client_timeout_seconds(int(facts.limits.recovery_seconds)))),
    ]
    name, shortest = min(((name, value) for name, value in bounds if value > 0), key=lambda bound: bound[1])
    if _is_on(facts) and facts.replicated and waits > shortest:
        yield rule.ailment(
            f"user {facts.user}", f"insert_quorum_timeout is {waits:g} s, {name} {shortest:g} s", "a quorum that is given up first",
            _profile(facts, "insert_quorum_timeout", int(min(shortest / 2, 60) * 1000)),
        )  # fmt: skip


def _parallel(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    both = facts.value("select_sequential_consistency") == "1" and facts.value("insert_quorum_parallel") == "1"
    if both and _is_on(facts) and facts.replicated:
        yield rule.ailment(
            f"user {facts.user}", "select_sequential_consistency = 1 with insert_quorum_parallel = 1", "one of them",
            _profile(facts, "insert_quorum_parallel", 0),
        )  # fmt: skip


def _no_quorum(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    several = [table for table in facts.replicated if table.replicas > 1]
    if several and not _is_on(facts) and "insert_quorum" in facts.session:
        yield rule.ailment(
            SERVER,
            f"insert_quorum = 0, and {len(several)} tables have several replicas",
            "auto",
            _profile(facts, "insert_quorum", "auto"),
        )


RULES = (
    Rule(
        id="views-ignore-errors", severity="error", measured="materialized_views_ignore_errors", wanted="0", judge=_ignored,
        why="A view that throws misses the rows of the insert, and nobody is told.",
    ),
    Rule(
        id="views-not-deduplicated", severity="error", measured="deduplicate_blocks_in_dependent_materialized_views", wanted="1", judge=_views_dedup,
        why="A retried insert is dropped at the source and written a second time into every target.",
    ),
    Rule(
        id="dedup-off", severity="error", measured="deduplicate_insert (before 26.2: insert_deduplicate)", wanted="enable", judge=_dedup_off,
        why="A retried insert doubles its rows.",
    ),
    Rule(
        id="async-unacknowledged", severity="error", measured="async_insert, wait_for_async_insert", wanted="wait", judge=_async,
        why="The server answers before the rows are in: what a view refuses later is lost, and no writer knows.",
    ),
    Rule(
        id="overflow-not-thrown", severity="error", measured="timeout_overflow_mode, sort_overflow_mode, group_by_overflow_mode and their like", wanted="throw",
        why="A statement that runs into a bound gives a part of its result as if it were all of it.", judge=_overflow,
    ),
    Rule(
        id="recovery-bounds", severity="error", measured="constraints of the profile (system.settings), readonly", judge=_bounds,
        wanted="rebuilds may set max_execution_time = `recovery_seconds` and their other bounds",
        why="The server refuses statements that leave the constraints (452): no rebuild can run.",
    ),
    Rule(
        id="quorum-unreachable", severity="error", measured="insert_quorum against active replicas of each table", wanted="as many replicas alive", judge=_unreachable,
        why="Every insert waits for the quorum until it times out, and fails in doubt.",
    ),
    Rule(
        id="quorum-of-all", severity="advice", measured="insert_quorum against the number of replicas of each table", wanted="one replica more", judge=_of_all,
        why="Every write needs all replicas: one that is away for a restart stops ingestion.",
    ),
    Rule(
        id="quorum-without-replicas", severity="warn", measured="insert_quorum, and no declared table is replicated", wanted="0", judge=_pointless,
        why="The setting does nothing here: rows are on one disk while somebody believes that they are on several.",
    ),
    Rule(
        id="quorum-timeout", severity="warn", measured="insert_quorum_timeout against max_execution_time and our timeout", wanted="shorter than both", judge=_timeout,
        why="The statement is cut while it waits for replicas: whether its rows are in is not known, and the retry waits again.",
    ),
    Rule(
        id="quorum-parallel", severity="warn", measured="select_sequential_consistency with insert_quorum_parallel", wanted="one of them", judge=_parallel,
        why="With parallel quorum inserts a sequentially consistent SELECT may miss acknowledged rows.",
    ),
    Rule(
        id="no-quorum", severity="advice", measured="insert_quorum = 0 on tables with several replicas", wanted="auto", judge=_no_quorum,
        why="An acknowledged insert may be on one replica alone and go with it; the journal of chmv is written with a quorum in any case.",
    ),
)  # fmt: skip
