"""The way back from a rebuild: writers first, then merges, then scratches. Every step is a no-op where nothing is to undo."""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.gate import gate_name, render_open
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_plan import Step, undo_of
from resources.executor import Executor


def open_gate(executor: Executor, root: QName, constraint: str) -> None:
    """Remove a gate's constraint; a no-op if it is gone."""
    executor.run_ddl(f"open gate of {root}", render_open(root, constraint))


def undo(executor: Executor, rebuild_id: str, steps: Sequence[Step]) -> None:
    """Go back: writers first, then merges, then scratches."""
    for step in undo_of(steps):
        if step.kind == "open gate":
            open_gate(executor, step.name, gate_name(rebuild_id))
        elif step.kind == "release merges":
            executor.start_merges(step.name)
        else:
            executor.drop_table(step.name)
