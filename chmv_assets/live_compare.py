"""Declared objects against the texts that the server keeps, with the server's help where spellings differ.

One query formats all declared texts. Only if some then differ the server is asked for its vocabulary (one query), and only for objects
that still differ how it reads their columns and queries. So the number of queries does not grow with objects that are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.compare import Comparison, Difference, compare_objects
from chmv_assets.core.errors import ServerError
from chmv_assets.core.model import VIEW_KINDS, Column, Object
from chmv_assets.core.names import QName
from chmv_assets.core.render_create import read_statement, statement_of
from chmv_assets.core.spelling import Vocabulary, differ_by_grouping, spell
from resources.clickhouse import Server
from resources.introspect import LiveObject, describe_select, fetch_formatted
from resources.vocabulary import describe_columns, fetch_vocabulary

_OF_COLUMNS = ("column ", "type of ", "default of ", "codec of ", "ttl of ", "order of columns")
_MAY_NOT = (497, 60, 47)  # access denied, no such table or column on this server
_CANNOT_TELL = Comparison("cannot tell")


@dataclass(frozen=True, slots=True)
class _Side:
    """One declared object as the server formats it, and what its unqualified names mean."""

    made: Object | None  # None: it cannot be read
    session: str


class Judge:
    """Compares declared objects with any number of live ones; formats each declared text once."""

    def __init__(self, server: Server, catalog: Catalog, names: Iterable[QName]) -> None:
        self.server = server
        wanted = [catalog.objects[name] for name in names]
        sessions = {made.name: made.session_database or catalog.default_database for made in wanted}
        with_text = [made for made in wanted if made.sql]
        texts = [statement_of(made, sessions[made.name]) for made in with_text]
        formatted = fetch_formatted(server, texts) if texts else []
        self._declared = {made.name: _Side(None, sessions[made.name]) for made in wanted}
        for made, text in zip(with_text, formatted, strict=True):
            self._declared[made.name] = _read_declared(made, text, sessions[made.name])
        self._known: dict[tuple[QName, str], Comparison] = {}

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """None where we may not read it: then nothing can be told of what differs in its spelling."""
        try:
            return fetch_vocabulary(self.server)
        except ServerError as error:
            if error.code in _MAY_NOT:
                return None
            raise

    def compare(self, live: Mapping[QName, LiveObject]) -> dict[QName, Comparison]:
        """The verdict on every declared object; those that are not among the live ones are missing."""
        return {
            name: self._verdict(name, live[name].sql) if name in live else Comparison("missing")
            for name in self._declared
        }

    def _verdict(self, name: QName, sql: str) -> Comparison:
        if (name, sql) not in self._known:
            self._known[name, sql] = self._compare(name, sql)
        return self._known[name, sql]

    def _compare(self, name: QName, sql: str) -> Comparison:
        side = self._declared[name]
        theirs = read_statement(sql, name.database) if sql else None
        if side.made is None or theirs is None or theirs.name != name:
            return _CANNOT_TELL
        mine = side.made
        if mine.kind not in (*VIEW_KINDS, "view") and mine.select and not mine.columns and theirs.columns:
            columns = self._selected(mine, side.session)
            if columns is None:
                return _CANNOT_TELL
            mine = replace(mine, columns=columns)
        complete = all(column.type for column in mine.columns)
        verdict = compare_objects(mine, theirs, side.session)
        if verdict.state == "equal" and complete:
            return verdict
        if self.vocabulary is None:
            return _CANNOT_TELL
        verdict = compare_objects(mine, theirs, side.session, self.vocabulary)
        if [d.what for d in verdict.differences] == ["query"] and _regrouped(
            verdict.differences[0], side.session, self.vocabulary
        ):
            return _CANNOT_TELL
        if complete and not any(d.what.startswith(_OF_COLUMNS) for d in verdict.differences):
            return verdict
        read = describe_columns(self.server, mine.columns, side.session)
        live_read = describe_columns(self.server, theirs.columns, side.session)
        if read is None or live_read is None:
            return verdict if verdict.differences else _CANNOT_TELL
        return compare_objects(
            replace(mine, columns=read), replace(theirs, columns=live_read), side.session, self.vocabulary
        )

    def _selected(self, made: Object, session: str) -> tuple[Column, ...] | None:
        """The columns of a table or view that only its SELECT declares."""
        try:
            return tuple(Column(name=n, type=t) for n, t in describe_select(self.server, made.select, session))
        except ServerError:
            return None


def _read_declared(made: Object, formatted: str | None, session: str) -> _Side:
    if formatted is None or (made.kind in VIEW_KINDS and made.reader == "none"):
        return _Side(None, session)
    read = read_statement(formatted, session)
    if read is None:
        return _Side(None, session)
    return _Side(read if read.name == made.name else None, session)


def _regrouped(query: Difference, session: str, vocabulary: Vocabulary) -> bool:
    return differ_by_grouping(*(spell(text, session, vocabulary) for text in (query.declared, query.live)))
