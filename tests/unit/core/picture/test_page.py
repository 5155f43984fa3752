"""The page: nothing from elsewhere, nothing that runs but our script, no secret, and the same bytes for the same input."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import date, datetime, timezone
from html.parser import HTMLParser
from typing import Any

import pytest

from chmv_assets.assets import build_props
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.picture.document import shorten
from chmv_assets.core.picture.page import render_page
from chmv_assets.core.picture.state import Flow, Seen
from chmv_assets.core.secrets import mask_secrets
from chmv_assets.core.settings import Settings
from chmv_assets.pipeline import DEMO_DDL, load_pipeline
from chmv_assets.translator import AssetTranslator

HOSTILE = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "it''s \"quoted\"", "a&b;<!--", "]]>", "naïve_表_😀",
    "\u2028line\u2029", "{{data}}", "new\nline", "${x}`", "javascript:alert(1)",
)  # fmt: skip
DDL = """
CREATE TABLE shop.events (at DateTime, amount Int64 COMMENT 'in cents') ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at;
CREATE TABLE shop.days (day Date, amount Int64) ENGINE = SummingMergeTree ORDER BY day;
CREATE MATERIALIZED VIEW shop.days_mv TO shop.days AS SELECT toDate(at) AS day, sum(amount) AS amount FROM shop.events GROUP BY day;
CREATE DICTIONARY shop.names (id UInt64, name String) PRIMARY KEY id
SOURCE(CLICKHOUSE(HOST 'h' USER 'u' PASSWORD 'canary-1' DB 'shop' TABLE 'x')) LAYOUT(FLAT()) LIFETIME(60);
CREATE TABLE shop.bucket (x UInt8) ENGINE = S3('https://b.example/x.csv', 'AKIA-ID', 'canary-3', 'CSV');
"""


def catalog_of(text: str) -> Catalog:
    return build_catalog([SourceFile(path="a.sql", text=text)], default_database="shop")


def quoted(text: str) -> str:
    return "`" + text.replace("\\", "\\\\").replace("`", "\\`").replace("\n", "\\n") + "`"


class Reader(HTMLParser):
    """Elements and the contents of scripts and styles, as a browser's parser would cut them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in ("script", "style", "title"):
            self.texts.append((self.open, data))


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def data_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(text for tag, text in read(page).texts if tag == "script" and text.startswith("{")))  # fmt: skip
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(catalog_of(DDL), Settings(), title="shop")


def test_the_page_asks_nobody_for_anything(page: str) -> None:
    reader = read(page)
    for tag, attributes in reader.tags:
        assert "src" not in attributes and tag not in ("iframe", "object", "embed", "base", "img"), (tag, attributes)
        assert attributes.get("href") in (None, "data:,")
    style = next(text for tag, text in reader.texts if tag == "style")
    assert "url(" not in style and "@import" not in style
    script = next(text for tag, text in reader.texts if tag == "script" and not text.startswith("{"))
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts)\b|\bimport\(", script
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)


def test_the_policy_names_exactly_our_script_and_style(page: str) -> None:
    reader = read(page)
    policy = next(a["content"] for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    for kind, directive in (("script", "script-src"), ("style", "style-src")):
        text = next(t for tag, t in reader.texts if tag == kind and not t.startswith("{"))
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy


def test_hostile_names_stay_text() -> None:
    text = "\n".join(
        f"CREATE TABLE {quoted(name)}.{quoted(name)} ({quoted(name)} UInt8 COMMENT '<b>') ENGINE = MergeTree ORDER BY tuple() COMMENT '</script><b>';"
        for name in HOSTILE
    )
    catalog = catalog_of(text)
    assert {name.table for name in catalog.objects} == set(HOSTILE)
    page = render_page(catalog, Settings(), title="</title><script>alert(2)</script>")
    reader = read(page)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not [tag for tag, _ in reader.tags if tag in ("img", "b")]
    assert ("title", "</title><script>alert(2)</script> – graph") in reader.texts
    data = data_of(page)
    assert {node["name"] for node in data["nodes"]} == {str(name) for name in catalog.objects}
    block = page[page.index('type="application/json">') + 24 :]
    assert not re.search(r"[<>&]", block[: block.index("</script>")])


def test_no_secret_is_on_the_page(page: str) -> None:
    assert "canary" not in page
    ddl = {node["name"]: node["ddl"] for node in data_of(page)["nodes"]}
    assert "PASSWORD '[HIDDEN]'" in ddl["shop.names"]
    assert "S3('https://b.example/x.csv', 'AKIA-ID', '[HIDDEN]'" in ddl["shop.bucket"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM mysql('h:3306', 'db', 't', 'u', 'canary')",
        "ENGINE = PostgreSQL('h:5432', 'db', 't', 'u', 'canary', 'schema')",
        "s3('https://x', secret_access_key = 'canary')",
        "SOURCE(MYSQL(password 'canary' user 'u'))",
        "SOURCE(MYSQL(password 'it''s canary' user 'u'))",
        "SOURCE(HTTP(url 'https://me:canary@example.com/x' format 'TSV'))",
        "remote('h', 'd', 't', 'u', concat('a)', 'canary'))",
        "SETTINGS nats_token = 'canary', rabbitmq_password='canary'",
    ],
)
def test_secrets_are_blotted_out_wherever_they_stand(text: str) -> None:
    assert "canary" not in mask_secrets(text)


