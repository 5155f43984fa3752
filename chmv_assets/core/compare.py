"""Declared against live, object by object, in three states: equal, changed, cannot tell.

Both sides are read by the same reader from texts that the server has formatted, so spelling and white space do not count.
What the server adds by itself (default settings, the primary key it derives, qualified names) does not count either.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.tokens import tokenize

State = Literal["equal", "changed", "missing", "cannot tell"]
_WRITTEN_BY_SERVER = ("index_granularity",)


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that is not the same."""

    what: str
    declared: str
    live: str
    is_type: bool = False  # both are types of one column, which may be two spellings of the same

    def __str__(self) -> str:
        return f"{self.what}: declared {self.declared or 'nothing'}, live {self.live or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Comparison:
    state: State
    differences: tuple[Difference, ...] = ()


def compare_objects(declared: Object, live: Object, default_database: str) -> Comparison:
    """Compare two readings of one object."""
    found: list[Difference] = []
    for what in ("kind", "engine", "partition_by", "order_by", "ttl", "comment"):
        mine, theirs = getattr(declared, what), getattr(live, what)
        if _plain(mine, default_database) != _plain(theirs, default_database):
            found.append(Difference(what.replace("_", " ").upper(), mine, theirs))
    if declared.kind == "table" and _plain(declared.engine_args, default_database) != _plain(
        live.engine_args, default_database
    ):
        found.append(Difference("engine arguments", declared.engine_args, live.engine_args))
    if declared.kind not in (*VIEW_KINDS, "view"):
        found += _columns(declared, live, default_database)
    if declared.target != live.target:
        found.append(Difference("target", str(declared.target), str(live.target)))
    if _plain(declared.select, default_database) != _plain(live.select, default_database):
        found.append(Difference("query", declared.select, live.select))
    found += _settings(declared, live)
    return Comparison("changed" if found else "equal", tuple(found))


def _settings(declared: Object, live: Object) -> list[Difference]:
    """Settings of either side; those that the server writes down by itself count only where they are declared."""
    mine, theirs = dict(declared.settings), dict(live.settings)
    wanted = [*mine, *(key for key in theirs if key not in mine and key not in _WRITTEN_BY_SERVER)]
    return [
        Difference(f"setting {key}", mine.get(key, ""), theirs.get(key, ""))
        for key in wanted
        if mine.get(key) != theirs.get(key)
    ]


def _columns(declared: Object, live: Object, database: str) -> list[Difference]:
    found: list[Difference] = []
    theirs = {column.name: column for column in live.columns}
    mine = {column.name: column for column in declared.columns}
    for name, column in mine.items():
        other = theirs.get(name)
        if other is None:
            found.append(Difference(f"column {name}", column.type, ""))
        elif column.type and _plain(column.type, database) != _plain(other.type, database):
            found.append(Difference(f"type of {name}", column.type, other.type, is_type=True))
        elif (column.default_kind, _plain(column.default, database)) != (
            other.default_kind,
            _plain(other.default, database),
        ):
            found.append(
                Difference(
                    f"default of {name}",
                    f"{column.default_kind} {column.default}",
                    f"{other.default_kind} {other.default}",
                )
            )
        elif column.comment != other.comment:
            found.append(Difference(f"comment of {name}", column.comment, other.comment))
    return found + [Difference(f"column {name}", "", theirs[name].type) for name in theirs if name not in mine]


def _plain(text: str, default_database: str) -> tuple[str, ...]:
    """The tokens of a text without quotes and without the default database in front of names.

    Names of functions count in lower case: the server stores `COUNT(x)` as `count(x)`.
    """
    tokens, _ = tokenize(text)
    words = [token.text.strip('`"') if token.kind == "quoted" else token.text for token in tokens]
    for i, (token, after) in enumerate(pairwise(tokens)):
        if token.kind == "word" and after.is_op("("):
            words[i] = words[i].lower()
    if len(words) >= 2 and words[0] == "(" and words[-1] == ")" and words.count("(") == 1:
        words = words[1:-1]
    plain: list[str] = []
    for i, word in enumerate(words):
        before_dot = i + 1 < len(words) and words[i + 1] == "."
        after_default = i >= 1 and word == "." and words[i - 1] == default_database
        if (word == default_database and before_dot) or after_default:
            continue
        plain.append(word)
    return tuple(plain)
