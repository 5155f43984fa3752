"""Errors of ours at Dagster's edge: a sentence and its facts as `dagster.Failure`, here and nowhere deeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from chmv_assets.core.errors import ChmvError, ServerError
from chmv_assets.core.model import Object
from chmv_assets.core.retry import decide_retry


def failure_of(error: ChmvError, node: Object | None = None) -> dg.Failure:
    """The failure that a run ends with; only what passes by itself may be tried again."""
    metadata = {"error": type(error).__name__}
    if node is not None:
        metadata |= {"object": str(node.name), "declared at": str(node.place)}
    passes = isinstance(error, ServerError) and decide_retry(error.code, str(error)).retriable
    return dg.Failure(description=str(error), metadata=metadata, allow_retries=passes)


@contextmanager
def told_to_dagster(node: Object | None = None) -> Iterator[None]:
    """Turn errors of ours into failures."""
    try:
        yield
    except ChmvError as error:
        raise failure_of(error, node) from error
