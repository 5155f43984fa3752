"""Chunks cover every row once, in order, and are the same whoever cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.batches import MAX_SLICE_ROWS, BatchRecord, Slice
from chmv_assets.core.chunks import CHUNK_SETTINGS, direct_chunk_rows, is_direct, plan_chunks, require_same, surveyed
from chmv_assets.core.errors import WriteRefused
from chmv_assets.core.names import QName

FILES = st.lists(st.lists(st.integers(0, 60), max_size=5), max_size=5)


def record(*slices: Slice) -> BatchRecord:
    return BatchRecord(batch="b", source=QName("d", "s"), status="staged", version=1, slices=slices)


@given(FILES, st.integers(1, 70))
def test_every_row_is_in_exactly_one_chunk_in_order(groups: list[list[int]], chunk_rows: int) -> None:
    files = [(f"f{at}", rows) for at, rows in enumerate(groups)]
    chunks = plan_chunks(files, chunk_rows)
    covered = [
        (piece.path, piece.row_group, row)
        for chunk in chunks
        for piece in chunk.pieces
        for row in range(piece.offset, piece.offset + piece.rows)
    ]
    assert covered == [(path, at, row) for path, rows in files for at, n in enumerate(rows) for row in range(n)]
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert all(0 < chunk.rows <= chunk_rows or len(chunk.pieces) == 1 for chunk in chunks)


def test_a_row_group_is_cut_only_if_one_insert_cannot_hold_it() -> None:
    chunks = plan_chunks([("a", [MAX_SLICE_ROWS, MAX_SLICE_ROWS + 1, 10])], 400_000)
    assert [[piece.rows for piece in chunk.pieces] for chunk in chunks] == [
        [1_000_000],
        [400_000],
        [400_000],
        [200_001, 10],
    ]


@pytest.mark.parametrize("rows", [0, -1, MAX_SLICE_ROWS + 1])
def test_chunks_that_would_not_be_one_block_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="outside of 1"):
        plan_chunks([("a", [1])], rows)


def test_one_chunk_is_one_block_on_the_server() -> None:
    assert CHUNK_SETTINGS["min_insert_block_size_rows"] > MAX_SLICE_ROWS
    assert (CHUNK_SETTINGS["max_insert_threads"], CHUNK_SETTINGS["async_insert"]) == (1, 0)
    assert CHUNK_SETTINGS["deduplicate_blocks_in_dependent_materialized_views"] == 1


def test_journal_remembers_how_a_batch_was_cut() -> None:
    direct = record(surveyed(0, 1234, "abc", 10))
    assert (is_direct(direct), direct_chunk_rows(direct)) == (True, 1234)
    assert not is_direct(record(Slice(0, "17-abcd", 10))) and not is_direct(record())


@pytest.mark.parametrize(
    "found",
    [surveyed(0, 5, "abc", 9), surveyed(0, 5, "abd", 10), surveyed(1, 5, "abc", 10), surveyed(0, 6, "abc", 10)],
)
def test_chunk_that_is_not_what_was_written_down_is_refused(found: Slice) -> None:
    noted = record(surveyed(0, 5, "abc", 10))
    require_same(noted, surveyed(0, 5, "abc", 10))
    with pytest.raises(WriteRefused, match="found other rows in chunk"):
        require_same(noted, found)
