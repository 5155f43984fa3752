"""Parquet files cut into chunks that are the same whoever cuts them: what lets a batch skip staging and stay exact.

A chunk is a fixed run of rows of fixed files, so every attempt to insert it sends the same rows under the same token. What it
holds is written down as a digest before the first insert; a file that changes afterwards no longer matches and is refused.
Invariants: chunks cover every row of the files once, in order; the cut depends on files, their row groups and `chunk_rows` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chmv_assets.core.batches import COMMIT_SETTINGS, MAX_SLICE_ROWS, BatchRecord, Slice, token
from chmv_assets.core.errors import WriteRefused

_PREFIX = "direct"
# One Arrow record batch is one block: nothing may cut or join it, nor may threads race for its number.
CHUNK_SETTINGS: Mapping[str, object] = {
    name: COMMIT_SETTINGS[name]
    for name in (
        "deduplicate_insert",
        "deduplicate_blocks_in_dependent_materialized_views",
        "materialized_views_ignore_errors",
        "async_insert",
        "max_threads",
        "max_insert_threads",
        "min_insert_block_size_rows",
        "min_insert_block_size_bytes",
        "max_partitions_per_insert_block",
    )
} | {"input_format_null_as_default": 0, "input_format_arrow_allow_missing_columns": 0}


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows inside one row group of one file."""

    path: str
    row_group: int
    offset: int
    rows: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one INSERT sends."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


def plan_chunks(files: Sequence[tuple[str, Sequence[int]]], chunk_rows: int) -> tuple[Chunk, ...]:
    """Cut files, each given with the rows of its row groups, into chunks of about that many rows.

    Row groups stay whole as long as they fit into one INSERT, since reading a part of one costs as much as all of it; small ones
    share a chunk.

    >>> [chunk.rows for chunk in plan_chunks([("a", [3, 4]), ("b", [1])], 5)]
    [3, 5]
    """
    if not 0 < chunk_rows <= MAX_SLICE_ROWS:
        raise ValueError(f"chunk_rows {chunk_rows}: outside of 1 … {MAX_SLICE_ROWS}")
    chunks: list[Chunk] = []
    held: list[Piece] = []
    for piece in _pieces(files, chunk_rows):
        if held and sum(one.rows for one in held) + piece.rows > chunk_rows:
            chunks.append(Chunk(len(chunks), tuple(held)))
            held = []
        held.append(piece)
    if held:
        chunks.append(Chunk(len(chunks), tuple(held)))
    return tuple(chunks)


def _pieces(files: Sequence[tuple[str, Sequence[int]]], chunk_rows: int) -> Iterator[Piece]:
    """Whole row groups; those that are too large for one INSERT in parts of `chunk_rows`."""
    for path, groups in files:
        for group, rows in enumerate(groups):
            step = rows if rows <= MAX_SLICE_ROWS else chunk_rows
            for offset in range(0, rows, max(step, 1)):
                yield Piece(path, group, offset, min(step, rows - offset))


def surveyed(chunk: int, chunk_rows: int, digest: str, rows: int) -> Slice:
    """What the journal keeps of a chunk before it is inserted: where it was cut and what it holds."""
    return Slice(chunk, f"{_PREFIX}:{chunk_rows}:{digest}", rows)


def is_direct(record: BatchRecord) -> bool:
    """Whether a batch waits in its files rather than in staging."""
    return bool(record.slices) and record.slices[0].attempt.startswith(f"{_PREFIX}:")


def direct_chunk_rows(record: BatchRecord) -> int:
    """How a direct batch was cut."""
    return int(record.slices[0].attempt.split(":")[1])


def require_same(record: BatchRecord, found: Slice) -> None:
    """Refuse to insert a chunk that no longer holds what was written down."""
    if found not in record.slices:
        raise WriteRefused(
            f"batch {record.batch} of {record.source}: found other rows in chunk {found.task} but wanted those that were written down "
            "before the first insert. A file or the table's columns were changed meanwhile; rows that are in already could be doubled. "
            "Bring them back as they were, then ingest again."
        )


def chunk_token(batch: str, chunk: int) -> str:
    """The deduplication token of a chunk; a batch is either direct or staged for ever, so tokens never meet."""
    return token(batch, chunk)
