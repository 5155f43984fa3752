"""An object's code version: what its declaration says, not how it is written down. Offline, from tokens; Dagster calls assets stale by it.

White space, comments, COMMENT clauses, the case of keywords and common functions, quotes around plain names, IF NOT EXISTS, OR REPLACE,
ON CLUSTER and UUID do not change it. Everything else does: the query, target, columns, engine, keys, TTL, settings. Errors are on one side:
two texts of one meaning may differ (a CREATE with an ALTER against one CREATE), two meanings never agree. Words that are keywords but
used as names are kept apart by what `seal` adds: names of columns and what names in the query refer to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from chmv_assets.core.model import VIEW_KINDS, Object, ViewFacts
from chmv_assets.core.names import QName, unquote_identifier
from chmv_assets.core.tokens import Token

_KEYWORD_TEXT = """
    ADD AFTER ALIAS ALL ALTER AND ANTI ANY APPEND ARRAY AS ASC ASOF ASSUME BETWEEN BY CASE CHECK CODEC COLUMN CONSTRAINT CREATE CROSS DAY
    DEFAULT DEFINER DEPENDS DESC DICTIONARY DISTINCT DROP ELSE EMPTY END ENGINE EPHEMERAL EVERY EXCEPT EXISTS FILL FINAL FIRST FORMAT FROM FULL
    GLOBAL GRANULARITY GROUP GROUPING HAVING HOUR ILIKE IN INDEX INNER INTERPOLATE INTERSECT INTERVAL INTO IS JOIN KEY LAST LAYOUT LEFT
    LIFETIME LIKE LIMIT LIVE MATERIALIZED MINUTE MODIFY MONTH NOT NULL NULLS OFFSET ON OR ORDER OUTER OVER PARTITION POPULATE PREWHERE PRIMARY
    PROJECTION QUALIFY QUARTER QUERY RANDOMIZE RANGE REFRESH REMOVE RENAME RIGHT ROLLUP ROWS SAMPLE SECOND SECURITY SELECT SEMI SETS
    SETTING SETTINGS SOURCE SQL STEP TABLE THEN TIES TO TOTALS TTL TYPE UNION USING VIEW WATERMARK WEEK WHEN WHERE WINDOW WITH YEAR
    """
_KEYWORDS = frozenset(_KEYWORD_TEXT.split())
_FUNCTION_TEXT = "avg cast coalesce count extract if ifnull length lower max min now nullif round substring sum trim upper"  # of any case on the server
_FUNCTIONS = frozenset(_FUNCTION_TEXT.split())
_HEADS = ("CREATE", "ATTACH", "REPLACE")
_BEGINS_QUERY = ("SELECT", "WITH")


def version_of(tokens: Sequence[Token], before: str = "") -> str:
    """The version that a statement makes; of an ALTER with the version before it.

    >>> from chmv_assets.core.tokens import tokenize
    >>> def version(text): return version_of(tokenize(text)[0])
    >>> version("create view if not exists `v` AS select COUNT( *) from t -- all") == version("CREATE VIEW v AS SELECT count(*) FROM t")
    True
    >>> version("CREATE VIEW v AS SELECT 1") == version("CREATE VIEW v AS SELECT 2")
    False
    """
    return _digest([before, *_words(tokens)])


def seal(objects: Mapping[QName, Object], facts: Mapping[QName, ViewFacts]) -> dict[QName, Object]:
    """Add to every version what only linking knows: what names mean, how columns are spelled, and of a target the views that fill it.

    A target is computed from its views' queries, so it has another version as soon as one of them has.
    """
    versions = {name: _sealed(made, facts.get(name)) for name, made in objects.items() if made.code_version}
    filled: dict[QName, list[str]] = {}
    for name, made in objects.items():
        if made.kind in VIEW_KINDS and made.target in versions and name in versions:
            filled.setdefault(made.target, []).append(versions[name])
    versions.update({name: _digest([versions[name], *sorted(views)]) for name, views in filled.items()})
    return {
        name: replace(made, code_version=versions[name]) if name in versions else made for name, made in objects.items()
    }


def _sealed(made: Object, facts: ViewFacts | None) -> str:
    meant = sorted(f"{one.kind} {one.name}" for one in made.references)
    columns = [column.name for column in made.columns]
    given = [name for name, _ in facts.lineage] if facts is not None else []
    return _digest([made.code_version, str(made.target), *meant, "columns", *columns, "gives", *given])


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _words(tokens: Sequence[Token]) -> list[str]:
    """The tokens that count, each in one spelling; a keyword is marked, so that it never equals a name."""
    uppers = [token.text.upper() if token.kind == "word" else "" for token in tokens] + ["", "", ""]
    texts = [token.text for token in tokens] + ["", "", ""]
    found: list[str] = []
    at, head = 0, True
    while at < len(tokens):
        upper = uppers[at]
        if head:
            skipped = _head_noise(tokens, uppers, at)
            if skipped:
                at += skipped
                continue
            head = upper not in ("AS", "QUERY") and texts[at] != "("
        if not upper:
            found.append(unquote_identifier(texts[at]) if tokens[at].kind == "quoted" else texts[at])
        elif upper == "COMMENT" and at + 1 < len(tokens) and tokens[at + 1].kind == "string":
            at += 1
        elif upper == "ENGINE" and texts[at + 1] == "=":
            found.append("\1ENGINE")
            at += 1
        else:
            found.append(_spelling(uppers, texts, at))
            if texts[at + 1] == "(" and texts[at + 2] == ")" and _is_engine(uppers, texts, at):
                at += 2  # `MergeTree()` is `MergeTree`
        at += 1
    return found


def _head_noise(tokens: Sequence[Token], uppers: Sequence[str], at: int) -> int:
    """How many tokens of a statement's head say nothing of what it makes."""
    first, second = uppers[at], uppers[at + 1]
    if first == "IF" and second == "NOT" and uppers[at + 2] == "EXISTS":
        return 3
    if (first == "IF" and second == "EXISTS") or (at == 1 and first == "OR" and second == "REPLACE"):
        return 2
    if first == "ON" and second == "CLUSTER":
        return 3
    return 2 if first == "UUID" and at + 1 < len(tokens) and tokens[at + 1].kind == "string" else 0


def _is_engine(uppers: Sequence[str], texts: Sequence[str], at: int) -> bool:
    return at >= 1 and (uppers[at - 1] == "ENGINE" or (at >= 2 and texts[at - 1] == "=" and uppers[at - 2] == "ENGINE"))


def _spelling(uppers: Sequence[str], texts: Sequence[str], at: int) -> str:
    """The one spelling of a word."""
    text, upper = texts[at], uppers[at]
    if texts[at + 1] == "." or (at and texts[at - 1] == "."):
        return text
    if at == 0:
        return "\1CREATE" if upper in _HEADS else "\1" + upper
    if uppers[at - 1] == "AS" and upper not in _BEGINS_QUERY:
        return text  # an alias
    if upper in _KEYWORDS:
        return "\1" + upper
    return text.lower() if texts[at + 1] == "(" and text.lower() in _FUNCTIONS else text
