"""Where the page of the graph is published, and the address of one node on it. Pure; the page reads the fragment (`files/main.js`)."""

from __future__ import annotations

from urllib.parse import quote

from chmv_assets.core.names import QName

GRAPH_VARIABLE = "CHMV_GRAPH_URL"


def graph_link(base: str, name: QName) -> str:
    """The page, opened with a node selected.

    >>> graph_link("https://wiki.example/graph.html", QName("shop", "odd name"))
    'https://wiki.example/graph.html#shop.%60odd%20name%60'
    """
    return f"{base.partition('#')[0]}#{quote(str(name), safe='')}"
