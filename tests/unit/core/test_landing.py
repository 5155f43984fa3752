"""Landing files: identity, batches, columns, sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.landing import (
    IngestSummary,
    LandingFile,
    LandingRefused,
    fit_columns,
    plan_batches,
    require_inside,
    require_tolerated,
    shape_of,
)
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName

SOURCE = QName("d", "s")


def file(path: str, checksum: str | None = None, size: int = 10) -> LandingFile:
    return LandingFile(path=path, bytes=size, checksum=checksum or path)


def table(columns: str) -> Object:
    text = f"CREATE TABLE d.s ({columns}) ENGINE = MergeTree ORDER BY tuple()"
    return build_catalog([SourceFile(path="a.sql", text=text)]).objects[SOURCE]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "..", "C:/x", "a\\..\\..\\x"])
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    with pytest.raises(LandingRefused, match="leads out of the landing folder"):
        require_inside(path)


def test_same_content_is_loaded_once_whatever_its_name() -> None:
    plan = plan_batches(SOURCE, [file("b", "x"), file("a", "x"), file("c", "y")], {"y": "old/c"})
    assert [[f.path for f in batch.files] for batch in plan.batches] == [["a"]]
    assert [(f.path, first) for f, first in plan.duplicates] == [("b", "a"), ("c", "old/c")]


def test_files_of_earlier_batches_are_known() -> None:
    plan = plan_batches(SOURCE, [file("a"), file("b")], {"a": "a"})
    assert plan.known == 1
    assert [f.path for batch in plan.batches for f in batch.files] == ["b"]


files = st.lists(
    st.builds(
        file, st.text("abc/", min_size=1, max_size=4), st.text("xyz", min_size=1, max_size=3), st.integers(0, 50)
    ),
    max_size=12,
    unique_by=lambda f: f.path,
)


@given(files, st.integers(1, 100))
def test_every_content_is_in_exactly_one_batch_and_ids_do_not_depend_on_order(
    found: list[LandingFile], limit: int
) -> None:
    plan = plan_batches(SOURCE, found, {}, limit)
    placed = [f.checksum for batch in plan.batches for f in batch.files]
    assert sorted(placed) == sorted({f.checksum for f in found})
    assert len(placed) + len(plan.duplicates) == len(found)
    assert plan_batches(SOURCE, found[::-1], {}, limit) == plan
    for batch in plan.batches:
        assert len(batch.files) == 1 or sum(f.bytes for f in batch.files) <= limit


@given(files, files)
def test_a_second_plan_takes_only_what_is_new(first: list[LandingFile], second: list[LandingFile]) -> None:
    taken = {f.checksum: f.path for batch in plan_batches(SOURCE, first, {}).batches for f in batch.files}
    again = plan_batches(SOURCE, [*first, *second], taken)
    assert {f.checksum for batch in again.batches for f in batch.files} == {f.checksum for f in second} - set(taken)


def test_columns_fit_by_name_and_defaults_fill_the_rest() -> None:
    fit = fit_columns(table("a UInt8, b String DEFAULT 'x', c Nullable(Int8), d UInt8 MATERIALIZED a + 1"), ["c", "a"])
    assert (fit.loaded, fit.defaulted, fit.ignored) == (("a", "c"), ("b",), ())


def test_all_column_defects_are_named_at_once() -> None:
    with pytest.raises(LandingRefused) as caught:
        fit_columns(table("a UInt8, b UInt8, m UInt8 MATERIALIZED a"), ["b", "m", "new"])
    text = str(caught.value)
    assert "m is computed" in text and "new stand in the files" in text and "a are missing" in text


def test_extra_columns_may_be_ignored_on_purpose() -> None:
    assert fit_columns(table("a UInt8"), ["a", "new"], "ignore").ignored == ("new",)


def test_summary_adds_up_or_says_so() -> None:
    good = IngestSummary(
        files=1, files_known=0, files_duplicate=0, rows_read=10, rows_on_time=6, rows_late=3, rows_quarantined=1
    )
    assert good.require_sum().rows_loaded == 9
    with pytest.raises(LandingRefused, match="read 10 rows but accounts for 9 loaded and 0"):
        IngestSummary(
            files=1, files_known=0, files_duplicate=0, rows_read=10, rows_on_time=6, rows_late=3, rows_quarantined=0
        ).require_sum()


@pytest.mark.parametrize(
    ("bad", "rate", "refused"), [(0, 0.0, False), (1, 0.0, True), (5, 0.05, False), (6, 0.05, True)]
)
def test_bad_rows_are_tolerated_up_to_the_declared_rate(bad: int, rate: float, refused: bool) -> None:
    if refused:
        with pytest.raises(LandingRefused, match=f"{bad} of 100 rows"):
            require_tolerated(SOURCE, 100, bad, rate)
    else:
        require_tolerated(SOURCE, 100, bad, rate)


def test_files_of_different_shapes_never_share_a_batch() -> None:
    made = table("a UInt8, b UInt8 DEFAULT 7, c Nullable(Int8)")
    assert shape_of(made, ["a"]) == shape_of(made, ["a", "c"]) == ("a",), (
        "null fills a Nullable column as well as a file does"
    )
    assert shape_of(made, ["b", "a"]) == ("a", "b")
    shapes = {"x": ("a",), "y": ("a", "b"), "z": ("a",)}
    plan = plan_batches(SOURCE, [file("x"), file("y"), file("z")], {}, shapes=shapes)
    assert [[f.path for f in batch.files] for batch in plan.batches] == [["x", "z"], ["y"]]
