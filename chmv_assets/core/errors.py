"""Every error that chmv raises on purpose.

    ChmvError
    ├── CatalogDefects       the DDL folder or the settings file has defects; carries all of them
    ├── UnknownObject        a name that is not in the catalog; lists the nearest
    ├── EngineError          the embedded server could not be installed, started, found or stopped
    ├── ServerError          the server refused a statement; carries code, name and query id
    ├── RebuildRefused       a window cannot be rebuilt safely; says why and what to do
    ├── LandingRefused       landing files cannot be loaded as they are (core.landing)
    ├── PartitionKeyError    a key that is not the start of a period (core.windows)
    ├── TimeColumnError      a column that cannot be compared with a window (core.windows)
    └── DemoLoadError        the demo's data does not fit its tables (resources.demo_data)

Form of a message: `<kind> <name>: <found> but <wanted>. <why we refuse>. <what to do next>.`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from chmv_assets.core.model import Finding


class ChmvError(Exception):
    """Base of all errors that are meant to be read by a person."""


class CatalogDefects(ChmvError):
    """The declared state cannot be used; all its defects at once."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        lines = "\n".join(f"  {finding}" for finding in self.findings)
        super().__init__(
            f"{len(self.findings)} defect(s) in the DDL folder:\n{lines}\nFix them and run `chmv check` again."
        )


class UnknownObject(ChmvError):
    """A name that nobody declared."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.nearest = tuple(difflib.get_close_matches(name, list(known), n=3, cutoff=0.5))
        hint = f" Did you mean {', '.join(self.nearest)}?" if self.nearest else ""
        super().__init__(f"object {name}: not in the catalog.{hint} `chmv graph` lists what is.")


class EngineError(ChmvError):
    """The embedded server (or what it needs) is not usable; the message says what to do."""


class ServerError(ChmvError):
    """ClickHouse refused a statement."""

    def __init__(self, message: str, *, code: int | None = None, code_name: str = "", query_id: str = "") -> None:
        self.code = code
        self.code_name = code_name
        self.query_id = query_id
        label = f" (code {code} {code_name}".rstrip() + ")" if code is not None else ""
        tail = f" [query_id {query_id}]" if query_id else ""
        super().__init__(f"{message}{label}{tail}")


class RebuildRefused(ChmvError):
    """A rebuild that would not be exact is not started."""
