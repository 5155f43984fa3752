"""The demo, step by step: engine, DDL, data, landing files, a first rebuild and checks, and what ClickHouse wrote told to Dagster.

Each step can be run again and does only what is missing. The state lives in one folder; nothing outside it is touched. The
command line around it is `cli.demo`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

import dagster as dg

from chmv_assets.core.errors import EngineError
from chmv_assets.core.names import QName
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.jobs import INGEST_JOB, RECOVERY_JOB, ingest_run_config
from chmv_assets.pipeline import DEMO_DDL, Pipeline, load_pipeline
from chmv_assets.report import report_live_partitions
from chmv_assets.start import with_start
from chmv_assets.translator import AssetTranslator
from resources.clickhouse import Server
from resources.demo_data import FactTable, load_demo
from resources.executor import Executor
from resources.landing_root import resolve_root

Progress = Callable[[int, int], None]
REBUILT_TARGET = QName("shop", "revenue_daily")
REFRESHED = (QName("shop", "customer_value_mv"), QName("shop", "customer_value"))  # it first ran before there was data
LANDED: tuple[FactTable, ...] = ("events", "order_changes", "payments")  # in all three formats
SEED = 7
_ROWS = ("on_time", "late", "quarantined")
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}  # the run's log is in the UI


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWindow:
    """The time that the demo's data covers; chosen once and kept, so that a second start adds nothing."""

    start: datetime
    end: datetime
    rows: int
    seed: int


def choose_window(state: Path, *, rows: int, days: int, now: datetime) -> DemoWindow:
    """The window of an earlier start, else the last days up to this hour."""
    file = state / "demo.json"
    if file.is_file():
        kept = json.loads(file.read_text(encoding="utf-8"))
        return DemoWindow(
            start=datetime.fromisoformat(kept["start"]),
            end=datetime.fromisoformat(kept["end"]),
            rows=int(kept["rows"]),
            seed=int(kept["seed"]),
        )
    end = now.replace(minute=0, second=0, microsecond=0)
    midnight = end.replace(hour=0)
    chosen = DemoWindow(
        start=midnight - timedelta(days=days),
        end=end if end > midnight else end + timedelta(hours=1),
        rows=rows,
        seed=SEED,
    )
    document = {"start": chosen.start.isoformat(), "end": chosen.end.isoformat(), "rows": rows, "seed": SEED}
    state.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document), encoding="utf-8")
    return chosen


def demo_statements() -> Iterator[tuple[str, str]]:
    """The demo's statements in file order, each with its place."""
    for path in sorted(DEMO_DDL.glob("*.sql")):
        statements, _ = split_statements(SourceFile(path=path.name, text=path.read_text(encoding="utf-8")))
        for statement in statements:
            yield str(statement.place), statement.text


def apply_ddl(server: Server) -> int:
    """Create what is not there yet."""
    statements = list(demo_statements())
    executor = Executor(server, log=lambda _line: None)
    for place, sql in statements:
        executor.run_ddl(place, sql)
    return len(statements)


def load_data(server: Server, window: DemoWindow) -> Mapping[str, int]:
    """Insert the demo's rows, exactly once however often it is called; gives rows per table."""
    summary = load_demo(server.driver, rows=window.rows, seed=window.seed, start=window.start, end=window.end)
    return summary.rows


def fail_orphans(instance: dg.DagsterInstance) -> int:
    """End runs that an earlier demo took down with it: Dagster would call them started for ever. Its daemon tries them again."""
    going = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    orphans = instance.get_runs(dg.RunsFilter(statuses=going))
    for run in orphans:
        instance.report_run_failed(run, "The demo was stopped while this ran.")
    return len(orphans)


def write_landing(server: Server, window: DemoWindow) -> int:
    """Let files land for three sources, below CHMV_LANDING_ROOT; gives how many are new."""
    from resources.demo_landing import landing_load, write_landing

    pipeline = demo_pipeline(window)
    roots = {}
    for table in LANDED:
        landing = pipeline.settings.policy(QName("shop", table)).landing
        assert landing is not None, "the demo's settings declare it"
        roots[table] = Path(resolve_root(landing.path, pipeline.ddl_dir, os.environ))
    load = landing_load(rows=window.rows, seed=window.seed, start=window.start, end=window.end)
    return write_landing(server.driver, load, roots)


def ingest_landing(instance: dg.DagsterInstance, window: DemoWindow, *, new_files: int) -> Mapping[str, int]:
    """Ingest what has landed, as the sensor would, with one Spark session for all; gives rows by what became of them."""
    from chmv_assets.definitions import build_definitions
    from resources.spark_session import open_session

    job = build_definitions(demo_pipeline(window)).resolve_job_def(INGEST_JOB)
    total: Counter[str] = Counter(dict.fromkeys(_ROWS, 0))
    with open_session() if new_files else nullcontext():
        for table in LANDED:
            config = {**ingest_run_config(f"shop.{table}"), **_QUIET}
            done = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
            if not done.success:
                raise EngineError(
                    f"demo: shop.{table} could not be ingested. The log of its run is in the Dagster UI. Run with --fresh to start over."
                )
            for event in done.filter_events(lambda event: event.is_successful_output):
                numbers = event.step_output_data.metadata
                total.update({name: int(str(numbers[f"chmv/rows_{name}"].value)) for name in _ROWS})
    return {name.replace("_", " "): rows for name, rows in total.items()}


