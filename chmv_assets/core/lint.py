"""Lints: what is legal DDL but gives wrong numbers or cannot be repaired. One function per rule.

Each finding says what was found, why it hurts (server behaviour as measured, docs/measured.md) and what to do. Rules see
only the finished catalog; none changes it. Codes are stable: people put them into their CI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from chmv_assets.core.cadence import split_tuple
from chmv_assets.core.graph import neighbours, reachable
from chmv_assets.core.model import VIEW_KINDS, Finding, Object, Severity, family
from chmv_assets.core.names import QName
from chmv_assets.core.retention import ttl_days
from chmv_assets.core.secrets import find_secrets

if TYPE_CHECKING:
    from chmv_assets.core.catalog import Catalog

_COUNTING = re.compile(r"^(count|sum|avg)", re.IGNORECASE)
_NOT_OVER_PARTIALS = re.compile(r"^(count|avg|uniq|quantile|median|stddev|var|entropy|topK|groupArray)", re.IGNORECASE)
_SHORT_PERIOD = re.compile(
    r"toStartOf(?:Minute|FiveMinutes?|TenMinutes|FifteenMinutes|Second|Millisecond)|INTERVAL\s+\d+\s+(?:MINUTE|SECOND)"
    r"|toInterval(?:Minute|Second)|toUnixTimestamp|toYYYYMMDDhhmmss",
    re.IGNORECASE,
)
_MANY_VALUES = re.compile(r"^(?:U?Int(?:32|64|128|256)|String|FixedString|UUID|IPv[46]|DateTime|Float|Decimal)")


def lint_catalog(catalog: Catalog, repeats_trigger: Set[QName]) -> Iterator[Finding]:
    """Run every rule; `repeats_trigger` are the views that read their trigger table twice."""
    views = [made for made in catalog.objects.values() if made.kind in VIEW_KINDS]
    up, _ = neighbours(catalog.edges)
    partial = {v.target for v in views if catalog.facts[v.name].group_keys or catalog.facts[v.name].aggregates}
    for view in views:
        yield from _lint_statement(view)
        yield from _lint_sources(catalog, view, up, view.name in repeats_trigger)
        yield from _lint_aggregates(catalog, view, partial)
        yield from _lint_columns(catalog, view)
        yield from _lint_retention(catalog, view)
    for made in catalog.objects.values():
        if made.kind in ("table", "inner_table"):
            yield from _lint_partition_key(made)
        elif made.kind in ("view", *VIEW_KINDS) and made.reader != "full":
            yield _unread(made)
        if made.kind != "inner_table" and find_secrets(made.sql):
            yield _finding(
                "secret-in-ddl", "warning", made,
                "found a password or key in its statement but wanted none. The folder is in version control, and because of it nothing of the folder is "
                "cached: every process parses it anew. Use a named collection, or a definer's rights.",
            )  # fmt: skip
        if made.kind == "external":
            yield _finding("not-declared", "note", made, "is referred to but not declared here: an external node.")
    yield from _lint_dedup_windows(catalog)


def _finding(code: str, severity: Severity, made: Object, message: str) -> Finding:
    kind = "view" if made.kind in (*VIEW_KINDS, "view") else "table"
    return Finding(
        code=code, severity=severity, message=f"{kind} {made.name}: {message}", place=made.place, subject=str(made.name)
    )


def _unread(made: Object) -> Finding:
    how = "its references come from its words alone" if made.reader == "tolerant" else "nothing it reads is known"
    return _finding(
        "cannot-tell", "warning", made,
        f"the SELECT could not be parsed, so {how}. It counts as opaque and is not rebuilt by itself. "
        "`chmv graph --live` asks the server.",
    )  # fmt: skip


def _lint_statement(view: Object) -> Iterator[Finding]:
    if view.populate:
        yield _finding(
            "populate", "warning", view,
            "has POPULATE: rows inserted while it runs are lost. Create the view without it, then backfill its partitions.",
        )  # fmt: skip
    if view.or_replace:
        yield _finding(
            "or-replace-view", "warning", view,
            "is declared with OR REPLACE, which loses and doubles rows of running inserts. Change it with MODIFY QUERY (`chmv apply`).",
        )  # fmt: skip
    if view.target is not None and view.target.table.startswith(".inner"):
        yield _finding(
            "inner-table", "warning", view,
            "has a hidden inner table, which no other view can read and which goes when the view is created anew. Give it a target with TO.",
        )  # fmt: skip


def _lint_sources(catalog: Catalog, view: Object, up: dict[QName, list[QName]], repeats: bool) -> Iterator[Finding]:
    lookups = [r.name for r in view.references if r.kind == "lookup"]
    trigger = catalog.trigger_of(view.name)
    if any(reference.via == "union" for reference in view.references) and view.kind == "materialized_view":
        yield _finding(
            "union-view", "warning", view,
            "has a UNION: only its first branch ever runs. Write one view per branch into the same target.",
        )  # fmt: skip
    if (
        view.kind == "materialized_view"
        and trigger is None
        and any(catalog.objects[n].kind == "function" for n in lookups)
    ):
        yield _finding(
            "function-source", "warning", view, "reads a table function, which no INSERT fires. Read a table."
        )
    if trigger is None:
        return
    if catalog.objects[trigger].kind in ("view", "merge"):
        yield _finding(
            "view-over-view", "warning", view,
            f"is triggered by {trigger}, a {catalog.objects[trigger].kind}: inserts into the tables below never fire it. "
            "Attach it to the table itself.",
        )  # fmt: skip
    ancestors = reachable(trigger, up)
    repeated = [name for name in lookups if name in ancestors] + ([trigger] if repeats else [])
    if repeated:
        names = ", ".join(str(name) for name in repeated)
        yield _finding(
            "reads-own-ancestor", "warning", view,
            f"reads {names}, which also feeds its trigger: during an INSERT it sees the block or a table half way, not the whole. "
            "Compute it later, in a refreshable view or a rebuild.",
        )  # fmt: skip


def _lint_aggregates(catalog: Catalog, view: Object, partial: set[QName | None]) -> Iterator[Finding]:
    facts = catalog.facts[view.name]
    trigger = catalog.trigger_of(view.name)
    target = catalog.objects.get(view.target) if view.target is not None else None
    if target is None or view.kind != "materialized_view":
        return
    engine = family(target.engine)
    functions = [function for _, function in facts.aggregates]
    if trigger in partial:
        wrong = [f for f in functions if _NOT_OVER_PARTIALS.match(f) and "Merge" not in f]
        if wrong:
            yield _finding(
                "partial-aggregate-chain", "warning", view,
                f"computes {', '.join(wrong)} over {trigger}, whose rows are partial aggregates, one per insert block: "
                "the result depends on how inserts were cut. Sum the sums, merge the states, or read the raw table.",
            )  # fmt: skip
    counts = [f for f in functions if _COUNTING.match(f) and not f.endswith("State")]
    if engine == "replacing" and counts:
        yield _finding(
            "replacing-counts", "warning", view,
            f"puts {', '.join(counts)} into {target.name}, a Replacing table: of the partial results one survives, the rest is dropped. "
            "Use SummingMergeTree or AggregatingMergeTree.",
        )  # fmt: skip
    if engine in ("summing", "aggregating") and facts.group_keys:
        ordered = set(re.findall(r"\w+", target.order_by))
        held = {c.name for c in target.columns}
        missing = [key for key in facts.group_keys if key in held and key not in ordered]
        if missing:
            yield _finding(
                "order-by-lacks-group-key", "warning", view,
                f"groups by {', '.join(missing)}, missing in ORDER BY of {target.name}: rows of different groups are merged into one. "
                "Add them to the ORDER BY.",
            )  # fmt: skip


def _lint_columns(catalog: Catalog, view: Object) -> Iterator[Finding]:
    target = catalog.objects.get(view.target) if view.target is not None else None
    names = [name for name, _ in catalog.facts[view.name].lineage]
    if target is None or not target.columns or not names or target.kind == "inner_table":
        return
    held = {column.name for column in target.columns}
    dropped = [name for name in names if name not in held]
    if dropped:
        yield _finding(
            "output-column-dropped", "warning", view,
            f"gives {', '.join(dropped)}, which {target.name} does not have: the server drops it without a word. "
            "Add the column, or leave it out of the SELECT.",
        )  # fmt: skip
    empty = [c.name for c in target.columns if c.name not in names and not c.default_kind]
    keys = [name for name in empty if name in re.findall(r"\w+", target.order_by + " " + target.partition_by)]
    if keys:
        yield _finding(
            "key-column-missing", "warning", view,
            f"does not give {', '.join(keys)}, part of the keys of {target.name}: every row gets the type's default there. "
            "Select it under that name.",
        )  # fmt: skip


def _lint_retention(catalog: Catalog, view: Object) -> Iterator[Finding]:
    trigger = catalog.trigger_of(view.name)
    target = catalog.objects.get(view.target) if view.target is not None else None
    source = catalog.objects.get(trigger) if trigger is not None else None
    if source is None or target is None or (kept := ttl_days(source.ttl)) is None:
        return
    wanted = ttl_days(target.ttl)
    if target.kind in ("table", "inner_table") and (wanted is None or wanted > kept):
        shown = "for ever" if wanted is None else f"{wanted:g} days"
        yield _finding(
            "ttl-shorter-than-target", "warning", view,
            f"{source.name} keeps {kept:g} days but {target.name} {shown}: older partitions can only be rebuilt from an archive. "
            "Declare a landing path, or keep the source longer.",
        )  # fmt: skip


def exploding_keys(made: Object) -> Iterator[str]:
    """Parts of a partition key that take a new value with almost every insert."""
    for part in split_tuple(made.partition_by):
        bare = part.strip().strip('`"')
        column = made.column(bare)
        many = column is not None and _MANY_VALUES.match(re.sub(r"^(?:LowCardinality|Nullable)\(", "", column.type))
        if column is not None and column.type.startswith("LowCardinality"):
            many = None
        if many or _SHORT_PERIOD.search(part):
            yield part


def _lint_partition_key(made: Object) -> Iterator[Finding]:
    for part in exploding_keys(made):
        yield _finding(
            "partition-per-insert", "warning", made,
            f"is partitioned by {part}, which takes a new value with almost every insert: parts explode and inserts are refused. "
            "Partition by day or month; put it into ORDER BY.",
        )  # fmt: skip


def _lint_dedup_windows(catalog: Catalog) -> Iterator[Finding]:
    wanted = {edge.source for edge in catalog.edges if edge.kind == "trigger"}
    live = {made.name for made in catalog.objects.values() if made.kind == "materialized_view"}
    wanted |= {edge.dest for edge in catalog.edges if edge.kind == "writes" and edge.source in live}
    for name, made in catalog.objects.items():
        plain = made.engine.endswith("MergeTree") and not re.match("Replicated|Shared", made.engine)
        if name in wanted and plain and not _positive(made.setting("non_replicated_deduplication_window")):
            yield _finding(
                "no-dedup-window", "warning", made,
                "has no non_replicated_deduplication_window: a retried insert doubles its rows here. "
                f"ALTER TABLE {made.name.sql} MODIFY SETTING non_replicated_deduplication_window = 10000.",
            )  # fmt: skip


def _positive(value: str | None) -> bool:
    return value is not None and (not value.isdigit() or int(value) > 0)
