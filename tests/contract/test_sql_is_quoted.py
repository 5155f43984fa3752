"""Names and values reach SQL in one way: quoted by `core.names`, or bound. Read from the syntax tree of every module.

Two rules. No module but `core/names.py` puts a backtick beside something that is formatted into a text, unless the text is a message for people. No module
puts something formatted between single quotes in a text that is SQL; what does is listed here with the reason.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("chmv_assets", "resources", "sensors", "spark_jobs")
QUOTER = "chmv_assets/core/names.py"
SQL = re.compile(
    r"\b(SELECT|INSERT INTO|ALTER TABLE|CREATE (TABLE|DATABASE|VIEW|OR REPLACE)|DROP (TABLE|DATABASE|VIEW|COLUMN)|RENAME TABLE|EXCHANGE TABLES|OPTIMIZE TABLE"
    r"|SYSTEM [A-Z]+|FROM|WHERE|PARTITION|MODIFY (QUERY|SETTING|COLUMN|COMMENT)|GRANT|toDate|toDateTime|CAST|extract\w*|position|has)\b"
)
# Backticks that are no quoting of a name on the server: file, why.
OTHER_TICKS = {
    "chmv_assets/core/spelling.py": "marks a quoted word in a form that is compared, never sent",
    "spark_jobs/opinion_share.py": "Spark SQL: names that we have numbered",
    "resources/refresh.py": "a statement in a sentence for people",
    "sensors/view_health_verdict.py": "a statement in a sentence for people",
}
# Texts with a value between quotes that may stay: file, a piece of the text, why.
ALLOWED = {
    (
        "chmv_assets/core/windows.py",
        "toDateTime",
    ): "a moment that this function has formatted itself: digits, blanks and colons",
    ("chmv_assets/core/gate.py", "extractAllGroupsVertical"): "a pattern of ours, a constant",
    ("chmv_assets/core/gate.py", "position(create_table_query"): "a prefix of ours, a constant",
    ("resources/health.py", "WHERE engine"): "the name of an engine, a constant",
    ("spark_jobs/moments.py", ""): "Spark SQL: names of units and zones that `zoneinfo` knows",
}


def texts(tree: ast.AST) -> Iterator[ast.JoinedStr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))


def constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def whole(text: ast.JoinedStr) -> str:
    return "".join(constant(piece) or "\N{REPLACEMENT CHARACTER}" for piece in text.values)


def between(text: ast.JoinedStr, quote: str) -> bool:
    """Whether something formatted stands right between two quotes."""
    values = text.values
    return any(
        isinstance(values[at], ast.FormattedValue)
        and constant(values[at - 1]).endswith(quote)
        and constant(values[at + 1]).startswith(quote)
        for at in range(1, len(values) - 1)
    )


def beside(text: ast.JoinedStr, quote: str) -> bool:
    pairs = list(itertools.pairwise(text.values))
    before = (constant(one).endswith(quote) and isinstance(two, ast.FormattedValue) for one, two in pairs)
    after = (constant(two).startswith(quote) and isinstance(one, ast.FormattedValue) for one, two in pairs)
    return any(before) or any(after)


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple((path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


def found_backticks(name: str, tree: ast.Module) -> list[str]:
    """Texts that are SQL, or nothing but a name, with a backtick beside what is formatted."""
    shown = (whole(text) for text in texts(tree) if beside(text, "`"))
    return [f"{name}: {text}" for text in shown if (SQL.search(text) and " but wanted " not in text) or len(text) <= 4]


def found_values(name: str, tree: ast.Module) -> list[str]:
    shown = (whole(text) for text in texts(tree) if between(text, "'"))
    return [
        f"{name}: {text}"
        for text in shown
        if SQL.search(text)
        and " but wanted " not in text
        and not any(name == file and piece in text for file, piece in ALLOWED)
    ]


def test_only_core_names_puts_names_between_backticks() -> None:
    found = {name: ticks for name, tree in modules() if name != QUOTER and (ticks := found_backticks(name, tree))}
    assert set(found) == set(OTHER_TICKS), found


def test_no_value_is_formatted_into_sql_between_quotes() -> None:
    assert [one for name, tree in modules() if name != QUOTER for one in found_values(name, tree)] == []


def test_every_exception_is_still_there() -> None:
    held = {name: [whole(text) for text in texts(tree) if between(text, "'")] for name, tree in modules()}
    assert [entry for entry in ALLOWED if not any(entry[1] in text for text in held.get(entry[0], []))] == []


def test_percent_and_format_do_not_make_sql() -> None:
    """The older ways to put values into a text are not used for SQL at all."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and SQL.search(constant(node.left)))
    ]
    assert found == []


def test_the_rules_find_what_they_are_for() -> None:
    bad = ast.parse(
        """a = f"SELECT * FROM `{table}`"\nb = f"SELECT 1 WHERE x = '{value}'"\nc = f"`{name}`"\nd = "SELECT '%s'" % x"""
    )
    assert len(found_backticks("x", bad)) == 2 and len(found_values("x", bad)) == 1
    good = ast.parse(
        """a = f"SELECT * FROM {table.sql} WHERE x = {{x:String}}"\nb = f"file `{name}`: found `{x}` but wanted a SELECT." """
    )
    assert found_backticks("x", good) == found_values("x", good) == []
