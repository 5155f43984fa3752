"""The gate: a constraint on a source that turns new inserts away for a moment, and opens by itself.

An INSERT takes the constraints when it starts: those that run when the gate shuts finish whole, in the source and in every target,
and new ones are refused (469) before anything is written, so a writer can simply send again. The constraint names the moment
until which it holds, so that a crash of ours can never shut writers out for longer; a leftover is removed by whoever finds it.
"""

from __future__ import annotations

import re

from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.system_tables import system_table

# `core.retry` knows a refusal by this word.
GATE_PREFIX = "__chmv_fence_"
GATE_SECONDS = 30.0
MARGIN_SECONDS = 3.0  # a publication is not begun when less than this is left
REFUSED_CODES = (469, 774)
_GATE_TEXT = re.compile(rf",\s*CONSTRAINT `?{GATE_PREFIX}\w+`? CHECK now64\(3\) >= fromUnixTimestamp64Milli\(\d+\)")
_NOT_THE_SERVERS = "database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema')"
_RECENT = "event_date >= toDate(now() - {seconds:UInt32}) AND event_time > now() - {seconds:UInt32}"


def gate_name(rebuild_id: str) -> str:
    """One constraint per rebuild: two may gate the same source, and each opens its own."""
    return f"{GATE_PREFIX}{rebuild_id}"


def render_shut(source: QName, rebuild_id: str, until_ms: int) -> str:
    """Shut the gate until a moment of the server's clock."""
    condition = f"now64(3) >= fromUnixTimestamp64Milli({int(until_ms)})"
    name = quote_identifier(gate_name(rebuild_id))
    return f"ALTER TABLE {source.sql} ADD CONSTRAINT IF NOT EXISTS {name} CHECK {condition}"


def render_open(source: QName, constraint: str) -> str:
    """Open a gate; a no-op if it is open."""
    return f"ALTER TABLE {source.sql} DROP CONSTRAINT IF EXISTS {quote_identifier(constraint)}"


def without_gates(sql: str) -> str:
    """A table's text without the gates that stand on it now.

    >>> without_gates("CREATE TABLE a (`x` UInt8, CONSTRAINT __chmv_fence_1f CHECK now64(3) >= fromUnixTimestamp64Milli(12)) ENGINE = Null")
    'CREATE TABLE a (`x` UInt8) ENGINE = Null'
    """
    return _GATE_TEXT.sub("", sql) if GATE_PREFIX in sql else sql


def read_gates() -> str:
    """Database, table, constraint and deadline (ms) of every gate on the server, with the server's clock (ms)."""
    pattern = rf"CONSTRAINT `?({GATE_PREFIX}\\w+)`? CHECK now64\\(3\\) >= fromUnixTimestamp64Milli\\((\\d+)\\)"
    return (
        "SELECT database, name, found[1], toInt64(found[2]), toUnixTimestamp64Milli(now64(3)) FROM ("
        f"SELECT database, name, arrayJoin(extractAllGroupsVertical(create_table_query, '{pattern}')) AS found "
        f"FROM system.tables WHERE {_NOT_THE_SERVERS} AND position(create_table_query, '{GATE_PREFIX}') > 0)"
    )


_INTO = "has(tables, concat({database:String}, '.', {table:String}))"
_FAILED = (
    f"type = 'ExceptionWhileProcessing' AND exception_code NOT IN ({', '.join(map(str, REFUSED_CODES))}) "
    "AND notEmpty(Settings['insert_deduplication_token'])"
)


def read_failures(cluster: str = "") -> str:
    """How many inserts with a token into a source have failed of late, repeated or not: without one nothing is in doubt.

    Much cheaper than `read_in_doubt`, which reads every insert. Needs `SYSTEM FLUSH LOGS query_log` before.
    """
    return (
        f"SELECT count() FROM {system_table('query_log', cluster)} WHERE {_FAILED} AND {_RECENT} "
        f"AND query_kind IN ('Insert', 'AsyncInsertFlush') AND {_INTO}"
    )


def read_troubles(cluster: str = "") -> str:
    """The same number, and how many inserts were sent lately whose writer does not wait to learn whether they were taken.

    Such a writer (asynchronous inserts with `wait_for_async_insert = 0`) would never hear of a gate's refusal. What reads from a SELECT
    is never asynchronous. Needs `SYSTEM FLUSH LOGS` before.
    """
    default = "(SELECT any(value) FROM system.settings WHERE name = 'async_insert')"
    unanswered = (
        "query_kind = 'Insert' AND type = 'QueryFinish' AND Settings['wait_for_async_insert'] = '0' "
        f"AND if(mapContains(Settings, 'async_insert'), Settings['async_insert'], {default}) = '1' "
        r"AND NOT match(query, '(?i)\\bselect\\b')"
    )
    return (
        f"SELECT countIf({_FAILED}), countIf({unanswered}) FROM {system_table('query_log', cluster)} "
        f"WHERE {_RECENT} AND query_kind IN ('Insert', 'AsyncInsertFlush') AND {_INTO}"
    )


def read_in_doubt(cluster: str = "") -> str:
    """Tokens whose last insert into a source failed after it had written a part of it: a retry would double rebuilt rows.

    What the gate refused, or what failed before it wrote, is not in doubt. Needs `SYSTEM FLUSH LOGS` before.
    """
    refused = ", ".join(map(str, REFUSED_CODES))
    return (
        "SELECT token, argMax(query_id, at) AS last FROM (SELECT Settings['insert_deduplication_token'] AS token, query_id, "
        f"event_time_microseconds AS at, type, exception_code FROM {system_table('query_log', cluster)} "
        "WHERE query_kind IN ('Insert', 'AsyncInsertFlush') "
        "AND has(tables, concat({database:String}, '.', {table:String})) "
        f"AND {_RECENT} AND type IN ('ExceptionWhileProcessing', 'QueryFinish') AND notEmpty(token) "
        f"AND NOT (type = 'ExceptionWhileProcessing' AND exception_code IN ({refused}))) "
        "GROUP BY token HAVING argMax(type, at) = 'ExceptionWhileProcessing' AND last IN "
        f"(SELECT query_id FROM {system_table('part_log', cluster)} WHERE event_type = 'NewPart' "
        f"AND database = {{database:String}} AND table = {{table:String}} AND {_RECENT})"
    )
