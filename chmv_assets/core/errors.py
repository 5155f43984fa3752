"""Every error that chmv raises on purpose.

    ChmvError
    ├── CatalogDefects       the DDL folder or the settings file has defects; carries all of them
    ├── UnknownObject        a name that is not in the catalog; lists the nearest
    ├── UnknownDatabase      a name that is no database of the server's user
    ├── PullRefused          a folder into which the server's objects cannot be written as asked
    ├── EngineError          the embedded server could not be installed, started, found or stopped
    ├── ServerError          the server refused a statement; carries code, name and query id
    ├── ClusterRefused       a cluster that chmv cannot work on (core.cluster)
    ├── RebuildRefused       a window cannot be rebuilt safely; says why and what to do
    │   ├── RebuildDisturbed inserts kept arriving
    │   └── SourceForgot     a TTL has deleted rows that it would take
    ├── CutoverHalfDone      a cutover that failed and could not be taken back in full
    ├── RefreshFailed        a refreshable view that was not refreshed
    ├── RecoveryFailed       a repair that did not end with windows that are right
    ├── RouteRefused         readers are not sent where they would be worse off
    ├── IngestPaused         the server has no room for inserts just now
    ├── LandingRefused       landing files cannot be loaded as they are (core.landing)
    │   └── LandingMissing   there is no such landing folder (resources.landing)
    ├── TypeRefused          a column that cannot travel between ClickHouse and Spark unchanged
    ├── ReadRefused          a read that would not give every row exactly once
    ├── WriteRefused         a batch that could not be written exactly once
    ├── PartitionKeyError    a key that is not the start of a period (core.windows)
    ├── TimeColumnError      a column that cannot be compared with a window (core.windows)
    └── DemoLoadError        the demo's data does not fit its tables (resources.demo_data)

Form of a message: `<kind> <name>: <found> but <wanted>. <why we refuse>. <what to do next>.`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from chmv_assets.core.model import Finding

_MISSING = frozenset({60, 81})  # UNKNOWN_TABLE, UNKNOWN_DATABASE
_DENIED = 497  # ACCESS_DENIED
_TO_DO_WHEN_DENIED = " The account lacks this right: `chmv grants --role reader|ingester|recovery` prints what each one needs (docs/privileges.md)."


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


class UnknownDatabase(ChmvError):
    """A database that is not there, or not the user's."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(
            f"database {name}: found none of this name but wanted one that is not the server's or chmv's own. "
            f"There are {', '.join(known) or 'none'}. Correct the name."
        )


class PullRefused(ChmvError):
    """A pull that would leave a folder which does not say what the server has."""


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
        super().__init__(f"{message}{label}{tail}{_TO_DO_WHEN_DENIED if code == _DENIED else ''}")

    @property
    def is_missing(self) -> bool:
        """Whether a table or a database was asked for that is not there."""
        return self.code in _MISSING

    @property
    def is_denied(self) -> bool:
        """Whether the account lacks a right."""
        return self.code == _DENIED


class ClusterRefused(ChmvError):
    """A cluster on which a statement would reach some of what it is meant for, and not all."""


class RebuildRefused(ChmvError):
    """A rebuild that would not be exact is not started."""


class RebuildDisturbed(RebuildRefused):
    """Inserts kept arriving; another protocol, or another moment, may do."""


class SourceForgot(RebuildRefused):
    """A source's TTL has deleted rows of what should be computed; the target may still hold what they gave."""


class DeployRefused(ChmvError):
    """A change of DDL that would not be exact, or that nobody permitted, is not begun."""


class CutoverHalfDone(ChmvError):
    """A cutover that failed and could not be taken back in full."""

    def __init__(self, title: str, not_restored: Mapping[str, str], error: Exception) -> None:
        self.not_restored = tuple(not_restored)
        why = next(iter(not_restored.values()))
        super().__init__(
            f"cutover of {title}: found {', '.join(self.not_restored)} not as before but wanted all of it taken back, since it failed. "
            "Rows that arrive now may be missing from its targets. Go on with it (`chmv apply --resume`) or take it back (`chmv rollback`). "
            f"It failed because: {error} It could not be taken back because: {why}"
        )


class RefreshFailed(ChmvError):
    """A refreshable view whose target does not show what its sources hold."""

    def __init__(self, view: str, found: str, then: str) -> None:
        self.view = view
        super().__init__(f"view {view}: {found}, but wanted a refresh that succeeded. {then}")


class RecoveryFailed(ChmvError):
    """A repair that did not end with windows that are right; it is tried again."""


class RouteRefused(ChmvError):
    """Readers are not sent where they would be worse off."""


class JournalRefused(ChmvError):
    """What the journal says does not allow the step that was asked for."""


class LockRefused(ChmvError):
    """A lock that we do not hold."""

    def __init__(self, name: str, owner: str, wanted: str) -> None:
        self.name = name
        self.owner = owner
        super().__init__(
            f"lock {name}: found it held by {owner or 'nobody'} but wanted {wanted}. Two writers at once would not be exact. "
            "Wait until the other is done, or until its lease ends, and run again."
        )


class IngestRefused(ChmvError):
    """A source into which a repeated commit would double rows."""

    def __init__(self, source: str, problems: Sequence[str], statements: Sequence[str] = ()) -> None:
        self.source = source
        self.problems = tuple(problems)
        self.statements = tuple(statements)
        found = "; ".join(self.problems)
        todo = "".join(f"\n  {statement};" for statement in self.statements)
        fix = f"Run:{todo}" if todo else "See docs/journal.md for what a source needs."
        super().__init__(
            f"source {source}: {found}, but wanted tables that deduplicate. A retried commit would double rows. {fix}"
        )


class IngestPaused(ChmvError):
    """A server under such pressure that nothing was sent."""

    def __init__(self, source: str, reason: str, waited_seconds: float) -> None:
        super().__init__(
            f"source {source}: {reason}, for {waited_seconds / 60:.0f} minutes, but wanted room for inserts. More parts would only make "
            "it worse. Nothing is lost; let merges catch up (`system.merges`), then ingest again."
        )


class TypeRefused(ChmvError):
    """A column whose values cannot travel unchanged between ClickHouse and Spark."""

    def __init__(self, column: str, kind: str, why: str, remedy: str) -> None:
        self.column = column
        self.kind = kind
        super().__init__(f"column {column or '(unnamed)'}: {kind} cannot be carried over. {why}. {remedy}.")


class ReadRefused(ChmvError):
    """A read that would not give every row exactly once, or that asks for what is not there."""


class WriteRefused(ChmvError):
    """A batch that could not be written exactly once is not written."""
