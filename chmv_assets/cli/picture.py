"""The pictures of `chmv graph`: DOT, Mermaid and the page, with or without what a server says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.picture.state import Seen, edge_rows, judge_nodes
from chmv_assets.core.render import Dashed, Paint, render_dot, render_mermaid
from chmv_assets.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn; `hours` is how far to look back on the server, None asks none."""

    catalog: Catalog
    settings: Settings
    hours: float | None
    title: str

    def render(self, form: str, dashed: Dashed = ()) -> str:
        seen = self._read()
        if form == "html":
            from chmv_assets.core.picture.page import render_page

            return render_page(self.catalog, self.settings, seen, title=self.title)
        paint = None
        if seen is not None:
            judged = judge_nodes(self.catalog, self.settings, seen)
            rows = {edge: count for edge, (count, _) in edge_rows(self.catalog, seen).items()}
            paint = Paint({name: one.status for name, one in judged.items()}, rows, max(rows.values(), default=0))
        return (render_dot if form == "dot" else render_mermaid)(self.catalog, dashed, paint)

    def _read(self) -> Seen | None:
        if self.hours is None:
            return None
        from resources.clickhouse import Server, endpoint_from_environment
        from resources.graph_status import read_graph_status

        with Server(endpoint_from_environment()) as server:
            return read_graph_status(server, self.catalog, self.settings, hours=self.hours)


def write_out(text: str, output: Path | None) -> None:
    """To a file, whole or not at all, or to standard output."""
    if output is None:
        click.echo(text, nl=False)
        return
    part = output.with_name(f".{output.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(output)
    except OSError as error:
        raise ChmvError(
            f"file {output}: could not be written ({error.strerror}) but the graph was to go there. Choose another with --output."
        ) from error
    click.echo(f"{output}: {len(text.encode()):,} bytes", err=True)
