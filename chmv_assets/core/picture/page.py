"""The document → one HTML page that asks nobody for anything: styles, scripts and data are in it. Pure, apart from reading our own files.

Names and DDL are hostile until proven otherwise. The data stands in a JSON block in which no `<`, `>` or `&` is left, the scripts put
texts into the page only as text, and the Content-Security-Policy lets exactly our script and our style run, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.picture.document import build_document
from chmv_assets.core.picture.state import Seen
from chmv_assets.core.secrets import mask_secrets
from chmv_assets.core.settings import Settings

_FILES = Path(__file__).parent / "files"
_SCRIPTS = ("model.js", "draw.js", "camera.js", "highlight.js", "panel.js", "controls.js", "minimap.js", "main.js")
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def render_page(catalog: Catalog, settings: Settings, seen: Seen | None = None, *, title: str = "chmv") -> str:
    """The graph as a page; without `seen` no status is known and all edges are as wide."""
    return render_document(build_document(catalog, settings, seen, title, mask_secrets))


def render_document(document: dict[str, Any]) -> str:
    """The page of a document."""
    template, style, script = _assets()
    said = {
        "title": html.escape(str(document["title"])),
        "policy": html.escape(_policy(style, script)),
        "style": style,
        "script": script,
        "data": encode_data(document),
    }
    return _PLACE.sub(
        lambda match: said[match.group(1)], template
    )  # in one pass: what is put in is not looked at again


def encode_data(document: Any) -> str:
    """JSON that can stand inside a script element, whatever the texts are.

    >>> print(encode_data("</script>"))
    "\\u003c/script\\u003e"
    """
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _assets() -> tuple[str, str, str]:
    """Template, style and script, from our own package."""
    read = {name: (_FILES / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", *_SCRIPTS)}
    body = "\n".join(read[name] for name in _SCRIPTS)
    return read["page.html"], read["page.css"], f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
