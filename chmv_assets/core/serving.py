"""What readers read: names and SQL of serving views, what a guard says, and the status of a target. Pure.

    readers ──▶ serving.x ──┬─ route primary:  shop.x, and of partitions that were lost there the snapshot's copy (the guard view)
                            └─ route snapshot: chmv_snapshots.`shop.x` alone

Invariant of the guard view: a partition is shown from one side, never from both or none. It is *lost* if the primary has no part that
already stood there when the partition was copied (`guards.max_block`), or no part of half the size of the largest one of then. The latter because
a DROP leaves an empty part for a moment that covers the blocks of before: rows that are merged with it look as old as those that are gone, which
under busy writers is every second DROP. That is asked of the very parts that the query reads (virtual columns, one shared storage snapshot per
query), and guards are read after them: two looks at `system.parts` would leave a gap of some milliseconds. Who does all this is `resources.serving`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.serving_journal import GUARDS, Guard, Route, render_least_offset

SERVING_DATABASE = "serving"
SNAPSHOT_DATABASE = "chmv_snapshots"
UNGUARDED = -1  # nothing is known of the partition: what the primary shows is right
ANY_BLOCK = 2**62  # just rebuilt: any part counts, only a partition that is gone is lost
WHOLE = ""  # the partition id of the row that says when all of a target was looked at
Status = Literal["ACTIVE", "DEGRADED", "STALE"]
_GROWING = ("plain", "replacing", "summing", "aggregating", "coalescing")  # a merge keeps a row of every key
_OFFSETS = tuple(2**power - 1 for power in range(41))  # where parts are asked whether they are so large
_READ_FINAL = ("replacing", "collapsing", "versionedcollapsing", "coalescing")


def serving_targets(catalog: Catalog) -> tuple[Object, ...]:
    """Targets that get a serving view: MergeTree tables that views write into; hidden inner tables are read by their view's name."""
    found = (
        made for name, made in sorted(catalog.objects.items()) if made.kind == "table" and catalog.views_into(name)
    )
    return tuple(made for made in found if family(made.engine))


def is_guarded(catalog: Catalog, target: QName) -> bool:
    """Whether blocks tell that a partition was lost; a view that refreshes the table as a whole makes a new table each time."""
    views = catalog.views_into(target)
    return not any(view.kind == "refreshable_view" and not (view.refresh and view.refresh.append) for view in views)


def serving_names(targets: Iterable[QName]) -> dict[QName, QName]:
    """The view of each target: its bare table name, or with its database where two would be called the same.

    >>> str(serving_names([QName("shop", "x")])[QName("shop", "x")])
    'serving.x'
    >>> [str(name) for name in serving_names([QName("a", "x"), QName("b", "x")]).values()]
    ['serving.`a.x`', 'serving.`b.x`']
    """
    names = sorted(set(targets))
    shared = Counter(name.table for name in names)
    return {
        name: QName(SERVING_DATABASE, name.table if shared[name.table] == 1 else f"{name.database}.{name.table}")
        for name in names
    }


def snapshot_name(target: QName) -> QName:
    """The table with the copies of a target's partitions.

    >>> snapshot_name(QName("shop", "x")), snapshot_name(QName("shop", "a.b")).table
    (QName(database='chmv_snapshots', table='shop.x'), 'shop.`a.b`')
    """
    return QName(SNAPSHOT_DATABASE, str(target))


def twin_name(target: QName) -> QName:
    """An empty table of the target's shape: with it the view has columns even when the target is gone."""
    return QName(SNAPSHOT_DATABASE, f"{target}.none")


def side_name(target: QName) -> QName:
    """Where partitions are copied to before they go into the snapshot."""
    return QName(SNAPSHOT_DATABASE, f"{target}.next")


def quote_regex(names: Iterable[str]) -> str:
    r"""A string literal with a regular expression that matches exactly these names.

    >>> print(quote_regex(["x", "shop.x"]))
    '^(x|shop\\.x)$'
    """
    return quote_string(f"^({'|'.join(_escape_regex(name) for name in names)})$")


def _escape_regex(name: str) -> str:
    """As RE2 wants it: it refuses a backslash before letters of other scripts, and re.escape sets none there."""
    return re.sub(r"([^\w])", lambda found: _escape_char(found.group()), name, flags=re.ASCII)


def _escape_char(char: str) -> str:
    return f"\\{char}" if ord(char) < 128 and char.isprintable() else char


