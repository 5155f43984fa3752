"""Mine, theirs and the base: every combination has its answer, and no edit is lost."""

from __future__ import annotations

import pytest

from chmv_assets.core.names import QName
from chmv_assets.core.pull import PulledFile
from chmv_assets.core.pull_plan import (
    Folder,
    Home,
    Step,
    digest_bytes,
    find_databases,
    next_manifest,
    plan_file,
    plan_pull,
    replace_statement,
)

NAME = QName("d", "t")
PATH = "10_tables/d/t.sql"
OLD, NEW, EDIT = (f"CREATE TABLE d.t ({column} Int8) ENGINE = Log" for column in "abc")


def pulled(statement: str = NEW, name: QName = NAME, path: str = PATH, hidden: int = 0) -> PulledFile:
    text = f"{statement};\n"
    return PulledFile(path=path, text=text, statement=statement, database="d", name=name, hidden=hidden)


def folder(mine: str | None, base: str | None, *, differs: bool = True, path: str = PATH) -> Folder:
    """A folder with one file, and the manifest of what pull wrote there."""
    return Folder(
        files={} if mine is None else {path: mine.encode()},
        manifest={} if base is None else {path: digest_bytes(f"{base};\n".encode())},
        objects={} if mine is None or "CREATE TABLE" not in mine else {NAME: Home(file=path, line=1)},
        differs={NAME: "column a"} if differs else {},
    )


@pytest.mark.parametrize(
    ("mine", "base", "theirs", "action"),
    [
        (None, None, NEW, "new"),
        (f"{NEW};\n", NEW, NEW, "unchanged"),
        (f"{NEW};\n", None, NEW, "unchanged"),  # the manifest was lost
        (f"{NEW};\n", OLD, NEW, "unchanged"),  # edited to what the server has by now
        (f"{OLD};\n", OLD, NEW, "updated"),
        (f"{EDIT};\n", OLD, NEW, "conflict"),
        (f"{EDIT};\n", NEW, NEW, "edited"),
        (f"{EDIT};\n", None, NEW, "conflict"),
        ("-- all gone\n", OLD, NEW, "conflict"),
        ("-- all gone\n", NEW, NEW, "edited"),
        (None, NEW, NEW, "deleted"),
        (None, OLD, NEW, "conflict"),
    ],
)
def test_three_texts_decide(mine: str | None, base: str | None, theirs: str, action: str) -> None:
    step = plan_file(pulled(theirs), folder(mine, base))
    assert step.action == action
    assert (step.after is None) == (action not in ("new", "updated"))
    assert bool(step.diff) == (action in ("updated", "conflict"))


@pytest.mark.parametrize("mine", [f"{EDIT};\n", "-- all gone\n", None])
@pytest.mark.parametrize("base", [OLD, NEW])
def test_with_permission_the_server_wins(mine: str | None, base: str) -> None:
    step = plan_file(pulled(), folder(mine, base), override=True)
    assert step.after == f"{NEW};\n".encode()
    assert step.digest == digest_bytes(step.after)


def test_an_edit_that_was_applied_is_no_conflict() -> None:
    """Edited here in one's own style, brought to the server: the texts differ, the meaning does not."""
    mine = "-- my own\nCREATE TABLE d.t (  b Int8 ) ENGINE=Log;\n"
    state = folder(mine, OLD, differs=False)
    step = plan_file(pulled(), state)
    assert (step.action, step.after) == ("declared", None)
    assert step.digest == digest_bytes(pulled().text.encode())
    unsure = Folder(
        files=state.files, manifest=state.manifest, objects={NAME: Home(file=PATH, line=2)}, unsure=frozenset({NAME})
    )
    assert plan_file(pulled(), unsure).action == "conflict"


