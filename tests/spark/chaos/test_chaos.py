"""Exactly once under failures: every step of an ingest is broken in every way, and after recovery all rows are there, once.

Seeded: CHMV_CHAOS_SEED repeats a run, CHMV_CHAOS_BATCHES makes it longer. One server, one Spark session and one growing set of
rows for all tests of this file, in the order in which they stand; the last one goes on until enough batches are done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from chaos.driver import Driver
from chaos.files import SOURCES
from chaos.oracle import check_rows, check_settled, check_targets
from chaos.proxy import Fault, FaultKind, Step
from chaos.quick import quick_retries
from chaos.world import World, describe
from chmv_assets.core.pressure import PaceLimits
from resources.clickhouse import Endpoint, Server
from resources.journal import Journal, finish_batch

SEED = int(os.environ.get("CHMV_CHAOS_SEED") or 20261116)
BATCHES = int(os.environ.get("CHMV_CHAOS_BATCHES") or (200 if os.environ.get("CHMV_THOROUGH") else 80))
STEPS_PER_SOURCE = 20 if os.environ.get("CHMV_THOROUGH") else 12  # a fault at each, spread over all
LIMITS = PaceLimits(min_rows=30, normal_rows=30, max_parallelism=2)  # so that small files are several inserts
EACH_SOURCE = [
    SOURCES[0],
    *(pytest.param(source, marks=pytest.mark.thorough) for source in SOURCES[1:]),
]  # the random faults below are of all of them in every run
ROUNDS = 2 if os.environ.get("CHMV_THOROUGH") else 1  # of killed drivers, one per source each
CHECK_ROWS_EVERY, CHECK_ALL_EVERY = 5, 25
NETWORK: tuple[FaultKind, ...] = ("reset before", "reset inside", "answer lost", "answer cut", "refused", "overloaded")
WHEN: tuple[FaultKind, ...] = ("act before", "act inside", "act after")
STUBBORN = 4  # once more than the driver library sends an insert by itself
WRITES = ("insert", "create", "drop", "alter")


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("chaos")
    with quick_retries(spark, folder / "site"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("chmv_assets.ingest.PACE_LIMITS", LIMITS)
        made = World(spark, folder, SEED)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def steps(world: World) -> dict[str, tuple[Step, ...]]:
    """The steps of a clean ingest of two batches, per source; the first one also makes the journal and is not counted."""
    for source in SOURCES:
        world.load(source)
    return {source: tuple(dict.fromkeys(world.load(source))) for source in SOURCES}


def check(world: World) -> None:
    """Rows often, all that has to be true now and then."""
    if world.story.loads % CHECK_ALL_EVERY == 0:
        check_all(world)
    elif world.story.loads % CHECK_ROWS_EVERY == 0:
        with told(world), world.client() as client:
            check_rows(client, world.lander.book)


def check_all(world: World) -> None:
    with told(world), world.client() as client:
        check_rows(client, world.lander.book)
        compared = check_targets(client)
        check_settled(client, world.pipeline)
    assert len(compared) == 12, compared
    world.epoch += 1
    world.story.last.clear()


@contextmanager
def told(world: World) -> Iterator[None]:
    """Say what happened before something was found wrong."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\nCHMV_CHAOS_SEED={SEED}; before:\n" + "\n".join(world.story.last)) from None


def network(kind: FaultKind, step: Step, times: int = 1) -> Fault:
    return Fault(kind=kind, step=step, name=kind, times=times)


def server_dies(world: World, kind: FaultKind, step: Step) -> Fault:
    seconds = world.chance.choice((0.0, 0.002, 0.01, 0.05))
    return Fault(kind=kind, step=step, name=f"server dies: {kind}", action=world.server.crash, inside_seconds=seconds)


def worker_dies(world: World, kind: FaultKind, step: Step) -> Fault:
    return Fault(kind=kind, step=step, name=f"worker dies: {kind}", action=world.kill_workers, inside_seconds=0.002)


