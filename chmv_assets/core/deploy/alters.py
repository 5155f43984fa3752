"""Differences of a table → ALTER statements, each with its risk; what cannot be altered is named.

A target can always become another table that is filled from its sources, so for it the answer to a key, an engine or a type is `storage`.
A source holds the only copy of its rows: what cannot be altered there is left to people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.compare import Difference
from chmv_assets.core.deploy.changes import Risk, worst
from chmv_assets.core.model import Column, Object
from chmv_assets.core.names import quote_identifier, quote_string
from chmv_assets.core.normal_form import columns_in
from chmv_assets.core.render_create import render_columns

_SHAPE = ("ENGINE", "engine arguments", "PARTITION BY", "ORDER BY", "PRIMARY KEY", "SAMPLE BY", "KIND")
_REPLACED = ("distributed", "merge")  # hold no rows: a new one takes the name in one statement


@dataclass
class Alters:
    """What it takes to make a live table the declared one."""

    early: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    risks: list[Risk] = field(default_factory=list)
    storage: list[str] = field(default_factory=list)  # why it has to become another table
    manual: list[str] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)

    @property
    def risk(self) -> Risk:
        return "manual" if self.manual else worst(tuple(self.risks))


def render_alters(declared: Object, live: Object, differences: Sequence[Difference], *, is_target: bool) -> Alters:
    """Sort the differences of a table into statements; `is_target`: views can fill it anew."""
    found = Alters()
    keys = columns_in(f"{declared.order_by} {declared.partition_by} {live.order_by} {live.partition_by}")
    for one in differences:
        word, _, rest = one.what.partition(" ")
        if one.what in _SHAPE:
            _other_table(found, one, is_target)
        elif one.what in _WHOLE:
            _WHOLE[one.what](found, declared, one)
        elif one.what.startswith(("column settings of ", "statistics of ", "attributes of ")):
            found.manual.append(f"{one.what} differ, which chmv does not change")
        elif one.what == "order of columns":
            found.early += _order(declared)
            found.risks.append("safe")
        elif one.what.startswith(("type of ", "default of ", "comment of ", "codec of ", "ttl of ")):
            _column(found, declared, word, one.what.split(" of ", 1)[1], keys, one, is_target)
        elif word in ("column", "index", "projection", "constraint", "setting"):
            _PARTS[word](found, declared, rest, one, keys, is_target)
        else:
            found.manual.append(f"{one.what} differs, which chmv does not change")
    if found.storage:  # the new table is made as declared, all else comes with it
        found.early.clear()
        found.late.clear()
    return found


def render_column(column: Column, previous: str | None = None) -> str:
    """A column as ADD or MODIFY COLUMN take it; with `previous`, its place behind that one, or in front of all."""
    place = "" if previous is None else f" AFTER {quote_identifier(previous)}" if previous else " FIRST"
    return f"{render_columns((column,))}{place}"


def _alter(declared: Object, action: str) -> str:
    return f"ALTER TABLE {declared.name.sql} {action}"


def _other_table(found: Alters, one: Difference, is_target: bool) -> None:
    if is_target:
        found.storage.append(one.what)
        found.risks.append("rewrites data")
    else:
        found.manual.append(f"{one.what} of a table that no view can fill again")


def _comment(found: Alters, declared: Object, _one: Difference) -> None:
    found.early.append(_alter(declared, f"MODIFY COMMENT {quote_string(declared.comment)}"))
    found.risks.append("safe")


def _ttl(found: Alters, declared: Object, one: Difference) -> None:
    found.late.append(_alter(declared, f"MODIFY TTL {declared.ttl}" if declared.ttl else "REMOVE TTL"))
    found.risks.append("destructive" if declared.ttl else "safe")
    if declared.ttl:
        found.whys.append("rows older than the TTL are deleted")


_WHOLE: dict[str, Callable[[Alters, Object, Difference], None]] = {"COMMENT": _comment, "TTL": _ttl}


def _place(declared: Object, name: str) -> str:
    names = [column.name for column in declared.columns]
    at = names.index(name)
    return names[at - 1] if at else ""


def _order(declared: Object) -> list[str]:
    return [
        _alter(declared, f"MODIFY COLUMN {render_column(column, _place(declared, column.name))}")
        for column in declared.columns
        if column.type
    ]


def _column_of_its_own(
    found: Alters, declared: Object, name: str, one: Difference, keys: set[str], is_target: bool
) -> None:
    """A column that only one side has."""
    column = declared.column(name)
    if name in keys:
        _other_table(found, one, is_target)
    elif column is not None:
        found.early.append(
            _alter(declared, f"ADD COLUMN IF NOT EXISTS {render_column(column, _place(declared, name))}")
        )
        found.risks.append("safe")
    else:
        found.late.append(_alter(declared, f"DROP COLUMN IF EXISTS {quote_identifier(name)}"))
        found.risks.append("destructive")
        found.whys.append(f"column {name} goes with its data")


def _column(
    found: Alters, declared: Object, word: str, name: str, keys: set[str], one: Difference, is_target: bool
) -> None:
    """A property of a column that both sides have."""
    column = declared.column(name)
    if column is None or (word == "type" and name in keys):
        _other_table(found, one, is_target)
        return
    if word == "type" and is_target:
        found.storage.append(f"type of {name}")
        found.risks.append("rewrites data")
        return
    if word == "comment":
        found.early.append(_alter(declared, f"COMMENT COLUMN {quote_identifier(name)} {quote_string(column.comment)}"))
    elif word == "default" and not column.default_kind:
        kind = one.live.split()[0] if one.live.split() else "DEFAULT"
        if kind == "EPHEMERAL":  # there is no REMOVE for it (26.7)
            _other_table(found, one, is_target)
            return
        found.early.append(_alter(declared, f"MODIFY COLUMN {quote_identifier(name)} REMOVE {kind}"))
    elif word in ("codec", "ttl") and not getattr(column, word):
        found.early.append(_alter(declared, f"MODIFY COLUMN {quote_identifier(name)} REMOVE {word.upper()}"))
    else:
        found.early.append(_alter(declared, f"MODIFY COLUMN {render_column(column)}"))
    found.risks.append({"type": "rewrites data", "ttl": "destructive"}.get(word, "safe"))  # type: ignore[arg-type]


def _setting(found: Alters, declared: Object, name: str, one: Difference, _keys: set[str], _is_target: bool) -> None:
    value = declared.setting(name)
    if value is None:
        action = f"RESET SETTING {name}"
    else:
        action = f"MODIFY SETTING {name} = {value if _is_number(value) else quote_string(value)}"
    found.early.append(_alter(declared, action))
    found.risks.append("safe")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _clause(found: Alters, declared: Object, name: str, one: Difference, word: str) -> None:
    """An index, a projection or a constraint: the old one goes, the new one comes."""
    quoted = quote_identifier(name)
    if one.live:
        found.early.append(_alter(declared, f"DROP {word} IF EXISTS {quoted}"))
    if one.declared:
        found.early.append(_alter(declared, f"ADD {word} IF NOT EXISTS {quoted} {one.declared}"))
    found.risks.append("safe")


_PARTS: dict[str, Callable[[Alters, Object, str, Difference, set[str], bool], None]] = {
    "column": _column_of_its_own,
    "setting": _setting,
    "index": lambda found, declared, name, one, _keys, _target: _clause(found, declared, name, one, "INDEX"),
    "projection": lambda found, declared, name, one, _keys, _target: _clause(found, declared, name, one, "PROJECTION"),
    "constraint": lambda found, declared, name, one, _keys, _target: _clause(found, declared, name, one, "CONSTRAINT"),
}


def is_replaced(made: Object) -> bool:
    """Whether a new table simply takes the place of the old one: it holds no rows."""
    return made.kind in _REPLACED
