"""CREATE statements → objects, by clauses, with our own reader.

ClickHouse DDL is a head followed by clauses in almost any order; sqlglot falls to `Command` or crashes on many of them
(docs/adr/0002). So the head is read here from tokens, and only SELECT texts go to sqlglot (`select_reader`).
Invariant: a clause that is not known is stepped over token by token; nothing raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from chmv_assets.core.clause_reader import (
    DICTIONARY_CLAUSES,
    EXPRESSION_CLAUSES,
    read_expression,
    read_name,
    read_refresh,
    read_security,
    read_settings,
)
from chmv_assets.core.code_version import version_of
from chmv_assets.core.column_reader import ColumnList, read_columns
from chmv_assets.core.model import NodeKind, Object, Refresh
from chmv_assets.core.names import QName, unquote_identifier
from chmv_assets.core.statements import Statement
from chmv_assets.core.tokens import Cursor, Token, string_value

INNER_PREFIX = ".inner."
_QUEUES = ("kafka", "rabbitmq", "nats", "s3queue", "azurequeue", "filelog", "redis streams")


@dataclass
class Draft:
    """What has been read of one CREATE statement so far."""

    kind: str = "table"
    engine: str = ""
    engine_args: str = ""
    listed: ColumnList = field(default_factory=ColumnList)
    clauses: dict[str, str] = field(default_factory=dict)
    settings: tuple[tuple[str, str], ...] = ()
    comment: str = ""
    cluster: str = ""
    select: str = ""
    like: QName | None = None  # CREATE TABLE a AS b
    target: QName | None = None
    refresh: Refresh | None = None
    populate: bool = False
    or_replace: bool = False
    temporary: bool = False
    security: str = ""
    dictionary: dict[str, str] = field(default_factory=dict)
    table_function: str = ""  # CREATE TABLE a AS url(…)


@dataclass(frozen=True, slots=True)
class Created:
    """A CREATE statement that was understood, and what only linking can finish."""

    object: Object
    default_database: str  # what unqualified names in its SELECT mean
    like: QName | None = None
    dictionary_source: str = ""
    temporary: bool = False


def read_create(statement: Statement, default_database: str) -> Created | None:
    """Read one CREATE, ATTACH or REPLACE statement of a table-like object; None if it has no name or no known kind."""
    cursor = Cursor(statement.text, statement.tokens)
    cursor.next()
    draft = Draft(or_replace=cursor.take_words("OR", "REPLACE") or statement.tokens[0].is_word("REPLACE"))
    draft.temporary = cursor.take_words("TEMPORARY")
    kind = _read_kind(cursor)
    if kind is None:
        return None
    draft.kind = kind
    cursor.take_words("IF", "NOT", "EXISTS")
    name = read_name(cursor, default_database)
    if name is None:
        return None
    while not cursor.done:
        _read_clause(cursor, draft, default_database)
    return _finish(statement, name, draft, default_database)


def _read_kind(cursor: Cursor) -> str | None:
    for words, kind in (
        (("MATERIALIZED", "VIEW"), "materialized_view"),
        (("WINDOW", "VIEW"), "window_view"),
        (("LIVE", "VIEW"), "view"),
        (("VIEW",), "view"),
        (("DICTIONARY",), "dictionary"),
        (("TABLE",), "table"),
    ):
        if cursor.take_words(*words):
            return kind
    return None


def _read_clause(cursor: Cursor, draft: Draft, default_database: str) -> None:
    token = cursor.peek()
    for words, clause in EXPRESSION_CLAUSES.items():
        if cursor.take_words(*words):
            draft.clauses[clause] = read_expression(cursor)
            return
    if cursor.at_words("ENGINE") or cursor.at_words("INNER", "ENGINE"):
        cursor.take_words("INNER")
        _read_engine(cursor, draft)
    elif cursor.take_words("ON", "CLUSTER"):
        draft.cluster = unquote_identifier(cursor.next().text)
    elif cursor.at_words("TO", "INNER"):
        cursor.at += 2
        cursor.take_words("UUID")
        cursor.next()
    elif draft.kind != "table" and cursor.take_words("TO"):
        draft.target = read_name(cursor, default_database)
    elif cursor.take_words("AS") or cursor.take_words("CLONE", "AS"):
        _read_as(cursor, draft, default_database)
    elif cursor.at_words("SETTINGS") and (cursor.peek(1).kind == "word" or cursor.peek(1).is_op("(")):
        cursor.next()
        draft.settings = read_settings(cursor)
    elif cursor.at_words("COMMENT") and cursor.peek(1).kind == "string":
        cursor.next()
        draft.comment = string_value(cursor.next().text)
    elif cursor.take_words("POPULATE"):
        draft.populate = True
    elif cursor.at_words("REFRESH") and cursor.peek(1).is_word("EVERY", "AFTER"):
        cursor.next()
        draft.refresh = read_refresh(cursor, default_database)
    elif token.is_op("(") and draft.kind != "table" and cursor.peek(1).is_word("SELECT", "WITH"):
        _read_as(cursor, draft, default_database)
    elif token.is_op("("):
        first, last = cursor.skip_group()
        draft.listed = draft.listed if draft.listed.columns else read_columns(cursor, first, last)
    elif draft.kind == "dictionary" and token.is_word(*DICTIONARY_CLAUSES) and cursor.peek(1).is_op("("):
        cursor.next()
        first, last = cursor.skip_group()
        draft.dictionary[token.text.lower()] = cursor.slice(first, last)
    elif draft.kind != "table" and (found := read_security(cursor)):
        draft.security = f"{draft.security} {found}".strip()
    elif token.is_word("SELECT", "WITH", "FROM") and not draft.select:
        _read_as(cursor, draft, default_database)
    elif draft.kind == "dictionary" and cursor.peek(1).is_op("("):
        cursor.next()
        cursor.skip_group()
    else:
        cursor.next()


def _read_engine(cursor: Cursor, draft: Draft) -> None:
    cursor.next()
    cursor.take_op("=")
    draft.engine = unquote_identifier(cursor.next().text)
    if cursor.peek().is_op("("):
        first, last = cursor.skip_group()
        draft.engine_args = cursor.slice(first, last)


def _read_as(cursor: Cursor, draft: Draft, default_database: str) -> None:
    token = cursor.peek()
    if token.is_word("SELECT", "WITH", "FROM") or token.is_op("("):
        end = len(cursor.tokens)
        if end - cursor.at > 2 and cursor.tokens[-2].is_word("COMMENT") and cursor.tokens[-1].kind == "string":
            draft.comment = string_value(cursor.tokens[-1].text)
            end -= 2
        draft.select = cursor.slice(cursor.at, end)
        cursor.at = len(cursor.tokens)
        return
    at = cursor.at
    like = read_name(cursor, default_database)
    if cursor.peek().is_op("("):  # AS table_function(…)
        first, last = cursor.skip_group()
        draft.table_function = cursor.slice(at, first - 1) + f"({cursor.slice(first, last)})"
    else:
        draft.like = like


def view_of_inner(inner: QName) -> QName:
    """The view whose inner table this is."""
    return QName(inner.database, inner.table.removeprefix(INNER_PREFIX))


def table_kind(engine: str) -> NodeKind:
    """The kind of a table by its engine's name."""
    lowered = engine.lower()
    if lowered in _QUEUES:
        return "queue"
    if lowered in ("distributed", "buffer", "null", "merge"):
        return lowered  # type: ignore[return-value]
    return "table"