def test_what_is_no_secret_is_left_alone() -> None:
    plain = "CREATE VIEW v AS SELECT 'a', concat('b', 'c') FROM t WHERE url = 'https://example.com/a:b' -- password of nobody"
    assert mask_secrets(plain) == plain


def seen() -> Seen:
    return Seen(
        taken=datetime(2026, 10, 1, 12, tzinfo=timezone.utc),
        tables=frozenset(QName("shop", name) for name in ("events", "days", "days_mv", "names", "bucket")),
        rows={QName("shop", "events"): (1000, 5000), QName("shop", "days"): (3, 90)},
        hooks={QName("shop", "events"): frozenset({QName("shop", "days_mv")})},
        flows={QName("shop", "days_mv"): Flow(read=999, written=9, basis="in the last 24 hours")},
    )


def test_the_same_input_gives_the_same_bytes() -> None:
    catalog = catalog_of(DDL)
    assert render_page(catalog, Settings(), seen()) == render_page(catalog_of(DDL), Settings(), seen())


def test_the_panel_has_what_the_catalog_and_the_server_know() -> None:
    data = data_of(render_page(catalog_of(DDL), Settings(), seen()))
    nodes = {node["name"]: node for node in data["nodes"]}
    events = nodes["shop.events"]
    assert events["columns"] == [["at", "DateTime", ""], ["amount", "Int64", "in cents"]]
    assert (events["rows"], events["bytes"], events["cadence"], events["place"]) == (1000, 5000, "daily", "a.sql:2")
    assert ["PARTITION BY", "toYYYYMMDD(at)"] in events["keys"]
    shapes = {name: node["shape"] for name, node in nodes.items()}
    assert shapes["shop.events"] == "source" and shapes["shop.days_mv"] == "view" and shapes["shop.days"] == "target"
    assert nodes["shop.days_mv"]["class"].startswith("additive")
    assert data["taken"] == "2026-10-01 12:00:00 UTC"
    edges = {(data["nodes"][e["from"]]["name"], data["nodes"][e["to"]]["name"]): e for e in data["edges"]}
    fired, written = edges["shop.events", "shop.days_mv"], edges["shop.days_mv", "shop.days"]
    assert (fired["rows"], written["rows"]) == (999, 9) and fired["width"] > written["width"] > 1.5


def test_groups_are_those_of_dagsters_graph() -> None:
    """A view without a group of its own stands with its target, on both."""
    pipeline = load_pipeline(DEMO_DDL)
    nodes = data_of(render_page(pipeline.catalog, pipeline.settings))["nodes"]
    translator = AssetTranslator()
    specs = [translator.get_asset_spec(props) for props in build_props(pipeline, date(2026, 11, 1))]
    assert {node["name"]: node["group"] for node in nodes} == {
        ".".join(spec.key.path): spec.group_name for spec in specs
    }
    assert {node["name"]: node["group"] for node in nodes}["shop.revenue_orders_mv"] == "sales"


def test_without_a_server_nothing_is_pretended(page: str) -> None:
    data = data_of(page)
    assert data["taken"] is None
    assert {node["status"] for node in data["nodes"]} == {"unknown"}
    assert {edge["width"] for edge in data["edges"]} == {2.0}


def test_labels_are_cut_in_their_middle_and_never_break_a_line() -> None:
    assert shorten("short", 10) == "short"
    assert shorten("表" * 20, 10) == "表表…表表"
    assert shorten("a\nb\u2028c\u202ed", 20) == "a b c d"
