"""A plan as JSON and back: what is reviewed is what is applied. A document of another form is refused as a whole.

The document holds no secret: `sealing` puts a place where one stood.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chmv_assets.core.compare import Difference
from chmv_assets.core.deploy.changes import Change, Cutover, Impact, Plan, Switch, Untold
from chmv_assets.core.deploy.sealing import seal_plan
from chmv_assets.core.errors import DeployRefused
from chmv_assets.core.names import QName

FORMAT = 1


def encode_plan(plan: Plan) -> str:
    """The plan as a JSON document that is the same for the same plan."""
    return json.dumps(plan_document(plan), indent=1, ensure_ascii=False)


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain values; its keys are documented in docs/deploy.md."""
    plan = seal_plan(plan)
    return {
        "format": FORMAT,
        "plan_id": plan.plan_id,
        "made_at": plan.made_at,
        "risk": plan.risk,
        "declared": plan.declared,
        "live": plan.live,
        "rolls_back": plan.rolls_back,
        "timezone": plan.timezone,
        "database": plan.database,
        "changes": [_change(one) for one in plan.changes],
        "cutovers": [_cutover(one) for one in plan.cutovers],
        "impacts": [
            {"cause": _name(one.cause), "name": _name(one.name), "how": one.how, "partitions": one.partitions,
             "rows": one.rows, "bytes": one.size}
            for one in plan.impacts
        ],
        "untold": [{"name": _name(one.name), "why": one.why} for one in plan.untold],
        "owned": [_name(one) for one in plan.owned],
        "scope": [_name(one) for one in plan.scope],
        "digests": [[*_name(name), digest] for name, digest in plan.digests],
        "folder": [list(one) for one in plan.folder],
    }  # fmt: skip


def decode_plan(text: str) -> Plan:
    """A plan from its document."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        return Plan(
            plan_id=str(document["plan_id"]), made_at=str(document["made_at"]), declared=str(document["declared"]), live=str(document["live"]),
            rolls_back=str(document["rolls_back"]),
            timezone=str(document["timezone"]), database=str(document["database"]), changes=tuple(_read_change(one) for one in document["changes"]),
            cutovers=tuple(_read_cutover(one) for one in document["cutovers"]),
            impacts=tuple(
                Impact(cause=_read(one["cause"]), name=_read(one["name"]), how=one["how"], partitions=one["partitions"], rows=one["rows"], size=one["bytes"])
                for one in document["impacts"]
            ),
            untold=tuple(Untold(name=_read(one["name"]), why=one["why"]) for one in document["untold"]),
            owned=tuple(_read(one) for one in document["owned"]), scope=tuple(_read(one) for one in document["scope"]),
            digests=tuple((QName(str(d), str(t)), str(digest)) for d, t, digest in document["digests"]), folder=tuple((str(a), str(b)) for a, b in document["folder"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DeployRefused(
            f"plan: found a document that cannot be read ({error}) but wanted one that `chmv plan --out FILE` has written, of format {FORMAT}. "
            "Applying a part of it would be worse than nothing. Make the plan again."
        ) from error


def _name(name: QName) -> list[str]:
    return [name.database, name.table]


def _read(value: list[str]) -> QName:
    database, table = value
    return QName(str(database), str(table))


def _change(one: Change) -> dict[str, Any]:
    return {
        "name": _name(one.name), "kind": one.kind, "action": one.action, "risk": one.risk, "why": one.why,
        "differences": [{"what": d.what, "declared": d.declared, "live": d.live, "is_type": d.is_type} for d in one.differences],
        "before": one.before, "after": one.after, "session": one.session, "early": list(one.early), "late": list(one.late),
    }  # fmt: skip


def _read_change(one: Mapping[str, Any]) -> Change:
    return Change(
        name=_read(one["name"]), kind=one["kind"], action=one["action"], risk=one["risk"], why=one["why"],
        differences=tuple(Difference(d["what"], d["declared"], d["live"], d["is_type"]) for d in one["differences"]), before=one["before"],
        after=one["after"], session=one["session"], early=tuple(one["early"]), late=tuple(one["late"]),
    )  # fmt: skip


def _cutover(one: Cutover) -> dict[str, Any]:
    return {
        "roots": [_name(name) for name in one.roots], "targets": [_name(name) for name in one.targets],
        "storage": [_name(name) for name in one.storage],
        "switches": [
            {"view": _name(s.view), "before": s.before, "after": s.after, "session": s.session}
            for s in one.switches
        ],
        "entries": [_name(name) for name in one.entries],
    }  # fmt: skip


def _read_cutover(one: Mapping[str, Any]) -> Cutover:
    return Cutover(
        roots=tuple(map(_read, one["roots"])), targets=tuple(map(_read, one["targets"])), storage=tuple(map(_read, one["storage"])),
        switches=tuple(
            Switch(view=_read(s["view"]), before=s["before"], after=s["after"], session=s["session"])
            for s in one["switches"]
        ),
        entries=tuple(map(_read, one.get("entries", ()))),  # plans of before had none
    )  # fmt: skip
