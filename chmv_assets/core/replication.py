"""Engines of replicated tables as text: what they are without their replication. Pure."""

from __future__ import annotations

import itertools
import re

from chmv_assets.core.tokens import split_commas, tokenize

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
