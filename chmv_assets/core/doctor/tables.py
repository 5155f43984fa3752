"""Rules about declared tables: partition keys, sorting keys, retention, deduplication. What `chmv check` lints by the text is measured here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chmv_assets.core.capabilities import WANTED_WINDOW, judge_table, table_facts
from chmv_assets.core.doctor.facts import Facts
from chmv_assets.core.doctor.finding import Ailment, Rule
from chmv_assets.core.lint import exploding_keys
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.retention import ttl_days

_COLLAPSING = ("summing", "aggregating", "replacing")


def _fine(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for name, made in facts.catalog.objects.items():
        if made.kind not in ("table", "inner_table"):
            continue
        found = _too_many(facts, name) or [f"partitioned by {key}" for key in exploding_keys(made)]
        if found:
            yield rule.ailment(
                str(name), found[0], f"at most {facts.limits.partitions_per_month:g} partitions a month, {facts.limits.partitions_total:g} in all",
                f"-- PARTITION BY a day or a month in the DDL of {name}, then: chmv plan",
            )  # fmt: skip


def _too_many(facts: Facts, name: QName) -> list[str]:
    live = facts.tables.get(name)
    if live is None:
        return []
    if live.partitions > facts.limits.partitions_total:
        return [f"{live.partitions} partitions"]
    if live.months and live.partitions / live.months > facts.limits.partitions_per_month:
        return [f"{live.partitions} partitions in {live.months} month(s)"]
    return []


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _missing_keys(facts: Facts, view: Object, target: Object) -> list[str]:
    """Group keys by which an adding target does not tell its rows apart."""
    if family(target.engine) not in ("summing", "aggregating"):
        return []
    ordered, held = _words(target.order_by), {column.name for column in target.columns}
    return [key for key in facts.catalog.facts[view.name].group_keys if key in held and key not in ordered]


def _pairs(facts: Facts) -> Iterator[tuple[Object, Object]]:
    """Every view that fires on inserts, with its target."""
    for made in facts.catalog.objects.values():
        target = facts.catalog.objects.get(made.target) if made.target is not None else None
        if made.kind == "materialized_view" and target is not None:
            yield made, target


def _order(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for view, target in _pairs(facts):
        missing = _missing_keys(facts, view, target)
        if missing:
            keys = ", ".join(map(quote_identifier, missing))
            yield rule.ailment(
                str(view.name), f"groups by {', '.join(missing)}, and {target.name} is ordered by {target.order_by}", "every group key in ORDER BY",
                f"-- add {keys} to the ORDER BY of {target.name} in its DDL, then: chmv plan",
            )  # fmt: skip


def _partition_order(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    told: set[QName] = set()
    for view, target in _pairs(facts):
        columns = _words(target.partition_by) & {column.name for column in target.columns}
        loose = sorted(columns - _words(target.order_by) - set(_missing_keys(facts, view, target)))
        if family(target.engine) in _COLLAPSING and loose and target.name not in told:
            told.add(target.name)
            yield rule.ailment(
                str(target.name), f"partitioned by {', '.join(loose)}, ordered by {target.order_by}", "partition columns in ORDER BY",
                f"-- fine as long as {', '.join(loose)} never changes for a key; else add it to the ORDER BY in the DDL of {target.name}",
            )  # fmt: skip


def _retention(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for view, target in _pairs(facts):
        trigger = facts.catalog.trigger_of(view.name)
        source = facts.catalog.objects.get(trigger) if trigger is not None else None
        kept = ttl_days(source.ttl) if source is not None else None
        if source is None or kept is None or facts.settings.policy(source.name).landing is not None:
            continue
        wanted = ttl_days(target.ttl)
        if wanted is None or wanted > kept:
            shown = "for ever" if wanted is None else f"{wanted:g} days"
            days = 0 if wanted is None else round(wanted)
            alter = (
                f"ALTER TABLE {source.name.sql} REMOVE TTL"
                if not days
                else f"ALTER TABLE {source.name.sql} MODIFY TTL … + INTERVAL {days} DAY"
            )
            yield rule.ailment(
                str(view.name), f"{source.name} keeps {kept:g} days, {target.name} {shown}", "the source keeps as long, or its files are archived",
                alter, f"# or in chmv.yaml: sources.{source.name}.landing: {{path: …}}",
            )  # fmt: skip


def _dedup(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    defaults = {name: facts.merge_tree_number(name, 0) for name in facts.merge_tree}
    for name in dict.fromkeys(name for tables in facts.reached.values() for name in tables):
        live = facts.tables.get(name)
        if live is None:
            continue
        problems, alters = judge_table(table_facts(name, live.engine, live.engine_full, defaults))
        if problems:
            yield rule.ailment(str(name), "; ".join(problems), f"a window of {WANTED_WINDOW} blocks", *alters)


RULES = (
    Rule(
        id="partition-key-too-fine", severity="warn", measured="partitions of system.parts, in all and per month; the partition expression", judge=_fine,
        wanted="at most `partitions_per_month` and `partitions_total`",
        why="Parts never merge across partitions: a fine key leaves tiny parts for ever, slows every start, and makes inserts wait.",
    ),
    Rule(
        id="order-by-lacks-group-key", severity="error", measured="GROUP BY of the view against ORDER BY of its target", judge=_order,
        wanted="every group key in ORDER BY", why="Rows of different groups are merged into one: the numbers become wrong, and stay so.",
    ),
    Rule(
        id="partition-outside-order-by", severity="advice", measured="PARTITION BY against ORDER BY of a collapsing target", judge=_partition_order,
        wanted="partition columns in ORDER BY", why="Rows of one key in different partitions never meet in a merge, so both stay.",
    ),
    Rule(
        id="ttl-shorter-than-target", severity="warn", measured="TTL of the source against TTL of the target", judge=_retention,
        wanted="the source keeps as long, or its landing files are declared",
        why="Windows older than the source's TTL cannot be rebuilt from it any more.",
    ),
    Rule(
        id="dedup-window", severity="warn", measured="(non_)replicated_deduplication_window of a source and every table behind it", judge=_dedup,
        wanted="10000 blocks, a week on replicated tables",
        why="A retried insert is a no-op only where each of these tables remembers it; elsewhere its rows are doubled.",
    ),
)  # fmt: skip
