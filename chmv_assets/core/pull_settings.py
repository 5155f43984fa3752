"""What the live server tells about settings: chmv.yaml as text, every value with a comment that says what it was inferred from. Pure.

Inferred are only facts: the column that partitions a source in time, the one column that the server stamps at arrival, the earliest
partition there is, the server's zone. What is not certain is left out and said so; a person knows better.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from chmv_assets.core.cadence import cadence_name
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import Column, Object
from chmv_assets.core.names import QName

_STAMP = re.compile(r"now(64)?\s*\(\s*(\d\s*)?(,?\s*'[^']*'\s*)?\)\Z", re.IGNORECASE)
_TIME = re.compile(r"(Nullable\()?DateTime", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """One inferred value and what it was inferred from."""

    key: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What is known of one source."""

    name: QName
    said: tuple[Said, ...] = ()
    open: tuple[str, ...] = ()  # what could not be inferred, and why
    start: date | None = None


def infer_sources(catalog: Catalog, oldest: Mapping[QName, date]) -> tuple[SourceFacts, ...]:
    """The facts of every table whose inserts fire views, in order of names."""
    roles = catalog.roles()
    names = [name for name, made in sorted(catalog.objects.items()) if made.sql and roles[name] == "source"]
    return tuple(_facts(catalog, catalog.objects[name], oldest.get(name)) for name in names)


def _facts(catalog: Catalog, source: Object, oldest: date | None) -> SourceFacts:
    said: list[Said] = []
    unknown: list[str] = []
    scheme = catalog.scheme(source.name)
    if scheme is not None and _is_plain(scheme.column):
        said.append(
            Said("event_time", scheme.column, f"PARTITION BY {source.partition_by}, {cadence_name(scheme.unit)}")
        )
    elif source.kind == "table":
        unknown.append("event_time and cadence: no time partition key")
    stamps = [column for column in source.columns if _is_stamp(column)]
    if len(stamps) == 1:
        said.append(Said("arrival", stamps[0].name, f"{stamps[0].default_kind} {stamps[0].default}"))
    elif stamps:
        unknown.append(f"arrival: {', '.join(column.name for column in stamps)} are all stamped by the server")
    elif source.kind == "table":
        unknown.append("arrival: no column has DEFAULT now64(6)")
    return SourceFacts(name=source.name, said=tuple(said), open=tuple(unknown), start=oldest)


def _is_stamp(column: Column) -> bool:
    stamped = column.default_kind in ("DEFAULT", "MATERIALIZED") and _STAMP.match(column.default.strip()) is not None
    return stamped and _TIME.match(column.type) is not None and _is_plain(column.name)


def _is_plain(name: str) -> bool:
    """Whether the settings file gives the name back as it is."""
    return bool(name) and name == name.strip()


def render_settings(sources: Iterable[SourceFacts], timezone: str, database: str = "") -> str:
    """The text of chmv.yaml; `database` is the only one of the folder, if there is one."""
    facts = tuple(sources)
    starts = {one.name: one.start for one in facts if one.start is not None}
    first = min(starts.values(), default=None)
    lines = [
        "# Written by `chmv pull` from a live server: what could be inferred, and from what. Correct it, and add owners, SLAs and",
        "# landing folders: docs/settings.md has all keys. Once it is edited, pull leaves this file alone.",
        "version: 1",
    ]
    if _is_plain(database):
        lines.append(_line("default_database", database, "the only database"))
    lines.append(_line("timezone", timezone, "the server's"))
    if first is not None:
        oldest = min(name for name, start in starts.items() if start == first)
        lines.append(_line("start", first.isoformat(), f"the earliest partition of all sources, in {oldest}"))
    body = [line for one in facts for line in _section(one, first)]
    return "\n".join([*lines, *(["", "sources:", *body] if body else [])]) + "\n"


def _section(facts: SourceFacts, first: date | None) -> list[str]:
    said = list(facts.said)
    if facts.start is not None and facts.start != first:
        said.append(Said("start", facts.start.isoformat(), "its earliest partition"))
    if not said:
        return []
    return [
        f"  {_scalar(str(facts.name))}:",
        *(f"    {_line(one.key, one.value, one.why)}" for one in said),
        *(f"    # not inferred: {_one_line(text)}" for text in facts.open),
    ]


def _line(key: str, value: str, why: str) -> str:
    return f"{key}: {_scalar(value)}  # {_one_line(why)}"


def _one_line(text: str) -> str:
    """Text for a comment: names may hold anything, also line breaks and characters that YAML refuses."""
    return "".join(char if char.isprintable() else " " for char in text)


def _scalar(text: str) -> str:
    """A text as YAML writes it: bare if it can only be read as one, else in JSON's quotes, which are YAML's too.

    >>> _scalar("shop.events"), _scalar("2026-07-01"), _scalar("a: b"), _scalar("on")
    ('shop.events', '"2026-07-01"', '"a: b"', '"on"')
    """
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*([./][A-Za-z_][A-Za-z0-9_]*)*", text)
    words = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    if plain and text.lower() not in words:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
