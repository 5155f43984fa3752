"""What a table's TTL has left of it, by what its text says. Pure.

Two questions with opposite doubts: what a source *may* have forgotten (`forgotten_before`), and what a target has forgotten *for certain* (`kept_since`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from chmv_assets.core.model import Object
from chmv_assets.core.tokens import split_commas, tokenize

_UNIT_DAYS = {"second": 1 / 86400, "minute": 1 / 1440, "hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 30.0,
              "quarter": 91.0, "year": 365.0}  # fmt: skip
_SHORT_MONTHS = timedelta(days=2)  # by which one to three months may be shorter than that


def ttl_days(ttl: str) -> float | None:
    """How long rows are kept in full by a TTL clause, in days; None when it deletes nothing or cannot be read.

    Rules that only move or recompress rows do not count; of several that delete, the first to come does.

    >>> ttl_days("ts + INTERVAL 2 WEEK"), ttl_days(""), ttl_days("ts + toIntervalDay(1) TO DISK 'cold'")
    (14.0, None, None)
    """
    return min((days for rule in _deleting(ttl) if (days := _rule_days(rule)) is not None), default=None)


def is_untold(ttl: str) -> bool:
    """Whether a TTL clause deletes rows at times that it does not tell beforehand, such as those of a column.

    >>> is_untold("expires_at"), is_untold("ts + toIntervalDay(days)"), is_untold("ts + INTERVAL 1 DAY"), is_untold("")
    (True, True, False, False)
    """
    return any(_rule_days(rule) is None for rule in _deleting(ttl))


def forgotten_before(table: Object, now: datetime) -> datetime | None:
    """The moment before which a table's TTL may have deleted rows; None when it keeps all of them."""
    if is_untold(table.ttl):
        return now
    since = kept_since(table, now)
    return (
        since + _SHORT_MONTHS if since is not None and re.search("month|quarter", table.ttl, re.IGNORECASE) else since
    )


def kept_since(table: Object, now: datetime) -> datetime | None:
    """The moment before which a table's TTL wants all rows gone, as far as it can be read; None when it keeps them."""
    days = ttl_days(table.ttl)
    return None if days is None else now - timedelta(days=days)


def tell_retention(table: Object, since: datetime) -> str:
    """What a table with a TTL keeps, in words that go behind its name."""
    if is_untold(table.ttl):
        return f"deletes rows at times that its TTL does not tell beforehand (TTL {' '.join(table.ttl.split())})"
    return f"keeps rows only since {since:%Y-%m-%d %H:%M} (TTL)"


def _deleting(ttl: str) -> Iterator[str]:
    """The rules of a TTL clause that delete rows."""
    tokens, _ = tokenize(ttl)
    for rule in split_commas(tokens):
        words = [token.text.upper() for token in rule if token.kind == "word"]
        if len(rule) > 1 and rule[1].is_op("="):  # GROUP BY … SET a = …, b = …
            continue
        if rule and "RECOMPRESS" not in words and ("TO" not in words or not {"DISK", "VOLUME"} & set(words)):
            yield ttl[rule[0].start : rule[-1].end]


def _rule_days(rule: str) -> float | None:
    pieces = re.findall(r"INTERVAL\s+'?(\d+)'?\s+([A-Za-z]+)", rule, re.IGNORECASE)
    pieces += [(number, unit) for unit, number in re.findall(r"toInterval([A-Za-z]+)\(\s*(\d+)\s*\)", rule)]
    days = [float(number) * _UNIT_DAYS.get(unit.lower().rstrip("s"), 0.0) for number, unit in pieces]
    return sum(days) if days else None
