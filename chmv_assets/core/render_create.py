"""An object as a CREATE statement: what a history of CREATE, ALTER and RENAME statements comes to.

For texts that go to the server to be formatted; a statement that says everything by itself stays as it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chmv_assets.core.ddl_reader import INNER_PREFIX, read_create
from chmv_assets.core.model import VIEW_KINDS, Column, Object, Refresh
from chmv_assets.core.names import quote_identifier, quote_string
from chmv_assets.core.statements import SourceFile, split_statements

# What ALTER, RENAME and CREATE … AS change.
_MUTABLE = (
    "name", "columns", "indexes", "projections", "constraints", "ttl", "order_by", "sample_by", "settings", "comment",
    "select", "refresh",
)  # fmt: skip
_LIKE = ("kind", "engine", "engine_args", "partition_by", "primary_key")
_OF_INNER = ("indexes", "projections", "constraints", "ttl", "order_by", "sample_by", "settings", *_LIKE)


def read_statement(text: str, default_database: str) -> Object | None:
    """One CREATE statement read by itself."""
    statements, _ = split_statements(SourceFile(path="", text=text))
    created = read_create(statements[0], default_database) if len(statements) == 1 else None
    return created.object if created is not None else None


def statement_of(made: Object, default_database: str) -> str:
    """The object's statement as written, or put together if others have changed it since."""
    written = read_statement(made.sql, default_database)
    if written is None:
        return made.sql
    inner = written.kind in VIEW_KINDS and written.target is not None and written.target.table.startswith(INNER_PREFIX)
    fields = [*_MUTABLE, *(() if written.engine else _LIKE)]
    changed = {f: getattr(made, f) for f in fields if not (inner and f in _OF_INNER)}
    if written.select and not written.columns:
        del changed["columns"]  # inferred
    whole = replace(written, **changed)
    return made.sql if whole == written else render_create(whole)


def render_create(made: Object) -> str:
    """A statement that creates the object."""
    kind = {"view": "VIEW", "dictionary": "DICTIONARY"}.get(made.kind, "TABLE")
    pieces = [f"CREATE {'MATERIALIZED VIEW' if made.kind in VIEW_KINDS else kind} {made.name.sql}"]
    if made.refresh is not None:
        pieces.append(_render_refresh(made.refresh))
    if made.target is not None and not made.target.table.startswith(INNER_PREFIX):
        pieces.append(f"TO {made.target.sql}")
    if listed := _render_list(made):
        pieces.append(f"({listed})")
    pieces += _render_engine(made)
    for words, text in (
        ("PARTITION BY", made.partition_by), ("PRIMARY KEY", made.primary_key), ("ORDER BY", made.order_by),
        ("SAMPLE BY", made.sample_by), ("TTL", made.ttl),
    ):  # fmt: skip
        pieces += [f"{words} {text}"] if text else []
    pieces += [f"{clause.upper()}({text})" for clause, text in made.dictionary]
    if made.settings:
        pairs = ", ".join(f"{key} = {_render_value(value)}" for key, value in made.settings)
        pieces.append(f"SETTINGS({pairs})" if made.kind == "dictionary" else f"SETTINGS {pairs}")
    pieces += [made.security] if made.security else []
    pieces += [f"AS {made.select}"] if made.select else []
    pieces += [f"COMMENT {quote_string(made.comment)}"] if made.comment else []
    return " ".join(pieces)


def render_columns(columns: Sequence[Column]) -> str:
    """A list of columns with all that can be said of them."""
    return ", ".join(map(_render_column, columns))


def _render_column(column: Column) -> str:
    pieces = [quote_identifier(column.name), column.type, column.default_kind, column.default]
    pieces += [f"COMMENT {quote_string(column.comment)}"] if column.comment else []
    pieces += [f"CODEC({column.codec})"] if column.codec else []
    pieces += [f"STATISTICS({column.statistics})"] if column.statistics else []
    pieces += [f"TTL {column.ttl}"] if column.ttl else []
    pieces += [f"SETTINGS ({column.settings})"] if column.settings else []
    return " ".join(piece for piece in (*pieces, column.attributes) if piece)


def _render_list(made: Object) -> str:
    listed = [_render_column(column) for column in made.columns]
    for word, field in (("INDEX", made.indexes), ("PROJECTION", made.projections), ("CONSTRAINT", made.constraints)):
        listed += [f"{word} {quote_identifier(name)} {text}" for name, text in field]
    return ", ".join(listed)


def _render_engine(made: Object) -> list[str]:
    if made.kind in VIEW_KINDS:
        return [f"ENGINE = {made.engine_args}"] if made.engine_args else []
    if made.kind in ("view", "dictionary") or not made.engine:
        return []
    if made.engine == "TableFunction":
        return [f"AS {made.engine_args}"]
    return [f"ENGINE = {made.engine}({made.engine_args})"]


def _render_refresh(refresh: Refresh) -> str:
    after = f" DEPENDS ON {', '.join(name.sql for name in refresh.depends_on)}" if refresh.depends_on else ""
    pairs = ", ".join(f"{key} = {_render_value(value)}" for key, value in refresh.settings)
    return (
        f"REFRESH {refresh.schedule}{after}{f' SETTINGS {pairs}' if pairs else ''}{' APPEND' if refresh.append else ''}"
    )


def _render_value(value: str) -> str:
    """A setting's value: numbers and calls as they are, everything else as the string that it was read from."""
    return value if value.replace(".", "", 1).isdigit() or value.endswith((")", "]")) else f"'{value}'"
