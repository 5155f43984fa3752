"""Rebuild a hot partition over and over under four writers: 0 lost, 0 doubled, and no reader ever sees a hole or a double.

CHMV_TORTURE_SECONDS makes each case longer (60 for the record; a few seconds in every test run). Beside ours stand the recipes of
others, with what they lose and double: `docs/rebuild.md` has the table.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone

import pytest
from harness import BASE_ROWS, DAYS, HOT_DAY, WINDOW, Account, Site, account, under_fire

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.names import QName
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.statements import split_statements
from chmv_assets.core.windows import Window, window_of_key
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.rebuild import Rebuilder

LONG = "CHMV_TORTURE_SECONDS" in os.environ  # then every shape by every protocol
SECONDS = float(os.environ.get("CHMV_TORTURE_SECONDS", "3"))
SOURCE = f"CREATE TABLE {{db}}.{{s}} (d Date, id UInt64) ENGINE = MergeTree PARTITION BY d ORDER BY id {WINDOW};"
TARGET = f"CREATE TABLE {{db}}.{{t}} (d Date, id UInt64, n UInt64) ENGINE = SummingMergeTree PARTITION BY d ORDER BY (d, id) {WINDOW};"
VIEW = "CREATE MATERIALIZED VIEW {db}.{v} TO {db}.{t} AS SELECT d, id, {n} AS n FROM {db}.{s} GROUP BY d, id;"


def table(text: str, **names: str) -> str:
    for key, value in names.items():
        text = text.replace("{" + key + "}", value)
    return text


SHAPES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "one view": (
        table(SOURCE, s="s") + table(TARGET, t="t") + table(VIEW, v="v", t="t", s="s", n="count()"),
        ("s",),
        ("t",),
    ),
    "two views": (
        table(SOURCE, s="s") + table(SOURCE, s="s2") + table(TARGET, t="t")
        + table(VIEW, v="v", t="t", s="s", n="count()") + table(VIEW, v="v2", t="t", s="s2", n="count()"),
        ("s", "s2"),
        ("t",),
    ),
    "chain of three": (
        table(SOURCE, s="s") + table(TARGET, t="t1") + table(TARGET, t="t2") + table(TARGET, t="t3")
        + table(VIEW, v="v1", t="t1", s="s", n="count()") + table(VIEW, v="v2", t="t2", s="t1", n="sum(n)")
        + table(VIEW, v="v3", t="t3", s="t2", n="sum(n)"),
        ("s",),
        ("t1", "t2", "t3"),
    ),
}  # fmt: skip


class Fire(Site):
    """A site with its catalog and a rebuilder on a connection of its own."""

    def open(self, text: str, server: Server) -> None:
        self.server = server
        server.command(f"CREATE DATABASE {self.database}")
        ddl = text.replace("{db}", self.database)
        for statement in split_statements(SourceFile(path="x.sql", text=ddl))[0]:
            server.command(statement.text)
        self.catalog = build_catalog([SourceFile(path="x.sql", text=ddl)]).require_sound()
        self.logged: list[str] = []

    def rebuilder(self) -> Rebuilder:
        executor = Executor(self.server, log=self.logged.append)
        return Rebuilder(executor, self.catalog, "UTC", lambda: datetime.now(timezone.utc))


@pytest.fixture
def fire(engine: EngineInfo, server: Server) -> Iterator[Callable[[str], Fire]]:
    made: list[Fire] = []

    def build(shape: str) -> Fire:
        text, sources, targets = SHAPES[shape]
        site = Fire(engine.http_port, f"fire_{secrets.token_hex(3)}", targets, sources)
        site.open(text, server)
        for source in sources:
            site.base(source)
        made.append(site)
        return site

    yield build
    for site in made:
        server.command(f"DROP DATABASE {site.database} SYNC")


HOT: Window = window_of_key(HOT_DAY, "day", "UTC")


@pytest.mark.parametrize(
    ("shape", "protocol"), [("one view", "auto"), *((shape, "gated") for shape in SHAPES)]
)  # under fire auto is gated
def test_nothing_is_lost_or_doubled_and_readers_never_see_it(
    fire: Callable[[str], Fire], shape: str, protocol: Protocol
) -> None:
    site = fire(shape)
    rebuilder = site.rebuilder()
    deadline = time.monotonic() + SECONDS
    rebuilds, gate = 0, 0.0
    with under_fire(site):
        while time.monotonic() < deadline or rebuilds < len(site.targets):
            target = site.targets[rebuilds % len(site.targets)]
            published = rebuilder.publish(site.catalog.objects[QName(site.database, target)], HOT, protocol)
            gate = max(gate, published.gate_seconds)
            rebuilds += 1
    for target in site.targets:
        assert account(site, target) == Account(lost=0, doubled=0, foreign=0), target
    assert site.wrong_reads == {}
    assert len(site.sent) > 100 and rebuilds >= len(site.targets)
    print(
        f"{shape}, {protocol}: {rebuilds} rebuilds, {len(site.sent)} rows, {site.refusals} refusals, "
        f"longest gate {gate:.2f} s, {site.reads} reads"
    )


@pytest.mark.parametrize("shape", SHAPES if LONG else ["chain of three"])
def test_fenced_rebuilds_are_exact_and_no_writer_is_refused(
    fire: Callable[[str], Fire], monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Sources stamp arrivals; only the first target of a chain can be fenced, those behind it must stay exact."""
    text, sources, targets = SHAPES[shape]
    stamped = text.replace("(d Date, id UInt64)", "(d Date, id UInt64, arrival DateTime64(3) MATERIALIZED now64(3))")
    monkeypatch.setitem(SHAPES, shape, (stamped, sources, targets))
    site = fire(shape)
    rebuilder = site.rebuilder()
    rebuilder.fence_lead_seconds = 1.0
    deadline = time.monotonic() + SECONDS
    rebuilds = 0
    with under_fire(site):
        while time.monotonic() < deadline or not rebuilds:
            rebuilder.publish(site.catalog.objects[QName(site.database, targets[0])], HOT, "fenced")
            rebuilds += 1
    for target in site.targets:
        assert account(site, target) == Account(lost=0, doubled=0, foreign=0), target
    assert site.wrong_reads == {} and site.refusals == 0
    print(f"{shape}, fenced: {rebuilds} rebuilds, {len(site.sent)} rows, {site.reads} reads")


