"""Ten ways to break a pipeline, one after another, under a writer and readers: each is found by a sensor and repaired without a human.

The real daemon, web server, engine and Spark. Every repair ends with targets that equal their queries, and readers of `serving.*` never see less
than there was at the start. The table of times is printed, and stands in docs/recovery.md.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window
from chmv_assets.recovery.windows import align
from resources.reconcile import Reconciler
from soak.clients import Reader, Writer
from soak.site import DELAY_PARTS, READS, TARGETS, Site, running_site

REPAIR_SECONDS = 120.0
OPAQUE = {"shop.by_country", "shop.checked"}
pytestmark = pytest.mark.timeout(400)


@dataclass
class Scene:
    """The running system with its writer and reader, and what every break took."""

    site: Site
    writer: Writer
    reader: Reader
    lines: list[str] = field(default_factory=list)

    def repaired(
        self, what: str, since: float, damages: tuple[str, ...], *, wanted: int = 1, within: float = REPAIR_SECONDS
    ) -> list[tuple[Any, ...]]:
        """Wait for repairs of these damages that were asked for after a moment; note their times."""
        deadline = time.monotonic() + within
        found: list[tuple[Any, ...]] = []
        while time.monotonic() < deadline:
            found = self.site.rows(
                "SELECT subject, damage, status, detected_ms, ended_ms, tier, detail FROM chmv.recoveries FINAL "
                f"WHERE detected_ms >= {int(since * 1000) - 1000} AND damage IN ({', '.join(repr(one) for one in damages)}) ORDER BY ended_ms"
            )
            done = [row for row in found if row[2] == "repaired"]
            if len(done) >= wanted:
                detected = min(row[3] for row in done) / 1000 - since
                ended = max(row[4] for row in done) / 1000 - since
                self.lines.append(
                    f"| {what} | {max(detected, 0):.0f} s | {ended:.0f} s | {max(row[5] for row in done)} |"
                )
                return done
            time.sleep(0.5)
        raise AssertionError(f"{what}: not repaired within {within:.0f} s; the journal says {found}; {self.ticks()}")

    def ticks(self) -> str:
        """What the sensors said last and what the journal holds, for a test that fails."""
        journal = [
            self.site.rows(sql)
            for sql in (
                "SELECT subject, damage, status, evidence_or_step FROM (SELECT subject, damage, status, left(detail, 300) AS evidence_or_step, "
                "started_ms FROM chmv.recoveries FINAL) ORDER BY started_ms",
                "SELECT target, window, status, updated_at FROM chmv.rebuilds FINAL ORDER BY updated_at DESC LIMIT 20",
                "SELECT target, partition_id, max_block, version FROM chmv.guards FINAL ORDER BY target, partition_id",
                "SELECT table, partition_id, min(min_block_number), max(max_block_number) FROM system.parts WHERE active AND database = 'shop' "
                "GROUP BY table, partition_id ORDER BY table, partition_id",
            )
        ]
        return f"{str(_ticks(self.site))[:3000]}; {journal}"

    def differences(self) -> list[str]:
        """Windows of the last days that are not what the views' queries give."""
        now = datetime.now(timezone.utc)
        span = Window(now - timedelta(days=6), now + timedelta(hours=1))
        wrong = []
        with self.site.server() as server:
            reconciler = Reconciler(server, self.site.pipeline.catalog, "UTC")
            for table in TARGETS:
                node = self.site.pipeline.catalog.objects[QName("shop", table)]
                for window in align(self.site.pipeline, node, [span]):
                    found = reconciler.run(node, window)
                    if found.status != "equal":
                        wrong.append(f"{table} {window}: {found.sentence()}")
        return wrong


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = Path(os.environ.get("CHMV_TEST_FOLDER") or tmp_path_factory.mktemp("recovery"))
    with running_site(folder) as site:
        _wait(lambda: has_looked(site), 60, "the first look of the view health sensor")
        writer, reader = Writer(site), Reader(site)
        reader.take_floor()
        writer.start()
        reader.start()
        time.sleep(2)
        scene = Scene(site, writer, reader)
        try:
            yield scene
        finally:
            writer.stop()
            reader.stop()
            print("\n| what was broken | detected after | repaired after | tier |\n| --- | ---: | ---: | ---: |")
            print("\n".join(scene.lines))


