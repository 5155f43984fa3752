"""CREATE statements → objects, by clauses, with our own reader.

ClickHouse DDL is a head followed by clauses in almost any order; sqlglot falls to `Command` or crashes on many of them
(docs/adr/0002). So the head is read here from tokens, and only SELECT texts go to sqlglot (`select_reader`).
Invariant: a clause that is not known is stepped over token by token; nothing raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from chmv_assets.core.code_version import version_of
from chmv_assets.core.column_reader import read_columns
from chmv_assets.core.model import Column, NodeKind, Object, Refresh
from chmv_assets.core.names import QName, unquote_identifier
from chmv_assets.core.statements import Statement
from chmv_assets.core.tokens import Cursor, Token, string_value

INNER_PREFIX = ".inner."
_QUEUES = ("kafka", "rabbitmq", "nats", "s3queue", "azurequeue", "filelog", "redis streams")
_EXPRESSION_CLAUSES = {
    ("PARTITION", "BY"): "partition_by",
    ("ORDER", "BY"): "order_by",
    ("PRIMARY", "KEY"): "primary_key",
    ("SAMPLE", "BY"): "sample_by",
    ("TTL",): "ttl",
}


@dataclass
class Draft:
    """What has been read of one CREATE statement so far."""

    kind: str = "table"
    engine: str = ""
    engine_args: str = ""
    columns: tuple[Column, ...] = ()
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
    dictionary_source: str = ""
    table_function: str = ""  # CREATE TABLE a AS url(…)


@dataclass(frozen=True, slots=True)
class Created:
    """A CREATE statement that was understood, and what only linking can finish."""

    object: Object
    default_database: str  # what unqualified names in its SELECT mean
    like: QName | None = None
    dictionary_source: str = ""
    temporary: bool = False


def read_name(cursor: Cursor, default_database: str) -> QName | None:
    """Read `db.table` or `table` at the cursor; None if there is no name."""
    parts: list[str] = []
    while True:
        token = cursor.peek()
        if token.kind not in ("word", "quoted", "param", "number") and not (token.kind == "string" and not parts):
            break
        parts.append(unquote_identifier(cursor.next().text))
        if not (cursor.peek().is_op(".") and cursor.peek(1).kind in ("word", "quoted", "param")):
            break
        cursor.next()
    if not parts:
        return None
    return QName(default_database, parts[0]) if len(parts) == 1 else QName(parts[-2], parts[-1])


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
    for words, clause in _EXPRESSION_CLAUSES.items():
        if cursor.take_words(*words):
            draft.clauses[clause] = _read_expression(cursor)
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
        draft.settings = _read_settings(cursor)
    elif cursor.at_words("COMMENT") and cursor.peek(1).kind == "string":
        cursor.next()
        draft.comment = string_value(cursor.next().text)
    elif cursor.take_words("POPULATE"):
        draft.populate = True
    elif cursor.at_words("REFRESH") and cursor.peek(1).is_word("EVERY", "AFTER"):
        cursor.next()
        draft.refresh = _read_refresh(cursor, default_database)
    elif token.is_op("(") and draft.kind != "table" and cursor.peek(1).is_word("SELECT", "WITH"):
        _read_as(cursor, draft, default_database)
    elif token.is_op("("):
        first, last = cursor.skip_group()
        draft.columns = draft.columns or read_columns(cursor, first, last)
    elif draft.kind == "dictionary" and cursor.at_words("SOURCE"):
        cursor.next()
        first, last = cursor.skip_group()
        draft.dictionary_source = cursor.slice(first, last)
    elif token.is_word("SELECT", "WITH", "FROM") and not draft.select:
        _read_as(cursor, draft, default_database)
    elif draft.kind == "dictionary" and cursor.peek(1).is_op("("):
        cursor.next()
        cursor.skip_group()
    else:
        cursor.next()


def _at_clause(cursor: Cursor) -> bool:
    token, after = cursor.peek(), cursor.peek(1)
    if any(cursor.at_words(*words) for words in _EXPRESSION_CLAUSES):
        return True
    if token.is_word("ENGINE", "POPULATE", "EMPTY", "DEFINER"):
        return True
    if token.is_word("SETTINGS") and after.kind == "word" and cursor.peek(2).is_op("="):  # a column may be called so
        return True
    if token.is_word("COMMENT") and after.kind == "string":
        return True
    if token.is_word("SOURCE", "LAYOUT", "LIFETIME", "RANGE") and after.is_op("("):
        return True
    if token.is_word("AS") and (after.is_word("SELECT", "WITH", "FROM") or after.is_op("(")):
        return True
    return cursor.at_words("SQL", "SECURITY") or (token.is_word("REFRESH") and after.is_word("EVERY", "AFTER"))


def _read_expression(cursor: Cursor) -> str:
    first = cursor.at
    while not cursor.done and not _at_clause(cursor):
        if cursor.peek().is_op("(", "["):
            cursor.skip_group()
        else:
            cursor.next()
    return cursor.slice(first, cursor.at)


def _read_engine(cursor: Cursor, draft: Draft) -> None:
    cursor.next()
    cursor.take_op("=")
    draft.engine = unquote_identifier(cursor.next().text)
    if cursor.peek().is_op("("):
        first, last = cursor.skip_group()
        draft.engine_args = cursor.slice(first, last)


def _read_settings(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    if cursor.peek().is_op("("):
        cursor.skip_group()
        return ()
    pairs: list[tuple[str, str]] = []
    while cursor.peek().kind in ("word", "quoted") and cursor.peek(1).is_op("="):
        key = unquote_identifier(cursor.next().text)
        cursor.next()
        first = cursor.at
        _skip_value(cursor)
        pairs.append((key, cursor.slice(first, cursor.at).strip("'")))
        if not cursor.take_op(","):
            break
    return tuple(pairs)


def _skip_value(cursor: Cursor) -> None:
    """Step over one setting's value: a literal, a word, a signed number, a list, or something like `disk(…)`."""
    if cursor.peek().is_op("-", "+"):
        cursor.next()
    if not cursor.peek().is_op("(", "["):
        cursor.next()
    if cursor.peek().is_op("(", "["):
        cursor.skip_group()


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


