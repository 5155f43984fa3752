"""Engines of replicated tables as text: what they are without their replication, and where they are in Keeper. Pure."""

from __future__ import annotations

import itertools
import re

from chmv_assets.core.tokens import split_commas, string_value, tokenize

_REPLICATED = re.compile(r"Replicated(\w*MergeTree)")


def unreplicated(engine_full: str) -> str:
    """An engine clause, as the server prints it, for a table of this server only.

    >>> unreplicated("ReplicatedSummingMergeTree('/clickhouse/{shard}/t', '{replica}', (n, m)) PARTITION BY day ORDER BY day")
    'SummingMergeTree((n, m)) PARTITION BY day ORDER BY day'
    >>> unreplicated("ReplicatedMergeTree ORDER BY k SETTINGS index_granularity = 8192"), unreplicated("MergeTree ORDER BY k")
    ('MergeTree ORDER BY k SETTINGS index_granularity = 8192', 'MergeTree ORDER BY k')
    """
    found = _REPLICATED.match(engine_full)
    if found is None:
        return engine_full
    rest = engine_full[found.end() :]
    tokens, _ = tokenize(rest)
    if not tokens or not tokens[0].is_op("("):
        return found.group(1) + rest
    depths = itertools.accumulate(token.is_op("(") - token.is_op(")") for token in tokens)
    closing = next(at for at, depth in enumerate(depths) if depth == 0)
    arguments = split_commas(tokens[1:closing])
    path_first = len(arguments) >= 2 and all(len(one) == 1 and one[0].kind == "string" for one in arguments[:2])
    kept = [rest[one[0].start : one[-1].end] for one in (arguments[2:] if path_first else arguments) if one]
    return f"{found.group(1)}({', '.join(kept)}){rest[tokens[closing].end :]}"


def written_path(engine: str, engine_args: str) -> str:
    """The Keeper path that an engine's arguments write out; nothing if the server takes its own.

    >>> written_path("ReplicatedMergeTree", "'/clickhouse/{shard}/t', '{replica}', v"), written_path("ReplicatedMergeTree", "v")
    ('/clickhouse/{shard}/t', '')
    """
    arguments = split_commas(tokenize(engine_args)[0]) if engine.startswith("Replicated") else []
    if len(arguments) < 2 or not all(len(one) == 1 and one[0].kind == "string" for one in arguments[:2]):
        return ""
    return string_value(arguments[0][0].text)


def taken_path(declared: str, live: str) -> str:
    """Why a second table cannot stand beside the live one until they change places, by their written paths; nothing if it can.

    >>> taken_path("/tables/{uuid}/{shard}", "/tables/{uuid}/{shard}"), taken_path("/tables/{shard}/t2", "/tables/{shard}/t"), taken_path("", "/x")
    ('', '', '')
    """
    if not declared or "{uuid}" in declared:
        return ""
    if "{table}" in declared or "{database}" in declared:
        return f"its Keeper path {declared} follows its name, and the server renames no such table; write {{uuid}} into the path"
    if declared == live:
        return f"its Keeper path {declared} is taken by the table that it replaces; write another one, or one with {{uuid}}, or none"
    return ""
