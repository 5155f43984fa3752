"""What a pull does with each file: three texts decide, as in a merge. Pure; who reads and writes them is `chmv_assets.pull`.

The base is what pull wrote last (its digest is in the manifest), mine is the file as it is, theirs is what the server says now.
Invariant: a text that somebody edited is replaced only where that was asked for, and then only the statement of the one object; the
rest of the file stays byte for byte. An object that another file declares is left there, in whatever form.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from chmv_assets.core.clause_reader import read_name
from chmv_assets.core.ddl_reader import read_create
from chmv_assets.core.model import Finding
from chmv_assets.core.names import QName
from chmv_assets.core.pull import PulledFile
from chmv_assets.core.pull_text import with_cluster
from chmv_assets.core.statements import Statement, decode_source, split_statements
from chmv_assets.core.tokens import Cursor

Action = Literal[
    "new",  # written, nothing was there
    "updated",  # written: the file was as pull wrote it last
    "moved",  # the same at another path, since what it needs has changed
    "accepted",  # written over an edit, as was asked for
    "unchanged",  # the file says what the server says
    "declared",  # declared elsewhere or by hand, and equal
    "edited",  # edited here, unchanged on the server: kept
    "deleted",  # deleted here, unchanged on the server: kept away
    "conflict",  # edited here and different on the server: kept, shown
    "gone",  # not on the server any more: kept
]
WRITTEN: tuple[Action, ...] = ("new", "updated", "moved", "accepted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One file, what becomes of it, and why."""

    path: str
    action: Action
    subject: str
    after: bytes | None = None  # the new content, where something is written
    removes: str = ""  # the file that it was in before
    digest: str = ""  # for the manifest: of the server's text
    diff: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a folder declares an object."""

    file: str
    line: int
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A DDL folder as it is."""

    files: Mapping[str, bytes] = field(default_factory=dict)  # the .sql files
    manifest: Mapping[str, str] = field(default_factory=dict)  # path → digest of what pull wrote last
    objects: Mapping[QName, Home] = field(default_factory=dict)
    databases: Mapping[str, Home] = field(default_factory=dict)
    differs: Mapping[QName, str] = field(default_factory=dict)  # declared, and not what the server has: in what
    unsure: frozenset[QName] = frozenset()  # declared, and nobody can tell whether it is what the server has
    default_database: str = "default"

    def home(self, file: PulledFile) -> Home | None:
        return self.databases.get(file.database) if file.name is None else self.objects.get(file.name)

    def is_equal(self, name: QName, *, strictly: bool = False) -> bool:
        """Whether a declared object means what the server has; `strictly`: for certain."""
        return name not in self.differs and not (strictly and name in self.unsure)

    def is_untouched(self, path: str) -> bool:
        """Whether a file is exactly as pull wrote it."""
        return path in self.files and self.manifest.get(path) == digest_bytes(self.files[path])


def digest_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def plan_pull(files: Iterable[PulledFile], folder: Folder, override: Callable[[PulledFile], bool]) -> tuple[Step, ...]:
    """Decide about all files. Several objects may share one: from its end to its start, so that lines stay what they are."""

    def place(file: PulledFile) -> tuple[str, int]:
        home = folder.home(file)
        return (home.file, -home.line) if home is not None else (file.path, 0)

    steps: list[Step] = []
    for file in sorted(files, key=place):
        step = plan_file(file, folder, override=override(file))
        steps.append(step)
        if step.after is not None and not step.removes:
            folder = replace(folder, files={**folder.files, step.path: step.after})
    return tuple(steps)  # of several steps for one file the last has all changes


def plan_file(file: PulledFile, folder: Folder, *, override: bool = False) -> Step:
    """Decide about one file; `override`: the server's statement replaces an edited one."""
    home = folder.home(file)
    if home is not None and home.file != file.path:
        if folder.is_untouched(home.file) and file.path not in folder.files:
            return _written("moved", file, folder.files[home.file], removes=home.file)
        return _elsewhere(file, folder, home, override)
    mine, base = folder.files.get(file.path), folder.manifest.get(file.path)
    theirs = file.text.encode()
    if mine is None:
        return _absent(file, base, override)
    if mine == theirs:
        return Step(path=file.path, action="unchanged", subject=file.subject, digest=digest_bytes(theirs))
    if digest_bytes(mine) == base:
        return _written("updated", file, mine)
    if home is not None and file.name is not None and folder.is_equal(file.name, strictly=base is not None):
        known = digest_bytes(theirs) if base is not None else ""  # edited here and applied, say
        return Step(path=file.path, action="declared", subject=file.subject, digest=known)
    if base == digest_bytes(theirs) and not override:
        note = "edited here, unchanged on the server: kept"
        return Step(path=file.path, action="edited", subject=file.subject, digest=base, note=note)
    return _overwrite(file, folder, home, override)


def _absent(file: PulledFile, base: str | None, override: bool) -> Step:
    if base is None or override:
        return _written("new", file, b"")
    same = base == digest_bytes(file.text.encode())
    note = "deleted here, still on the server" if same else "deleted here, changed on the server"
    diff = "" if same else render_diff(file.path, b"", file.text.encode())
    action: Action = "deleted" if same else "conflict"
    return Step(path=file.path, action=action, subject=file.subject, digest=base, note=note, diff=diff)


