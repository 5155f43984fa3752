"""What a comparison of declared and live DDL means on an asset's page: shared by the check and by the sensor that finds drift."""

from __future__ import annotations

import dagster as dg

from chmv_assets.check_steps import Judgement
from chmv_assets.core.compare import Comparison

EQUAL = "live_ddl_equals_declared"


def ddl_judgement(verdict: Comparison) -> Judgement:
    """What a comparison means for `live_ddl_equals_declared`."""
    rows = [
        dg.TableRecord({"property": d.what, "declared": d.declared[:500], "live": d.live[:500]})
        for d in verdict.differences
    ]
    tuned = "; ".join(f"{d.what} = {d.live} (declared {d.declared or 'nothing'})" for d in verdict.tuned)
    unsure = verdict.state == "cannot tell"
    return Judgement(
        passed=verdict.state == "equal",
        description="; ".join(str(d)[:300] for d in verdict.differences)
        or (f"tuned by chmv: {tuned}" if tuned else verdict.state),
        metadata={
            "state": verdict.state,
            **({"chmv/tuned": tuned} if tuned else {}),
            **({"differences": dg.MetadataValue.table(rows)} if rows else {}),
        },
        severity=dg.AssetCheckSeverity.WARN if unsure else dg.AssetCheckSeverity.ERROR,
    )
