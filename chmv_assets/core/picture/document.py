"""What the page is given: one JSON document of nodes, edges, groups and where they stand. Pure; how it looks is in `page.css` and the scripts.

Every text that may hold a secret goes through the mask. Nothing here depends on the clock: the moment comes with what was seen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Any

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.groups import group_of
from chmv_assets.core.model import VIEW_KINDS, Edge, Object, Role
from chmv_assets.core.names import QName, display_identifier
from chmv_assets.core.outages import Outage
from chmv_assets.core.picture.layout import Layout, NodeSize, build_layout
from chmv_assets.core.picture.place import Box
from chmv_assets.core.picture.state import Judgement, Seen, edge_rows, judge_nodes, last_repair
from chmv_assets.core.rebuild_journal import RebuildRecord
from chmv_assets.core.recovery import RecoveryRecord, moment
from chmv_assets.core.render import edge_width
from chmv_assets.core.settings import Settings
from chmv_assets.core.watermarks import Watermark

Mask = Callable[[str], str]
MAX_DDL_CHARS = 20_000
_MAX_LABEL = 30.0  # widths of a letter
_LETTER = 7.3  # pixels, at 12 px and bold
_SMALL_LETTER = 5.9
_SHAPES = {
    "materialized_view": "view", "refreshable_view": "refreshable", "view": "plain", "dictionary": "lookup",
    "external": "external", "function": "external",
}  # fmt: skip


def build_document(catalog: Catalog, settings: Settings, seen: Seen | None, title: str, mask: Mask) -> dict[str, Any]:
    """All that the page shows."""
    names = sorted(catalog.objects)
    roles = catalog.roles()
    groups = {name: group_of(catalog, settings, name) for name in names}
    labels = {name: _label(catalog, catalog.objects[name]) for name in names}
    sizes = [NodeSize(name=name, width=_width(*labels[name]), group=groups[name]) for name in names]
    layout = build_layout(sizes, catalog.edges)
    judged = judge_nodes(catalog, settings, seen)
    at = {name: number for number, name in enumerate(names)}
    node = _NodeWriter(catalog, settings, seen, mask)
    return {
        "title": title,
        "taken": f"{seen.taken:%Y-%m-%d %H:%M:%S} UTC" if seen else None,
        "notes": [mask(note) for note in seen.notes] if seen else [],
        "size": [round(layout.width, 1), round(layout.height, 1)],
        "nodes": [
            {
                "name": str(name),
                "label": labels[name][0],
                "detail": labels[name][1],
                "group": groups[name],
                "shape": _shape(catalog.objects[name], roles[name]),
                "box": _box(layout.boxes[name]),
                **node.write(name, roles[name], judged[name]),
            }
            for name in names
        ],
        "edges": _edges(catalog, layout, at, edge_rows(catalog, seen)),
        "frames": [
            {"group": frame.group, "box": _box(frame.box), "own": frame.own, "others": frame.others}
            for frame in layout.frames
        ],
        "groups": [{"name": group, "box": _box(box)} for group, box in layout.groups.items()],
    }


def _edges(
    catalog: Catalog, layout: Layout, at: Mapping[QName, int], rows: Mapping[Edge, tuple[int, str]]
) -> list[dict[str, Any]]:
    most = max((count for count, _ in rows.values()), default=0)
    return [
        {
            "from": at[edge.source],
            "to": at[edge.dest],
            "kind": edge.kind,
            "rows": rows[edge][0] if edge in rows else None,
            "basis": rows[edge][1] if edge in rows else "",
            "width": edge_width(rows[edge][0] if edge in rows else None, most),
            "route": [list(point) for point in layout.routes[edge]],
        }
        for edge in catalog.edges
    ]


def _shape(made: Object, role: Role) -> str:
    return _SHAPES.get(made.kind) or {"source": "source", "target": "target", "lookup": "lookup"}.get(role, "other")


def _label(catalog: Catalog, made: Object) -> tuple[str, str]:
    cadence = catalog.cadence(made.name)
    kind = made.kind.replace("_", " ") if made.kind in (*VIEW_KINDS, "view", "dictionary", "external", "function") else made.engine  # fmt: skip
    parts = (display_identifier(made.name.database), kind, cadence or "")
    return shorten(made.name.table, _MAX_LABEL), shorten(" · ".join(part for part in parts if part), 38)


def text_width(text: str) -> float:
    """How wide a text is, in letters: East Asian characters take two."""
    return sum(2.0 if unicodedata.east_asian_width(char) in "WF" else 1.0 for char in text)


def shorten(text: str, limit: float) -> str:
    """A text that fits, with what is left out of its middle told; line breaks and controls become spaces.

    >>> shorten("a_rather_long_name_of_a_table", 12)
    'a_rath…table'
    """
    clean = "".join(" " if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs") else char for char in text)
    if text_width(clean) <= limit:
        return clean
    head, tail = "", ""
    for char in clean:
        if text_width(head + char) > limit / 2:
            break
        head += char
    for char in reversed(clean):
        if text_width(head + tail + char) + 1 > limit:
            break
        tail = char + tail
    return f"{head}…{tail}"


def _width(label: str, detail: str) -> float:
    return max(130.0, round(44 + max(text_width(label) * _LETTER, text_width(detail) * _SMALL_LETTER)))


def _box(box: Box) -> list[float]:
    return [round(value, 1) for value in (box.x, box.y, box.width, box.height)]


class _NodeWriter:
    """The facts of one node, for its panel."""

    def __init__(self, catalog: Catalog, settings: Settings, seen: Seen | None, mask: Mask) -> None:
        self.catalog, self.settings, self.seen, self.mask = catalog, settings, seen, mask
        self.marks: dict[QName, list[Watermark]] = {}
        for mark in seen.watermarks if seen else ():
            self.marks.setdefault(mark.target_table, []).append(mark)
        self.outages: dict[QName, list[Outage]] = {}
        for outage in seen.outages if seen else ():
            self.outages.setdefault(outage.view, []).append(outage)
        self.rebuilds: dict[QName, RebuildRecord] = {}
        for rebuild in seen.rebuilds if seen else ():
            self.rebuilds.setdefault(rebuild.target, rebuild)

    def write(self, name: QName, role: Role, judged: Judgement) -> dict[str, Any]:
        made, facts, policy = self.catalog.objects[name], self.catalog.facts.get(name), self.settings.policy(name)
        declared = made.kind not in ("external", "function")
        views = {name, *(view.name for view in self.catalog.views_into(name))}
        found: dict[str, Any] = {
            "status": judged.status,
            "why": [self.mask(why) for why in judged.why],
            "kind": made.kind.replace("_", " "),
            "role": role,
            "engine": made.engine,
            "cadence": self.catalog.cadence(name) or "",
            "owners": list(policy.owners),
            "description": policy.description or made.comment,
            "place": str(made.place) if declared else "",
            "ddl": self.mask(made.sql)[:MAX_DDL_CHARS] if declared else "",
            "columns": self._columns(made),
            "class": f"{facts.view_class}: {facts.why}" if facts is not None and role == "view" else "",
            "refresh": made.refresh.schedule if made.refresh else "",
            "keys": [
                [word, text]
                for word, text in (("PARTITION BY", made.partition_by), ("ORDER BY", made.order_by), ("TTL", made.ttl))
                if text
            ],
            "outages": [self._outage(one) for view in sorted(views) for one in self.outages.get(view, ())],
        }
        return {**found, **self._of_server(name)}

    def _of_server(self, name: QName) -> dict[str, Any]:
        seen = self.seen
        if seen is None:
            return {"rows": None, "bytes": None, "route": "", "watermarks": [], "repair": "", "rebuild": ""}
        target = seen.targets.get(name)
        route = ""
        if target is not None:
            age = target.snapshot_age_seconds
            route = f"{target.route}, through {target.serving_view}" + (f": {target.route_reason}" if target.route_reason else "")  # fmt: skip
            route += f"; snapshot {age:.0f} s old" if age is not None else "; no snapshot"
        rows, size = seen.rows.get(name, (None, None))
        return {
            "rows": rows,
            "bytes": size,
            "route": self.mask(route),
            "watermarks": [_mark(mark) for mark in self.marks.get(name, ())],
            "repair": self.mask(_repair(last_repair(name, self.catalog, seen.repairs))),
            "rebuild": _rebuild(self.rebuilds.get(name)),
        }

    def _columns(self, made: Object) -> list[list[str]]:
        columns: Sequence[Any] = made.columns
        written = self.catalog.objects.get(made.target) if made.kind in VIEW_KINDS and made.target else None
        if written is not None:
            facts = self.catalog.facts.get(made.name)
            given = {column for column, _ in facts.lineage} if facts else set()
            columns = [one for one in written.columns if one.name in given]
        return [[one.name, one.type, self.mask(one.comment)] for one in columns]

    def _outage(self, one: Outage) -> str:
        shown = f"{one.view}: {one.damage}, {one.status} since {_time(moment(one.opened_ms))}"
        return self.mask(f"{shown}: {one.evidence[:300]}" if one.evidence else shown)


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at is not None else ""


def _mark(mark: Watermark) -> list[str]:
    source = mark.source_id if mark.source_id.database != mark.target_table.database else mark.source_id.table
    return [
        shown_window(mark.window_start, mark.window_end),
        str(source),
        mark.status,
        _time(mark.last_processed_ts)[5:],
    ]


def shown_window(start: datetime, end: datetime) -> str:
    """A window in few letters.

    >>> shown_window(datetime(2026, 1, 2), datetime(2026, 1, 3)), shown_window(datetime(2026, 1, 2, 4), datetime(2026, 1, 2, 5))
    ('2026-01-02', '2026-01-02 04:00 – 05:00')
    """
    if end - start == timedelta(days=1) and start.time() == time():
        return f"{start:%Y-%m-%d}"
    if start.time() == end.time() == time():
        return f"{start:%Y-%m-%d} – {end:%Y-%m-%d}"
    ends = (
        f"{end:%H:%M}" if start.date() == end.date() or end - start <= timedelta(hours=1) else f"{end:%Y-%m-%d %H:%M}"
    )
    return f"{start:%Y-%m-%d %H:%M} – {ends}"


def _repair(record: RecoveryRecord | None) -> str:
    if record is None:
        return ""
    took = record.seconds_to_detect_and_repair
    said = (
        f"{record.subject} {record.damage}: {record.status}, tier {record.tier}, {_time(moment(record.started_ms))} UTC"
    )
    return f"{said}, {took:.1f} s after it was seen" if took else said


def _rebuild(record: RebuildRecord | None) -> str:
    if record is None:
        return ""
    window = record.window.replace("T00:00:00+00:00", "").replace("+00:00", "").replace("/", " to ")
    return f"{window}: {record.status} ({record.protocol}), {_time(record.updated_at)} UTC"