def _written(action: Action, file: PulledFile, before: bytes, removes: str = "") -> Step:
    theirs = file.text.encode()
    diff = "" if action == "new" else render_diff(file.path, before, theirs, removes)
    return Step(
        path=file.path, action=action, subject=file.subject, after=theirs, removes=removes,
        digest=digest_bytes(theirs), diff=diff,
    )  # fmt: skip


def _elsewhere(file: PulledFile, folder: Folder, home: Home, override: bool) -> Step:
    """An object in a file of somebody else: only what differs in meaning counts."""
    if file.name is None or folder.is_equal(file.name, strictly=override):
        return Step(path=home.file, action="declared", subject=file.subject)
    return _overwrite(file, folder, home, override)


def _overwrite(file: PulledFile, folder: Folder, home: Home | None, override: bool) -> Step:
    """Replace the statement where it is declared, else the whole file; without permission only show it."""
    path = home.file if home is not None else file.path
    mine = folder.files[path]
    digest = folder.manifest.get(path, "")
    own = path == file.path
    if home is None:
        after = file.text.encode()
    elif file.name is None:
        after = mine  # a database: its statement is left to whoever wrote it
    else:
        statement = with_cluster(file.statement, home.cluster)
        try:
            after = replace_statement(path, mine, file.name, home.line, statement, folder.default_database)
        except ValueError:
            note = "more than one statement makes it what it is (RENAME, EXCHANGE): adopt it by hand"
            return Step(path=path, action="conflict", subject=file.subject, digest=digest, note=note)
    if after == mine:
        kept = digest_bytes(file.text.encode()) if own and digest else digest
        return Step(path=path, action="declared", subject=file.subject, digest=kept)
    note = folder.differs.get(file.name, "") if file.name is not None else ""
    diff = render_diff(path, mine, after)
    if file.hidden and home is not None:
        note = "the server hides a secret of it: adopt the rest by hand"
        return Step(path=path, action="conflict", subject=file.subject, digest=digest, note=note, diff=diff)
    if not override:
        return Step(path=path, action="conflict", subject=file.subject, digest=digest, note=note, diff=diff)
    digest = digest_bytes(file.text.encode()) if own else digest
    return Step(path=path, action="accepted", subject=file.subject, after=after, digest=digest, diff=diff, note=note)


def replace_statement(path: str, raw: bytes, name: QName, line: int, statement: str, default_database: str) -> bytes:
    """The file with the statement that declares an object replaced, and every other byte as it was.

    >>> print(replace_statement("a.sql", b"-- mine\\nCREATE TABLE d.t (x Int8); -- end", QName("d", "t"), 2, "CREATE TABLE d.t (y Int8)", "d").decode())
    -- mine
    CREATE TABLE d.t (y Int8); -- end
    """
    encoding, mark = _encoding(raw)
    decoded = decode_source(path, raw)
    assert not isinstance(decoded, Finding), decoded
    text = decoded.text
    found = _find(split_statements(decoded)[0], name, line, default_database)
    if found is None:
        raise ValueError(f"{path}:{line} does not declare {name}")
    if "\r\n" in text:
        statement = statement.replace("\n", "\r\n")
    changed = text[: found.offset] + statement + text[found.offset + len(found.text) :]
    return mark + changed.encode(encoding)


def _encoding(raw: bytes) -> tuple[str, bytes]:
    """How a file is encoded, and the mark at its start."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if raw.startswith(mark):
            return encoding, mark
    return "utf-8", b""


def _find(statements: Iterable[Statement], name: QName, line: int, database: str) -> Statement | None:
    """The statement that declares an object; its line tells where several do."""
    found: list[Statement] = []
    for statement in statements:
        first = statement.tokens[0]
        if first.is_word("USE"):
            cursor = Cursor(statement.text, statement.tokens)
            cursor.next()
            used = read_name(cursor, "")
            database = used.table if used is not None else database
        elif first.is_word("CREATE", "ATTACH", "REPLACE"):
            created = read_create(statement, database)
            if created is not None and created.object.name == name:
                found.append(statement)
    on_line = [statement for statement in found if statement.place.line == line]
    return (on_line or found)[0] if on_line or len(found) == 1 else None


def find_databases(path: str, raw: bytes) -> dict[str, Home]:
    """The databases that a file creates."""
    decoded = decode_source(path, raw)
    if isinstance(decoded, Finding):
        return {}
    found: dict[str, Home] = {}
    for statement in split_statements(decoded)[0]:
        cursor = Cursor(statement.text, statement.tokens)
        if cursor.take_words("CREATE", "DATABASE"):
            cursor.take_words("IF", "NOT", "EXISTS")
            name = read_name(cursor, "")
            if name is not None:
                found.setdefault(name.table, Home(file=path, line=statement.place.line))
    return found


def render_diff(path: str, before: bytes, after: bytes, old_path: str = "") -> str:
    """A unified diff of two contents of a file."""
    old, new = (content.decode("utf-8", "replace").splitlines(keepends=True) for content in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{old_path or path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def next_manifest(steps: Iterable[Step], manifest: Mapping[str, str], files: Iterable[str]) -> dict[str, str]:
    """What pull wrote last, path by path; files that are gone and that no object has are forgotten."""
    found = dict(manifest)
    kept = set(files)
    for step in steps:
        found.pop(step.removes, None)
        if step.digest:
            found[step.path] = step.digest
            kept.add(step.path)
    return {path: digest for path, digest in sorted(found.items()) if path in kept}