def _read_refresh(cursor: Cursor, default_database: str) -> Refresh:
    first = cursor.at
    depends: list[QName] = []
    schedule = ""
    append = False
    while not cursor.done and not cursor.at_words("TO") and not cursor.peek().is_op("("):
        if _at_clause(cursor) and not cursor.at_words("SETTINGS"):
            break
        if cursor.at_words("DEPENDS", "ON"):
            schedule = schedule or cursor.slice(first, cursor.at)
            cursor.at += 2
            while name := read_name(cursor, default_database):
                depends.append(name)
                if not cursor.take_op(","):
                    break
        elif cursor.at_words("APPEND"):
            schedule = schedule or cursor.slice(first, cursor.at)
            cursor.next()
            append = True
        elif cursor.at_words("SETTINGS"):
            schedule = schedule or cursor.slice(first, cursor.at)
            cursor.next()
            _read_settings(cursor)
        else:
            cursor.next()
    return Refresh(schedule=schedule or cursor.slice(first, cursor.at), depends_on=tuple(depends), append=append)


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
        if not engine and draft.like is None and (draft.columns or draft.select):
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
        session_database=default_database if draft.select else "",
        engine_args=f"{inner_engine}({draft.engine_args})"
        if inner_engine
        else draft.table_function or draft.engine_args,
        columns=draft.columns,
        partition_by=draft.clauses.get("partition_by", ""),
        order_by=draft.clauses.get("order_by", ""),
        primary_key=draft.clauses.get("primary_key", ""),
        ttl=draft.clauses.get("ttl", ""),
        settings=draft.settings,
        comment=draft.comment,
        cluster=draft.cluster,
        select=draft.select,
        target=target,
        refresh=draft.refresh,
        populate=draft.populate,
        or_replace=draft.or_replace,
    )
    return Created(made, default_database, draft.like, draft.dictionary_source, draft.temporary)


def digest_of(tokens: Sequence[Token], before: str = "") -> str:
    """A short hash of a statement that white space and comments do not change; of an ALTER with the hash before it."""
    joined = "\0".join([*([before] if before else []), *(token.text for token in tokens)])
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def statement_words(statement: Statement, count: int = 4) -> Sequence[str]:
    """The first words of a statement in upper case, to tell what it is."""
    return tuple(token.text.upper() for token in statement.tokens[:count])
