"""The page of the graph in a real browser: the demo as it stands on a server with a broken view, 500 generated objects, and hostile names.

The pages are opened as files. Any request, any error in the console fails a test. `CHMV_README_PICTURES=1` also writes the two pictures of
docs/graph.md.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import pytest
from conftest import PATIENCE_MS, PICTURES, PICTURES_VARIABLE, VIEWPORT, launch
from playwright.sync_api import Browser, Page, expect

from bench.generate_ddl import write_folder
from chmv_assets import demo
from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.groups import group_of
from chmv_assets.core.names import QName
from chmv_assets.core.picture.page import render_page
from chmv_assets.core.picture.state import Seen, judge_nodes
from chmv_assets.core.settings import Settings
from chmv_assets.pipeline import DEMO_DDL, load_pipeline
from resources.clickhouse import Server
from resources.graph_status import read_graph_status

BROKEN = "shop.traffic_hourly_mv"
MANY = 500
PAINT_BOUND_MS = 10_000  # far above what is measured (about 500 ms): a machine under load must not fail it
_ROWS = """INSERT INTO shop.events (event_id, event_time, event_type, user_id, product_id, ingested_at)
SELECT number, now() - number, 'view', number % 50, 1, now64(6) FROM numbers({rows})"""
_INSIDE = """() => [...document.querySelectorAll('.node')].flatMap(node => {
  const body = node.querySelector('.body').getBoundingClientRect();
  return [...node.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < body.left || box.right > body.right + 0.5 || box.top < body.top || box.bottom > body.bottom + 0.5);
  }).map(text => text.textContent);
})"""


@dataclass
class Site:
    """Pages in files, opened one tab at a time."""

    browser: Browser
    folder: Path
    troubles: list[str] = field(default_factory=list)

    def write(self, name: str, page: str) -> str:
        file = self.folder / f"{name}.html"
        file.write_text(page, encoding="utf-8")
        return file.as_uri()

    def open(self, url: str, scheme: str = "light") -> Page:
        context = self.browser.new_context(viewport=VIEWPORT, reduced_motion="reduce", color_scheme=scheme)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        plain = url.partition("#")[0]
        page.on("console", lambda message: self.troubles.append(f"{message.type}: {message.text[:300]}"))
        page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        page.on(
            "request", lambda one: one.url == plain or one.url == url or self.troubles.append(f"asked {one.url[:99]}")
        )
        page.goto(url, wait_until="load")
        page.wait_for_selector("html[data-painted]")
        return page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with launch() as browser:
        yield browser


@pytest.fixture
def site(chromium: Browser, tmp_path: Path) -> Iterator[Site]:
    made = Site(chromium, tmp_path)
    yield made
    for context in chromium.contexts:
        context.close()
    assert made.troubles == []


@pytest.fixture(scope="module")
def seen(server: Server) -> Iterator[Seen]:
    """The demo on a server: some rows went through its views, then one view is dropped."""
    server.command("DROP DATABASE IF EXISTS shop SYNC")
    demo.apply_ddl(server)
    server.command(_ROWS.format(rows=5_000))
    server.command(f"DROP TABLE {BROKEN} SYNC")
    pipeline = load_pipeline(DEMO_DDL)
    yield read_graph_status(server, pipeline.catalog, pipeline.settings)
    server.command("DROP DATABASE shop SYNC")


@pytest.fixture(scope="module")
def demo_page(seen: Seen) -> str:
    pipeline = load_pipeline(DEMO_DDL)
    return render_page(pipeline.catalog, pipeline.settings, seen, title="chmv demo")


@pytest.fixture
def picture() -> Callable[[Page, str], None]:
    def write(page: Page, name: str) -> None:
        if os.environ.get(PICTURES_VARIABLE) == "1":
            page.mouse.move(5, 400)
            page.screenshot(path=PICTURES / f"{name}.png")

    return write


def scale(page: Page) -> float:
    return float(page.locator("#graph").get_attribute("data-scale") or 0)


def test_the_live_demo_shows_a_broken_view_and_what_misses_its_rows(
    site: Site, seen: Seen, demo_page: str, picture: Callable[[Page, str], None]
) -> None:
    page = site.open(site.write("demo", demo_page))
    pipeline = load_pipeline(DEMO_DDL)
    judged = judge_nodes(pipeline.catalog, pipeline.settings, seen)
    assert judged[pipeline.catalog.get(BROKEN).name].status == "DEGRADED"
    for status in ("ACTIVE", "DEGRADED", "STALE", "unknown"):
        wanted = sum(one.status == status for one in judged.values())
        expect(page.locator(f"#world .node.{status}")).to_have_count(wanted)
    assert page.evaluate(_INSIDE) == [], "labels that stick out of their nodes"
    widths = {float(w) for w in page.locator("#world .edge .line").evaluate_all("all => all.map(one => one.getAttribute('stroke-width'))")}  # fmt: skip
    assert len(widths) > 3 and max(widths) == 7.0
    page.locator(f'.node[aria-label^="{BROKEN},"]').click()
    panel = page.locator("#panel")
    expect(panel.locator("h2")).to_have_text(BROKEN)
    expect(panel).to_contain_text("it is not on the server")
    expect(panel.locator("pre")).to_contain_text("CREATE MATERIALIZED VIEW")
    expect(page.locator('.node.down[aria-label^="shop.traffic_daily,"]')).to_be_visible()
    expect(page.locator('.node.up[aria-label^="shop.events,"]')).to_be_visible()
    assert page.evaluate("location.hash") == f"#{BROKEN}"
    picture(page, "graph_page_demo")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_search_zoom_keys_and_groups(site: Site, demo_page: str) -> None:
    page = site.open(site.write("demo", demo_page))
    whole = scale(page)
    page.keyboard.press("/")
    page.keyboard.type("revenue")
    expect(page.locator("#results li").first).to_contain_text("shop.revenue_daily")
    page.keyboard.press("Enter")
    expect(page.locator("#panel h2")).to_have_text("shop.revenue_daily")
    expect(page.locator(".node.chosen")).to_have_count(1)
    page.locator("#graph").press("Escape")
    page.keyboard.press("+")
    nearer = scale(page)
    page.mouse.move(500, 400)
    page.mouse.wheel(0, -300)
    expect(page.locator("#graph")).not_to_have_attribute("data-scale", f"{nearer:.4f}")
    assert scale(page) > nearer
    page.click("#smaller")
    before = page.locator("#world").get_attribute("transform")
    page.mouse.move(700, 60)
    page.mouse.down()
    page.mouse.move(640, 90)
    page.mouse.up()
    assert page.locator("#world").get_attribute("transform") != before
    page.click("#fit")
    assert scale(page) == pytest.approx(whole, rel=0.2)
    page.click("#groups")
    page.get_by_text("Collapse all").click()
    pipeline = load_pipeline(DEMO_DDL)
    groups = len({group_of(pipeline.catalog, pipeline.settings, name) for name in pipeline.catalog.objects})
    expect(page.locator("#world .node.group")).to_have_count(groups)
    page.locator('.node[aria-label^="group sales,"]').dblclick()
    expect(page.locator('.node[aria-label^="shop.revenue_daily,"]')).to_be_visible()


def test_the_fragment_opens_the_page_at_a_node_and_the_dark_scheme_is_dark(site: Site, demo_page: str) -> None:
    page = site.open(site.write("demo", demo_page) + "#shop.orders_latest", "dark")
    expect(page.locator("#panel h2")).to_have_text("shop.orders_latest")
    box = page.locator(".node.chosen").bounding_box()
    assert box is not None and 0 < box["x"] < VIEWPORT["width"] and 0 < box["y"] < VIEWPORT["height"]
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in re.findall(r"\d+", colour)[:3]) < 60
    page.evaluate("location.hash = '#shop.users'")
    expect(page.locator("#panel h2")).to_have_text("shop.users")


def test_five_hundred_objects_are_painted_soon_and_can_be_found(
    site: Site, tmp_path: Path, picture: Callable[[Page, str], None]
) -> None:
    write_folder(tmp_path / "ddl", MANY)
    pipeline = load_pipeline(tmp_path / "ddl")  # the text depends on the number alone: the cache knows it
    began = time.monotonic()
    text = render_page(
        pipeline.catalog, pipeline.settings, many_seen(pipeline.catalog.objects), title=f"{MANY} objects"
    )
    rendered = time.monotonic() - began
    page = site.open(site.write("many", text))
    painted = int(page.evaluate("document.documentElement.dataset.painted"))
    print(f"\n{MANY} objects: rendered in {rendered:.2f} s, {len(text):,} bytes, painted after {painted} ms")
    assert painted < PAINT_BOUND_MS
    expect(page.locator("#world .node")).to_have_count(MANY)
    expect(page.locator("#map")).to_be_visible()
    expect(page.locator("#world .node .label").first).to_be_hidden()  # too small to be read; the frames have titles
    expect(page.locator(".frame")).to_have_count(4)
    picture(page, "graph_page_500")
    page.click("#query")
    page.keyboard.type("orders_0033_hourly_mv")
    page.keyboard.press("Enter")
    expect(page.locator("#panel h2")).to_have_text("db_001.orders_0033_hourly_mv")
    expect(page.locator(".node.chosen .label")).to_be_visible()
    assert page.evaluate(_INSIDE) == [], "labels that stick out of their nodes"


def many_seen(objects: Iterable[QName]) -> Seen:
    """As if the server had all but a few of them."""
    missing = {"orders_0007_hourly_mv", "orders_0024_enriched_mv", "orders_0051_hourly_mv"}
    names = frozenset(name for name in objects if name.table not in missing)
    hooks = dict.fromkeys(names, names)
    rows = {name: (10 ** (number % 8), 10) for number, name in enumerate(sorted(names))}
    return Seen(taken=datetime(2026, 10, 1, tzinfo=timezone.utc), tables=names, hooks=hooks, rows=rows)


def test_hostile_names_are_shown_and_never_run(site: Site) -> None:
    names = ("</script><script>window.hit=1</script>", "<img src=x onerror=window.hit=1>", "\"'`", "naïve 表 😀", "${window.hit=1}", "%2e&amp;")  # fmt: skip
    quoted = [name.replace("\\", "\\\\").replace("`", "\\`") for name in names]
    text = "\n".join(
        f"CREATE TABLE d.`{name}` (`{name}` UInt8) ENGINE = Log COMMENT '<b onclick=1>';" for name in quoted
    )
    catalog = build_catalog([SourceFile(path="<b>.sql", text=text)], default_database="d")
    assert len(catalog.objects) == len(names)
    url = site.write("hostile", render_page(catalog, Settings(), title="<script>window.hit=1</script>"))
    page = site.open(url)
    expect(page.locator("#world .node")).to_have_count(len(names))
    for number in range(len(names)):
        page.locator("#world .node").nth(number).click()
        expect(page.locator("#ddl")).to_contain_text("CREATE TABLE")
        chosen = page.locator("#panel h2").inner_text()
        if number % 3:
            continue
        page.reload()
        page.wait_for_selector("html[data-painted]")
        expect(page.locator("#panel h2")).to_have_text(chosen)  # the fragment found it again
    assert page.evaluate("window.hit") is None


def test_the_policy_stops_a_script_that_got_into_the_page(site: Site, demo_page: str) -> None:
    page = site.open(site.write("demo", demo_page.replace("</body>", "<script>window.hit = 1</script></body>")))
    assert page.evaluate("window.hit") is None
    assert len(site.troubles) == 1 and "Content Security Policy" in site.troubles.pop()
