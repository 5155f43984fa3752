"""What DROP, RENAME, EXCHANGE and ALTER statements in a DDL folder do to the objects created before them.

Folders kept by migration tools declare their state as a history. Invariant: a statement either changes the objects the way
the server would, or is named in a finding; none is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chmv_assets.core.clause_reader import read_name, read_refresh
from chmv_assets.core.code_version import version_of
from chmv_assets.core.column_reader import read_column, read_listed
from chmv_assets.core.ddl_reader import Created, digest_of
from chmv_assets.core.model import Column, Finding, Object
from chmv_assets.core.names import QName, unquote_identifier
from chmv_assets.core.statements import Statement
from chmv_assets.core.tokens import Cursor, Token, split_commas, string_value

_HARMLESS = (
    "MATERIALIZE", "CLEAR", "ADD STATISTICS", "DROP STATISTICS", "MODIFY STATISTICS", "UPDATE", "DELETE",
    "FREEZE", "APPLY", "MODIFY SQL SECURITY", "MODIFY DEFINER",
)  # fmt: skip


@dataclass
class Declared:
    """The objects as declared so far, in order of creation."""

    objects: dict[QName, Created] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def change(self, name: QName, edit: Callable[[Object], Object]) -> None:
        created = self.objects[name]
        self.objects[name] = replace(created, object=edit(created.object))

    def note(self, statement: Statement, code: str, message: str, *, warn: bool = False) -> None:
        severity = "warning" if warn else "note"
        self.findings.append(
            Finding(code=code, severity=severity, message=message, place=statement.place)  # type: ignore[arg-type]
        )


def apply_statement(statement: Statement, declared: Declared, default_database: str) -> bool:
    """Apply a DROP, RENAME, EXCHANGE, ALTER, DETACH or TRUNCATE statement; False if it is none of these."""
    cursor = Cursor(statement.text, statement.tokens)
    head = cursor.next()
    if head.is_word("DROP", "UNDROP"):
        _drop(cursor, statement, declared, default_database)
    elif head.is_word("RENAME"):
        _rename(cursor, statement, declared, default_database)
    elif head.is_word("EXCHANGE"):
        _exchange(cursor, statement, declared, default_database)
    elif head.is_word("ALTER"):
        _alter(cursor, statement, declared, default_database)
    else:
        return False
    return True


def _drop(cursor: Cursor, statement: Statement, declared: Declared, database: str) -> None:
    if not cursor.next().is_word("TABLE", "VIEW", "DICTIONARY"):
        declared.note(statement, "ignored-statement", "DROP of something other than a table, view or dictionary.")
        return
    cursor.take_words("IF", "EXISTS")
    while (name := read_name(cursor, database)) is not None:
        if declared.objects.pop(name, None) is None:
            declared.note(statement, "drop-of-unknown", f"drops {name}, which is not declared before. Nothing to do.")
        if not cursor.take_op(","):
            break


def _rename(cursor: Cursor, statement: Statement, declared: Declared, database: str) -> None:
    if not (cursor.take_words("TABLE") or cursor.take_words("DICTIONARY")):
        declared.note(statement, "ignored-statement", "RENAME of something other than a table.")
        return
    while (old := read_name(cursor, database)) is not None and cursor.take_words("TO"):
        new = read_name(cursor, database)
        created = declared.objects.pop(old, None)
        if created is not None and new is not None:
            declared.objects[new] = replace(created, object=replace(created.object, name=new))
        else:
            declared.note(statement, "rename-of-unknown", f"renames {old}, which is not declared before.", warn=True)
        if not cursor.take_op(","):
            break


def _exchange(cursor: Cursor, statement: Statement, declared: Declared, database: str) -> None:
    cursor.next()
    one = read_name(cursor, database)
    cursor.take_words("AND")
    two = read_name(cursor, database)
    if one not in declared.objects or two not in declared.objects or one is None or two is None:
        declared.note(statement, "rename-of-unknown", f"exchanges {one} and {two}, not both declared.", warn=True)
        return
    first, second = declared.objects[one], declared.objects[two]
    declared.objects[one] = replace(second, object=replace(second.object, name=one))
    declared.objects[two] = replace(first, object=replace(first.object, name=two))


def _alter(cursor: Cursor, statement: Statement, declared: Declared, database: str) -> None:
    if not cursor.take_words("TABLE"):
        declared.note(statement, "ignored-statement", "ALTER of something other than a table.")
        return
    cursor.take_words("IF", "EXISTS")
    name = read_name(cursor, database)
    if cursor.take_words("ON", "CLUSTER"):
        cursor.next()
    if name is None or name not in declared.objects:
        declared.note(statement, "alter-of-unknown", f"alters {name}, which is not declared before.", warn=True)
        return
    if cursor.at_words("MODIFY", "QUERY"):
        cursor.at += 2
        select = cursor.slice(cursor.at, len(cursor.tokens))
        declared.change(name, lambda made: _versioned(replace(made, select=select), cursor.tokens))
        return
    for action in _actions(cursor.tokens[cursor.at :]):
        edit = _column_edit(statement, action) or _listed_edit(statement, action) or _clause_edit(statement, action)
        if edit is not None:
            declared.change(name, _tracing(edit, action))
        elif not " ".join(token.text.upper() for token in action[:3]).startswith(_HARMLESS):
            shown = " ".join(token.text for token in action[:4])
            declared.note(
                statement,
                "unapplied-alter",
                f"table {name}: cannot tell what `ALTER … {shown} …` makes of it. "
                "Declare the table as it is in the end, or ignore this if columns and keys stay the same.",
                warn=True,
            )


def _versioned(made: Object, tokens: Sequence[Token]) -> Object:
    """An object whose declaration goes on in another statement."""
    return replace(
        made, digest=digest_of(tokens, made.digest), code_version=version_of(tokens, made.code_version)
    )  # fmt: skip


def _tracing(edit: Callable[[Object], Object], action: Sequence[Token]) -> Callable[[Object], Object]:
    """An edit that is told by digest and version; a comment changes the digest only."""
    if any(token.is_word("COMMENT") for token in action[:2]):
        return lambda made: replace(edit(made), digest=digest_of(action, made.digest))
    return lambda made: _versioned(edit(made), action)


_ACTION_WORDS = (
    "ADD",
    "DROP",
    "MODIFY",
    "RENAME",
    "ALTER",
    "COMMENT",
    "CLEAR",
    "MATERIALIZE",
    "RESET",
    "REMOVE",
    "UPDATE",
)


def _actions(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """Cut at commas, but `MODIFY TTL a, b` and `MODIFY SETTING a = 1, b = 2` stay one action."""
    actions: list[Sequence[Token]] = []
    first = at = 0
    for part in split_commas(tokens):
        if actions and part and not part[0].is_word(*_ACTION_WORDS):
            actions[-1] = tokens[first : at + len(part)]
        else:
            first = at
            actions.append(part)
        at += len(part) + 1
    return actions


def _column_edit(statement: Statement, action: Sequence[Token]) -> Callable[[Object], Object] | None:
    words = [token.text.upper() for token in action[:2]]
    if len(action) < 3 or words[1] != "COLUMN":
        return None
    rest = action[2:]
    if rest[0].is_word("IF"):
        rest = rest[3:] if len(rest) > 1 and rest[1].is_word("NOT") else rest[2:]
    if words[0] == "DROP":
        gone = _dotted(rest)
        return lambda made: replace(made, columns=tuple(c for c in made.columns if c.name != gone))
    if words[0] == "RENAME":
        at = next((i for i, token in enumerate(rest) if token.is_word("TO")), len(rest) - 1)
        old, new = _dotted(rest[:at]), _dotted(rest[at + 1 :])
        return lambda made: replace(
            made, columns=tuple(replace(c, name=new) if c.name == old else c for c in made.columns)
        )
    if words[0] == "COMMENT":
        text = string_value(rest[-1].text) if rest[-1].kind == "string" else ""
        return lambda made: replace(
            made, columns=tuple(replace(c, comment=text) if c.name == _dotted(rest[:1]) else c for c in made.columns)
        )
    if words[0] in ("MODIFY", "ALTER") and len(rest) > 2 and rest[-2].is_word("REMOVE"):
        return _remove_property(_dotted(rest[:-2]), rest[-1].text.upper())
    if words[0] in ("ADD", "MODIFY", "ALTER"):
        return _set_column(statement, rest)
    return None


def _remove_property(name: str, what: str) -> Callable[[Object], Object]:
    """`MODIFY COLUMN a REMOVE COMMENT`."""
    kept = {"COMMENT": "comment", "CODEC": "codec", "TTL": "ttl", "SETTINGS": "settings", "STATISTICS": "statistics"}
    change = {kept[what]: ""} if what in kept else {"default_kind": "", "default": ""}
    return lambda made: replace(
        made, columns=tuple(replace(c, **change) if c.name == name else c for c in made.columns)
    )


def _set_column(statement: Statement, tokens: Sequence[Token]) -> Callable[[Object], Object] | None:
    after = ""
    cut = next((i for i, token in enumerate(tokens) if token.is_word("AFTER", "FIRST") and i > 0), len(tokens))
    if cut < len(tokens):
        after = _dotted(tokens[cut + 1 :]) if tokens[cut].is_word("AFTER") else "\0first"
    column = read_column(statement.text, [t for t in tokens[:cut] if not t.is_word("TYPE")])
    if column is None:
        return None
    made_column: Column = column

    def edit(made: Object) -> Object:
        old = made.column(made_column.name)
        new = _keeping(made_column, old) if old is not None else made_column
        if old is not None and not after:
            return replace(made, columns=tuple(new if c.name == new.name else c for c in made.columns))
        names = [c.name for c in made.columns if c.name != new.name]
        at = 0 if after == "\0first" else names.index(after) + 1 if after in names else len(names)
        rest = [c for c in made.columns if c.name != new.name]
        return replace(made, columns=(*rest[:at], new, *rest[at:]))

    return edit


def _keeping(new: Column, old: Column) -> Column:
    """A modified column keeps what the statement does not name."""
    names = ("type", "comment", "codec", "ttl", "settings", "statistics")
    kept = replace(new, **{name: getattr(new, name) or getattr(old, name) for name in names})
    return kept if new.default_kind else replace(kept, default_kind=old.default_kind, default=old.default)


def _listed_edit(statement: Statement, action: Sequence[Token]) -> Callable[[Object], Object] | None:
    """`ADD INDEX …`, `DROP PROJECTION …` and the like."""
    if len(action) < 3 or not action[1].is_word("INDEX", "PROJECTION", "CONSTRAINT"):
        return None
    rest = action[2:]
    if rest[0].is_word("IF"):
        rest = rest[3:] if len(rest) > 1 and rest[1].is_word("NOT") else rest[2:]
    cut = next((i for i, token in enumerate(rest) if i > 1 and token.is_word("AFTER", "FIRST")), len(rest))
    found = read_listed(statement.text, [action[1], *rest[:cut]])
    field = found[0] if found else {"INDEX": "indexes"}.get(action[1].text.upper(), f"{action[1].text.lower()}s")
    if action[0].is_word("DROP") and rest:
        gone = unquote_identifier(rest[0].text)
        return lambda made: _with_listed(made, field, {k: v for k, v in getattr(made, field) if k != gone})
    if action[0].is_word("ADD") and found is not None:
        _, name, text = found
        return lambda made: _with_listed(made, field, {**dict(getattr(made, field)), name: text})
    return None


def _with_listed(made: Object, field: str, listed: dict[str, str]) -> Object:
    change: dict[str, Any] = {field: tuple(listed.items())}
    return replace(made, **change)


def _clause_edit(statement: Statement, action: Sequence[Token]) -> Callable[[Object], Object] | None:
    words = tuple(token.text.upper() for token in action[:3])
    if words == ("REMOVE", "SAMPLE", "BY"):
        return lambda made: replace(made, sample_by="")
    if words[:2] == ("REMOVE", "TTL"):
        return lambda made: replace(made, ttl="")
    if words[:2] == ("RESET", "SETTING"):
        gone = {unquote_identifier(part[0].text) for part in split_commas(action[2:]) if part}
        return lambda made: replace(made, settings=tuple(pair for pair in made.settings if pair[0] not in gone))
    if len(action) < 2 or words[0] != "MODIFY":
        return None

    def text_from(at: int) -> str:
        return statement.text[action[at].start : action[-1].end] if at < len(action) else ""

    if words[1] == "TTL":
        return lambda made: replace(made, ttl=text_from(2))
    if words[1:] == ("ORDER", "BY"):
        return lambda made: replace(made, order_by=text_from(3))
    if words[1] == "COMMENT" and action[-1].kind == "string":
        return lambda made: replace(made, comment=string_value(action[-1].text))
    if words[1] == "SETTING":
        pairs = {
            unquote_identifier(part[0].text): statement.text[part[2].start : part[-1].end].strip("'")
            for part in split_commas(action[2:])
            if len(part) >= 3
        }
        return lambda made: replace(made, settings=tuple({**dict(made.settings), **pairs}.items()))
    if words[1:] == ("SAMPLE", "BY"):
        return lambda made: replace(made, sample_by=text_from(3))
    if words[1] == "REFRESH":
        cursor = Cursor(statement.text, action)
        cursor.at = 2
        return lambda made: replace(made, refresh=read_refresh(cursor, made.session_database))
    return None


def _dotted(tokens: Sequence[Token]) -> str:
    return ".".join(unquote_identifier(token.text) for token in tokens if token.kind in ("word", "quoted"))