@pytest.mark.parametrize("shape", SHAPES if LONG else ["two views"])
def test_whole_targets_are_exact_under_writers(
    fire: Callable[[str], Fire], monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Everything is taken for resting, although nothing rests: late rows must be told from computed ones all the time."""
    monkeypatch.setattr("resources.rebuild.whole.BUSY_SECONDS", -1.0)
    site = fire(shape)
    rebuilder = site.rebuilder()
    deadline = time.monotonic() + SECONDS
    published = []
    with under_fire(site):
        while time.monotonic() < deadline or len(published) < len(site.targets):
            target = site.targets[len(published) % len(site.targets)]
            published.append(rebuilder.publish(site.catalog.objects[QName(site.database, target)], None))
    for target in site.targets:
        assert account(site, target) == Account(lost=0, doubled=0, foreign=0), target
    assert site.wrong_reads == {}
    assert {one.protocol for one in published} == {"whole"} and len(site.sent) > 100


def test_chain_is_rebuilt_behind_one_gate(fire: Callable[[str], Fire]) -> None:
    site = fire("chain of three")
    rebuilder = site.rebuilder()
    rebuilds = 0
    with under_fire(site):
        while rebuilds < 3:
            published = rebuilder.publish_chain(site.catalog.objects[QName(site.database, "t1")], HOT)
            assert [name.table for name in published.downstream] == ["t2", "t3"]
            rebuilds += 1
    for target in site.targets:
        assert account(site, target) == Account(lost=0, doubled=0, foreign=0), target
    assert site.wrong_reads == {}


@pytest.mark.parametrize("shape", ["one view", "chain of three"] if LONG else ["one view"])
def test_owned_rebuild_runs_between_two_commits(fire: Callable[[str], Fire], shape: str) -> None:
    site = fire(shape)
    site.owned = True
    rebuilder = site.rebuilder()
    published = []
    with under_fire(site, writers=2):
        while len(published) < 2 * len(site.targets) or len(site.sent) < 100:
            target = site.targets[len(published) % len(site.targets)]
            published.append(rebuilder.publish(site.catalog.objects[QName(site.database, target)], HOT, "owned"))
    for target in site.targets:
        assert account(site, target) == Account(lost=0, doubled=0, foreign=0), target
    assert site.wrong_reads == {} and site.refusals == 0
    assert {(one.protocol, one.tries) for one in published} == {("owned", 1)}


def test_gate_holds_nobody_back_for_longer_than_it_says(fire: Callable[[str], Fire]) -> None:
    """A rebuild that dies behind its gate: writers go on by themselves."""
    site = fire("one view")
    source = QName(site.database, "s")
    from chmv_assets.core.gate import render_shut

    with closing(site.client()) as client:
        now = int(client.query("SELECT toUnixTimestamp64Milli(now64(3))").result_rows[0][0])
        client.command(render_shut(source, "dead", now + 1500))
        started = time.monotonic()
        with under_fire(site, writers=1):
            while not site.sent and time.monotonic() - started < 10:
                time.sleep(0.05)
        assert 1.0 < time.monotonic() - started < 5 and site.refusals > 0


def drop_and_insert(site: Fire) -> None:
    """The simplest: drop the partition, compute it again."""
    site.server.command(f"ALTER TABLE {site.database}.t DROP PARTITION '{HOT_DAY}'")
    site.server.command(
        f"INSERT INTO {site.database}.t SELECT d, id, count() FROM {site.database}.s WHERE d = '{HOT_DAY}' GROUP BY d, id"
    )


def scratch_and_replace(site: Fire) -> None:
    """Compute beside, swap in, with the view live."""
    scratch = f"{site.database}.scr_{secrets.token_hex(3)}"
    site.server.command(f"CREATE TABLE {scratch} AS {site.database}.t")
    site.server.command(
        f"INSERT INTO {scratch} SELECT d, id, count() FROM {site.database}.s WHERE d = '{HOT_DAY}' GROUP BY d, id"
    )
    site.server.command(f"ALTER TABLE {site.database}.t REPLACE PARTITION '{HOT_DAY}' FROM {scratch}")


def detach_backfill_attach(site: Fire) -> None:
    """What tutorials say: detach the view, backfill, attach it again."""
    site.server.command(f"DETACH TABLE {site.database}.v SYNC")
    drop_and_insert(site)
    site.server.command(f"ATTACH TABLE {site.database}.v")


@pytest.mark.parametrize("recipe", [drop_and_insert, scratch_and_replace, detach_backfill_attach])
def test_recipe_of_others(fire: Callable[[str], Fire], recipe: Callable[[Fire], None]) -> None:
    """Not ours: measured, so that a reader sees why. Most runs lose or double rows, none is asked to."""
    site = fire("one view")
    rebuilds = 0
    deadline = time.monotonic() + min(SECONDS, 5)
    with under_fire(site):
        while time.monotonic() < deadline:
            recipe(site)
            rebuilds += 1
    found = account(site, "t")
    print(
        f"{recipe.__name__}: {rebuilds} rebuilds of {len(site.sent)} rows: {found}, wrong reads {sum(site.wrong_reads.values())}"
    )
    assert found.foreign == 0 and len(DAYS) * BASE_ROWS > 0
