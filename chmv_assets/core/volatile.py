"""What a text computes from more than its rows: the clock, chance, the server's name.

Words are found, not parsed: a column called `now` without brackets is not a call. Used to leave columns out of comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from chmv_assets.core.names import unquote_identifier
from chmv_assets.core.tokens import Token, split_commas, tokenize

_VOLATILE = frozenset(
    [
        "now", "now64", "nowinblock", "nowinblock64", "today", "yesterday", "current_timestamp", "current_date", "utctimestamp",
        "utc_timestamp", "localtimestamp", "rand", "rand32", "rand64", "randconstant", "randomstring", "randomfixedstring",
        "randomprintableascii", "randuniform", "randnormal", "randcanonical", "generateuuidv4", "generateuuidv7",
        "generateulid", "generatesnowflakeid", "generateserialid", "hostname", "fqdn", "uptime", "currentuser", "queryid",
        "initialqueryid", "blocknumber", "rownumberinblock", "rownumberinallblocks", "serveruuid", "currentdatabase",
        "runningdifference", "runningaccumulate", "neighbor", "file", "connectionid",
    ]
)  # fmt: skip


def volatile_calls(text: str) -> tuple[str, ...]:
    """The volatile functions that a text calls.

    >>> volatile_calls("SELECT now() AS at, now FROM t WHERE d > today()")
    ('now', 'today')
    """
    return _calls(tokenize(text)[0])


def _calls(tokens: Sequence[Token]) -> tuple[str, ...]:
    found = (
        one.text
        for one, after in pairwise(tokens)
        if one.kind == "word" and after.is_op("(") and one.text.lower() in _VOLATILE
    )
    return tuple(dict.fromkeys(found))


def volatile_outputs(select: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The output columns that call a volatile function, each with it, and the functions called anywhere else.

    >>> volatile_outputs("SELECT a, toDate(now()) AS d FROM t WHERE x < rand()")
    ({'d': 'now'}, ('rand',))
    """
    tokens, _ = tokenize(select)
    first, last = _outer_list(tokens)
    outputs: dict[str, str] = {}
    elsewhere = [*_calls(tokens[:first]), *_calls(tokens[last:])]
    for part in split_commas(tokens[first:last]):
        calls = _calls(part)
        if calls and len(part) > 2 and part[-2].is_word("AS"):
            outputs[unquote_identifier(part[-1].text)] = calls[0]
        else:
            elsewhere += calls
    return outputs, tuple(dict.fromkeys(elsewhere))


def _outer_list(tokens: Sequence[Token]) -> tuple[int, int]:
    """Where the list of the outermost SELECT begins and ends."""
    depth, first = 0, 0
    for at, token in enumerate(tokens):
        depth += token.is_op("(", "[") - token.is_op(")", "]")
        if depth == 0 and not first and token.is_word("SELECT"):
            first = at + 1
        elif depth == 0 and first and token.is_word("FROM"):
            return first, at
    return first, len(tokens)
