"""Values shared by the engine's modules: what runs, how to start it, where its files are.

The only place that knows the environment variables and the layout of a data folder. Nothing here starts,
reads or writes anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chmv_assets.core.errors import EngineError

EngineKind = Literal["embedded", "binary", "external"]
LocalKind = Literal["embedded", "binary"]

URL_VARIABLE = "CHMV_CLICKHOUSE_URL"
USER_VARIABLE = "CHMV_CLICKHOUSE_USER"
PASSWORD_VARIABLE = "CHMV_CLICKHOUSE_PASSWORD"  # noqa: S105 - the variable's name, not a password
PASSWORD_HASH_VARIABLE = "CHMV_ENGINE_PASSWORD_SHA256"  # noqa: S105 - set for the server process only
KIND_VARIABLE = "CHMV_ENGINE"
DATA_VARIABLE = "CHMV_DATA_DIR"

DEFAULT_USER = "default"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """A server that answers. `started` tells whether this very call started it."""

    kind: EngineKind
    url: str  # never with credentials
    http_port: int
    tcp_port: int | None
    pid: int | None
    data_dir: Path | None
    version: str
    started: bool = False
    user: str = DEFAULT_USER

    def as_json(self) -> dict[str, object]:
        """The facts as plain JSON values."""
        return {
            "kind": self.kind,
            "url": self.url,
            "http_port": self.http_port,
            "tcp_port": self.tcp_port,
            "pid": self.pid,
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "version": self.version,
            "started": self.started,
            "user": self.user,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to start a local server. Port 0 means: any free one."""

    data_dir: Path = field(default_factory=lambda: default_data_dir())
    http_port: int = 0
    tcp_port: int = 0
    timeout_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class DataLayout:
    """Where things are inside one data folder."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "engine.json"

    @property
    def guard(self) -> Path:
        return self.root / "engine.lock"

    @property
    def kind(self) -> Path:
        return self.root / "engine.kind"

    @property
    def store(self) -> Path:
        return self.root / "clickhouse"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def process_log(self) -> Path:
        return self.logs / "process.log"

    @property
    def config(self) -> Path:
        return self.root / "config" / "config.xml"

    @property
    def users(self) -> Path:
        return self.root / "config" / "users.xml"


def default_data_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The data folder when none is named: CHMV_DATA_DIR, else `.chmv/engine` in the working directory."""
    named = _env(environ).get(DATA_VARIABLE, "")
    return Path(named).expanduser().absolute() if named else Path.cwd() / ".chmv" / "engine"


def forced_kind(environ: Mapping[str, str] | None = None) -> LocalKind | None:
    """The kind that CHMV_ENGINE asks for, if it asks."""
    value = _env(environ).get(KIND_VARIABLE, "")
    if not value:
        return None
    if value == "embedded":
        return "embedded"
    if value == "binary":
        return "binary"
    raise EngineError(
        f"engine {KIND_VARIABLE}: found {value!r} but wanted `embedded` or `binary`. "
        f"No other kind can be started. Correct the variable or unset it."
    )


def _env(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ
