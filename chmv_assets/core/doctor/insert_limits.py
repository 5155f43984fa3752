"""Rules about what an insert may do to a table: how many parts it may find, how many partitions it may make."""

from __future__ import annotations

from collections.abc import Iterator

from chmv_assets.core.doctor.facts import Facts, Sample
from chmv_assets.core.doctor.finding import SERVER, Ailment, Rule

DELAY, THROW, BLOCK = "parts_to_delay_insert", "parts_to_throw_insert", "max_partitions_per_insert_block"
USUAL = {DELAY: 1000, THROW: 3000}
PARTITIONS_RULE, CROSSED_RULE, LOW_RULE = "partitions-per-insert", "parts-limits-crossed", "parts-limit-low"


def _limits(facts: Facts) -> Iterator[tuple[str, int, int, str]]:
    """Who, delay, throw and how they are changed: the server's default, and tables that say something of their own."""
    default = {name: facts.merge_tree_number(name, usual) for name, usual in USUAL.items()}
    if facts.merge_tree:
        yield SERVER, default[DELAY], default[THROW], ""
    for table in facts.tables.values():
        own = {name: table.number(name, default[name]) for name in USUAL}
        if own != default:
            yield str(table.name), own[DELAY], own[THROW], table.name.sql


def _mend(alter: str, delay: int, throw: int) -> str:
    if alter:
        return f"ALTER TABLE {alter} MODIFY SETTING {DELAY} = {delay}, {THROW} = {throw}"
    return f"<!-- config.d --> <merge_tree><{DELAY}>{delay}</{DELAY}><{THROW}>{throw}</{THROW}></merge_tree>"


def _crossed(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for subject, delay, throw, alter in _limits(facts):
        if 0 < throw <= delay:
            yield rule.ailment(
                subject,
                f"{DELAY} = {delay}, {THROW} = {throw}",
                "delay well below throw",
                _mend(alter, max(delay // 3, 100), max(delay, 300)),
            )


def _low(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    least = int(facts.limits.parts_delay_least)
    for subject, delay, throw, alter in _limits(facts):
        if 0 < delay < min(least, throw or least):
            yield rule.ailment(
                subject, f"{DELAY} = {delay}", f"at least {least}", _mend(alter, least, max(throw, least * 3))
            )


def _partitions(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    limit = int(facts.number(BLOCK, 100))
    if not limit or facts.value("throw_on_" + BLOCK) == "0":
        return
    for sample in facts.samples:
        if sample.per_insert > limit * facts.limits.insert_partitions:
            refused = sample.per_insert > limit
            yield rule.ailment(
                str(sample.view), f"{_told(sample)}, and an insert may make {limit}",
                f"at most {facts.limits.insert_partitions:.0%} of {limit}", *_coarser(facts, sample),
                severity="error" if refused else "warn",
            )  # fmt: skip


def _told(sample: Sample) -> str:
    where = f"newest of {sample.touched} partitions" if sample.touched > 1 else f"part {sample.part}"
    seen = f", inserts of the last day made up to {sample.seen}" if sample.seen is not None else ""
    refused = f", {sample.refused} were refused" if sample.refused else ""
    return f"{sample.rows} rows of {sample.source} ({where}) give {sample.partitions} partitions of {sample.target}{seen}{refused}"


def _coarser(facts: Facts, sample: Sample) -> Iterator[str]:
    made = facts.catalog.objects[sample.target]
    yield f"-- partition {sample.target} more coarsely than by {made.partition_by}, and let `chmv plan` rebuild it; or write smaller batches, or"
    yield f"INSERT INTO {sample.source.sql} SETTINGS {BLOCK} = {sample.per_insert * 2} VALUES …"


def _untried(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for view, why in facts.untried:
        yield rule.ailment(
            str(view),
            why,
            "it can be tried",
            f"-- look by hand: how many partitions does an insert make in the target of {view}?",
        )


def _off(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for name in (BLOCK, "throw_on_" + BLOCK):
        if facts.value(name) == "0":
            yield rule.ailment(
                SERVER, f"{name} = 0 for user {facts.user}", "a limit that is enforced",
                f"<!-- users.d, in the profile of {facts.user} --> <{name}>{100 if name == BLOCK else 1}</{name}>",
            )  # fmt: skip


RULES = (
    Rule(
        id=CROSSED_RULE, severity="error", measured="parts_to_delay_insert, parts_to_throw_insert of the server and of each table",
        wanted="delay below throw", judge=_crossed,
        why="Inserts are refused before they are ever slowed down: nothing is left between all well and an outage.",
    ),
    Rule(
        id=LOW_RULE, severity="warn", measured="parts_to_delay_insert of the server and of each table", wanted="`parts_delay_least` or more", judge=_low,
        why="A burst of inserts is slowed before merges had a chance, and every view's target slows the whole insert.",
    ),
    Rule(
        id=PARTITIONS_RULE, severity="error",
        measured="distinct target partitions that the view's SELECT gives over the newest part of as many source partitions as an insert touches",
        wanted="at most `insert_partitions` of max_partitions_per_insert_block", judge=_partitions,
        why="An insert that makes more is refused at the target when its rows already are in the source: the target misses them.",
    ),
    Rule(
        id="view-not-tried",
        severity="advice",
        measured="views whose SELECT could not be run over recent rows",
        wanted="all can",
        why="How many partitions one insert makes through them is not known.",
        judge=_untried,
    ),
    Rule(
        id="partition-limit-off", severity="warn", measured="max_partitions_per_insert_block, throw_on_max_partitions_per_insert_block",
        wanted="a limit that is enforced", judge=_off,
        why="One bad batch makes thousands of tiny parts, and merges of every table wait behind them.",
    ),
)  # fmt: skip
