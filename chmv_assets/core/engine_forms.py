"""Engines and dictionary sources in one spelling: the server turns names into strings and adds the path of a replica.

Pure; which argument of which engine is a name is known here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from chmv_assets.core.model import VIEW_KINDS, Object, family
from chmv_assets.core.names import unquote_identifier
from chmv_assets.core.spelling import Form, Vocabulary, spell, token_word
from chmv_assets.core.tokens import Cursor, Token, split_commas, string_value, tokenize

_NAMES = {"Distributed": (0, 1, 2, 4), "Buffer": (0, 1), "Merge": (0, 1)}
_DATABASES = {"Distributed": 1, "Buffer": 0, "Merge": 0}
_REPLICATED = re.compile(r"^(Replicated|Shared)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PATH, _REPLICA = "default_replica_path", "default_replica_name"
_USUAL = {_PATH: "/clickhouse/tables/{uuid}/{shard}", _REPLICA: "{replica}"}


def own_engine(made: Object) -> tuple[str, str]:
    """Name and arguments of the engine that stores; a view without TO has its inner table's."""
    if made.kind not in VIEW_KINDS:
        return made.engine, made.engine_args
    name, bracket, arguments = made.engine_args.partition("(")
    if not bracket and made.target is not None and made.target.table.startswith(".inner"):
        name = "MergeTree"
    return name, arguments.removesuffix(")")


def engine_name(made: Object, other: Object) -> str:
    """The engine's name; what ClickHouse Cloud puts in its place is the same engine."""
    name, theirs = own_engine(made)[0], own_engine(other)[0]
    if name != theirs and "Shared" in (name[:6], theirs[:6]):
        return _REPLICATED.sub("", name)
    return name


def engine_argument_forms(made: Object, database: str, vocabulary: Vocabulary) -> tuple[Form, ...]:
    """The arguments one by one. The path of a replica is left out where it is the one that the server takes by itself."""
    name, text = own_engine(made)
    tokens, _ = tokenize(text)
    parts = [part for part in split_commas(tokens) if part]
    if name in _NAMES:
        return tuple(_named(name, at, text, part, database, vocabulary) for at, part in enumerate(parts))
    forms = [spell(text[part[0].start : part[-1].end], database, vocabulary) for part in parts]
    if _REPLICATED.match(name) and family(name):
        forms = _replica_forms(forms, made, vocabulary)
    return tuple(forms)


def _named(engine: str, at: int, text: str, part: Sequence[Token], database: str, vocabulary: Vocabulary) -> Form:
    """An argument that may be a name: the server keeps names as strings, and an empty database as the session's."""
    if at in _NAMES[engine]:
        value = None
        if len(part) == 1 and part[0].kind in ("word", "quoted", "string"):
            value = string_value(part[0].text) if part[0].kind == "string" else unquote_identifier(part[0].text)
        elif len(part) == 3 and part[0].text.lower() in ("currentdatabase", "database"):
            value = ""
        if value is not None:
            return (f"'{value or database}",) if at == _DATABASES[engine] else (f"'{value}",)
    return spell(text[part[0].start : part[-1].end], database, vocabulary)


def _replica_forms(forms: list[Form], made: Object, vocabulary: Vocabulary) -> list[Form]:
    """`('/path', 'replica', rest…)`: macros that the server resolves when it creates the table, and the usual path left out."""
    if not (len(forms) >= 2 and all(len(form) == 1 and form[0].startswith("'") for form in forms[:2])):
        return forms
    path, replica = (form[0][1:] for form in forms[:2])
    settings = {**_USUAL, **{key: vocabulary.settings[key] for key in _USUAL if key in vocabulary.settings}}
    path, usual = (_resolved(one, made) for one in (path, settings[_PATH]))
    if (path, replica) == (usual, settings[_REPLICA]):
        return forms[2:]
    return [(f"'{path}",), (f"'{replica}",), *forms[2:]]


def _resolved(path: str, made: Object) -> str:
    path = path.replace("{database}", made.name.database).replace("{table}", made.name.table)
    return _UUID.sub("{uuid}", path)


def dictionary_source_form(text: str, database: str) -> Form:
    """`CLICKHOUSE(TABLE 'x' DB 'd')`: pairs in any order; a table without a database is one of the dictionary's."""
    tokens, _ = tokenize(text)
    cursor = Cursor(text, tokens)
    kind = cursor.next().text.upper()
    if not cursor.peek().is_op("("):
        return (kind,)
    first, last = cursor.skip_group()
    pairs = _pairs(tokens[first:last])
    if kind == "CLICKHOUSE" and "TABLE" in pairs:
        pairs.setdefault("DB", (f"'{database}",))
    return (kind, *(word for key in sorted(pairs) for word in (key, *pairs[key])))


def _pairs(tokens: Sequence[Token]) -> dict[str, Form]:
    """`KEY value KEY value`; a value is a literal, a word, a call, or a group in brackets."""
    cursor = Cursor("", tokens)
    pairs: dict[str, Form] = {}
    while not cursor.done:
        key = cursor.next().text.upper()
        first = cursor.at
        if not cursor.peek().is_op("("):
            cursor.next()
        if cursor.peek().is_op("("):
            cursor.skip_group()
        value = tokens[first : cursor.at]
        one = value[0] if len(value) == 1 else None
        names = one is not None and one.kind in ("word", "quoted")
        pairs[key] = (f"'{unquote_identifier(value[0].text)}",) if names else tuple(map(token_word, value))
    return pairs
