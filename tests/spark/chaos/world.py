"""The world of the chaos test: a mortal server behind a proxy, the demo's tables, landing folders, and ingests that recover.

A load is what a user does: files arrive, the ingest is called, and called again after a failure until it succeeds. Leases of the
dead are aged instead of waited for (`age_leases`), everything else is as it is in production.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from leases import age_leases
from pyspark.sql import SparkSession

from chaos.files import PRODUCTS, USERS, Lander
from chaos.processes import kill_all, python_workers
from chaos.proxy import Fault, Proxy, Step
from chaos.quick import nap
from chaos.server import MortalServer
from chmv_assets.core.catalog import SourceFile
from chmv_assets.core.names import parse_qname
from chmv_assets.core.statements import split_statements
from chmv_assets.ingest import Ingester, IngestReport
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Endpoint, Server
from resources.demo_data import DemoSize, build_dimension_statements
from resources.journal import Journal

TRIES = 6
_PYTHON_ERROR = re.compile(r"(?:[A-Za-z_]+\.)+[A-Z]\w+: ")

_DDL = Path(__file__).resolve().parents[3] / "chmv_assets" / "ddl"


@dataclass
class Story:
    """What happened, for the last line of the test."""

    loads: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    harmed: Counter[str] = field(default_factory=Counter)  # labels of the requests that a fault met
    unfired: int = 0
    recoveries: int = 0  # ingests that had to be called again
    errors: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)  # loads since everything was checked


class World:
    """Everything that one chaos test owns."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark, self.folder = spark, folder
        self.chance = random.Random(seed)
        self.lander = Lander(random.Random(seed + 1))
        self.story = Story()
        self.server = MortalServer()
        self.proxy = Proxy(self.server.http_port)
        self.ddl = copy_ddl(folder / "ddl")
        self.pipeline: Pipeline = load_pipeline(self.ddl, cache=folder / "cache").require_sound()
        self.epoch = 0
        with self.client() as client:
            prepare_tables(client, self.ddl)

    def close(self) -> None:
        self.proxy.close()
        self.server.close()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A connection past the proxy."""
        made = clickhouse_connect.get_client(
            host="127.0.0.1", port=self.server.http_port, autogenerate_session_id=False, send_receive_timeout=60
        )
        with closing(made):
            yield made

    def root(self, source: str) -> Path:
        """The landing folder of a source; a new one in every epoch, so that old files are not listed for ever."""
        return self.folder / "landing" / source / str(self.epoch)

    def write_files(self, source: str, *, plain: bool = False) -> None:
        """Two or three small files that are two batches, since some bring their own arrival times; rarely with bad rows.

        Plain is always the same: one file, one batch, one bad row, so that all steps of an ingest are taken.
        """
        if plain:
            self.lander.write(source, self.root(source), rows=20, bad=1)
            return
        for arrival in (False, True, *self.chance.choice(((), (False,)))):
            rows, bad = self.chance.choice((5, 8, 13, 40, 200)), self.chance.choice((0, 0, 0, 0, 1, 2))
            self.lander.write(source, self.root(source), rows=rows, bad=bad, arrival=arrival)

    def ingest(self, source: str, url: str | None = None) -> IngestReport:
        """Call the ingest once, with a connection of its own, as a new process would have; from any thread."""
        SparkSession._get_j_spark_session_class(self.spark._jvm).setActiveSession(self.spark._jsparkSession)
        name = parse_qname(source, "")
        landing = self.pipeline.settings.policy(name).landing
        assert landing is not None
        with Server(Endpoint(url or self.proxy.url)) as server:
            ingester = Ingester(
                pipeline=self.pipeline,
                source=self.pipeline.catalog.objects[name],
                landing=landing,
                journal=Journal(server),
                spark=lambda: self.spark,
                sleep=nap,
            )
            report = ingester.run(str(self.root(source)))
        assert not report.unfinished, f"{source}: {report.unfinished}"
        assert not report.unreadable, f"{source}: {report.unreadable}"
        return report

    def recover(self, source: str, first: Callable[[], object] | None = None) -> list[str]:
        """Ingest until it succeeds; gives the errors on the way."""
        errors: list[str] = []
        for attempt in range(TRIES):
            try:
                (first if first is not None and attempt == 0 else lambda: self.ingest(source))()
                return errors
            except Exception as error:  # whatever a fault makes of it: the caller calls again
                errors.append(describe(error))
                self.age_leases()
        raise AssertionError(f"{source}: not recovered after {TRIES} ingests: {errors}")

    def load(self, source: str, fault: Fault | None = None, *, plain: bool = False) -> list[Step]:
        """New files, one ingest with a fault in it, and as many more as it needs; gives the steps of them all."""
        begun = time.monotonic()
        self.write_files(source, plain=plain)
        self.proxy.arm(fault)
        errors = self.recover(source)
        self.story.loads += 1
        self.note(fault, errors, self.proxy.fired is not None)
        steps = self.proxy.steps
        self.proxy.arm()
        name = fault.name.partition(":")[0] if fault else "clean"
        self.story.seconds[name] = self.story.seconds.get(name, 0.0) + time.monotonic() - begun
        assert not self.proxy.defects, self.proxy.defects
        return steps

    def note(self, fault: Fault | None, errors: list[str], fired: bool) -> None:
        what = f"{fault.name} x{fault.times} at {fault.step}{'' if fired else ' (not met)'}" if fault else "clean"
        self.story.last.append(f"{what}: {errors or 'went through'}")
        if fault is not None and fired:
            self.story.fired[fault.name] += 1
            self.story.harmed[fault.step.label] += 1
        elif fault is not None:
            self.story.unfired += 1
        self.story.recoveries += bool(errors)
        self.story.errors.update(errors)

    def age_leases(self) -> None:
        """Let the leases run out that nobody alive holds; to be called while no other ingest of ours runs."""
        with self.client() as client:
            age_leases(lambda sql: client.query(sql).result_rows, client.command)

    def batches(self) -> int:
        """How many batches are committed; those of quarantine do not count."""
        with self.client() as client:
            found = client.query(
                "SELECT uniqExact(source, batch_id) FROM chmv.batches FINAL WHERE status = 'committed' AND startsWith(source, 'shop.')"
            )
        return int(found.result_rows[0][0])

    def kill_workers(self) -> None:
        """End the Python workers of one kind (tasks, planning, commit) of the Spark session; their daemon forks new ones."""
        gateway = self.spark.sparkContext._gateway
        assert gateway is not None
        if kinds := list(python_workers(gateway.proc.pid).values()):
            kill_all(self.chance.choice(kinds))


def describe(error: Exception) -> str:
    """An error in a few words, without what differs from run to run; of Spark's the Python error that is behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if _PYTHON_ERROR.match(line)]
    text = f"{type(error).__name__}: {told[-1] if told else lines[0] if lines else ''}"
    return re.sub(r"[0-9a-f]{12,}|\d+", "…", text)[:200]


def copy_ddl(folder: Path) -> Path:
    """The demo's DDL; bad rows are tolerated in all of its landing folders."""
    shutil.copytree(_DDL, folder)
    settings = folder / "chmv.yaml"
    settings.write_text(re.sub(r"tolerated_bad_rate: [\d.]+", "tolerated_bad_rate: 0.5", settings.read_text()))
    return folder


def prepare_tables(client: Client, ddl: Path) -> None:
    """The demo's tables, with users and products that stay as they are."""
    for file in sorted(ddl.glob("*.sql")):
        for statement in split_statements(SourceFile(path=file.name, text=file.read_text()))[0]:
            client.command(statement.text)
    for load in build_dimension_statements(DemoSize(events=1000, users=USERS, products=PRODUCTS)):
        client.command(load.sql, parameters=dict(load.parameters), settings=dict(load.settings))
    client.command("SYSTEM RELOAD DICTIONARY shop.users_dict")