def render_guard_view(view: QName, target: Object, columns: Sequence[str]) -> str:
    """The view of route `primary`."""
    name = target.name
    both = f"merge(REGEXP({quote_regex([name.database, SNAPSHOT_DATABASE])}), {quote_regex([name.table, twin_name(name).table])})"
    lost = _render_lost(name, both)
    shown, final = _columns(columns), _final(target)
    body = (
        f"{lost} SELECT {shown} FROM {both}{final} WHERE NOT has(chmv_lost, _partition_id) UNION ALL "
        f"{lost} SELECT {shown} FROM {snapshot_name(name).sql}{final} WHERE has(chmv_lost, _partition_id)"
    )
    return _view(view, body)


def render_snapshot_view(view: QName, target: Object, columns: Sequence[str]) -> str:
    """The view of route `snapshot`."""
    return _view(view, f"SELECT {_columns(columns)} FROM {snapshot_name(target.name).sql}{_final(target)}")


def _render_lost(name: QName, both: str) -> str:
    """WITH: of each partition that this query reads the lowest block, the largest offset among ours and the last mutation, then the guards that these do
    not satisfy.

    A few rows of each part are enough to know of it, also where they were deleted lightly; the server finds them by their offsets without a scan.
    """
    words = "splitByChar('_', substring(_part, length(_partition_id) + 2))"  # of a part's name: first block, last block, level, mutation
    held = (
        "SELECT mapFromArrays(groupArray(chmv_id), groupArray((chmv_block, chmv_offset, chmv_mutation))) FROM (SELECT _partition_id AS chmv_id, "
        f"min(toInt64({words}[1])) AS chmv_block, max(toInt64(_part_offset)) AS chmv_offset, max(toInt64OrZero({words}[4])) AS chmv_mutation "
        f"FROM {both} WHERE _part_offset IN {_OFFSETS} GROUP BY chmv_id SETTINGS apply_deleted_mask = 0)"
    )
    uuid = (
        "SELECT toString(any(uuid)) FROM system.tables "
        f"WHERE database = {quote_string(name.database)} AND name = {quote_string(name.table)}"
    )
    lost = (
        f"SELECT groupArray(partition_id) FROM {GUARDS.sql} FINAL WHERE target = {quote_string(str(name))} AND max_block >= 0 AND "
        "(NOT mapContains(chmv_held, partition_id) OR chmv_held[partition_id].1 > max_block OR table_uuid != chmv_uuid OR "
        f"(chmv_held[partition_id].3 = 0 AND chmv_held[partition_id].2 < {render_least_offset()}))"
    )
    return f"WITH ({held}) AS chmv_held, ({uuid}) AS chmv_uuid, ({lost}) AS chmv_lost"


def _columns(columns: Sequence[str]) -> str:
    return ", ".join(quote_identifier(column) for column in columns)


def _final(target: Object) -> str:
    """Rows that a later one replaces are not shown; sums and states are put together by whoever reads, as from the target."""
    return " FINAL" if family(target.engine) in _READ_FINAL else ""


def _view(view: QName, body: str) -> str:
    return f"CREATE OR REPLACE VIEW {view.sql} AS {body} COMMENT {quote_string(view_mark(body))}"


def view_mark(text: str) -> str:
    """What a view's comment says of its text: the server formats the text, so it cannot be compared itself."""
    return f"made by chmv {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def mark_in(statement: str) -> str:
    """The mark inside a statement of ours."""
    found = re.search(r"made by chmv [0-9a-f]{16}", statement.rpartition(" COMMENT ")[2])
    return found.group() if found else ""


@dataclass(frozen=True, slots=True)
class Held:
    """The active parts of one partition of the primary, summed up."""

    rows: int
    min_block: int
    max_block: int
    data_version: int
    emptied_ms: int = 0  # when it was dropped last, if the server's log of parts knows
    largest: int = 0  # rows of its largest part
    largest_merged: int = 0  # of those that a merge has made

    @property
    def fingerprint(self) -> str:
        return f"{self.rows} {self.max_block} {self.data_version}"


def is_lost(guard: Guard | None, held: Held | None, table_uuid: str) -> bool:
    """Whether a partition's rows are gone from the primary; the same rule as in the view, which cannot look at the log of parts."""
    if guard is None or guard.max_block < 0:
        return False
    if held is None or guard.table_uuid != table_uuid:
        return True
    is_younger = held.min_block > guard.max_block or held.emptied_ms > guard.copied_ms
    return is_younger or has_shrunk(guard.least_offset, held)


