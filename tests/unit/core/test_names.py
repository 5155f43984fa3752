"""Names: quoting and reading are inverse, whatever a name holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.names import QName, display_identifier, parse_qname, quote_identifier, unquote_identifier

ANY_NAME = st.text(min_size=1, max_size=20)
HOSTILE = [
    "a`b",
    "a``b",
    'a"b',
    "a.b",
    "a\\b",
    "a\\",
    "`",
    "\\`",
    "a\nb",
    "a\tb",
    "é",
    "😀",
    " ",
    "'",
    "--",
    "/*",
    "a;b",
    "\0",
    "\a\v",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_quoting_hostile_names_is_undone_by_reading(name: str) -> None:
    assert unquote_identifier(quote_identifier(name)) == name


@given(ANY_NAME)
def test_reading_undoes_quoting(name: str) -> None:
    assert unquote_identifier(quote_identifier(name)) == name


@given(ANY_NAME, ANY_NAME)
def test_a_qualified_name_survives_its_sql_and_its_display(database: str, table: str) -> None:
    name = QName(database, table)
    assert parse_qname(name.sql, "other") == name
    assert parse_qname(str(name), "other") == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("t", QName("d", "t")),
        ("a.t", QName("a", "t")),
        (" a . t ", QName("a", "t")),
        ('"a.b".`c.d`', QName("a.b", "c.d")),
        ("`a``b`", QName("d", "a`b")),
        ("a.`.inner.mv`", QName("a", ".inner.mv")),
        ("имя.表", QName("имя", "表")),
    ],
)
def test_names_as_people_write_them(text: str, name: QName) -> None:
    assert parse_qname(text, "d") == name


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", "a b", "`a", "a..b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a table name"):
        parse_qname(text, "d")


def test_only_plain_names_are_shown_bare() -> None:
    assert [display_identifier(name) for name in ("a_1", "1a", "a-b", "")] == ["a_1", "`1a`", "`a-b`", "``"]
