"""What the server says an object is → the statement that stands in a folder. Pure; layout and files live in `pull`.

Taken out is only what the server adds by itself, so that running the statement again gives the same object: rights that are its
default, the default granularity, column lists of views that repeat their SELECT, and gates of our own rebuilds. Invariant: everything
else of the server's text stays, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chmv_assets.core.clause_reader import read_name, skip_value
from chmv_assets.core.gate import GATE_PREFIX
from chmv_assets.core.model import VIEW_KINDS, Object
from chmv_assets.core.names import quote_identifier, unquote_identifier
from chmv_assets.core.secrets import HIDDEN
from chmv_assets.core.tokens import Cursor, Token, split_commas, tokenize

_KINDS = (("MATERIALIZED", "VIEW"), ("WINDOW", "VIEW"), ("LIVE", "VIEW"), ("VIEW",), ("DICTIONARY",), ("TABLE",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDefaults:
    """What this server, and this user on it, would write down for a statement that does not say it."""

    user: str = "default"
    materialized_view_security: str = "DEFINER"
    index_granularity: str = "8192"


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str = ""


def clean_statement(sql: str, defaults: ServerDefaults, *, drop_columns: bool = False) -> str:
    """The statement without what the server adds by itself; `drop_columns` takes out the column list of a view.

    >>> clean_statement("CREATE TABLE d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x SETTINGS index_granularity = 8192", ServerDefaults())
    'CREATE TABLE IF NOT EXISTS d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x'
    """
    tokens, broken = tokenize(sql)
    if broken is not None:
        return sql
    cursor = Cursor(sql, tokens)
    edits = list(_edits(cursor, defaults, drop_columns))
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        before, after = sql[: edit.start], sql[edit.end :]
        sql = f"{before}{edit.text}{after}" if edit.text else f"{before.rstrip()} {after.lstrip()}".rstrip()
    return sql


def _edits(cursor: Cursor, defaults: ServerDefaults, drop_columns: bool) -> Iterator[_Edit]:
    cursor.next()
    kind = next((words for words in _KINDS if cursor.take_words(*words)), None)
    if kind is None:
        return
    if not cursor.take_words("IF", "NOT", "EXISTS"):
        at = cursor.peek().start
        yield _Edit(at, at, "IF NOT EXISTS ")
    read_name(cursor, "")
    listed = False
    while not cursor.done and not _at_query(cursor):
        token = cursor.peek()
        if token.is_op("(") and not listed:
            listed = True
            start = cursor.at
            first, last = cursor.skip_group()
            if drop_columns and "VIEW" in kind:
                yield _Edit(token.start, cursor.tokens[min(cursor.at, len(cursor.tokens)) - 1].end)
            else:
                yield from _gates(cursor, start, first, last)
        elif token.is_op("(", "["):
            cursor.skip_group()
        elif cursor.at_words("ENGINE") and cursor.peek(1).is_op("="):
            listed = True  # what follows are the arguments of the engine
            cursor.next()
        elif cursor.at_words("UUID") and cursor.peek(1).kind == "string":
            yield _Edit(token.start, cursor.peek(1).end)
            cursor.at += 2
        elif (rights := _rights(cursor)) is not None:
            end, user, security = rights
            # Rights of plain views are there only if somebody wrote them.
            usual = kind[0] == "MATERIALIZED" and security == defaults.materialized_view_security
            if usual and user in (defaults.user if security == "DEFINER" else "", ""):
                yield _Edit(token.start, cursor.tokens[end - 1].end)
            cursor.at = end
        elif cursor.at_words("SETTINGS") and cursor.peek(2).is_op("="):
            yield from _settings(cursor, defaults)
        else:
            cursor.next()


def _at_query(cursor: Cursor) -> bool:
    after = cursor.peek(1)
    return cursor.at_words("AS") and (after.is_word("SELECT", "WITH", "FROM") or after.is_op("("))


def _gates(cursor: Cursor, opening: int, first: int, last: int) -> Iterator[_Edit]:
    """Take out constraints by which a rebuild holds writers back for a moment."""
    parts = [part for part in split_commas(cursor.tokens[first:last]) if part]
    kept = [part for part in parts if not _is_gate(part)]
    if len(kept) < len(parts):
        body = ", ".join(cursor.text[part[0].start : part[-1].end] for part in kept)
        yield _Edit(cursor.tokens[opening].start, cursor.tokens[last].end, f"({body})")


def _is_gate(part: Sequence[Token]) -> bool:
    return part[0].is_word("CONSTRAINT") and unquote_identifier(part[1].text).startswith(GATE_PREFIX)


def _rights(cursor: Cursor) -> tuple[int, str, str] | None:
    """`DEFINER = user SQL SECURITY DEFINER` at the cursor, in any part: where it ends, the user, the kind."""
    at = cursor.at
    user = ""
    if cursor.at_words("DEFINER") and cursor.peek(1).is_op("="):
        user = unquote_identifier(cursor.peek(2).text)
        cursor.at += 3
    security = "DEFINER" if user else ""
    if cursor.take_words("SQL", "SECURITY"):
        security = cursor.next().text.upper()
    end, cursor.at = cursor.at, at
    return (end, user, security) if end > at else None


def _settings(cursor: Cursor, defaults: ServerDefaults) -> Iterator[_Edit]:
    """Take the default granularity out of a SETTINGS clause, and the clause if nothing is left."""
    start = cursor.next().start
    kept: list[str] = []
    dropped = False
    while cursor.peek().kind in ("word", "quoted") and cursor.peek(1).is_op("="):
        first = cursor.at
        name = unquote_identifier(cursor.next().text)
        cursor.next()
        value = cursor.at
        skip_value(cursor)
        if name == "index_granularity" and cursor.slice(value, cursor.at) == defaults.index_granularity:
            dropped = True
        else:
            kept.append(cursor.slice(first, cursor.at))
        end = cursor.tokens[cursor.at - 1].end
        if not cursor.take_op(","):
            break
    if dropped:
        yield _Edit(start, end, f"SETTINGS {', '.join(kept)}" if kept else "")


def repeats_query(view: Object, described: Sequence[tuple[str, str]]) -> bool:
    """Whether a view's column list says no more than its SELECT gives: names and types, in this order."""
    plain = all(not column.default_kind and not column.comment for column in view.columns)
    mine = [(column.name, _spaceless(column.type)) for column in view.columns]
    return plain and mine == [(name, _spaceless(kind)) for name, kind in described]


