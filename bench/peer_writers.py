"""The change of bench.schema_change by SQLMesh: an incremental model instead of a view, the same writers meanwhile.

No insert fills such a model: its scheduler does, interval by interval, and an interval that is done is not looked at again. So rows that come into a day
after it was computed are counted as lost if also the next `sqlmesh run` leaves them out; a person can restate the day afterwards.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.environments import clean_environment, run
from bench.peer_projects import SqlMesh
from bench.schema_change import DAYS, FIRST_DAY, KEYS, NEW, OLD, SOURCE, Outcome, compare, traffic
from resources.clickhouse import Server, endpoint_of
from resources.engine import EngineInfo


def change_sqlmesh(server: Server, info: EngineInfo, folder: Path, rows: int, idle_seconds: float) -> Outcome:
    """Make the model over a loaded source, change it while writers write, let the scheduler run once more, compare."""
    project = SqlMesh(folder, 0, info, database="by_sqlmesh_live")
    database = project.database
    server.command(f"CREATE DATABASE {database}")
    server.command(SOURCE.format(database=database).rstrip(";\n"))
    server.command(
        f"INSERT INTO {database}.payments (id, batch, ts, amount) SELECT number, intHash64(number) % {KEYS}, "
        f"toDateTime('{FIRST_DAY} 00:00:00', 'UTC') + intHash32(number) % {DAYS * 86_400}, number % 997 + 1 FROM numbers({rows})"
    )
    project.write()
    project.write_model("totals", f"{database}.payments", OLD)
    project.deploy()
    outcome = Outcome(load=os.getloadavg()[0])
    with traffic(endpoint_of(info), database, outcome):
        time.sleep(2.0 + idle_seconds)  # processes start
        project.write_model("totals", f"{database}.payments", NEW)
        started = time.perf_counter()
        project.deploy()
        outcome.seconds = time.perf_counter() - started
        time.sleep(idle_seconds)
    run(project.command("run"), clean_environment(), project.folder)
    compare(server, database, rows, outcome)
    for one in (database, f"sqlmesh__{database}"):
        server.command(f"DROP DATABASE {one} SYNC")
    return outcome
