"""`chmv graph --runtime`: the graph as it ran, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.markup import escape

from chmv_assets.cli.output import console, table
from chmv_assets.core.catalog import Catalog
from chmv_assets.core.names import QName
from chmv_assets.core.runtime_graph import (
    EdgeRow,
    Observed,
    RuntimeGraph,
    build_runtime_graph,
    dashed_edges,
    runtime_document,
)

_SHOWN = 200  # rows of uses for people; --format json has all


@dataclass(frozen=True, slots=True)
class Runtime:
    """What was seen, and how it is shown."""

    observed: Observed
    graph: RuntimeGraph

    def document(self) -> dict[str, Any]:
        return runtime_document(self.observed, self.graph)

    def dashed(self) -> Sequence[tuple[QName, QName, str]]:
        return dashed_edges(self.graph)

    def print(self) -> None:
        out = console()
        for note in self.observed.notes:
            out.print(note, style="yellow", highlight=False, markup=False)
        if not self.observed.known:
            out.print("Nothing is known of what ran: both logs are missing.", highlight=False)
            return
        rows = [_edge(row) for row in self.graph.edges]
        out.print(table("declared edges", ("from", "to", "kind", "state", "times", "last (UTC)", "inserts into the source"), rows))  # fmt: skip
        if self.graph.undeclared:
            extra = [
                [escape(str(one.source)), escape(str(one.dest)), one.kind, one.count, _time(one.last),
                 escape(", ".join(f"{user} ({client})" for user, client in one.by))]
                for one in self.graph.undeclared
            ]  # fmt: skip
            out.print(table("seen but not declared", ("from", "to", "kind", "times", "last (UTC)", "by"), extra))
        if self.graph.uses:
            uses = [
                [escape(str(one.table)), "" if one.declared else "no", one.what, one.kind, escape(one.user),
                 escape(one.client), one.count, _time(one.last)]
                for one in self.graph.uses[:_SHOWN]
            ]  # fmt: skip
            columns = ("table", "declared", "what", "kind", "user", "client", "times", "last (UTC)")
            out.print(table("queries of others", columns, uses))
            if len(self.graph.uses) > _SHOWN:
                out.print(f"and {len(self.graph.uses) - _SHOWN} more; --format json has all", highlight=False)
        out.print(_summary(self.observed, self.graph), highlight=False, markup=False)


def read_runtime(catalog: Catalog, hours: float) -> Runtime:
    """Ask the server."""
    from resources.clickhouse import Server, endpoint_from_environment
    from resources.journal import cluster_from_environment
    from resources.runtime import fetch_observed

    databases = {made.name.database for made in catalog.objects.values() if made.kind not in ("external", "function")}
    with Server(endpoint_from_environment()) as server:
        observed = fetch_observed(server, databases, hours, cluster_from_environment())
    return Runtime(observed, build_runtime_graph(catalog, observed))


def _edge(row: EdgeRow) -> list[object]:
    state = "[bold red]never seen, suspicious[/]" if row.suspicious else row.sight
    inserts = "" if row.source_inserts is None else row.source_inserts
    return [
        escape(str(row.edge.source)), escape(str(row.edge.dest)), row.edge.kind, state, row.count or "", _time(row.last), inserts,
    ]  # fmt: skip


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at is not None else ""


def _summary(observed: Observed, graph: RuntimeGraph) -> str:
    counted = Counter(row.sight for row in graph.edges)
    shown = ", ".join(f"{counted[sight]} {sight}" for sight in ("seen", "never seen", "not logged"))
    suspicious = sum(row.suspicious for row in graph.edges)
    return (
        f"{_time(observed.since)} to {_time(observed.until)} UTC: {len(graph.edges)} declared edges ({shown}; {suspicious} suspicious: "
        f"the source was written, the view did not fire), {len(graph.undeclared)} not declared."
    )
