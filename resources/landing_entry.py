"""One file of a landing folder as a listing shows it. Apart from `landing`, which brings pyarrow along."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingEntry:
    """A file, unread."""

    path: str  # relative to the landing folder, with forward slashes
    bytes: int
    modified: float | None  # seconds since 1970; None where the store does not tell
