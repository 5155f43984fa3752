"""Landing files, purely: which are new, how they form batches, whether their columns fit, what counts as late or bad.

Invariant: a file belongs to exactly one batch for ever. Identity is content, not name, so a file that is sent twice is
known; a batch that was planned once keeps its files, whatever arrives before it is finished.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from chmv_assets.core.batches import batch_id
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import Column, Object
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import ExtraColumns

MAX_BATCH_BYTES = 512 * 1024 * 1024
# Upper borders of the lateness histogram; what is later than the last stands in a bucket of its own.
LATENESS_BUCKETS_SECONDS = (60, 300, 900, 3_600, 21_600, 86_400)


class LandingRefused(ChmvError):
    """Landing files that cannot be loaded as they are; nothing of them was loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingFile:
    """One file as it was found."""

    path: str  # relative to the landing folder, with forward slashes
    bytes: int
    checksum: str  # of its content


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Files that are committed together."""

    id: str
    files: tuple[LandingFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingPlan:
    """What to do with a landing folder."""

    batches: tuple[Batch, ...]
    duplicates: tuple[tuple[LandingFile, str], ...]  # a file, and the path that brought its content first
    known: int  # files that an earlier batch has taken


def require_inside(path: str) -> str:
    """Give a relative path in its plain form, or refuse one that leads out of the landing folder.

    >>> require_inside("a/./b.parquet")
    'a/b.parquet'
    """
    plain = posixpath.normpath(path.replace("\\", "/"))
    if plain.startswith(("/", "../")) or plain == ".." or (len(plain) > 1 and plain[1] == ":"):
        raise LandingRefused(
            f"file {path}: leads out of the landing folder but wanted a path inside it. It could read anything. "
            "Move the file into the folder."
        )
    return plain


def plan_batches(
    source: QName,
    files: Sequence[LandingFile],
    taken: Mapping[str, str],
    max_bytes: int = MAX_BATCH_BYTES,
    shapes: Mapping[str, tuple[str, ...]] | None = None,
) -> LandingPlan:
    """Group new files into batches, in order of their paths.

    `taken` maps checksums of earlier batches to their paths; `shapes` maps paths to the columns that a file brings: files of
    different shapes never share a batch, because one INSERT cannot give a column and leave it to its DEFAULT.
    """
    fresh: dict[str, LandingFile] = {}
    duplicates: list[tuple[LandingFile, str]] = []
    known = 0
    for file in sorted(files, key=lambda file: file.path):
        first = taken.get(file.checksum)
        if first == file.path:
            known += 1
        elif first is not None:
            duplicates.append((file, first))
        elif file.checksum in fresh:
            duplicates.append((file, fresh[file.checksum].path))
        else:
            fresh[file.checksum] = file
    by_shape: dict[tuple[str, ...], list[LandingFile]] = {}
    for file in fresh.values():
        by_shape.setdefault((shapes or {}).get(file.path, ()), []).append(file)
    groups = [group for _, alike in sorted(by_shape.items()) for group in _grouped(alike, max_bytes)]
    batches = tuple(
        Batch(id=batch_id(source, [file.checksum for file in group]), files=tuple(group)) for group in groups
    )
    return LandingPlan(batches=batches, duplicates=tuple(duplicates), known=known)


def _grouped(files: Sequence[LandingFile], max_bytes: int) -> list[list[LandingFile]]:
    groups: list[list[LandingFile]] = []
    size = 0
    for file in files:
        if not groups or size + file.bytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFit:
    """How the columns of files fit a table."""

    loaded: tuple[str, ...]  # in the table's order
    defaulted: tuple[str, ...]  # not in the files; the table's DEFAULT fills them
    ignored: tuple[str, ...]  # in the files only


def fit_columns(
    table: Object, found: Sequence[str], extra: ExtraColumns = "refuse", stamped: Collection[str] = ()
) -> ColumnFit:
    """Match columns by name, or refuse with all defects at once; `stamped` columns are filled by the ingest itself."""
    insertable = [column for column in table.columns if column.default_kind not in ("MATERIALIZED", "ALIAS")]
    names = {column.name for column in insertable}
    defects = [f"column {name} is computed by the table and cannot be loaded" for name in _computed(table, found)]
    unknown = [name for name in found if name not in {column.name for column in table.columns}]
    if unknown and extra == "refuse":
        defects.append(
            f"{', '.join(unknown)} stand in the files but not in the table: add the columns to its DDL, "
            "or set `extra_columns: ignore` for this landing"
        )
    missing = [column for column in insertable if column.name not in found and column.name not in stamped]
    lacking = [column.name for column in missing if not _fills_itself(column)]
    if lacking:
        defects.append(f"{', '.join(lacking)} are missing in the files and have no DEFAULT in the table")
    if defects:
        raise LandingRefused(f"table {table.name}: {'; '.join(defects)}. Nothing was loaded.")
    return ColumnFit(
        loaded=tuple(column.name for column in insertable if column.name in found),
        defaulted=tuple(column.name for column in missing),
        ignored=tuple(name for name in unknown if name not in names),
    )


def shape_of(table: Object, found: Sequence[str]) -> tuple[str, ...]:
    """Which columns a file gives that could not be filled with null instead; such files go into one INSERT together."""
    plain = [c for c in table.columns if not (not c.default_kind and _fills_itself(c))]
    return tuple(column.name for column in plain if column.name in found)


def _computed(table: Object, found: Sequence[str]) -> list[str]:
    return [c.name for c in table.columns if c.default_kind in ("MATERIALIZED", "ALIAS") and c.name in found]


def _fills_itself(column: Column) -> bool:
    return column.default_kind in ("DEFAULT", "EPHEMERAL") or column.type.startswith(
        ("Nullable(", "LowCardinality(Nullable(")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSummary:
    """Numbers of one ingest, row by row."""

    files: int
    files_known: int
    files_duplicate: int
    rows_read: int
    rows_on_time: int
    rows_late: int
    rows_quarantined: int

    @property
    def rows_loaded(self) -> int:
        return self.rows_on_time + self.rows_late

    def require_sum(self) -> IngestSummary:
        """Give the summary back if it adds up; a sum that does not is a defect of ours, said aloud."""
        if self.rows_read != self.rows_loaded + self.rows_quarantined:
            raise LandingRefused(
                f"ingest: read {self.rows_read} rows but accounts for {self.rows_loaded} loaded and "
                f"{self.rows_quarantined} quarantined. Rows are missing from the account. Nothing is committed."
            )
        return self


def require_tolerated(source: QName, rows_read: int, rows_bad: int, tolerated_rate: float) -> None:
    """Refuse a batch with more bad rows than its landing tolerates."""
    if rows_bad > rows_read * tolerated_rate:
        share = rows_bad / rows_read if rows_read else 0.0
        raise LandingRefused(
            f"source {source}: {rows_bad} of {rows_read} rows ({share:.2%}) are bad but wanted at most {tolerated_rate:.2%}. "
            "The batch is not committed; its bad rows are in the quarantine table with their reasons. "
            "Fix the files, or raise `tolerated_bad_rate`."
        )
