"""Named changes under four live writers: each ends with equal targets, no row lost, none doubled, and an empty second plan."""

from __future__ import annotations

import os

import pytest
from deploy_changes import CHANGES
from deploy_stage import Stage

THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))
OFTEN = ("column_through_the_chain", "changed_order_by", "several_at_once")


@pytest.mark.parametrize("name", list(CHANGES) if THOROUGH else OFTEN)
def test_change_under_writers(stage: Stage, name: str) -> None:
    with stage.writers("src"):
        CHANGES[name](stage)
        plan = stage.plan()
        assert plan.changes and plan.risk != "manual", [(str(one.name), one.risk, one.why) for one in plan.changes]
        stage.apply(plan)
    stage.check()
