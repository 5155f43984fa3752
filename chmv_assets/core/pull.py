"""Live objects → files of a DDL folder: which file each one has, and in which order they can be created. Pure.

    00_databases/shop.sql
    10_tables/shop/events.sql                 one file per object, so that a pull request shows one change
    20_dictionaries/shop/users_dict.sql
    30_views/shop/traffic_hourly_mv.sql       31_views: views that read views of 30, and so on

Invariants: in the order of file names everything stands after what it needs, also across databases; a path depends on the object and
what it needs alone, so one more table moves no other file; no name leads out of the folder, and no two objects share a file, also
where the file system does not tell upper from lower case.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chmv_assets.core.model import VIEW_KINDS, NodeKind
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.pull_text import render_statement

MANIFEST_FILE = ".chmv-pull.json"
_PHASES = {"tables": 10, "dictionaries": 20, "views": 30}
_LAST_PHASE = 99
_MAX_NAME = 120  # characters; file systems end at 255 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """One object as it will be written."""

    name: QName
    kind: NodeKind
    statement: str  # readable, without terminator
    hidden: int = 0  # secrets that the server does not show
    needs: frozenset[QName] = frozenset()  # what has to exist before it can be created


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledDatabase:
    """One database; `engine` is empty where it is the server's usual one."""

    name: str
    engine: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledFile:
    """One file of the folder; it declares a database or one object."""

    path: str
    text: str
    statement: str
    database: str
    name: QName | None = None
    hidden: int = 0

    @property
    def subject(self) -> str:
        return str(self.name) if self.name is not None else self.database


def lay_out(objects: Iterable[Pulled], databases: Iterable[PulledDatabase]) -> tuple[PulledFile, ...]:
    """The files of these objects, in the order in which they can be created."""
    by_name = {one.name: one for one in objects}
    phases = _phases(by_name)
    paths = _paths(by_name, phases)
    files = [_database_file(database) for database in databases]
    files += [
        PulledFile(
            path=paths[name], text=render_statement(one.statement, one.hidden), statement=one.statement.strip(),
            database=name.database, name=name, hidden=one.hidden,
        )
        for name, one in by_name.items()
    ]  # fmt: skip
    return tuple(sorted(files, key=lambda file: file.path))


def _database_file(database: PulledDatabase) -> PulledFile:
    engine = f"\nENGINE = {database.engine}" if database.engine else ""
    quoted = quote_string(database.comment).replace("\n", "\\n")
    comment = f"\nCOMMENT {quoted}" if database.comment else ""
    statement = f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database.name)}{engine}{comment}"
    path = f"00_databases/{escape_file_name(database.name)}.sql"
    return PulledFile(path=path, text=f"{statement};\n", statement=statement, database=database.name)


def _folder(kind: NodeKind) -> str:
    if kind == "dictionary":
        return "dictionaries"
    return "views" if kind in (*VIEW_KINDS, "view") else "tables"


def _phases(objects: Mapping[QName, Pulled]) -> dict[QName, int]:
    """Tables, dictionaries, views; who needs something of his own phase or a later one comes after it."""
    found: dict[QName, int] = {}
    waiting: set[QName] = set()

    def phase(name: QName) -> int:
        if name in found:
            return found[name]
        one = objects[name]
        base = _PHASES[_folder(one.kind)]
        if name in waiting:  # a circle: no order is right
            return base
        waiting.add(name)
        before = [phase(other) for other in sorted(one.needs) if other in objects and other != name]
        found[name] = min(max([base, *(other + 1 for other in before if other >= base)]), _LAST_PHASE)
        return found[name]

    for name in sorted(objects):
        phase(name)
    return found


def _paths(objects: Mapping[QName, Pulled], phases: Mapping[QName, int]) -> dict[QName, str]:
    plain = {name: _path(name, objects[name].kind, phases[name]) for name in objects}
    shared = Counter(path.casefold() for path in plain.values())
    return {
        name: path if shared[path.casefold()] == 1 else f"{path.removesuffix('.sql')}%{_digest(str(name))}.sql"
        for name, path in plain.items()
    }


def _path(name: QName, kind: NodeKind, phase: int) -> str:
    return f"{phase:02}_{_folder(kind)}/{escape_file_name(name.database)}/{escape_file_name(name.table)}.sql"


def escape_file_name(name: str) -> str:
    """A name as part of a path: plain characters stay, everything else becomes %XX; what is too long ends with a digest.

    >>> escape_file_name("events"), escape_file_name("../a b"), escape_file_name("x.down")
    ('events', '%2E%2E%2Fa%20b', 'x%2Edown')
    """
    escaped = "".join(
        char if re.match(r"[A-Za-z0-9_-]", char) else "".join(f"%{byte:02X}" for byte in _bytes(char)) for char in name
    )
    return escaped if len(escaped) <= _MAX_NAME else f"{escaped[:_MAX_NAME]}%{_digest(name)}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(text: str) -> str:
    return hashlib.sha256(_bytes(text)).hexdigest()[:12]
