"""The lexer: tokens are slices of the text, comments and white space are left out, nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.core.tokens import Cursor, Lines, split_commas, string_value, tokenize

SQLISH = st.text(alphabet="ab1.,;()[]{}`'\"\\/*-#$%! \n\t=<>:é😀", max_size=60)


def texts(sql: str) -> list[str]:
    return [token.text for token in tokenize(sql)[0]]


@given(SQLISH)
def test_tokens_are_ordered_slices_of_the_text(sql: str) -> None:
    tokens, broken = tokenize(sql)
    end = 0
    for token in tokens:
        assert token.start >= end
        assert token.text == sql[token.start : token.end] != ""
        end = token.end
    assert broken is None or broken.offset >= end


@given(SQLISH)
def test_white_space_after_a_token_changes_no_token(sql: str) -> None:
    tokens, broken = tokenize(sql)
    if broken is None and tokens:
        respaced = "\n".join(token.text for token in tokens)
        again = texts(respaced)
        # `#` begins a comment only before white space; a `{%` that nothing ends is three letters, with white space in it a parameter
        assert again == [token.text for token in tokens] or "#" in sql or "{%" in sql


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("a -- b\nc", ["a", "c"]),
        ("a /* b /* c */ d */ e", ["a", "e"]),
        ("a # b\nc", ["a", "c"]),
        ("'a''b' 'a\\'b'", ["'a''b'", "'a\\'b'"]),
        ('`a``b` "a""b"', ["`a``b`", '"a""b"']),
        ("$$a'b$$ $x$ $$ $x$", ["$$a'b$$", "$x$ $$ $x$"]),
        ("a.1.2 1.5 .5 1e-3 0xFF 1_000", ["a", ".1", ".2", "1.5", ".5", "1e-3", "0xFF", "1_000"]),
        ("a::UInt8 x->x a<=>b", ["a", "::", "UInt8", "x", "->", "x", "a", "<=>", "b"]),
        ("${db}.t {{ ref('x') }} {p:UInt8}", ["${db}", ".", "t", "{{ ref('x') }}", "{p:UInt8}"]),
        ("\ufeffa\u00a0b", ["a", "b"]),
    ],
)
def test_tokens_of(sql: str, wanted: list[str]) -> None:
    assert texts(sql) == wanted


@pytest.mark.parametrize(
    ("sql", "what", "offset"),
    [("a 'b", "a string", 2), ("a `b", "a quoted name", 2), ('a "b', "a quoted name", 2), ("a /* b", "a comment", 2)],
)
def test_what_never_ends_is_named(sql: str, what: str, offset: int) -> None:
    tokens, broken = tokenize(sql)
    assert [token.text for token in tokens] == ["a"]
    assert broken is not None
    assert (broken.what, broken.offset) == (what, offset)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\nb\tc'", "a\nb\tc"),
        (r"'a\\nb'", r"a\nb"),
        (r"'\\'", "\\"),
        ("$$it's$$", "it's"),
        ("$x$a$$b$x$", "a$$b"),
        (r"'\x41'", "A"),
        (r"'100\%'", r"100\%"),
    ],
)
def test_string_values_are_what_the_server_reads(literal: str, value: str) -> None:
    assert string_value(literal) == value


def test_lines_are_counted_from_one() -> None:
    lines = Lines("a\nb\n\nc")
    assert [lines.line(at) for at in range(6)] == [1, 1, 2, 2, 3, 4]


def test_commas_in_brackets_do_not_split() -> None:
    parts = split_commas(tokenize("a(b, c), [d, e], f")[0])
    assert [" ".join(token.text for token in part) for part in parts] == ["a ( b , c )", "[ d , e ]", "f"]
    assert split_commas([]) == []


def test_cursor_stays_at_the_end() -> None:
    text = "a (b"
    cursor = Cursor(text, tokenize(text)[0])
    cursor.next()
    assert cursor.skip_group() == (2, 3)
    assert (cursor.done, cursor.next().kind, cursor.peek(5).kind) == (True, "end", "end")


def test_statements_know_their_lines_and_leave_nothing_out() -> None:
    text = "-- first\nCREATE TABLE a (x String DEFAULT ';');\n\n  /* ; */ DROP TABLE b ;;\nUSE c"
    statements, findings = split_statements(SourceFile(path="f.sql", text=text))
    assert [(s.text, str(s.place)) for s in statements] == [
        ("CREATE TABLE a (x String DEFAULT ';')", "f.sql:2"),
        ("DROP TABLE b", "f.sql:4"),
        ("USE c", "f.sql:5"),
    ]
    assert findings == []


def test_an_open_quote_costs_only_the_last_statement() -> None:
    statements, findings = split_statements(SourceFile(path="f.sql", text="USE a; USE b;\nUSE 'c"))
    assert [s.text for s in statements] == ["USE a", "USE b"]
    assert [(f.code, str(f.place)) for f in findings] == [("unterminated", "f.sql:2")]
