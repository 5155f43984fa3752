"""Changes of the DDL through `chmv plan`, `apply` and `rollback`, finished or killed half way. What counts rows stays the same in all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from soak.scene import SOAK_DDL, Scene
from soak.site import WINDOW

_KINDS = f"""
CREATE TABLE shop.kinds (day Date, kind LowCardinality(String), n UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, kind) {WINDOW};
CREATE MATERIALIZED VIEW shop.kinds_mv TO shop.kinds AS SELECT toDate(at) AS day, kind, count() AS n FROM shop.events GROUP BY day, kind;
"""
_EDITS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "other aggregate": (("sum(e.amount) AS amount FROM", "sum(e.amount * 2) AS amount FROM"),),
    "other order": (("ORDER BY (hour, kind)", "ORDER BY (kind, hour)"),),
    "new column": (
        ("n UInt64, amount UInt64)\n  ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(hour)", "n UInt64, amount UInt64, big UInt64)\n  ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(hour)"),
        ("sum(amount) AS amount\n  FROM shop.events GROUP BY hour, kind", "sum(amount) AS amount, countIf(user > 50) AS big\n  FROM shop.events GROUP BY hour, kind"),
    ),
    "new target": (),
}  # fmt: skip
VARIANTS = tuple(_EDITS)
_DEPLOYING = "SELECT 1 FROM chmv.deploys FINAL WHERE status = 'running' AND endsWith(owner, ':{pid}')"
_TRIES = 4
Facts = Mapping[str, Any]


def ddl_of(variants: frozenset[str]) -> str:
    """The folder's text with some changes."""
    text = SOAK_DDL
    for name in sorted(variants):
        for before, after in _EDITS[name]:
            if before not in text:
                raise ValueError(f"variant {name}: found no {before!r} in the DDL but wanted one to replace.")
            text = text.replace(before, after)
    return text + (_KINDS if "new target" in variants else "")


def write_folder(scene: Scene, variants: frozenset[str]) -> None:
    scene.variants = variants
    scene.modified = True
    (scene.site.folder / "ddl" / "all.sql").write_text(ddl_of(variants), encoding="utf-8")


def apply_folder(scene: Scene) -> tuple[bool, str]:
    """Plan and apply, again when the server moved in between; an empty plan is noted as deployed."""
    said = ""
    plan = str(scene.site.folder / "plan.json")
    for _ in range(_TRIES):
        code, said = scene.chmv("plan", "--out", plan)
        if code in (0, 2, 3):
            code, said = scene.chmv("apply", plan, "--allow-destructive", "--soak-hours", "0.05")
            if code == 0:
                return True, said
        if "unfinished" in said:
            code, said = scene.chmv("apply", "--resume")
            continue
        time.sleep(3)
    return False, said


def toggle(scene: Scene) -> frozenset[str]:
    return scene.variants ^ {scene.chance.choice(VARIANTS)}


def deployed(scene: Scene) -> Facts:
    before, wanted = scene.variants, toggle(scene)
    write_folder(scene, wanted)
    done, said = apply_folder(scene)
    if not done:
        settle_deploys(scene)
        write_folder(scene, before)
        apply_folder(scene)
    scene.reload()
    return {"wanted": sorted(wanted), "done": done, "said": said}


def rolled_back(scene: Scene) -> Facts:
    """Deploy, then back; the folder goes back too and is noted as deployed."""
    before = scene.variants
    facts = deployed(scene)
    if not facts["done"]:
        return facts
    code, said = scene.chmv("rollback", "--allow-destructive")
    write_folder(scene, before)
    done, _ = apply_folder(scene)
    scene.reload()
    return {**facts, "rollback": code, "said": said, "noted": done}


def deploy_killed(scene: Scene) -> Facts:
    """The process dies half way; then somebody goes on, or back."""
    before, wanted = scene.variants, toggle(scene)
    write_folder(scene, wanted)
    plan = str(scene.site.folder / "plan.json")
    scene.chmv("plan", "--out", plan)
    outcome = scene.kill_half_way(("apply", plan, "--allow-destructive"), _DEPLOYING, 2.0)
    killed, back = "killed" in outcome, scene.chance.random() < 0.5
    ended = "left alone"
    if killed and back:
        ended = f"rolled back: {scene.chmv('rollback', '--allow-destructive')}"
        write_folder(scene, before)
    elif killed:
        ended = f"resumed: {scene.chmv('apply', '--resume')}"
    done, noted = apply_folder(scene)
    if not done:
        settle_deploys(scene)
    scene.reload()
    return {"wanted": sorted(wanted), "outcome": outcome, "ended": ended, "done": done, "said": noted}


def settle_deploys(scene: Scene) -> None:
    """The operator's part: nothing unfinished stays."""
    for _ in range(_TRIES):
        if not scene.site.rows("SELECT 1 FROM chmv.deploys FINAL WHERE status IN ('running', 'failed') LIMIT 1"):
            return
        code, said = scene.chmv("apply", "--resume")
        if code:
            code, said = scene.chmv("rollback", "--allow-destructive")
        scene.timeline.note("deploy settled", code=code, said=said)


DEPLOYS: Mapping[str, Callable[[Scene], Facts]] = {
    "deploy": deployed,
    "deploy killed": deploy_killed,
    "deploy rolled back": rolled_back,
}
