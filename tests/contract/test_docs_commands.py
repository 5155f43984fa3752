"""Every command in README.md and docs/ is run, against a real server with the demo's tables and some rows, or is listed here with the reason why not.

A page is one session of a person: a folder of its own with a copy of the demo's DDL in `./ddl`, the exports of the page, its commands in order. `chmv` runs in
this process, filters like jq and grep for real. What a page says of an exit code in a comment is held against it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path

import click
import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from docs_commands import (
    DOCS_TODAY,
    SHELLS,
    Command,
    Pipeline,
    fill_in,
    inline_commands,
    read_blocks,
    read_commands,
    split_line,
)

from chmv_assets import demo
from chmv_assets.cli.main import main
from chmv_assets.pipeline import DEMO_DDL
from resources.clickhouse import Server, endpoint_of
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

ROOT = Path(__file__).parents[2]
LAST = "docs/howto/add_a_view.md"  # it leaves a view that other pages do not know
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], key=lambda page: (str(page).endswith(LAST), page))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BESIDES = ("CONTRIBUTING.md", "CHANGELOG.md")

# Commands that begin so are not run here, and why. A line that no page has any more fails.
NOT_RUN = {
    "make demo": "tests/e2e/test_demo_command.py runs what it calls",
    "make test": "this is a part of it",
    "make soak": "half an hour; tests/e2e/test_soak.py runs a short one",
    "SOAK_MINUTES=": "the same",
    "python -m soak": "tests/e2e/test_soak.py",
    "dagster dev": "serves until it is stopped; tests/browser has a webserver and a daemon",
    "dagster code-server start": "serves until it is stopped; tests/integration/metrics has a code server",
    "dagster-webserver": "serves until it is stopped; tests/browser",
    "dagster-daemon": "serves until it is stopped; tests/browser",
    "chmv metrics --port": "serves until it is stopped; tests/integration/metrics",
    "python3 -m venv /opt/chmv": "installs; the Makefile does the same",
    "/opt/chmv/bin/pip install": "installs; the Makefile does the same",
    "export SPARK_HOME=": "for the next one",
    "PYSPARK_PYTHON=": "a Spark Connect server; tests/spark/test_session.py starts one like this",
}
NO_FOLDER = {"docs/adopt.md"}  # they begin without ./ddl
FILTERS = {"sed", "grep", "jq"}


def commands_of(page: Path) -> list[Command]:
    return [command for block in read_blocks(page) for command in read_commands(block)]


def why_not(command: str) -> str | None:
    bare = re.sub(r"^(?:CHMV_\w+=\S+ )+", "", command)
    return next((reason for begin, reason in NOT_RUN.items() if bare.startswith(begin)), None)


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineInfo]:
    """A server of its own (deployments stay in its journal) with the demo's tables and rows of a morning that the pages speak of: 2026-11-14."""
    folder = tmp_path_factory.mktemp("engine")
    info = start_engine(EngineOptions(data_dir=folder))
    today = datetime.combine(datetime.now(timezone.utc).date(), time(), timezone.utc)
    morning = today + (date(2026, 11, 14) - DOCS_TODAY) + timedelta(hours=6)
    window = demo.DemoWindow(start=morning, end=morning + timedelta(hours=3), rows=1000, seed=7)
    try:
        with Server(endpoint_of(info)) as server:
            demo.apply_ddl(server)
            demo.load_data(server, window)
        yield info
    finally:
        stop_engine(folder)


class Session:
    """A person's shell while reading one page."""

    def __init__(self, name: str, folder: Path, engine: EngineInfo) -> None:
        today = datetime.now(timezone.utc).date()
        self.replaced = {
            "https://your-server:8443": engine.url,
            "https://clickhouse.internal:8443": engine.url,
            "http://clickhouse:8123": engine.url,
            "--watch 300": "--watch 1",
            "CHMV_CLICKHOUSE_USER=chmv_recovery": "CHMV_CLICKHOUSE_USER=default",  # the engine has no other
        }
        self.today, self.folder, self.code = today, folder, 0
        self.environ = {"CHMV_CLICKHOUSE_URL": engine.url, "CHMV_LANDING_ROOT": str(folder)}
        for table in demo.LANDED:
            (folder / "landing" / table).mkdir(parents=True)
        if name not in NO_FOLDER:
            shutil.copytree(DEMO_DDL, folder / "ddl")

    def run(self, text: str) -> tuple[int, str]:
        """Run a line; gives its exit code and what it said."""
        code, said = 0, ""
        for pipeline in split_line(fill_in(text, self.replaced, self.today)):
            if (pipeline.after == "&&" and code) or (pipeline.after == "||" and not code):
                continue
            code, out, err = self._pipe(pipeline)
            said += out + err
            self.code = code
            if pipeline.output:
                written = self.folder / pipeline.output
                written.parent.mkdir(parents=True, exist_ok=True)
                written.write_text(out, encoding="utf-8")
        return code, said

    def _pipe(self, pipeline: Pipeline) -> tuple[int, str, str]:
        code, out, err = 0, "", ""
        for words in pipeline.stages:
            stage, out, said = self._stage(words, out)
            code, err = code or stage, err + said
        return code, out, err

    def _stage(self, words: tuple[str, ...], given: str) -> tuple[int, str, str]:
        if words[0] == "export":
            self.environ.update(word.split("=", 1) for word in words[1:])  # type: ignore[arg-type]
            return 0, "", ""
        if words[:3] == ("[", "$?", "-eq") and words[4:] == ("]",):
            return int(self.code != int(words[3])), "", ""
        if words[0] == "chmv":
            result = CliRunner().invoke(main, words[1:], env=self.environ, catch_exceptions=False)
            return result.exit_code, result.stdout, result.stderr
        assert words[0] in FILTERS, (
            f"{words[0]} is neither chmv nor a filter. Add it to NOT_RUN with the reason, or leave it out."
        )
        if shutil.which(words[0]) is None:  # jq is no requirement of ours
            return 0, given, ""
        done = subprocess.run(words, input=given, cwd=self.folder, capture_output=True, text=True, timeout=20)
        return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", [name for name, page in zip(NAMES, PAGES, strict=True) if commands_of(page)])
