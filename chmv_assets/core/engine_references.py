"""References that hide in engine clauses and dictionary sources rather than in a SELECT."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from chmv_assets.core.model import Object, Reference
from chmv_assets.core.names import QName, parse_qname, unquote_identifier
from chmv_assets.core.select_reader import read_select
from chmv_assets.core.tokens import Cursor, Token, split_commas, string_value, tokenize

_REGEXP = "REGEXP\0"  # marks an argument that is a pattern over databases


def read_engine_references(made: Object, default_database: str, known: Iterable[QName]) -> tuple[Reference, ...]:
    """What a Distributed, Buffer, Merge or Dictionary engine, or a table over a function, stands on."""
    if made.engine == "TableFunction":
        found = read_select(f"SELECT * FROM {made.engine_args}", default_database, fires=False).references
        return tuple(Reference(name=reference.name, kind="feeds", via="AS") for reference in found)
    parts = split_commas(tokenize(made.engine_args)[0])
    arguments = [_argument(made.engine_args, part, default_database) for part in parts]
    names: list[QName] = []
    if made.kind == "distributed" and len(arguments) >= 3:
        names = [QName(arguments[1] or made.name.database, arguments[2])]
    elif made.kind == "buffer" and len(arguments) >= 2 and arguments[1]:
        names = [QName(arguments[0] or made.name.database, arguments[1])]
    elif made.kind == "merge" and len(arguments) >= 2:
        names = _matching(arguments[0] or made.name.database, arguments[1], made, known)
    elif made.kind == "table" and made.engine == "Dictionary" and arguments:
        names = [parse_qname(arguments[0], default_database)]
    return tuple(Reference(name=name, kind="feeds", via=made.engine) for name in names)


def _argument(text: str, part: Sequence[Token], default_database: str) -> str:
    """One engine argument as a plain word: identifiers and strings by value, currentDatabase() resolved."""
    if not part:
        return ""
    if len(part) == 1:
        token = part[0]
        return string_value(token.text) if token.kind == "string" else unquote_identifier(token.text)
    if part[0].text.lower() in ("currentdatabase", "database"):
        return default_database
    if part[0].is_word("REGEXP") and len(part) > 2 and part[2].kind == "string":
        return _REGEXP + string_value(part[2].text)
    return text[part[0].start : part[-1].end]


def _matching(database: str, table_pattern: str, made: Object, known: Iterable[QName]) -> list[QName]:
    try:
        tables = re.compile(table_pattern)
        databases = re.compile(database.removeprefix(_REGEXP)) if database.startswith(_REGEXP) else None
    except re.error:
        return []
    return [
        name
        for name in known
        if name != made.name
        and tables.search(name.table)
        and (databases.search(name.database) if databases else name.database == database)
    ]


def read_default_references(made: Object, default_database: str) -> tuple[Reference, ...]:
    """Dictionaries and Join tables that column defaults call."""
    found: list[Reference] = []
    for column in made.columns:
        if re.search(r"dict(?:get|has|isin)|joinget", column.default, re.IGNORECASE):
            found += read_select(f"SELECT {column.default} FROM numbers(1)", default_database, fires=False).references
    return tuple(dict.fromkeys(reference for reference in found if reference.name != made.name))


def read_dictionary_source(source: str, made: Object) -> tuple[Reference, ...]:
    """What a dictionary with SOURCE(CLICKHOUSE(…)) loads from; other sources live outside ClickHouse."""
    tokens, _ = tokenize(source)
    cursor = Cursor(source, tokens)
    if not cursor.take_words("CLICKHOUSE") or not cursor.peek().is_op("("):
        return ()
    cursor.next()
    values: dict[str, str] = {}
    while not cursor.done and not cursor.peek().is_op(")"):
        key = cursor.next().text.upper()
        if cursor.peek().is_op("("):
            cursor.skip_group()
            continue
        token = cursor.next()
        if cursor.peek().is_op("("):  # PORT tcpPort()
            cursor.skip_group()
        values[key] = string_value(token.text) if token.kind == "string" else unquote_identifier(token.text)
    database = values.get("DB") or made.name.database
    if values.get("TABLE"):
        return (Reference(name=parse_qname_or(values["TABLE"], database), kind="feeds", via="SOURCE"),)
    if values.get("QUERY"):
        found = read_select(values["QUERY"], database, fires=False).references
        return tuple(Reference(name=reference.name, kind="feeds", via="SOURCE QUERY") for reference in found)
    return ()


def parse_qname_or(text: str, database: str) -> QName:
    """Read a table's name out of a literal; a name that is none stays whole."""
    try:
        return parse_qname(text, database)
    except ValueError:
        return QName(database, text)
