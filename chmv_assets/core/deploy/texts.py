"""CREATE statements with another head: under another name, or so that they replace what is there. Every other character stays."""

from __future__ import annotations

from dataclasses import replace

from chmv_assets.core.clause_reader import read_name
from chmv_assets.core.deploy.changes import Switch
from chmv_assets.core.names import QName
from chmv_assets.core.secrets import mask_secrets
from chmv_assets.core.tokens import Cursor, tokenize

_KINDS = (("MATERIALIZED", "VIEW"), ("WINDOW", "VIEW"), ("LIVE", "VIEW"), ("VIEW",), ("DICTIONARY",), ("TABLE",))


def create_or_replace(sql: str) -> str:
    """The same statement, so that an object of that name is exchanged for the new one.

    >>> create_or_replace("CREATE VIEW IF NOT EXISTS a.b AS SELECT 1")
    'CREATE OR REPLACE VIEW a.b AS SELECT 1'
    """
    kind, name, _, rest = _split(sql)
    return f"CREATE OR REPLACE {kind} {name}{rest}"


def create_if_missing(sql: str) -> str:
    """The same statement; it does nothing where the object is there.

    >>> create_if_missing("CREATE OR REPLACE TABLE a.b (x UInt8) ENGINE = Null")
    'CREATE TABLE IF NOT EXISTS a.b (x UInt8) ENGINE = Null'
    >>> create_if_missing("REPLACE TABLE a.b AS a.c"), create_if_missing("CREATE WINDOW VIEW a.b TO a.c AS SELECT 1")
    ('CREATE TABLE IF NOT EXISTS a.b AS a.c', 'CREATE WINDOW VIEW IF NOT EXISTS a.b TO a.c AS SELECT 1')
    """
    kind, name, _, rest = _split(sql)
    return f"CREATE {kind} IF NOT EXISTS {name}{rest}"


def with_name(sql: str, name: QName) -> str:
    """The same statement for an object of another name, where there is none yet.

    >>> with_name("create table if not exists `a`.b (x UInt8) ENGINE = Null", QName("c", "d.e"))
    'CREATE TABLE IF NOT EXISTS `c`.`d.e` (x UInt8) ENGINE = Null'
    """
    kind, _, _, rest = _split(sql)
    return f"CREATE {kind} IF NOT EXISTS {name.sql}{rest}"


def find_standing(switch: Switch, text: str) -> Switch:
    """The same switch of a cutover that is done again, with what stands now as what was before; `text` is the server's word of the view, if it has it.

    >>> view = Switch(view=QName("a", "v"), before="CREATE MATERIALIZED VIEW a.v TO a.t AS SELECT 1", after="CREATE MATERIALIZED VIEW a.v TO a.t AS SELECT 2")
    >>> [find_standing(view, text).before[-1] for text in (view.before, "CREATE MATERIALIZED VIEW a.v TO a.t (`2` UInt8) AS SELECT 2", "")]
    ['1', '2', '2']
    >>> find_standing(replace(view, before=""), "").before
    ''
    """
    if text and mask_secrets(text) == mask_secrets(switch.before):
        return switch
    return replace(switch, before=switch.after if text or switch.before else "")


def _split(sql: str) -> tuple[str, str, int, str]:
    """Kind, name as written, where it ends, and all that follows (an UUID of the old object left out)."""
    tokens, _ = tokenize(sql)
    cursor = Cursor(sql, tokens)
    cursor.next()
    cursor.take_words("OR", "REPLACE")
    kind = next((" ".join(words) for words in _KINDS if cursor.take_words(*words)), "TABLE")
    cursor.take_words("IF", "NOT", "EXISTS")
    first = cursor.at
    read_name(cursor, "")
    name = cursor.slice(first, cursor.at)
    end = cursor.tokens[cursor.at - 1].end
    if cursor.take_words("UUID"):
        cursor.next()
        end = cursor.tokens[cursor.at - 1].end
    return kind, name, end, sql[end:]