def has_looked(site: Site) -> bool:
    """Whether the sensor has seen the views as they should be: what it has never seen right, it does not repair."""
    return "all right" in str(_ticks(site))


def _ticks(site: Site) -> Any:
    query = (
        '{sensorsOrError(repositorySelector:{repositoryName:"__repository__",repositoryLocationName:"chmv"}){... on Sensors{results{name '
        "sensorState{ticks(limit:2){status skipReason error{message causes{message}}}}}}}}"
    )
    return site.ui.graphql(query)


def _wait(condition: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    last = ""
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except Exception as error:
            last = str(error)
        time.sleep(0.5)
    raise AssertionError(f"{what}: not within {seconds:.0f} s. {last}")


def yesterday(days: int = 1) -> str:
    return f"{datetime.now(timezone.utc) - timedelta(days=days):%Y%m%d}"


def test_a_view_is_dropped(scene: Scene) -> None:
    since = time.time()
    scene.site.run("DROP TABLE shop.hourly_mv SYNC")
    done = scene.repaired("a view is dropped", since, ("dropped",))
    assert done[0][0] == "shop.hourly_mv"


def test_a_view_is_detached(scene: Scene) -> None:
    since = time.time()
    scene.site.run("DETACH TABLE shop.latest_mv PERMANENTLY")
    scene.repaired("a view is detached", since, ("detached",))


def test_partitions_of_a_target_are_dropped(scene: Scene) -> None:
    since = time.time()
    scene.site.run(f"ALTER TABLE shop.hourly DROP PARTITION ID '{yesterday(2)}'")
    scene.site.run(f"ALTER TABLE shop.by_country DROP PARTITION ID '{yesterday(0)}'")
    scene.repaired("a closed and the hot partition of two targets are dropped", since, ("partition lost",), wanted=2)


def test_a_view_is_altered_by_hand(scene: Scene) -> None:
    since = time.time()
    scene.site.run(
        "ALTER TABLE shop.by_country_mv MODIFY QUERY SELECT toDate(at) AS day, 'XX' AS country, count() AS n, sum(amount) AS amount "
        "FROM shop.events WHERE user = 0 GROUP BY day"
    )
    scene.repaired("a view's query is altered by hand", since, ("changed",))


def test_a_target_is_dropped(scene: Scene) -> None:
    since = time.time()
    scene.site.run("DROP TABLE shop.latest")
    scene.repaired("a target is dropped", since, ("target dropped",))


def test_merges_are_stopped_and_small_inserts_poured_in(scene: Scene) -> None:
    since = time.time()
    scene.site.run("SYSTEM STOP MERGES shop.hourly")
    scene.writer.pause_seconds = 0.02
    try:
        _wait(lambda: _parts(scene) >= 0.8 * DELAY_PARTS, 90, "the delay limit")
        scene.repaired("merges are stopped, small inserts up to the delay limit", since, ("optimize",))
    finally:
        scene.writer.pause_seconds = 0.25
    assert _parts(scene) < DELAY_PARTS


def _parts(scene: Scene) -> int:
    return int(
        scene.site.rows(
            "SELECT max(c) FROM (SELECT count() AS c FROM system.parts WHERE active AND database = 'shop' AND table = 'hourly' GROUP BY partition_id)"
        )[0][0]
    )


def test_rows_come_three_days_late(scene: Scene) -> None:
    since = time.time()
    at = datetime.now(timezone.utc) - timedelta(days=3)
    before = scene.site.rows(
        "SELECT count() FROM chmv.rebuilds FINAL WHERE target IN ('shop.hourly', 'shop.latest') AND status = 'published'"
    )
    scene.site.run(
        f"INSERT INTO shop.events (id, user, kind, amount, at) SELECT 900000000 + number, number, 'late', 5, toDateTime({int(at.timestamp())}) FROM numbers(50)"
    )
    done = scene.repaired(
        "rows three days late, for additive, replacing and opaque targets", since, ("late rows",), wanted=len(OPAQUE)
    )
    assert {row[0] for row in done} == OPAQUE
    after = scene.site.rows(
        "SELECT count() FROM chmv.rebuilds FINAL WHERE target IN ('shop.hourly', 'shop.latest') AND status = 'published'"
    )
    assert before == after  # they took the rows themselves


def test_a_file_with_late_rows_lands(scene: Scene) -> None:
    """The landing sensor, Spark and the late data sensor, one after the other."""
    since = time.time()
    at = datetime.now(timezone.utc) - timedelta(days=4)  # not the day that was just rebuilt: that one rests for a while
    scene.site.land(
        "late",
        [{"id": 950_000_000 + n, "user": n, "kind": "landed", "amount": 3, "at": f"{at:%Y-%m-%d %H:%M:%S}"} for n in range(50)],
    )  # fmt: skip
    scene.repaired(
        "a landing file with rows four days late, through Spark", since, ("late rows",), wanted=len(OPAQUE), within=300
    )
    assert scene.site.rows("SELECT count() FROM shop.events WHERE kind = 'landed'") == [(50,)]
    assert scene.site.rows("SELECT sum(n) FROM shop.hourly WHERE kind = 'landed'") == [(50,)]


def test_a_view_throws(scene: Scene) -> None:
    """Every insert fails until the view is taken off; when its cause is gone it comes back by itself, with what it missed."""
    since = time.time()
    refusals, rows = scene.writer.refusals, scene.writer.rows
    scene.site.run("INSERT INTO shop.strictness VALUES (1)")
    _wait(lambda: _isolated(scene), 90, "the isolation of the view")
    assert scene.writer.refusals > refusals
    _wait(lambda: scene.writer.rows > rows + 50, 30, "the writer's going on")
    detected, off = scene.site.rows(
        f"SELECT min(detected_ms), max(ended_ms) FROM chmv.recoveries FINAL WHERE status = 'isolated' AND detected_ms >= {int(since * 1000) - 1000}"
    )[0]
    scene.lines.append(f"| a view throws, every insert fails: it is taken off | {detected / 1000 - since:.0f} s | {off / 1000 - since:.0f} s | 3 |")  # fmt: skip
    since = time.time()
    scene.site.run("TRUNCATE TABLE shop.strictness")
    scene.repaired("… and comes back when its cause is gone", since, ("probe",))


def _isolated(scene: Scene) -> bool:
    return bool(
        scene.site.rows("SELECT 1 FROM chmv.outages FINAL WHERE view = 'shop.checked_mv' AND status = 'isolated'")
    )


def test_the_server_is_killed(scene: Scene) -> None:
    since = time.time()
    scene.reader.server_down.set()
    scene.site.kill_engine()
    _wait(lambda: scene.site.rows("SELECT 1"), 60, "the server's return")
    scene.reader.server_down.clear()
    rows = scene.writer.rows
    _wait(lambda: scene.writer.rows > rows + 50, 60, "the writer's going on")
    scene.lines.append(
        f"| kill -9 of the server (its supervisor starts it again) | — | {time.time() - since:.0f} s | — |"
    )
    assert scene.differences() == []


def test_a_repair_is_killed_half_way(scene: Scene) -> None:
    since = time.time()
    scene.site.run("DROP TABLE shop.by_country_mv SYNC")
    killed: list[int] = []

    def kill() -> bool:
        started = scene.site.rows(
            f"SELECT owner FROM chmv.recoveries FINAL WHERE subject = 'shop.by_country_mv' AND status = 'running' AND detected_ms >= {int(since * 1000) - 1000}"
        )
        if not started:
            return False
        pid = int(str(started[0][0]).rpartition(":")[2])
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        return True

    _wait(kill, 60, "a repair to kill")
    scene.repaired("the run that repairs a dropped view is killed half way", since, ("dropped",))
    assert killed


def test_everything_is_right_in_the_end(scene: Scene) -> None:
    scene.writer.stop()
    time.sleep(1)
    assert scene.differences() == []
    source = int(scene.site.rows("SELECT uniqExact(id) FROM shop.events")[0][0])
    assert (
        source
        == int(scene.site.rows("SELECT sum(n) FROM shop.hourly")[0][0])
        == int(scene.site.rows("SELECT count() FROM shop.events")[0][0])
    )
    scene.reader.stop()
    assert scene.reader.polls > 100 * len(READS)
    assert scene.reader.holes == []
    assert scene.reader.errors == []
