"""Jobs: named selections for schedules and for people who launch from the command line."""

from __future__ import annotations

import dagster as dg

checks_job = dg.define_asset_job(
    "checks_job",
    selection=dg.AssetSelection.all_asset_checks(),
    description="All cheap checks: views are hooked, the live DDL is what is declared.",
)
