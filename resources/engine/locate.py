"""Which local server opens a data folder, and where its program is.

Invariant: a data folder is opened only by the kind of server that made it. Whether a server is external is decided
before anybody comes here (see `probe`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from chmv_assets.core.errors import EngineError
from resources.engine.install import install_engine
from resources.engine.model import (
    KIND_VARIABLE,
    LOOPBACK,
    PASSWORD_VARIABLE,
    URL_VARIABLE,
    DataLayout,
    LocalKind,
    forced_kind,
)
from resources.engine.report import Report, show_progress


def choose_kind(layout: DataLayout, environ: Mapping[str, str]) -> LocalKind:
    """Which server opens the data folder: the one that made it; for a new folder the forced one, else what PATH has."""
    forced = forced_kind(environ)
    remembered = remembered_kind(layout)
    if forced is not None and remembered is not None and forced != remembered:
        raise EngineError(
            f"data folder {layout.root}: found data of the {remembered} engine but wanted {forced} ({KIND_VARIABLE}). "
            f"The two keep their system tables differently. Name another folder with --data, or unset {KIND_VARIABLE}."
        )
    return remembered or forced or ("binary" if shutil.which("clickhouse", path=environ.get("PATH")) else "embedded")


def check_password(kind: LocalKind, environ: Mapping[str, str]) -> None:
    """Refuse a password that could not guard anything.

    clickhouse-local logs its own session in as `default` without a password, from loopback, and takes no other user
    (26.7: no `--user`, users are read once); so that user must stay open to this machine.
    """
    if kind == "embedded" and environ.get(PASSWORD_VARIABLE):
        raise EngineError(
            f"engine {PASSWORD_VARIABLE}: found a password but wanted none for the embedded server. Its `default` user must "
            f"stay without one, so the password would guard nothing; the server listens on {LOOPBACK} only. "
            f"Unset the variable, put a `clickhouse` binary on PATH, or set {URL_VARIABLE} to a guarded server."
        )


def remembered_kind(layout: DataLayout) -> LocalKind | None:
    """The kind that made the folder; None for a new one."""
    try:
        value = layout.kind.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return "embedded" if value == "embedded" else "binary" if value == "binary" else None


def find_program(kind: LocalKind, environ: Mapping[str, str], report: Report | None) -> Path:
    """The library or binary to run; the library is installed if need be, with progress on standard error by default."""
    if kind == "embedded":
        if report is not None:
            return install_engine(environ, report=report)
        with show_progress() as shown:
            return install_engine(environ, report=shown)
    found = shutil.which("clickhouse", path=environ.get("PATH"))
    if found is None:
        raise EngineError(
            f"engine: found no `clickhouse` on PATH but wanted it for this data folder. Its data was written by that "
            f"binary, or {KIND_VARIABLE} asks for it. Install ClickHouse, or name another folder with --data."
        )
    return Path(found)
