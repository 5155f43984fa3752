"""Jobs: named selections for schedules and for people who launch from the command line, and how to call ours.

`ingest_job`, `recovery_job` and `tuner_job` are built in modules of their names; their names, tags and run configuration are here, so that a sensor
can ask for a run without importing what the run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

checks_job = dg.define_asset_job(
    "checks_job",
    selection=dg.AssetSelection.all_asset_checks(),
    description="All checks, launch it by hand or from a schedule: inserts fire the views, the live DDL is the declared one, the newest closed window of every target is right, the server is fit.",
)

INGEST_JOB = "ingest_job"
INGEST_OP = "ingest"
SOURCE_TAG = "chmv/source"


def ingest_run_config(source: str) -> Mapping[str, Any]:
    """The run configuration of `ingest_job` for one source."""
    return {"ops": {INGEST_OP: {"config": {"source": source}}}}


TUNER_JOB = "tuner_job"
TUNER_OP = "tune"


def tuner_run_config(order: str) -> Mapping[str, Any]:
    """The run configuration of `tuner_job` for one order (`core.tuner_order.dump_order`)."""
    return {"ops": {TUNER_OP: {"config": {"order": order}}}}


RECOVERY_JOB = "recovery_job"
RECOVERY_OP = "recover"
ASK_TAG = "chmv/ask"
DUPLICATE_TAG = "chmv/duplicate_of"  # on a run that did nothing, since another one has its key


def recovery_run_config(ask: str) -> Mapping[str, Any]:
    """The run configuration of `recovery_job` for one ask (`core.recovery.Ask.dump`)."""
    return {"ops": {RECOVERY_OP: {"config": {"ask": ask}}}}
