"""What a run asks for in its tags, and which runs it goes on from."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.pipeline import DEMO_DDL, Pipeline, load_pipeline
from chmv_assets.rebuild_asset import Asked, origin_of, published, read_tags, target_of, tries_of
from resources.rebuild import Published

FAILURE, SUCCESS, CANCELED = (getattr(dg.DagsterRunStatus, name) for name in ("FAILURE", "SUCCESS", "CANCELED"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return load_pipeline(DEMO_DDL, cache=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ({}, Asked(protocol="gated")),
        ({"chmv/protocol": "settings", "chmv/feed": "settings"}, Asked(protocol="gated")),
        ({"chmv/protocol": "closed", "chmv/feed": "pushdown"}, Asked(protocol="closed", feed="pushdown")),
        ({"chmv/allow_empty": "true"}, Asked(protocol="gated", allow_empty=True)),
    ],
)
def test_tags_go_over_settings(tags: dict[str, str], wanted: Asked) -> None:
    assert read_tags(tags, "gated") == wanted


@pytest.mark.parametrize("name", ["chmv/protocol", "chmv/feed", "chmv/allow_empty"])
def test_unknown_value_of_a_tag_is_refused_with_the_valid_ones(name: str) -> None:
    with pytest.raises(RebuildRefused, match=rf"run tag {name}: found 'x' but wanted one of settings, "):
        read_tags({name: "x"}, "auto")


class Runs:
    """An instance that knows some runs."""

    def __init__(self, **runs: tuple[dg.DagsterRunStatus, str | None]) -> None:
        self.runs = {
            name: SimpleNamespace(run_id=name, status=status, parent_run_id=parent)
            for name, (status, parent) in runs.items()
        }

    def get_run_by_id(self, run_id: str) -> Any:
        return self.runs.get(run_id)


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        ({"c": (FAILURE, None)}, ["c"]),
        ({"a": (FAILURE, None), "b": (CANCELED, "a"), "c": (FAILURE, "b")}, ["c", "b", "a"]),
        ({"a": (FAILURE, None), "b": (SUCCESS, "a"), "c": (FAILURE, "b")}, ["c"]),
        ({"c": (FAILURE, "deleted")}, ["c"]),
        ({"b": (FAILURE, "c"), "c": (FAILURE, "b")}, ["c", "b"]),
    ],
)
def test_a_run_goes_on_from_parents_that_did_not_succeed(runs: dict[str, Any], wanted: list[str]) -> None:
    known: Any = Runs(**runs)
    assert tries_of(known, known.runs["c"]) == wanted


def test_another_definition_is_other_work(demo: Pipeline) -> None:
    target = demo.catalog.get("shop.revenue_daily")
    before = origin_of("r", demo, target)
    assert before.startswith("run r definition ")
    assert origin_of("r", demo, replace(target, digest="changed")) != before
    assert origin_of("s", demo, target) != before
    (view, *_) = demo.catalog.views_into(target.name)
    assert target_of(demo, view) == target and target_of(demo, target) == target


def test_publication_is_told_with_protocol_reason_and_numbers() -> None:
    result = Published(
        protocol="gated", why="hot", partitions=("20261001",), rows_before=4, rows_after=3, tries=2, seconds=1.23456, gate_seconds=0.5
    )  # fmt: skip
    assert published(result).line == "rows 4 → 3, 1.23 s, 2 tries, gate 0.50 s, gated: hot"
    assert published(result).metadata() == {
        "chmv/rows_before": 4, "chmv/rows_after": 3, "chmv/partitions": 1, "chmv/tries": 2, "chmv/gate_seconds": 0.5,
        "chmv/seconds": 1.235, "chmv/protocol": "gated", "chmv/why": "hot", "dagster/partition_row_count": 3,
    }  # fmt: skip
