"""Where partitions begin: declared, else frozen, else asked once; never an error."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from chmv_assets.pipeline import Pipeline, load_pipeline
from chmv_assets.start import oldest_day, resolve_start

TODAY = date(2026, 11, 16)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "ddl").mkdir()
    (tmp_path / "ddl" / "a.sql").write_text("CREATE TABLE d.s (x Date) ENGINE = MergeTree PARTITION BY x ORDER BY x")
    return load_pipeline(tmp_path / "ddl", cache=tmp_path / "cache")


def never(_: Pipeline) -> date | None:
    raise AssertionError("asked the server")


def test_declared_start_wins(pipeline: Pipeline, tmp_path: Path) -> None:
    declared = replace(pipeline, settings=replace(pipeline.settings, start=date(2020, 2, 3)))
    assert resolve_start(declared, never, TODAY, tmp_path) == date(2020, 2, 3)


def test_first_live_partition_is_snapped_and_frozen(pipeline: Pipeline, tmp_path: Path) -> None:
    assert resolve_start(pipeline, lambda _: date(2026, 6, 29), TODAY, tmp_path) == date(2026, 6, 1)
    assert resolve_start(pipeline, never, TODAY, tmp_path) == date(2026, 6, 1)


def test_without_an_answer_it_is_a_year_and_nothing_is_frozen(pipeline: Pipeline, tmp_path: Path) -> None:
    assert resolve_start(pipeline, lambda _: None, TODAY, tmp_path) == date(2025, 11, 1)
    assert resolve_start(pipeline, lambda _: date(2026, 1, 9), TODAY, tmp_path) == date(2026, 1, 1)


def test_each_folder_has_a_start_of_its_own(pipeline: Pipeline, tmp_path: Path) -> None:
    other = replace(pipeline, ddl_dir=tmp_path / "other")
    resolve_start(pipeline, lambda _: date(2026, 6, 29), TODAY, tmp_path)
    assert resolve_start(other, lambda _: date(2026, 3, 1), TODAY, tmp_path) == date(2026, 3, 1)
    assert resolve_start(pipeline, never, TODAY, tmp_path) == date(2026, 6, 1)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"%s": "not a date"}', '{"%s": 5}'])
def test_broken_file_is_asked_again(pipeline: Pipeline, tmp_path: Path, content: str) -> None:
    key = json.dumps(str(pipeline.ddl_dir.resolve())).strip('"')
    (tmp_path / "starts.json").write_text(content.replace("%s", key))
    assert resolve_start(pipeline, lambda _: date(2026, 6, 29), TODAY, tmp_path) == date(2026, 6, 1)


def test_folder_that_cannot_be_written_is_no_error(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert resolve_start(pipeline, lambda _: date(2026, 6, 29), TODAY, tmp_path / "file") == date(2026, 6, 1)


@pytest.mark.parametrize(
    ("partitions", "day"),
    [
        (["202607", "202606"], date(2026, 6, 1)),
        (["20260715", "20260714"], date(2026, 7, 14)),
        (["2026-07-15", "2026-07-13 05:00:00"], date(2026, 7, 13)),
        (["(202607,'2020')", "('it''s',20260614)"], date(2026, 6, 14)),
        (["all", "tuple()", "", "17", "-1", "1970-01-01"], None),
        ([], None),
    ],
)
def test_oldest_day_of_printed_partitions(partitions: list[str], day: date | None) -> None:
    assert oldest_day(partitions) == day
