"""The demo in a real browser: engine, data, Dagster's own processes, and the system's Chromium.

Everything is brought up once for the module, on a state folder of its own, and ended by its ids, also after a failure.
No Chromium fails the tests; the Makefile decides where the folder is left out. Playwright's loop runs in this thread, so
nothing here outlives the module. What is asserted belongs to `test_ui.py`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import pytest
from engines import fast_folder
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    FloatRect,
    Locator,
    Page,
    Request,
    ViewportSize,
    expect,
    sync_playwright,
)

from chmv_assets import demo
from chmv_assets.start import START_VARIABLE
from resources.clickhouse import Server, endpoint_of
from resources.dagster_ui import LOOPBACK, DagsterUi, prepare_home
from resources.engine import EngineInfo, EngineOptions, connection_env, start_engine, stop_engine
from resources.engine.ports import free_ports

ROOT = Path(__file__).parents[2]
SCREENSHOTS = Path(__file__).parent / "screenshots"
PICTURES = ROOT / "docs" / "images"
PICTURES_VARIABLE = "CHMV_README_PICTURES"  # set to 1, the tests also write the pictures of the README
VIEWPORT = ViewportSize(width=1600, height=900)
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)  # two cores, and other tests beside it
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
)
ONLY_LOOPBACK = f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {LOOPBACK}"
_FAILED = pytest.StashKey[bool]()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDemo:
    """A demo that is up."""

    ui: DagsterUi
    server: Server
    window: demo.DemoWindow

    @property
    def url(self) -> str:
        return self.ui.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One tab, and what went wrong in it."""

    page: Page
    url: str
    name: str
    troubles: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path, wait_until="load")
        return self.page

    def keep(self, what: str = "") -> None:
        """Save what is on the screen."""
        SCREENSHOTS.mkdir(exist_ok=True)
        name = re.sub(r"\W+", "_", "-".join(filter(None, (self.name, what)))).strip("_")
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


def find_chromium() -> str:
    """The system's browser, or an error that says how to get one."""
    for name in CHROMIUM_NAMES:
        if (path := shutil.which(name)) is not None:
            return path
    raise FileNotFoundError(
        f"browser: found none of {', '.join(CHROMIUM_NAMES)} on PATH but the tests need one. Install it: apt-get install chromium"
    )


@contextmanager
def launch() -> Iterator[Browser]:
    """Chromium with a new profile that sees only this machine."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), args=[*CHROMIUM_ARGUMENTS, ONLY_LOOPBACK]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def live_demo() -> Iterator[LiveDemo]:
    """The whole demo, small: its own server, data, first runs, web server and daemon."""
    find_chromium()  # before anything slow
    state = fast_folder("browser")
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, state, ignore_errors=True)
        ending.callback(stop_engine, state / "engine")
        engine = start_engine(EngineOptions(data_dir=state / "engine"))
        window = demo.choose_window(state, rows=20_000, days=3, now=datetime.now(timezone.utc))
        home = prepare_home(state / "dagster")
        ui = DagsterUi(
            home=home,
            workspace=ROOT / "workspace.yaml",
            port=free_ports(1)[0],
            environ=environment(engine, home, window),
        )
        ending.callback(ui.stop)
        ui.start()
        server = ending.enter_context(Server(endpoint_of(engine)))
        fill(server, ui, window)
        ui.wait()
        yield LiveDemo(ui=ui, server=server, window=window)


def environment(engine: EngineInfo, home: Path, window: demo.DemoWindow) -> dict[str, str]:
    """What the demo's processes see; nothing of it stays in this one."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CHMV_", "DAGSTER_"))}
    kept = {name: os.environ[name] for name in ("CHMV_CACHE_DIR",) if name in os.environ}
    said = {"DAGSTER_HOME": str(home), START_VARIABLE: window.start.date().isoformat()}
    return {**inherited, **kept, **connection_env(engine), **said}


def fill(server: Server, ui: DagsterUi, window: demo.DemoWindow) -> None:
    demo.apply_ddl(server)
    demo.load_data(server, window)
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(ui.home)) as instance:
        for name, value in ui.environ.items():
            patch.setenv(name, value)
        demo.tell_dagster(instance, server, window)
        results = demo.first_runs(instance, window)
    assert all(results.values()), f"a first run of the demo failed: {results}"


@pytest.fixture(scope="module")
def browser(live_demo: LiveDemo) -> Iterator[Browser]:
    """Chromium with a new profile; starts after the demo, whose runs want no event loop in this thread."""
    with launch() as chromium:
        yield chromium


@pytest.fixture
def visit(live_demo: LiveDemo, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """A fresh tab that notes its troubles and leaves a screenshot when the test fails."""
    context = browser.new_context(viewport=VIEWPORT, timezone_id="UTC", locale="en-US", reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    tab = Visit(page=context.new_page(), url=live_demo.url, name=request.node.name.removeprefix("test_"))
    for event, watch in watchers(tab).items():
        tab.page.on(event, watch)  # type: ignore[call-overload]
    yield tab
    if tab.troubles or request.node.stash.get(_FAILED, False):
        tab.keep("FAILED")
    context.close()
    assert not tab.troubles, "\n".join(tab.troubles)


def watchers(tab: Visit) -> dict[str, Callable[..., None]]:
    """What counts as trouble: errors in the console or a script, and any address that is not the demo's."""

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            tab.troubles.append(f"console: {message.text[:300]}")

    def on_request(request: Request) -> None:
        if not request.url.startswith((tab.url, "data:", "blob:")):
            tab.troubles.append(f"asked for {request.url[:200]}")

    def on_error(error: Exception) -> None:
        tab.troubles.append(f"script: {str(error)[:300]}")

    return {"console": on_console, "request": on_request, "pageerror": on_error}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":  # type: ignore[attr-defined]
        item.stash[_FAILED] = report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture
def picture(visit: Visit) -> Callable[..., None]:
    """Write one of the README's pictures, if asked to: the whole page, or what surrounds some elements."""

    def write(name: str, around: Locator | None = None) -> None:
        if os.environ.get(PICTURES_VARIABLE) == "1":
            PICTURES.mkdir(parents=True, exist_ok=True)
            clip = surrounding(around) if around is not None else None
            visit.page.screenshot(path=PICTURES / f"{name}.png", clip=clip)

    return write


def surrounding(elements: Locator, margin: float = 12) -> FloatRect:
    boxes = [box for box in (element.bounding_box() for element in elements.all()) if box is not None]
    left, top = min(box["x"] for box in boxes) - margin, min(box["y"] for box in boxes) - margin
    right = max(box["x"] + box["width"] for box in boxes)
    bottom = max(box["y"] + box["height"] for box in boxes)
    return FloatRect(x=left, y=top, width=right + margin - left, height=bottom + margin - top)
