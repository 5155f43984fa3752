"""The frozen vocabulary: objects, references, edges, defects.

Plain data without behaviour beyond trivial look-ups; how it is read from DDL lives in `ddl_reader` and `select_reader`,
what follows from it in `graph`, `classify`, `lint` and `lineage`. Everything here round-trips through `catalog_codec`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.names import QName

NodeKind = Literal[
    "table",  # MergeTree family, and other engines that store rows (Log, Memory, Join, Set, …)
    "materialized_view",  # incremental: fires on INSERT
    "refreshable_view",  # MATERIALIZED VIEW … REFRESH
    "inner_table",  # the hidden target of a materialized view without TO
    "view",
    "dictionary",
    "distributed",
    "buffer",
    "null",
    "queue",  # Kafka, RabbitMQ, NATS, S3Queue, …
    "merge",
    "function",  # an external table function: s3(…), remote(…), url(…)
    "external",  # referenced but not declared here
]
EdgeKind = Literal[
    "trigger",  # an INSERT into `from` fires the view `to`
    "lookup",  # the view `to` reads `from`, but inserts there do not fire it
    "writes",  # the view `from` inserts into `to`
    "feeds",  # `to` is or shows the data of `from` without a trigger: dictionary, plain view, Merge, Distributed, Buffer
    "after",  # REFRESH … DEPENDS ON: `to` refreshes after `from`
]
ViewClass = Literal["append", "additive", "replacing", "opaque"]
Severity = Literal["error", "warning", "note"]
Reader = Literal["full", "tolerant", "server", "none"]
Role = Literal["source", "view", "target", "lookup", "other"]

_REPLICATION = re.compile(r"^(Replicated|Shared)")

VIEW_KINDS: tuple[NodeKind, ...] = ("materialized_view", "refreshable_view")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a statement stands: file relative to the DDL folder (or `live`) and 1-based line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    default_kind: str = ""  # DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL or nothing
    default: str = ""
    comment: str = ""
    codec: str = ""  # what stands in the brackets of CODEC(…)
    ttl: str = ""
    settings: str = ""  # what stands in the brackets of SETTINGS(…)
    statistics: str = ""  # what stands in the brackets of STATISTICS(…)
    attributes: str = ""  # of a dictionary's column: EXPRESSION …, HIERARCHICAL, INJECTIVE, IS_OBJECT_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """The schedule of a refreshable view."""

    schedule: str  # the clause as written, e.g. `EVERY 1 HOUR OFFSET 5 MINUTE`
    depends_on: tuple[QName, ...] = ()
    append: bool = False
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One mention of another object inside a SELECT or an engine clause."""

    name: QName
    kind: EdgeKind
    via: str  # `from`, `join`, `in`, `union`, `subquery`, `dictGet`, `engine`, …


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """One declared ClickHouse object, as read from its CREATE statement."""

    name: QName
    kind: NodeKind
    engine: str  # the engine's name, or "" for views and dictionaries
    place: Place
    sql: str  # the statement as written, without its terminator
    session_database: str = ""  # what unqualified names in its SELECT mean, where it has any
    digest: str = ""  # of its tokens: equal for texts that differ in white space and comments only
    code_version: str = ""  # of what it says: `core.code_version`
    engine_args: str = ""
    columns: tuple[Column, ...] = ()
    partition_by: str = ""
    order_by: str = ""
    primary_key: str = ""
    sample_by: str = ""
    ttl: str = ""
    indexes: tuple[tuple[str, str], ...] = ()  # name → what follows it in its declaration; so for the next two
    projections: tuple[tuple[str, str], ...] = ()
    constraints: tuple[tuple[str, str], ...] = ()
    security: str = ""  # of a view: `DEFINER = … SQL SECURITY …` as written
    dictionary: tuple[
        tuple[str, str], ...
    ] = ()  # source, layout, lifetime, range, settings → what is in their brackets
    settings: tuple[tuple[str, str], ...] = ()
    comment: str = ""
    cluster: str = ""
    select: str = ""  # the SELECT of a view as written
    target: QName | None = None  # where a materialized view writes
    refresh: Refresh | None = None
    populate: bool = False
    or_replace: bool = False
    references: tuple[Reference, ...] = ()
    reader: Reader = "full"  # who read the SELECT; "none": nobody could, references are not known

    def column(self, name: str) -> Column | None:
        """The declared column of that name, if there is one."""
        return next((column for column in self.columns if column.name == name), None)

    def setting(self, name: str) -> str | None:
        """The value of a SETTINGS entry of that name, if there is one."""
        return next((value for key, value in self.settings if key == name), None)


def family(engine: str) -> str:
    """The MergeTree family of an engine without its replication prefix.

    >>> family("ReplicatedSummingMergeTree"), family("MergeTree"), family("Null")
    ('summing', 'plain', '')
    """
    bare = _REPLICATION.sub("", engine)
    if not bare.endswith("MergeTree"):
        return ""
    return bare.removesuffix("MergeTree").lower() or "plain"


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """Data flows from `source` to `dest`; `kind` says by what."""

    source: QName
    dest: QName
    kind: EdgeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A defect, a lint or a note: what was found, where, and what to do about it."""

    code: str  # stable, kebab-case
    severity: Severity
    message: str
    place: Place | None = None
    subject: str = ""  # the object it is about, as `database.table`

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.severity} [{self.code}] {self.message}"


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """One upstream column of a lineage entry."""

    table: QName
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFacts:
    """What follows from a view's SELECT and its target."""

    view_class: ViewClass
    why: str  # one sentence: why this class
    lineage: tuple[tuple[str, tuple[ColumnSource, ...]], ...] = ()  # output column → upstream columns
    group_keys: tuple[str, ...] = ()  # output columns that the SELECT groups by
    aggregates: tuple[tuple[str, str], ...] = ()  # output column → its aggregate function, in the server's spelling
    time_expression: str = ""  # how the SELECT makes the time column of the target's partition key
    time_source: ColumnSource | None = None  # the one upstream column that it is made of
