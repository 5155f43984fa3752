"""The page of the graph as it stands now, for the endpoint that Dagster's code server carries beside the metrics.

One page at a time is made, and kept for some seconds: whoever reloads it cannot load the server. Without a server the page shows what is declared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.settings import Settings
from resources.clickhouse import Endpoint, Server
from resources.metrics import find_endpoint

PATH = "/graph"
_KEPT_SECONDS = 5.0
_CONNECT_SECONDS = 4


@dataclass
class GraphPage:
    """Makes the page when it is asked for."""

    catalog: Catalog
    settings: Settings
    endpoint: Callable[[], Endpoint] = find_endpoint
    clock: Callable[[], float] = time.monotonic
    _made: tuple[float, bytes] | None = None
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def render(self) -> bytes:
        with self._one_at_a_time:
            if self._made is None or self.clock() - self._made[0] > _KEPT_SECONDS:
                self._made = (self.clock(), self._render().encode("utf-8", "replace"))
            return self._made[1]

    def _render(self) -> str:
        from chmv_assets.core.picture.page import render_page
        from resources.graph_status import read_graph_status

        try:
            with Server(
                self.endpoint(), log_comment={"chmv": "graph"}, timeout_seconds=60, connect_seconds=_CONNECT_SECONDS
            ) as server:
                seen = read_graph_status(server, self.catalog, self.settings)
        except ChmvError:
            return render_page(self.catalog, self.settings, title="chmv: the server is away, statuses are not known")
        return render_page(self.catalog, self.settings, seen)