def _spaceless(kind: str) -> str:
    tokens, _ = tokenize(kind)
    return " ".join(token.text for token in tokens)


def may_drop_columns(view: Object) -> bool:
    """Views whose columns follow from their query; a hidden inner table has the columns that the list says."""
    has_target = view.target is not None and not view.target.table.startswith(".inner")
    return bool(view.columns) and (view.kind == "view" or (view.kind in VIEW_KINDS and has_target))


def count_hidden(sql: str) -> int:
    """How many literals of a statement hold a secret that the server does not show; comments do not count.

    >>> count_hidden("SOURCE(MYSQL(USER 'u' PASSWORD '[HIDDEN]')) COMMENT '[HIDDEN]'")
    1
    """
    tokens, _ = tokenize(sql)
    found = [at for at, token in enumerate(tokens) if token.kind == "string" and HIDDEN in token.text]
    return sum(not (at and tokens[at - 1].is_word("COMMENT")) for at in found)


def render_statement(pretty: str, hidden: int) -> str:
    """The text of a file: the statement, and a warning above it where a secret is missing."""
    if not hidden:
        return f"{pretty.strip()};\n"
    secrets = "a secret" if hidden == 1 else f"{hidden} secrets"
    return (
        f"-- chmv pull: the server hides {secrets} of this statement ('{HIDDEN}'). It cannot be run as it stands: "
        f"use a named collection, or put it in by a template.\n{pretty.strip()};\n"
    )


def with_cluster(statement: str, cluster: str) -> str:
    """The statement with ON CLUSTER behind its name.

    >>> with_cluster("CREATE TABLE IF NOT EXISTS d.t (x UInt8) ENGINE = Log", "main")
    'CREATE TABLE IF NOT EXISTS d.t ON CLUSTER `main` (x UInt8) ENGINE = Log'
    """
    tokens, _ = tokenize(statement)
    cursor = Cursor(statement, tokens)
    cursor.next()
    if not cluster or not any(cursor.take_words(*words) for words in _KINDS):
        return statement
    cursor.take_words("IF", "NOT", "EXISTS")
    read_name(cursor, "")
    if cursor.at_words("ON", "CLUSTER"):
        return statement
    at = tokens[cursor.at - 1].end
    return f"{statement[:at]} ON CLUSTER {quote_identifier(cluster)}{statement[at:]}"