def repair_late(instance: dg.DagsterInstance, server: Server, window: DemoWindow) -> int:
    """Rebuild the windows that late landing rows made stale, as `late_data_sensor` would ask for it; gives how many.

    Without sensors nobody else would: targets of opaque views would be DEGRADED, and STALE once their SLA is over.
    """
    from chmv_assets.core.recovery import Ask
    from chmv_assets.core.windows import Window
    from chmv_assets.definitions import build_definitions
    from resources.journal import open_journal
    from sensors.asking import recovery_request
    from sensors.late_data import NAME

    pipeline = demo_pipeline(window)
    journal = open_journal(server)
    job = cache(lambda: build_definitions(pipeline).resolve_job_def(RECOVERY_JOB))
    count = 0
    for name in (name for layer in pipeline.catalog.layers() for name in layer if pipeline.catalog.views_into(name)):
        stale = [mark for mark in journal.read_watermarks(target=name) if mark.status == "stale"]
        windows = tuple(sorted({Window(mark.window_start, mark.window_end) for mark in stale}, reverse=True))
        if not windows:  # or rebuilt with a target in front of it
            continue
        arrived = max(mark.last_arrival_ts or mark.window_end for mark in stale).isoformat()
        ask = Ask(
            kind="late", subject=name, damage="late rows", evidence=f"arrived until {arrived}", windows=windows,
            detected_ms=int(datetime.now(timezone.utc).timestamp() * 1000), seen={"latest arrival": arrived},
        )  # fmt: skip
        request = recovery_request(ask, 0, NAME)
        done = job().execute_in_process(
            instance=instance, run_config={**request.run_config, **_QUIET}, tags=request.tags, raise_on_error=False
        )
        if not done.success:
            raise EngineError(
                f"demo: {name} could not be rebuilt after late rows. The log of its run is in the Dagster UI. Run with --fresh to start over."
            )
        count += len(windows)
    return count


def tell_dagster(
    instance: dg.DagsterInstance, server: Server, window: DemoWindow, progress: Progress | None = None
) -> int:
    """Report the live partitions; gives how many were new."""
    pipeline = demo_pipeline(window)
    return report_live_partitions(instance, pipeline, server, window.start.date(), progress=progress)


def graph_page(state: Path) -> Path:
    """Where the page of the graph is written."""
    return state / "graph.html"


def write_graph(server: Server, state: Path) -> Path:
    """Write the page of the graph, as everything stands now."""
    from chmv_assets.core.picture.page import render_page
    from resources.graph_status import read_graph_status

    pipeline = load_pipeline(DEMO_DDL)
    seen = read_graph_status(server, pipeline.catalog, pipeline.settings)
    page = graph_page(state)
    page.write_text(render_page(pipeline.catalog, pipeline.settings, seen, title="chmv demo"), encoding="utf-8")
    return page


def count_statuses(server: Server) -> Mapping[str, int]:
    """How many targets are ACTIVE, DEGRADED and STALE, as `chmv status` says."""
    from resources.journal import open_journal
    from resources.serving import Router
    from resources.status import read_status

    pipeline = load_pipeline(DEMO_DDL)
    router = Router(server, open_journal(server), pipeline.catalog, pipeline.settings.limits.snapshot_max_age)
    return Counter(one.status for one in read_status(router, pipeline.settings))


def demo_pipeline(window: DemoWindow) -> Pipeline:
    """The demo's pipeline, its partitions beginning where its data does."""
    return with_start(load_pipeline(DEMO_DDL), window.start.date())


def first_runs(instance: dg.DagsterInstance, window: DemoWindow) -> Mapping[str, bool]:
    """Rebuild yesterday of a target fed by two views, refresh what is recomputed as a whole, and run all checks."""
    from chmv_assets.definitions import build_definitions

    defs = build_definitions(demo_pipeline(window))
    assets = defs.resolve_implicit_global_asset_job_def()
    key = (window.end - timedelta(hours=1)).astimezone(timezone.utc).date() - timedelta(days=1)

    def materialize(*names: QName, partition: str | None = None) -> bool:
        return assets.execute_in_process(
            instance=instance,
            partition_key=partition,
            asset_selection=[AssetTranslator().get_asset_key(name) for name in names],
            raise_on_error=False,
            run_config=_QUIET,
        ).success

    rebuilt = materialize(REBUILT_TARGET, partition=key.isoformat())
    refreshed = materialize(*REFRESHED)
    checks = defs.resolve_job_def("checks_job").execute_in_process(
        instance=instance, raise_on_error=False, run_config=_QUIET
    )
    return {
        f"rebuild {REBUILT_TARGET} {key}": rebuilt,
        f"refresh {REFRESHED[0]}": refreshed,
        "checks": checks.success,
    }