def test_what_another_file_declares_stays_there() -> None:
    mine = f"SELECT 1;\n{EDIT}; -- mine\n"
    state = folder(mine, None, path="by_hand.sql")
    state = Folder(files=state.files, objects={NAME: Home(file="by_hand.sql", line=2)}, differs=state.differs)
    shown = plan_file(pulled(), state)
    assert (shown.action, shown.path, shown.after) == ("conflict", "by_hand.sql", None)
    assert "-CREATE TABLE d.t (c Int8)" in shown.diff
    taken = plan_file(pulled(), state, override=True)
    assert taken.after == f"SELECT 1;\n{NEW}; -- mine\n".encode()
    assert taken.digest == ""
    equal = Folder(files=state.files, objects=state.objects)
    assert plan_file(pulled(), equal).action == "declared"


def test_a_file_of_ours_follows_its_object_to_another_path() -> None:
    state = folder(f"{OLD};\n", OLD, path="30_views/d/t.sql")
    step = plan_file(pulled(), state)
    assert (step.action, step.path, step.removes) == ("moved", PATH, "30_views/d/t.sql")
    assert next_manifest([step], state.manifest, state.files) == {PATH: step.digest}


def test_a_hidden_secret_never_replaces_what_somebody_wrote() -> None:
    step = plan_file(pulled(hidden=1), folder(f"{EDIT};\n", OLD), override=True)
    assert (step.action, step.after) == ("conflict", None)
    assert "secret" in step.note


def test_several_objects_of_one_file_are_replaced_in_one_go() -> None:
    text = "CREATE TABLE d.a (x Int8);\n-- between\nCREATE TABLE d.b (x Int8); CREATE TABLE d.c (x Int8)\n"
    names = [QName("d", letter) for letter in "abc"]
    lines = (1, 3, 3)
    state = Folder(
        files={"all.sql": text.encode()},
        objects={name: Home(file="all.sql", line=line) for name, line in zip(names, lines, strict=True)},
        differs=dict.fromkeys(names, "x"),
    )
    files = [pulled(f"CREATE TABLE {name}\n(\n    y Int8\n)", name, f"{name}.sql") for name in names]
    steps = plan_pull(files, state, lambda _: True)
    body = "\n(\n    y Int8\n)"
    wanted = f"CREATE TABLE d.a{body};\n-- between\nCREATE TABLE d.b{body}; CREATE TABLE d.c{body}\n"
    assert steps[-1].after == wanted.encode()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_rest_of_a_file_stays_byte_for_byte(mark: bytes) -> None:
    text = "-- é\r\nUSE d;\r\n/* ; */ CREATE TABLE t (`ü` Int8) ;\r\nINSERT INTO t VALUES (';')"
    raw = mark + text.encode()
    found = replace_statement("a.sql", raw, NAME, 3, "CREATE TABLE d.t\n(x Int8)", "default")
    assert found == mark + text.replace("CREATE TABLE t (`ü` Int8)", "CREATE TABLE d.t\r\n(x Int8)").encode()


def test_utf16_stays_utf16() -> None:
    raw = "CREATE TABLE d.t (x Int8);\n".encode("utf-16")
    assert replace_statement("a.sql", raw, NAME, 1, NEW, "d") == f"{NEW};\n".encode("utf-16")


def test_a_renamed_table_is_left_to_people() -> None:
    state = Folder(files={"a.sql": b"CREATE TABLE d.old (x Int8); RENAME TABLE d.old TO d.t"}, objects={NAME: Home(file="a.sql", line=1)}, differs={NAME: "x"})  # fmt: skip
    step = plan_file(pulled(), state, override=True)
    assert (step.action, step.after) == ("conflict", None)


def test_databases_of_a_file_are_found() -> None:
    raw = b"-- x\nCREATE DATABASE IF NOT EXISTS `a b`;\ncreate database c ENGINE = Atomic;"
    assert {name: home.line for name, home in find_databases("a.sql", raw).items()} == {"a b": 2, "c": 3}


def test_the_manifest_keeps_what_is_there_and_forgets_the_rest() -> None:
    steps = [Step(path="a", action="new", subject="a", digest="1"), Step(path="b", action="edited", subject="b", digest="2")]  # fmt: skip
    assert next_manifest(steps, {"b": "2", "gone": "3", "kept": "4"}, ["b", "kept"]) == {
        "a": "1",
        "b": "2",
        "kept": "4",
    }