def test_every_command_of_a_page_does_what_the_page_says(
    name: str, stocked: EngineInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("CHMV_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    session = Session(name, tmp_path, stocked)
    for block in read_blocks(ROOT / name):
        if block.language == "sql" and (place := re.match(r"-- (ddl/\S+\.sql)$", block.lines[0])):
            (tmp_path / place.group(1)).write_text(block.text, encoding="utf-8")
        for command in read_commands(block):
            if why_not(command.text) is not None:
                continue
            code, said = session.run(command.text)
            assert code in command.exit_codes, f"{name}:{command.line}: {command.text}\n{said}"
            assert "\x1b[" not in said, f"{name}:{command.line}: colour without a terminal"


def test_what_is_not_run_is_still_there() -> None:
    every = [re.sub(r"^(?:CHMV_\w+=\S+ )+", "", one.text) for page in PAGES for one in commands_of(page)]
    assert [begin for begin in NOT_RUN if not any(text.startswith(begin) for text in every)] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_with_commands_are_marked_as_such(page: Path) -> None:
    for block in read_blocks(page):
        if block.language not in SHELLS:
            assert not re.search(r"^(\$ |chmv [a-z]+($| +(--|#|\w+\.\w))|dagster )", block.text, re.MULTILINE), (
                f"{page}:{block.line}: mark it as sh"
            )


def find_command(words: list[str]) -> tuple[click.Command, list[str]] | None:
    command: click.Command = main
    while isinstance(command, click.Group) and words:
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            return None
        command, words = inner, words[1:]
    return command, words


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=[*NAMES, "CONTRIBUTING.md"])
def test_commands_in_running_text_and_their_options_exist(page: Path) -> None:
    for line, words in inline_commands(page, "chmv"):
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue  # `chmv …`, `chmv --help`
        found = find_command(list(words))
        assert found is not None, f"{page}:{line}: chmv {words[0]} is no command"
        known = {option for parameter in found[0].params for option in parameter.opts} | {"--help"}
        asked = {word.split("=")[0] for word in found[1] if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert asked <= known, f"{page}:{line}: {sorted(asked - known)} of chmv {words[0]}"


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in BESIDES)], ids=[*NAMES, *BESIDES])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(title) for title in titles}, f"{page}: {target}"


def _anchor(title: str) -> str:
    """As GitHub makes it: lower case, letters, digits, hyphens; spaces become hyphens."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_every_page_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [name for name in NAMES if name.startswith("docs/") and "/adr/" not in name]
    assert [name for name in pages if f"({name}" not in readme] == []


def test_dagster_yaml_of_the_production_page_is_valid(tmp_path: Path) -> None:
    page = ROOT / "docs/production.md"
    block = next(one for one in read_blocks(page) if one.lines[:1] == ("# dagster.yaml",))
    document = yaml.safe_load(block.text)
    assert "postgres" in document.pop(
        "storage"
    )  # dagster-postgres and its server are not here; all else is checked by Dagster
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_retries_enabled and instance.run_monitoring_enabled


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    told = [
        message
        for line in (ROOT / "docs/troubleshoot.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|") and (found := re.search(r"`([^`]*[a-z]+ [a-z]+ [^`]*)`", line.split("|")[1]))
        for message in [found.group(1)]
    ]
    assert len(told) > 40
    ours = "\n".join(_texts())
    unknown = [text for text in told if not re.search(".*?".join(map(re.escape, text.split("…"))), ours)]
    assert unknown == []


def _texts() -> Iterator[str]:
    """All string literals of the code; what is filled in is `…`."""
    for package in ("chmv_assets", "resources", "spark_jobs"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
