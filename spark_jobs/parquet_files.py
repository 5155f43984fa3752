"""Parquet files as one Spark task reads them: fixed pieces of rows, and the digest of what is stored. No server, no session."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet

from chmv_assets.core.chunks import Chunk, Piece
from spark_jobs.landing_reader import LandingColumn
from spark_jobs.types import map_type


class Files:
    """Parquet files as one task reads them: opened once, and a row group that several chunks share is read once."""

    def __init__(self) -> None:
        self._opened: dict[str, pyarrow.parquet.ParquetFile] = {}
        self._group: tuple[str, int, pa.Table] | None = None

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._group = None
        for file in self._opened.values():
            file.close(force=True)

    def digest(self, chunk: Chunk, shape: str) -> str:
        """What decides the rows that a chunk sends: the bytes of its row groups as they are stored, the cut, the columns."""
        found = hashlib.sha256(shape.encode())
        for piece in chunk.pieces:
            found.update(f"{piece.offset}:{piece.rows}:".encode())
            start, length = _extent(self._open(piece.path).metadata.row_group(piece.row_group))
            with fsspec.open(piece.path, "rb") as stored:
                stored.seek(start)
                found.update(stored.read(length))
        return found.hexdigest()[:32]

    def read(self, chunk: Chunk, columns: Sequence[LandingColumn]) -> pa.Table:
        """The rows of a chunk, columns in their order; a column that a file lacks is null there."""
        parts = [self._read_group(piece, columns).slice(piece.offset, piece.rows) for piece in chunk.pieces]
        return pa.concat_tables(parts, promote_options="permissive")

    def read_whole(self, piece: Piece) -> pa.Table:
        """All columns of a piece, for rows that are kept as they came."""
        return self._open(piece.path).read_row_group(piece.row_group, use_threads=False).slice(piece.offset, piece.rows)

    def _read_group(self, piece: Piece, columns: Sequence[LandingColumn]) -> pa.Table:
        if self._group is None or self._group[:2] != (piece.path, piece.row_group):
            self._group = (piece.path, piece.row_group, self._columns_of_group(piece, columns))
        return self._group[2]

    def _columns_of_group(self, piece: Piece, columns: Sequence[LandingColumn]) -> pa.Table:
        file = self._open(piece.path)
        there = set(file.schema_arrow.names)
        names = [column.name for column in columns if column.name in there]
        rows = file.read_row_group(piece.row_group, columns=names, use_threads=False)
        arrays = [
            rows.column(column.name)
            if column.name in there
            else pa.nulls(rows.num_rows, map_type(column.name, column.clickhouse_type).arrow)
            for column in columns
        ]
        return pa.table(arrays, names=[column.name for column in columns])

    def _open(self, path: str) -> pyarrow.parquet.ParquetFile:
        if path not in self._opened:
            self._opened[path] = open_parquet(path)
        return self._opened[path]


def open_parquet(path: str) -> pyarrow.parquet.ParquetFile:
    """A Parquet file on this machine or in an object store."""
    return pyarrow.parquet.ParquetFile(fsspec.open(path, "rb").open() if "://" in path else path)


def _extent(group: Any) -> tuple[int, int]:
    """Where a row group lies in its file: its columns stand one after the other."""
    columns = [group.column(at) for at in range(group.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    ends = [start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)]
    return min(starts), max(ends) - min(starts)
