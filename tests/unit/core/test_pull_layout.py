"""Files of a pull: order, names that lead nowhere else, and a path of its own for every object."""

from __future__ import annotations

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.catalog import natural_key
from chmv_assets.core.model import NodeKind
from chmv_assets.core.names import QName
from chmv_assets.core.pull import Pulled, PulledDatabase, escape_file_name, lay_out

KINDS: list[NodeKind] = ["table", "dictionary", "materialized_view", "view", "distributed"]


def one(table: str, kind: NodeKind = "table", needs: tuple[str, ...] = (), database: str = "d") -> Pulled:
    wanted = frozenset(QName("d", name) for name in needs)
    return Pulled(name=QName(database, table), kind=kind, statement=f"CREATE {table}", needs=wanted)


def paths(*objects: Pulled) -> list[str]:
    return [file.path for file in lay_out(objects, [])]


def test_tables_dictionaries_views_and_views_over_views() -> None:
    found = paths(
        one("v2", "view", ("v1",)), one("v1", "view", ("t", "x")), one("x", "dictionary", ("t",)), one("t"),
        one("mv", "materialized_view", ("t", "elsewhere")), one("looks_up", "table", ("x",)),
    )  # fmt: skip
    assert found == [
        "10_tables/d/t.sql",
        "20_dictionaries/d/x.sql",
        "21_tables/d/looks_up.sql",
        "30_views/d/mv.sql",
        "30_views/d/v1.sql",
        "31_views/d/v2.sql",
    ]


def test_databases_come_first() -> None:
    files = lay_out([one("t")], [PulledDatabase(name="d", comment="it's\nmine")])
    assert [file.path for file in files] == ["00_databases/d.sql", "10_tables/d/t.sql"]
    assert files[0].text == "CREATE DATABASE IF NOT EXISTS `d`\nCOMMENT 'it\\'s\\nmine';\n"


def test_a_circle_has_some_order() -> None:
    assert len(paths(one("a", "view", ("b",)), one("b", "view", ("a",)))) == 2


def test_names_that_differ_in_case_only_have_different_files() -> None:
    found = paths(one("Events"), one("events"), one("other"))
    assert len({path.casefold() for path in found}) == 3
    assert "10_tables/d/other.sql" in found


def test_one_more_object_moves_no_other_file() -> None:
    before = paths(one("a"), one("v", "view", ("a",)))
    assert set(before) < set(paths(one("a"), one("v", "view", ("a",)), one("b"), one("w", "view", ("v", "b"))))


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=20))
def test_no_name_leads_out_of_the_folder(table: str, database: str) -> None:
    (path,) = paths(Pulled(name=QName(database, table), kind="table", statement="x"))
    parts = PurePosixPath(path).parts
    assert len(parts) == 3 and parts[0] == "10_tables" and not any(part.startswith(".") for part in parts)
    assert path.isascii() and path.isprintable() and all(len(part) <= 200 for part in parts)
    assert "\\" not in path and not path.endswith(".down.sql")


@given(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=6))
def test_escaped_names_are_as_different_as_the_names(names: list[str]) -> None:
    assert len({escape_file_name(name) for name in names}) == len(names)
    assert len({path.casefold() for path in paths(*(one(name) for name in names))}) == len(names)


@st.composite
def catalogs(draw: st.DrawFn) -> list[Pulled]:
    """Objects that need earlier ones, in databases whose names are in no order."""
    count = draw(st.integers(1, 10))
    names = [QName(draw(st.sampled_from(["b", "a", "Z"])), f"o{draw(st.integers(0, 9))}_{i}") for i in range(count)]
    kinds = st.sampled_from(KINDS)
    return [
        Pulled(name=name, kind=draw(kinds), statement="x", needs=frozenset(draw(st.sets(st.sampled_from(names[:i])))) if i else frozenset())
        for i, name in enumerate(names)
    ]  # fmt: skip


@given(catalogs())
def test_in_the_order_of_files_everything_stands_after_what_it_needs(objects: list[Pulled]) -> None:
    files = lay_out(objects, [])
    for ordered in (
        sorted(files, key=lambda file: file.path),
        sorted(files, key=lambda file: natural_key(file.path)),
    ):
        seen: set[QName] = set()
        for file in ordered:
            assert file.name is not None
            needs = next(made.needs for made in objects if made.name == file.name)
            assert needs <= seen
            seen.add(file.name)
