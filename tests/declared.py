"""A DDL folder that is on the server as declared, in a database of a random name."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chmv_assets.core.statements import SourceFile, split_statements


@contextmanager
def declared_folder(
    command: Callable[[str], object], parent: Path, prefix: str, ddl: str, settings: str = ""
) -> Iterator[tuple[Path, str]]:
    """The folder and its database; `{db}` in the texts is the latter. Dropped at the end of the block."""
    database = f"{prefix}_{secrets.token_hex(3)}"
    folder, text = parent / "ddl", ddl.replace("{db}", database)
    folder.mkdir()
    (folder / "all.sql").write_text(text)
    if settings:
        (folder / "chmv.yaml").write_text(settings.replace("{db}", database))
    command(f"CREATE DATABASE {database}")
    try:
        for statement in split_statements(SourceFile(path="all.sql", text=text))[0]:
            command(statement.text)
        yield folder, database
    finally:
        command(f"DROP DATABASE {database} SYNC")
