"""Refresh a refreshable view and know that it was refreshed.

`SYSTEM WAIT VIEW` reports a refresh that failed, but keeps silent about a view that is stopped, and a refresh that ran already when
it was asked for counts as the answer although it read older rows. So the view's own record is looked at before and after.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chmv_assets.core.errors import RefreshFailed, ServerError
from chmv_assets.core.names import QName
from resources.executor import Executor

_FAILED = 730
_BUSY = frozenset({"Running", "RunningOnAnotherReplica"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """A refresh that went well."""

    started: datetime
    seconds: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshState:
    """What the server says of a view's refreshes."""

    status: str
    succeeded: datetime | None  # when the last one that went well was started, in whole seconds
    now: datetime
    exception: str
    rows: int
    milliseconds: int


def fetch_refresh(executor: Executor, view: QName) -> RefreshState:
    """The view's record; the server keeps one for every refreshable view."""
    rows = executor.server.rows(
        "SELECT status, last_success_time, now(), exception, ifNull(written_rows, 0), ifNull(last_success_duration_ms, 0) "
        "FROM system.view_refreshes WHERE database = {d:String} AND view = {v:String}",
        {"d": view.database, "v": view.table},
    )
    if not rows:
        raise RefreshFailed(
            str(view), "no record in system.view_refreshes", "Is it there, and refreshable? `chmv check` tells."
        )
    status, succeeded, now, exception, written, milliseconds = rows[0]
    return RefreshState(
        status=str(status), succeeded=succeeded, now=now, exception=str(exception), rows=int(written),
        milliseconds=int(milliseconds),
    )  # fmt: skip


def refresh_view(executor: Executor, view: QName) -> Refreshed:
    """Refresh a view as a whole, wait, and verify that it read what was there when it was asked for."""
    before = fetch_refresh(executor, view)
    if before.status in _BUSY:  # it read older rows than those of now
        _wait(executor, view, fails=False)
        before = fetch_refresh(executor, view)
    executor.refresh_view(view)
    _wait(executor, view, fails=True)
    after = fetch_refresh(executor, view)
    if after.exception:
        raise RefreshFailed(str(view), _first_line(after.exception), "Its target shows the rows of before.")
    if after.succeeded is None or after.succeeded < before.now:
        last = f"its last success began at {after.succeeded}" if after.succeeded else "it has never succeeded"
        hint = f"`SYSTEM START VIEW {view}` lets it go on." if after.status == "Disabled" else "Materialize it again."
        raise RefreshFailed(str(view), f"{last}, status {after.status}", f"It was asked at {before.now}. {hint}")
    return Refreshed(started=after.succeeded, seconds=after.milliseconds / 1000, rows=after.rows)


def _wait(executor: Executor, view: QName, *, fails: bool) -> None:
    """Wait until no refresh runs; whether that one failed matters only if it is ours."""
    try:
        executor.wait_view(view)
    except ServerError as error:
        if error.code != _FAILED:
            raise
        if fails:
            raise RefreshFailed(str(view), _first_line(str(error)), "Its target shows the rows of before.") from error


def _first_line(text: str) -> str:
    """The server's words without its stack trace."""
    return text.partition(", Stack trace")[0].strip().splitlines()[0]