def _finish(statement: Statement, name: QName, draft: Draft, default_database: str) -> Created:
    kind: NodeKind
    engine = draft.engine
    target = draft.target
    inner_engine = ""
    if draft.kind in ("materialized_view", "window_view"):
        kind = "refreshable_view" if draft.refresh else "materialized_view"
        inner_engine = draft.engine
        engine = "WindowView" if draft.kind == "window_view" else "MaterializedView"
        if target is None:
            target = QName(name.database, INNER_PREFIX + name.table)
    elif draft.kind == "view":
        kind, engine = "view", "View"
    elif draft.kind == "dictionary":
        kind, engine = "dictionary", "Dictionary"
    elif draft.table_function:
        kind, engine = "table", "TableFunction"
    else:
        if not engine and draft.like is None and (draft.listed.columns or draft.select):
            engine = "MergeTree"  # default_table_engine
        kind = table_kind(engine)
    made = Object(
        name=name,
        kind=kind,
        engine=engine,
        place=statement.place,
        sql=statement.text,
        digest=digest_of(statement.tokens),
        code_version=version_of(statement.tokens),
        session_database=default_database if draft.select or draft.engine_args else "",
        engine_args=f"{inner_engine}({draft.engine_args})"
        if inner_engine
        else draft.table_function or draft.engine_args,
        columns=draft.listed.columns,
        partition_by=draft.clauses.get("partition_by", ""),
        order_by=draft.clauses.get("order_by", ""),
        primary_key=draft.clauses.get("primary_key", "") or draft.listed.primary_key,
        sample_by=draft.clauses.get("sample_by", ""),
        ttl=draft.clauses.get("ttl", ""),
        indexes=draft.listed.indexes,
        projections=draft.listed.projections,
        constraints=draft.listed.constraints,
        security=draft.security,
        dictionary=tuple(draft.dictionary.items()),
        settings=draft.settings,
        comment=draft.comment,
        cluster=draft.cluster,
        select=draft.select,
        target=target,
        refresh=draft.refresh,
        populate=draft.populate,
        or_replace=draft.or_replace,
    )
    return Created(made, default_database, draft.like, draft.dictionary.get("source", ""), draft.temporary)


def digest_of(tokens: Sequence[Token], before: str = "") -> str:
    """A short hash of a statement that white space and comments do not change; of an ALTER with the hash before it."""
    joined = "\0".join([*([before] if before else []), *(token.text for token in tokens)])
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def statement_words(statement: Statement) -> Sequence[str]:
    """The first words of a statement in upper case, to tell what it is."""
    return tuple(token.text.upper() for token in statement.tokens[:4])
