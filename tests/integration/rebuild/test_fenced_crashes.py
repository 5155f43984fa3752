"""SIGKILL after each step of a fenced rebuild, in turn, while rows arrive: whoever comes next leads it to its end, and nothing is lost."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fenced_site import CHAIN, HOT, HOT_DAY, ONE, TWO, Site

from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import RebuildRecord
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.journal import Journal
from resources.rebuild.recovery import recover_rebuilds

DRIVER = Path(__file__).with_name("fenced_driver.py")
ROOT = Path(__file__).parents[3]
LEAD = "1.0"
THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))  # else every fifth point to die at, and no chain
MANY = ("raise fence", "move back", "drop twin")  # what differs in a chain; the rest is killed with two views
Drive = Callable[[str], int]


@contextmanager
def driver(site: Site, folder: Path) -> Iterator[Drive]:
    ddl = folder / "x.sql"
    ddl.write_text(site.ddl)
    url = f"http://127.0.0.1:{site.port}"
    command = [sys.executable, str(DRIVER), url, str(ddl), f"{site.database}.t", HOT_DAY, LEAD]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def drive(line: str) -> int:
            process.stdin.write(f"{line}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return int(process.stdout.readline())  # type: ignore[union-attr]

        yield drive
        process.stdin.close()


SITES = {"chain": (CHAIN, ("s",), ("t", "t2", "t3")), "two views": (TWO, ("s", "s2"), ("t",))}


@pytest.fixture(
    params=list(SITES.values()) if THOROUGH else [SITES["two views"]], ids=list(SITES) if THOROUGH else ["two views"]
)
def site(request: pytest.FixtureRequest, engine: EngineInfo, server: Server) -> Iterator[Site]:
    made = Site(engine.http_port, server, f"fenced_{secrets.token_hex(3)}", *request.param)
    yield made
    server.command(f"DROP DATABASE {made.database} SYNC")


def recover(site: Site) -> list[RebuildRecord]:
    """What another process does first, once the dead one's leases have ended."""
    site.forget_leases()
    with Server(site.server.endpoint) as server:
        journal = Journal(server, owner=f"other-{secrets.token_hex(3)}")
        return recover_rebuilds(Executor(server, log=site.logged.append), journal)


def test_killed_after_every_step_in_turn(site: Site, tmp_path: Path) -> None:
    node = site.catalog.objects[QName(site.database, "t")]
    _, _, steps = site.rebuilder().explain(node, HOT, "fenced")
    begun = next(at for at, step in enumerate(steps) if step.kind == "fence")
    swap = next(at for at, step in enumerate(steps) if step.kind == "publish")
    with driver(site, tmp_path) as drive, site.under_fire(2, pause_seconds=0.08):
        for number in range(begun, len(steps)):
            kind, neighbour = steps[number].kind, steps[number + 1].kind if number + 1 < len(steps) else ""
            if kind not in MANY and (len(site.targets) > 1 or kind == neighbour):
                continue
            if not THOROUGH and kind not in ("raise fence", "publish") and (number - begun) % 5:
                continue
            assert drive(str(number)) == -9, steps[number]
            (record,) = recover(site)
            assert record.target == node.name and record.protocol == "fenced"
            wanted = "rolled_back" if number < swap else "unverified" if number == swap else "published"
            assert record.status == wanted, steps[number]
            assert site.left() == [], steps[number]
            assert site.definitions() == site.before, steps[number]
    site.check()
    site.damage()
    site.publish()
    site.check()


def test_recovery_may_be_killed_too(site: Site, tmp_path: Path) -> None:
    """The one who clears up dies after every statement, in turn, until one of them comes to the end."""
    node = site.catalog.objects[QName(site.database, "t")]
    _, _, steps = site.rebuilder().explain(node, HOT, "fenced")
    raised = next(at for at, step in enumerate(steps) if step.kind == "raise fence")
    with driver(site, tmp_path) as drive, site.under_fire(2, pause_seconds=0.08):
        assert drive(str(raised)) == -9
        site.forget_leases()
        for fatal in range(1, 40, 3):
            drive(f"resume {fatal}")
            if not site.left():
                break
            site.forget_leases()
        else:
            pytest.fail("no recovery came to its end")
    site.check()


def test_pipeline_that_was_dropped_holds_up_nobody(engine: EngineInfo, server: Server, tmp_path: Path) -> None:
    """Rows wait in a shadow, their target is gone: kept as long as it may come back, and other targets are rebuilt meanwhile."""
    made = Site(engine.http_port, server, f"fenced_{secrets.token_hex(3)}", ONE)
    _, _, steps = made.rebuilder().explain(made.catalog.objects[QName(made.database, "t")], HOT, "fenced")
    raised = next(at for at, step in enumerate(steps) if step.kind == "raise fence")
    with driver(made, tmp_path) as drive:
        assert drive(str(raised)) == -9
    with made.client() as client:
        made.send(client, "s", [(HOT_DAY, 900_001)])
    server.command(f"RENAME TABLE {made.database}.t TO {made.database}.away")
    assert recover(made) == []
    assert any("Create" in line and "could not be finished yet" in line for line in made.logged)
    assert [name for name in made.left() if name.startswith("shadow.")]
    server.command(f"RENAME TABLE {made.database}.away TO {made.database}.t")
    (record,) = recover(made)
    assert record.status == "rolled_back"
    made.check()
    with driver(made, tmp_path) as drive:
        assert drive(str(raised)) == -9
    with made.client() as client:
        made.send(client, "s", [(HOT_DAY, 900_002)])
    server.command(f"DROP DATABASE {made.database} SYNC")
    (record,) = recover(made)
    assert made.left() == []
