"""The landing sensor's decision, purely: what lies there, what was asked for and how that went → requests, cursor, a sentence.

The cursor keeps per source how many settled files were there and a digest of them, nothing per file, so that it stays small
whatever lands. It says what was asked for, not what was loaded: loading is idempotent, so a lost or foreign cursor costs at most
one run per source that finds nothing new. A digest that shrinks (files archived away) costs such a run too. A run that failed
is asked for again, less and less often: a file that landed is never forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resources.landing_entry import LandingEntry
from sensors.attempts import LOST_SECONDS, Attempts, retry_after_seconds
from sensors.cursors import dump_cursor, read_cursor

CURSOR_VERSION = 1
SETTLE_SECONDS = (
    2.0  # who still writes a file has touched it within this time; who pauses longer has to rename when done
)
MAX_REQUESTS_PER_TICK = 10  # submitting a run takes 0.4 s on SQLite, and a tick has 60 s
RETRY_SECONDS = 600.0  # after a failed run; the run itself has retried what passes quickly


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What one source's landing holds now, or why that is not known."""

    source: str
    root: str
    files: int = 0  # settled ones
    bytes: int = 0
    digest: str = ""
    young: int = 0  # files that may still be written
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """The settled files of a source when it was last asked for."""

    files: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What earlier ticks asked for."""

    known: Mapping[str, Known] = field(default_factory=dict)
    last: str = ""  # the source that was asked for last; the next tick begins behind it, so that none starves
    note: str = ""  # why an earlier cursor was not used

    def dump(self) -> str:
        sources = {source: [known.files, known.digest] for source, known in self.known.items()}
        return dump_cursor(CURSOR_VERSION, {"last": self.last, "sources": sources})


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRequest:
    """Ingest one source: these settled files are there."""

    source: str
    files: int
    bytes: int
    digest: str
    attempt: int = 0

    @property
    def run_key(self) -> str:
        return f"{self.source}:{self.digest}" + (f":{self.attempt}" if self.attempt else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a tick does and says."""

    requests: tuple[IngestRequest, ...]
    cursor: Cursor
    told: str


def load_cursor(text: str | None) -> Cursor:
    """Read a cursor; one that cannot be used is started afresh and says so."""
    return read_cursor(text, CURSOR_VERSION, _decode, lambda note: Cursor(note=note))


def _decode(document: Any) -> Cursor:
    known = {str(name): Known(int(files), str(digest)) for name, (files, digest) in document["sources"].items()}
    return Cursor(known=known, last=str(document["last"]))


def settle(source: str, root: str, entries: Sequence[LandingEntry], now: float) -> Present:
    """Count and name the files that nobody writes any more, as far as times tell."""
    settled = [entry for entry in entries if _is_settled(entry, now)]
    return Present(
        source=source,
        root=root,
        files=len(settled),
        bytes=sum(entry.bytes for entry in settled),
        digest=_digest_of(source, settled),
        young=len(entries) - len(settled),
    )


def _is_settled(entry: LandingEntry, now: float) -> bool:
    """A time far ahead of us is a wrong clock, not a young file."""
    return entry.modified is None or abs(now - entry.modified) >= SETTLE_SECONDS


def _digest_of(source: str, entries: Sequence[LandingEntry]) -> str:
    digest = hashlib.sha256(f"{source}\0".encode())
    for entry in sorted(entries, key=lambda entry: entry.path):
        digest.update(f"{entry.path}\0{entry.bytes}\0{entry.modified}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def decide(
    landings: Sequence[Present],
    cursor: Cursor,
    *,
    now: float,
    queued: Collection[str] = (),
    attempts: Mapping[str, Attempts] | None = None,
    max_requests: int = MAX_REQUESTS_PER_TICK,
) -> Verdict:
    """Ask for one ingest per source whose settled files changed or could not be loaded.

    `attempts` has the runs of each source's present digest. What is queued, failed to list or is over the cap keeps its place in
    the cursor, and so comes up again.
    """
    known: dict[str, Known] = {}
    requests: list[IngestRequest] = []
    lines: list[str] = []
    for present in _from_behind(landings, cursor.last):
        before = cursor.known.get(present.source)
        state, attempt = _judge(present, before, (attempts or {}).get(present.source), now)
        asked = attempt is not None
        if asked and present.source in queued:
            asked, state = False, f"{state}, but a run is queued and will see them"
        elif asked and len(requests) >= max_requests:
            asked, state = False, f"{state}, but a tick asks for {max_requests} runs at most; the next one goes on here"
        if asked:
            requests.append(_request(present, attempt or 0))
        if asked or (attempt is None and not present.problem):
            known[present.source] = Known(present.files, present.digest)
        elif before is not None:
            known[present.source] = before
        lines.append(f"{present.source} ({present.root}): {state}{_waiting(present)}")
    told = "; ".join(sorted(lines)) or "no source declares a landing"
    return Verdict(
        requests=tuple(requests),
        cursor=Cursor(known=known, last=requests[-1].source if requests else cursor.last),
        told=f"{cursor.note} {told}".strip(),
    )


def _judge(present: Present, before: Known | None, runs: Attempts | None, now: float) -> tuple[str, int | None]:
    """What to say of a source, and which attempt to ask for; None asks for nothing."""
    if present.problem:
        return present.problem, None
    if not present.files:
        return "no files", None
    if before != Known(present.files, present.digest):
        return f"{present.files} files, changed", 0
    if runs is None or runs.latest == "done":
        return f"{present.files} files, nothing new", None
    if runs.latest == "going":
        if now - runs.since < LOST_SECONDS:
            return f"{present.files} files, nothing new since their ingest began", None
        return f"{present.files} files, their ingest seems lost, try {runs.runs + 1}", runs.runs
    wait = runs.since + retry_after_seconds(runs.runs, RETRY_SECONDS) - now
    if wait > 0:
        return f"{present.files} files, the last ingest failed, the next try comes in {wait:.0f} s", None
    return f"{present.files} files, the last ingest failed, try {runs.runs + 1}", runs.runs


def _request(present: Present, attempt: int) -> IngestRequest:
    return IngestRequest(
        source=present.source, files=present.files, bytes=present.bytes, digest=present.digest, attempt=attempt
    )


def _from_behind(landings: Sequence[Present], last: str) -> list[Present]:
    return sorted(landings, key=lambda present: (present.source <= last, present.source))


def _waiting(present: Present) -> str:
    return f", {present.young} younger than {SETTLE_SECONDS:g} s wait" if present.young else ""
