"""Declared against live, object by object, in three states: equal, changed, cannot tell.

Both sides are read by the same reader from texts that the server has formatted, so spelling and white space do not count.
What the server adds by itself (default settings, the primary key it derives, qualified names, its own user as definer, the path of a
replica) does not count either, nor do a cluster in ON CLUSTER and our own gates.

`Difference.what` is one of: `KIND`, `ENGINE`, `engine arguments`, `PARTITION BY`, `ORDER BY`, `PRIMARY KEY`, `SAMPLE BY`, `TTL`, `COMMENT`,
`target`, `query`, `refresh`, `security`, `hook`, `order of columns`; with a name behind it `column X` (one side has it), `type of X`,
`default of X`, `comment of X`, `codec of X`, `ttl of X`, `column settings of X`, `statistics of X`, `attributes of X` (a dictionary's),
`index X`, `projection X`, `constraint X`, `setting X`; of dictionaries `primary key`, `source`, `layout`, `lifetime`, `range`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from chmv_assets.core.compare_columns import compare_columns
from chmv_assets.core.engine_forms import dictionary_source_form, engine_argument_forms, engine_name, own_engine
from chmv_assets.core.gate import GATE_PREFIX
from chmv_assets.core.model import VIEW_KINDS, Object, Refresh, family
from chmv_assets.core.secrets import mask_known
from chmv_assets.core.spelling import BUILTIN, Form, Vocabulary, parts_of
from chmv_assets.core.verdict_parts import Comparison, Difference, Findings, State

__all__ = ["Comparison", "Difference", "State", "compare_objects"]
_NOT_TABLES = (*VIEW_KINDS, "view", "dictionary")
_LISTED = ("index ", "projection ", "constraint ")
_COARSE_INDEXES = ("vector_similarity", "text")  # whose granules are as large as can be unless it is declared
_COARSE = "100000000"


def compare_objects(
    declared: Object, live: Object, default_database: str, vocabulary: Vocabulary = BUILTIN
) -> Comparison:
    """Compare two readings of one object; unqualified names belong to the default database."""
    found = Findings(default_database, vocabulary)
    if _sort(declared) != _sort(live):
        found.differ("KIND", declared.kind, live.kind)
        if not {declared.kind, live.kind} <= set(VIEW_KINDS):
            return found.verdict()
    if declared.kind == "dictionary":
        _compare_dictionary(found, declared, live)
    elif declared.kind in _NOT_TABLES:
        _compare_view(found, declared, live)
        _compare_storage(found, declared, live)
    else:
        _compare_storage(found, declared, live)
    if declared.columns and (live.columns or declared.kind not in _NOT_TABLES):
        compare_columns(found, declared.columns, live.columns)
    if declared.comment != live.comment:
        found.differ("COMMENT", declared.comment, live.comment)
    _compare_settings(found, declared, live)
    return _without_secrets(found.verdict(), declared, live)


def _without_secrets(verdict: Comparison, declared: Object, live: Object) -> Comparison:
    """Differences are shown to people. What stands in a statement of ours later (indexes, projections, constraints) stays as it is."""
    shown = tuple(
        one
        if one.what.startswith(_LISTED)
        else replace(one, declared=mask_known(one.declared, declared.sql), live=mask_known(one.live, live.sql))
        for one in verdict.differences
    )
    return replace(verdict, differences=shown)


def _sort(made: Object) -> str:
    return made.kind if made.kind in _NOT_TABLES else "table"


def _compare_view(found: Findings, declared: Object, live: Object) -> None:
    if declared.target != live.target:
        found.differ("target", str(declared.target), str(live.target))
    found.judge("query", declared.select, live.select)
    if declared.kind == live.kind:
        one, two = _refresh_form(found, declared.refresh), _refresh_form(found, live.refresh)
        found.judge_forms("refresh", _refresh_text(declared.refresh), _refresh_text(live.refresh), one, two)
    _compare_security(found, declared, live)


def _refresh_form(found: Findings, refresh: Refresh | None) -> Form:
    if refresh is None:
        return ()
    after = [f"'{name}" for name in sorted(map(str, refresh.depends_on))]
    settings = [f"'{key}={_value(value)}" for key, value in sorted(refresh.settings)]
    return (*found.form(refresh.schedule.upper()), *after, "APPEND" if refresh.append else "", *settings)


def _refresh_text(refresh: Refresh | None) -> str:
    if refresh is None:
        return ""
    after = f" DEPENDS ON {', '.join(map(str, refresh.depends_on))}" if refresh.depends_on else ""
    settings = (
        f" SETTINGS {', '.join(f'{key} = {value}' for key, value in refresh.settings)}" if refresh.settings else ""
    )
    return f"{refresh.schedule}{after}{settings}{' APPEND' if refresh.append else ''}"


def _compare_security(found: Findings, declared: Object, live: Object) -> None:
    """Who a view reads as. The creator is the definer unless another is declared, and the server always writes it down."""
    if not live.security and not declared.security:
        return
    kind = "normal" if declared.kind == "view" else "materialized"
    usual = found.vocabulary.settings.get(f"default_{kind}_view_sql_security", "")
    (definer, mine), (live_definer, theirs) = (_read_security(found, one.security) for one in (declared, live))
    mine = mine or ("DEFINER" if definer else usual)
    differs = bool(mine and theirs) and mine != theirs
    named = bool(definer) and definer.upper() != "CURRENT_USER" and mine == "DEFINER"
    if differs or (named and definer != live_definer) or (bool(declared.security) and not live.security):
        found.differ("security", declared.security, live.security)


def _read_security(found: Findings, text: str) -> tuple[str, str]:
    form = found.form(text)
    definer = form[form.index("=") + 1] if "=" in form[:-1] else ""
    kind = re.search(r"SQL\s+SECURITY\s+(\w+)", text, re.IGNORECASE)
    return definer.lstrip("`'"), kind.group(1).upper() if kind else ""


def _compare_storage(found: Findings, declared: Object, live: Object) -> None:
    """Engine and keys of a table, or of the inner table of a view."""
    name, live_name = engine_name(declared, live), engine_name(live, declared)
    if name != live_name:
        found.differ("ENGINE", name, live_name)
    one = engine_argument_forms(declared, found.database, found.vocabulary)
    two = engine_argument_forms(live, found.database, found.vocabulary)
    found.judge_lists("engine arguments", declared.engine_args, live.engine_args, one, two)
    for what, mine, theirs in (
        ("PARTITION BY", declared.partition_by, live.partition_by),
        ("ORDER BY", declared.order_by or declared.primary_key, live.order_by or live.primary_key),
        ("PRIMARY KEY", declared.primary_key or declared.order_by, live.primary_key or live.order_by),
        ("SAMPLE BY", declared.sample_by, live.sample_by),
    ):
        if what != "PRIMARY KEY" or declared.primary_key or live.primary_key:
            found.judge_lists(what, mine, theirs, found.parts(mine), found.parts(theirs))
    found.judge_lists("TTL", declared.ttl, live.ttl, _ttl_forms(found, declared.ttl), _ttl_forms(found, live.ttl))
    for what, field in (("index", "indexes"), ("projection", "projections"), ("constraint", "constraints")):
        _compare_listed(found, what, dict(getattr(declared, field)), dict(getattr(live, field)))


def _ttl_forms(found: Findings, text: str) -> tuple[Form, ...]:
    """Deleting is what a TTL does unless it says something else."""
    return tuple(
        tuple(word for i, word in enumerate(form) if i == 0 or word.upper() != "DELETE") for form in found.parts(text)
    )


def _compare_listed(found: Findings, what: str, mine: dict[str, str], theirs: dict[str, str]) -> None:
    for name in dict.fromkeys((*mine, *theirs)):
        if name.startswith(GATE_PREFIX):
            continue
        one, two = mine.get(name, ""), theirs.get(name, "")
        if not one or not two:
            found.differ(f"{what} {name}", one, two)
        elif what == "index":
            found.judge_forms(f"index {name}", one, two, _index_form(found, one), _index_form(found, two))
        else:
            found.judge(f"{what} {name}", one, two)


def _index_form(found: Findings, text: str) -> Form:
    form = found.form(text)
    granularity = "1"
    if len(form) > 2 and form[-2].upper() == "GRANULARITY":
        form, granularity = form[:-2], form[-1]
    at = max((i for i, word in enumerate(form) if word.upper() == "TYPE"), default=len(form))
    kind = form[at + 1 : -2] if form[-2:] == ("(", ")") else form[at + 1 :]
    if kind and kind[0].lower() in _COARSE_INDEXES and granularity == "1":
        granularity = _COARSE
    expression = (word for part in parts_of(form[:at]) for word in (*part, ","))
    return (*expression, "TYPE", *(word.lower() if i == 0 else word for i, word in enumerate(kind)), granularity)


def _compare_dictionary(found: Findings, declared: Object, live: Object) -> None:
    keys = declared.primary_key, live.primary_key
    found.judge_lists("primary key", *keys, found.parts(keys[0]), found.parts(keys[1]))
    mine, theirs = dict(declared.dictionary), dict(live.dictionary)
    for what in ("source", "layout", "lifetime", "range"):
        one, two = mine.get(what, ""), theirs.get(what, "")
        if what == "source":
            database = declared.name.database
            forms = dictionary_source_form(one, database), dictionary_source_form(two, database)
        else:
            forms = _clause_form(found, one), _clause_form(found, two)
        found.judge_forms(what, one, two, *forms)


def _clause_form(found: Findings, text: str) -> Form:
    """`HASHED()` and `hashed` are one layout; `300` and `MIN 0 MAX 300` one lifetime."""
    form = found.form(text)
    form = form[:-2] if form[-2:] == ("(", ")") else form
    if len(form) == 1 and form[0].isdigit():
        form = ("MIN", "0", "MAX", *form)
    return tuple(word.upper() if word.upper() in ("MIN", "MAX") or i == 0 else word for i, word in enumerate(form))


def _compare_settings(found: Findings, declared: Object, live: Object) -> None:
    """A setting that is not named has the value that the server gives it."""
    usual = found.vocabulary.table_settings if family(own_engine(declared)[0]) else {}
    mine, theirs = dict(declared.settings), dict(live.settings)
    for key in dict.fromkeys((*mine, *theirs)):
        one, two = (side.get(key, usual.get(key, "")) for side in (mine, theirs))
        missing = (key in mine) != (key in theirs) and key not in usual
        if missing:
            found.differ(f"setting {key}", mine.get(key, ""), theirs.get(key, ""))
        else:
            forms = (f"'{_value(one)}",), (f"'{_value(two)}",)
            found.judge_forms(f"setting {key}", mine.get(key, ""), theirs.get(key, ""), *forms)


def _value(text: str) -> str:
    """A setting's value: numbers by value, switches as numbers."""
    plain = {"true": "1", "false": "0"}.get(text.lower(), text)
    try:
        return str(Decimal(plain).normalize())
    except InvalidOperation:
        return plain
