"""Configuration files for the operator: pool sizes, part limits and profiles, from what was measured. Text only; nobody applies them here.

The same facts give the same bytes. Every value has its reason beside it; a value never goes below what the server runs with, since a
pool only grows without a restart, and settings that the server does not know are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape

from chmv_assets.core.doctor.facts import Facts, read_number
from chmv_assets.core.doctor.insert_limits import BLOCK, DELAY, THROW, USUAL
from chmv_assets.core.doctor.pools import concurrency_ratio

RECOVERY_PROFILE, INGEST_PROFILE = "chmv_recovery", "chmv_ingest"
_HEAD = "Written by chmv doctor from what was measured; review it, then copy it to the server. chmv never applies it."
_MIB = 2**20
_UNKNOWN_MEMORY = 8 * 1024 * _MIB


@dataclass(frozen=True, slots=True)
class _Value:
    name: str
    value: object
    reason: str


def render_config_d(facts: Facts) -> dict[str, str]:
    """Relative path → content of each file."""
    return {
        "config.d/chmv_pools.xml": _file(_pools(facts)),
        "config.d/chmv_merge_tree.xml": _file(_element("merge_tree", _merge_tree(facts))),
        "users.d/chmv_profiles.xml": _file(
            _element(
                "profiles", [*_element(RECOVERY_PROFILE, _recovery(facts)), *_element(INGEST_PROFILE, _ingest(facts))]
            )
        ),
    }


def _pools(facts: Facts) -> list[str]:
    cores = facts.cores or 1
    ratio = concurrency_ratio(facts)
    running = int(read_number(facts.server.get("background_pool_size", "")))
    threads = max(running, cores, math.ceil(facts.wanted_pool / ratio))
    schedule = max(int(read_number(facts.server.get("background_schedule_pool_size", ""))), 16)
    return _lines(
        [
            _Value(
                "background_pool_size", threads,
                f"{cores} core(s), {running or 'unknown'} threads now; an insert writes up to {facts.fan_out} tables, which want {facts.wanted_pool} merges "
                f"side by side at {ratio:g} per thread. May grow by a reload, shrinks only by a restart.",
            ),
            _Value("background_merges_mutations_concurrency_ratio", f"{ratio:g}", "Merges per thread, as it is now. Needs a restart."),
            _Value("background_schedule_pool_size", schedule, "Refreshable views, replication queues and log flushes are scheduled here."),
        ]
    )  # fmt: skip


def _merge_tree(facts: Facts) -> list[str]:
    delay = max(facts.merge_tree_number(DELAY, USUAL[DELAY]), int(facts.limits.parts_delay_least))
    throw = max(facts.merge_tree_number(THROW, USUAL[THROW]), delay * 3)
    return _lines(
        [
            _Value(
                DELAY,
                delay,
                f"Parts in one partition from which inserts are slowed; sensors act at {facts.limits.parts_act:.0%} of it.",
            ),
            _Value(THROW, throw, "Three times as many before inserts are refused: the slowing needs room to work."),
        ]
    )


def _recovery(facts: Facts) -> list[str]:
    memory = facts.memory_bytes or _UNKNOWN_MEMORY
    spill = _round(memory // 16)
    return _lines(
        _known(
            facts,
            [
                _Value("max_execution_time", int(facts.limits.recovery_seconds), "Seconds; a rebuild that takes longer is cut into smaller windows."),
                _Value("timeout_overflow_mode", "throw", "Half a result must never look like all of it; so for the next three."),
                _Value("sort_overflow_mode", "throw", "See above."),
                _Value("group_by_overflow_mode", "throw", "See above."),
                _Value("read_overflow_mode", "throw", "See above."),
                _Value("max_memory_usage", _round(memory // 4), "Bytes; a quarter of the server's memory for one statement, the rest stays for writers and readers."),
                _Value("max_bytes_before_external_sort", spill, "Bytes; larger sorts go to disk instead of failing."),
                _Value("max_bytes_before_external_group_by", spill, "Bytes; larger aggregations go to disk instead of failing."),
                _Value("max_threads", max((facts.cores or 2) // 2, 1), "Half of the cores: a repair must not starve what it repairs."),
                _Value(BLOCK, _block(facts), "Partitions of one block; twice the most that a view was seen to make, and at least the server's 100."),
                _Value("materialized_views_ignore_errors", 0, "A view that throws fails the insert, so that somebody knows."),
            ],
        )
    )  # fmt: skip


def _ingest(facts: Facts) -> list[str]:
    quorum = [
        _Value("insert_quorum", "auto", "A majority has the rows before they count as written."),
        _Value("insert_quorum_timeout", 60_000, "Milliseconds; shorter than any statement's own limit."),
    ]
    return _lines(
        _known(
            facts,
            [
                _Value("async_insert", 0, "Batches are large already, and a retried one must be the same block."),
                _Value("wait_for_async_insert", 1, "If somebody switches it on: an answer means that the rows are in."),
                _Value("deduplicate_insert", "enable", "A retried insert is a no-op."),
                _Value("deduplicate_blocks_in_dependent_materialized_views", 1, "Also in every target behind it."),
                _Value("materialized_views_ignore_errors", 0, "A view that throws fails the insert, so that it is retried."),
                _Value(BLOCK, _block(facts), "As for recovery."),
                *(quorum if any(table.replicas > 1 for table in facts.replicated) else []),
            ],
        )
    )  # fmt: skip


def _block(facts: Facts) -> int:
    most = max((sample.partitions for sample in facts.samples), default=0)
    return max(100, math.ceil(most * 2 / 100) * 100)


def _known(facts: Facts, values: Iterable[_Value]) -> list[_Value]:
    return [value for value in values if not facts.session or value.name in facts.session]


def _round(number: int) -> int:
    """Whole 64 MiB: a few bytes more or less of memory must not give another file."""
    step = 64 * _MIB
    return max(number // step, 1) * step


def _lines(values: Iterable[_Value]) -> list[str]:
    found: list[str] = []
    for value in values:
        found += [f"<!-- {_comment(value.reason)} -->", f"<{value.name}>{escape(str(value.value))}</{value.name}>"]
    return found


def _comment(text: str) -> str:
    return text.replace("--", "- -")  # two hyphens end an XML comment


def _element(name: str, content: Iterable[str]) -> list[str]:
    return [f"<{name}>", *(f"  {line}" for line in content), f"</{name}>"]


def _file(content: Iterable[str]) -> str:
    return "\n".join(_element("clickhouse", [f"<!-- {_comment(_HEAD)} -->", *content])) + "\n"
