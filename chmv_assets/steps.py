"""Ops made from a compute function and the names of its inputs and outputs, at a third of what Dagster's decorator costs.

The decorator reads the signature, type hints and docstring of each function to infer what is said here anyway; a location has
thousands of ops of four kinds. The parameters of a compute function after its context are the keys of its resources. What
functions do, and which assets or checks an op stands for, does not belong here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

_AFTER = dg.In(dg.Nothing)  # order only: no data passes between steps
_SIGNATURE = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("context", "inputs")]
)


def build_op(
    name: str,
    compute: Callable[..., Any],
    *,
    inputs: Iterable[str],
    outputs: Mapping[str, dg.Out],
    pool: str | None = None,
) -> dg.OpDefinition:
    """An op that runs after its inputs; `compute` returns one event or yields many."""
    resources = tuple(inspect.signature(compute).parameters)[1:]

    def run(context: Any, inputs: Mapping[str, Any]) -> Iterator[Any]:
        made = compute(context, **{key: getattr(context.resources, key) for key in resources})
        if isinstance(made, dg.MaterializeResult):
            yield made
        else:
            yield from made

    run.__signature__ = _SIGNATURE  # type: ignore[attr-defined]  # Dagster asks each op for it; the context's kind is left to it
    return dg.OpDefinition(
        compute_fn=run,
        name=name,
        ins=dict.fromkeys(inputs, _AFTER),
        outs=outputs,
        required_resource_keys=set(resources),
        pool=pool,
    )
