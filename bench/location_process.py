"""One fresh process that does what a Dagster process does with a code location, and prints how long each part took.

`load MODULE` is the code server: import, repository, forced lazy parts, the serialized snapshot. `run MODULE DATABASE TABLE
PARTITION` is the run worker: reconstruct the asset job for one asset and plan it, up to the first step. Started by
`load_location`; private Dagster names are allowed here because the benchmark must do what those processes do.
"""

import json
import resource
import sys
import time
from pathlib import Path


def load_location(module: str) -> int:
    """Load a location as its code server does; give the size of the snapshot it sends."""
    from dagster._core.remote_representation.external_data import RepositorySnap
    from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
    from dagster._grpc.server import LoadedRepositories
    from dagster._serdes import serialize_value

    origin = LoadableTargetOrigin(
        executable_path=sys.executable, module_name=module, attribute="defs", working_directory=str(Path.cwd())
    )
    loaded = LoadedRepositories(origin, None, ["dagster"], None)
    snapshots = (RepositorySnap.from_def(made, defer_snapshots=True) for made in loaded.definitions_by_name.values())
    return sum(len(serialize_value(snapshot)) for snapshot in snapshots)


def start_run(module: str, database: str, table: str, partition: str) -> int:
    """Get ready to execute one partition of one asset as a run worker does; give the number of steps."""
    from dagster import AssetKey
    from dagster._core.definitions.reconstruct import ReconstructableRepository
    from dagster._core.execution.api import create_execution_plan

    repository = ReconstructableRepository.for_module(module, "defs", working_directory=str(Path.cwd()))
    job = repository.get_reconstructable_job("__ASSET_JOB")
    job = job.get_subset(asset_selection={AssetKey([database, table])})
    plan = create_execution_plan(job, run_config={}, tags={"dagster/partition": partition})
    return len(plan.step_keys_to_execute)


def main(mode: str, arguments: list[str]) -> None:
    started = time.perf_counter()
    import dagster  # noqa: F401

    imported = time.perf_counter()
    result = load_location(*arguments) if mode == "load" else start_run(*arguments)
    measured = {
        "dagster_import": imported - started,
        "own": time.perf_counter() - imported,
        "cpu": time.process_time(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "result": result,
        "sqlglot": "sqlglot" in sys.modules,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
