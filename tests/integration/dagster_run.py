"""One run of the location in a process of its own, on the instance of DAGSTER_HOME, as a run worker does it. Called by test_range_runs.

python dagster_run.py start DATABASE TABLE FIRST LAST [TAG=VALUE …]     a range of partitions of one asset
python dagster_run.py again RUN_ID                                      re-execute all of it
python dagster_run.py failed RUN_ID                                     re-execute from failure
"""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository  # as a run worker loads its location


def main(mode: str, *words: str) -> None:
    location = ReconstructableRepository.for_module("chmv_assets.definitions", "defs", str(Path.cwd()))
    job = location.get_reconstructable_job("__ASSET_JOB")
    with dg.DagsterInstance.get() as instance:
        if mode == "start":
            database, table, first, last, *tags = words
            between = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
            asked = dict(tag.split("=") for tag in tags)
            dg.execute_job(job, instance, tags={**between, **asked}, asset_selection=[dg.AssetKey([database, table])])
            return
        (run_id,) = words
        parent = instance.get_run_by_id(run_id)
        assert parent is not None
        options = (
            dg.ReexecutionOptions(run_id) if mode == "again" else dg.ReexecutionOptions.from_failure(run_id, instance)
        )
        dg.execute_job(job, instance, tags=parent.tags, reexecution_options=options)


if __name__ == "__main__":
    main(*sys.argv[1:])