def spread(steps: Sequence[Step], count: int) -> list[Step]:
    """That many of the steps, evenly over all of them."""
    if len(steps) <= count:
        return list(steps)
    return [steps[at * len(steps) // count] for at in range(count)]


def next_fault(world: World, number: int, step: Step) -> Fault:
    """All kinds in turn; what has an effect on inserts only gives way elsewhere."""
    turn, again = number % (len(NETWORK) + 3), number // (len(NETWORK) + 3)
    if turn < len(NETWORK):
        return network(NETWORK[turn], step, times=(1, STUBBORN)[again % 2])
    if turn == len(NETWORK):
        return network("sent twice" if step.label.startswith("insert") else "answer lost", step)
    dies = server_dies if turn == len(NETWORK) + 1 else worker_dies
    return dies(world, WHEN[again % len(WHEN)], step)


@pytest.mark.parametrize("source", EACH_SOURCE)
def test_a_fault_at_every_step(world: World, steps: dict[str, tuple[Step, ...]], source: str) -> None:
    shift = 3 * SOURCES.index(source)  # the sources share many steps: each time another fault
    for number, step in enumerate(spread(steps[source], STEPS_PER_SOURCE)):
        world.load(source, next_fault(world, number + shift, step))
        check(world)
    check_all(world)


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_killed_driver_is_finished_by_another_process(
    world: World, steps: dict[str, tuple[Step, ...]], round_number: int
) -> None:
    drivers: list[tuple[Driver, Fault]] = []
    for source in SOURCES:
        world.write_files(source)
        folder = world.folder / "drivers" / f"{round_number}-{source}"
        driver = Driver(source, world.root(source), world.ddl, folder, world.server.http_port)
        writing = [step for step in steps[source] if step.label.startswith(WRITES)]
        step = world.chance.choice(
            writing[round_number * len(writing) // ROUNDS : (round_number + 1) * len(writing) // ROUNDS]
        )
        kind = WHEN[(round_number + len(drivers)) % 3]
        fault = Fault(kind=kind, step=step, name=f"driver dies: {kind}", action=driver.kill, inside_seconds=0.005)
        driver.proxy.arm(fault)
        driver.start()
        drivers.append((driver, fault))
    for driver, fault in drivers:
        code = driver.wait()
        fired = driver.proxy.fired is not None
        assert code == (-9 if fired else 0), f"{driver.source} at {fault.step}: exit code {code}\n{driver.output}"
        assert not driver.proxy.defects, driver.proxy.defects
        world.age_leases()
        errors = world.recover(driver.source)
        assert not errors, f"{driver.source} after {fault.name} at {fault.step}: {errors}"
        world.story.loads += 1
        world.note(fault, ["killed"] if fired else [], fired)
    check_all(world)


def test_a_batch_that_is_committed_again_changes_nothing(world: World) -> None:
    with Server(Endpoint(world.server.url)) as server:
        journal = Journal(server)
        for record in journal.read_batches(20):
            if not record.slices or not record.slices[0].attempt.startswith("direct:"):
                assert finish_batch(journal, record.source, record.batch).status == "committed"
    for source in SOURCES:
        world.load(source)
        before = world.ingest(source)
        assert (before.summary.files, before.summary.rows_read, before.batches, before.resumed) == (0, 0, (), ())
    check_all(world)


@pytest.mark.parametrize("source", EACH_SOURCE)
def test_two_drivers_on_one_folder_load_every_row_once(world: World, source: str) -> None:
    world.write_files(source)
    errors: list[str] = []

    def drive() -> None:
        try:
            world.ingest(source)
        except Exception as error:
            errors.append(describe(error))

    threads = [threading.Thread(target=drive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    world.age_leases()
    world.recover(source)
    world.story.loads += 1
    world.story.errors.update(errors)
    check_all(world)


def test_random_faults_until_enough_batches(world: World, steps: dict[str, tuple[Step, ...]]) -> None:
    print(f"\nCHMV_CHAOS_SEED={SEED}")
    chance = world.chance
    while world.batches() < BATCHES:
        source = chance.choice(SOURCES)
        writing = [step for step in steps[source] if step.label.startswith(WRITES)]
        step = chance.choice(writing if chance.random() < 0.7 else steps[source])
        dice = chance.random()
        if dice < 0.12:
            fault = server_dies(world, chance.choice(WHEN), step)
        elif dice < 0.24:
            fault = worker_dies(world, chance.choice(WHEN), step)
        elif dice < 0.5 and step.label.startswith("insert"):
            fault = network("sent twice", step)
        else:
            fault = network(chance.choice(NETWORK), step, times=chance.choice((1, 1, STUBBORN)))
        world.load(source, fault)
        check(world)
    check_all(world)
    story = world.story
    print(
        f"{world.batches()} batches in {story.loads} loads, {world.lander.book.files} files; faults: {dict(story.fired)}; not met: {story.unfired}"
    )
    print({name: round(seconds, 1) for name, seconds in story.seconds.items()}, story.errors.most_common(12))
    print(f"called again: {story.recoveries}; server crashes: {world.server.crashes}; seed {SEED}")


@pytest.mark.parametrize("source", EACH_SOURCE)
def test_a_file_that_arrives_between_two_drivers_is_loaded_once(
    world: World, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The first driver has seen one file and is about to take it, but hangs; a second one sees two, takes and loads both."""
    monkeypatch.setattr("resources.journal.manifest._LEASE_SECONDS", 0.5)
    world.write_files(source, plain=True)
    errors: list[str] = []

    def second_driver() -> None:
        world.write_files(source, plain=True)
        errors.extend(world.recover(source, lambda: world.ingest(source, world.server.url)))

    take = Fault(
        kind="act before",
        step=Step(label="insert chmv.landing_files", nth=1),
        name="another driver is faster",
        action=second_driver,
    )
    world.proxy.arm(take)
    errors += world.recover(source)
    assert world.proxy.fired is not None
    assert not world.proxy.defects, world.proxy.defects
    world.story.loads += 1
    world.note(take, errors, True)
    check_all(world)
