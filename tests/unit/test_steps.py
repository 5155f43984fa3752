"""Ops by hand behave like decorated ones: resources by name, one event or many, and the context that Dagster picks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from chmv_assets.steps import build_op


class Word(dg.ConfigurableResource):  # type: ignore[type-arg]
    text: str


def _asset(compute: Any) -> dg.AssetsDefinition:
    op = build_op("made", compute, inputs=(), outputs={"table": dg.Out(dg.Nothing)}, pool="queue")
    return dg.AssetsDefinition(
        node_def=op,
        specs=[dg.AssetSpec("made")],
        keys_by_input_name={},
        keys_by_output_name={"table": dg.AssetKey("made")},
    )


def _returns(context: Any, one: Word, other: Word) -> dg.MaterializeResult:  # type: ignore[type-arg]
    return dg.MaterializeResult(metadata={"said": f"{one.text} {other.text}", "context": type(context).__name__})


def _yields(context: Any, one: Word, other: Word) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
    yield _returns(context, one, other)


@pytest.mark.parametrize("compute", [_returns, _yields])
def test_compute_gets_its_resources_by_name_whether_it_returns_or_yields(compute: Any) -> None:
    done = dg.materialize([_asset(compute)], resources={"one": Word(text="a"), "other": Word(text="b")})
    (event,) = done.asset_materializations_for_node("made")
    assert {key: value.value for key, value in event.metadata.items()} == {
        "said": "a b",
        "context": "AssetExecutionContext",
    }


def test_resources_that_compute_names_are_required_and_the_pool_is_kept() -> None:
    op = build_op("made", _returns, inputs=("before",), outputs={}, pool="queue")
    assert (op.required_resource_keys, op.pool, list(op.ins)) == ({"one", "other"}, "queue", ["before"])


def test_failing_compute_fails_the_step_and_what_it_yielded_before_counts() -> None:
    def compute(context: Any) -> Iterator[Any]:
        yield dg.AssetMaterialization("made", metadata={"rows": 1})
        raise dg.Failure("broken")

    done = dg.materialize([_asset(compute)], raise_on_error=False)
    assert not done.success
    assert [event.metadata["rows"].value for event in done.asset_materializations_for_node("made")] == [1]