def least_offset(target: Object, held: Held) -> int:
    """An offset that some part of the partition reaches from now on, whatever is inserted and merged; 0: that is not known.

    The largest part only grows, since merges keep a row of every key. Half of its rows is asked for, down to a power of two: a view can ask for forty
    offsets. Nothing is known where rows may go by themselves (TTL, collapsing engines) and of mutated partitions: rows that are deleted lightly go
    with a later merge.

    """
    kind = family(target.engine)
    if held.data_version or target.ttl or kind not in _GROWING:
        return 0
    rows = held.largest if kind == "plain" else held.largest_merged  # inserts may bring a key twice
    return int(2 ** ((rows // 2).bit_length() - 1)) - 1 if rows > 1 else 0


def has_shrunk(least: int, held: Held) -> bool:
    """Whether no part reaches the offset any more although nobody has mutated the partition."""
    return bool(least) and not held.data_version and held.largest <= least


def describe_copy(table_uuid: str, held: Held, least: int) -> str:
    """`Guard.copied`."""
    return f"{table_uuid} {held.fingerprint} {least}"


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a refresh of a snapshot does: ids of partitions."""

    copy: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()  # the primary let go of them on purpose
    lost: tuple[str, ...] = ()  # left as they are: the copy is all there is


def plan_copy(held: dict[str, Held], copied: dict[str, Held], guards: dict[str, Guard], table_uuid: str) -> CopyPlan:
    """Compare a primary with its snapshot. `copied` are the snapshot's partitions; only what changed is copied."""
    ids = sorted({*held, *copied})
    lost = [one for one in ids if one in copied and is_lost(guards.get(one), held.get(one), table_uuid)]
    kept = [one for one in held if one not in lost]
    copy = sorted(
        one for one in kept
        if one not in copied or one not in guards or guards[one].state != f"{table_uuid} {held[one].fingerprint}"
    )  # fmt: skip
    return CopyPlan(tuple(copy), tuple(one for one in ids if one not in held and one not in lost), tuple(lost))


def copy_survived(target: Object, before: Held, now: Held | None) -> bool:
    """Whether a partition was not lost while it was copied: some part from before is still there, and a large one."""
    if now is None or now.min_block > before.max_block or now.emptied_ms > before.emptied_ms:
        return False
    return not has_shrunk(least_offset(target, before), now)


def snapshot_refusal(target: QName, snapshot_ms: int, now_ms: int, max_age_seconds: float) -> str:
    """Why a snapshot may not be shown to readers; nothing if it may."""
    if snapshot_ms <= 0:
        return (
            f"target {target}: found no complete snapshot but wanted one to send readers to. They stay with the primary. "
            "Run `snapshot_job`, or wait for its schedule."
        )
    age = (now_ms - snapshot_ms) / 1000
    if age > max_age_seconds:
        return (
            f"target {target}: found a snapshot that is {age:.0f} s old but wanted {max_age_seconds:.0f} s at most. Old numbers mislead, "
            "readers stay with the primary. Raise `snapshot_max_age` under `thresholds` in chmv.yaml if they are better than none."
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What is known of a target, in numbers."""

    target: QName
    sla_seconds: float
    route: Route = "primary"
    route_reason: str = ""
    snapshot_age_seconds: float | None = None
    lost: int = 0  # partitions that the snapshot stands in for
    outages: tuple[tuple[str, float], ...] = ()  # what is open, and for how many seconds
    repairs_running: tuple[str, ...] = ()
    stale_seconds: float | None = None  # since when the oldest stale watermark waits for its rebuild


def status_of(facts: TargetFacts) -> tuple[Status, tuple[str, ...]]:
    """ACTIVE, DEGRADED or STALE, and why, in sentences.

    >>> status_of(TargetFacts(target=QName("shop", "x"), sla_seconds=300))
    ('ACTIVE', ())
    """
    why: list[str] = []
    if facts.route == "snapshot":
        why.append(f"readers are on the snapshot: {facts.route_reason or 'no reason noted'}")
    late = [(what, age) for what, age in facts.outages if age > facts.sla_seconds]
    why += [f"{what} for {age:.0f} s, the SLA is {facts.sla_seconds:.0f} s" for what, age in late]
    if facts.stale_seconds is not None and facts.stale_seconds > facts.sla_seconds:
        why.append(
            f"a window waits for its rebuild for {facts.stale_seconds:.0f} s, the SLA is {facts.sla_seconds:.0f} s"
        )
    status: Status = "STALE" if why else "ACTIVE"
    open_ = [f"{what} for {age:.0f} s" for what, age in facts.outages if (what, age) not in late]
    if facts.lost:
        open_.append(f"{facts.lost} lost partition(s) are read from the snapshot")
    if facts.stale_seconds is not None and facts.stale_seconds <= facts.sla_seconds:
        open_.append(f"a window waits for its rebuild for {facts.stale_seconds:.0f} s")
    open_ += [f"being repaired: {what}" for what in facts.repairs_running]
    if open_ and status == "ACTIVE":
        status = "DEGRADED"
    return status, (*why, *open_)
