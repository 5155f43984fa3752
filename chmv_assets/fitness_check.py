"""What the doctor says on asset pages: every source is fed through a server that is fit, every target takes what its views make.

The same rules as `chmv doctor`, read with the same constant number of queries for all objects of a step. Advice never fails a check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from chmv_assets.check_steps import Judgement
from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import THRESHOLDS, Limits
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server

if TYPE_CHECKING:
    from chmv_assets.core.doctor import Ailment, Facts

FIT = "server_is_fit"
LIMITS_FIT = "insert_limits_fit"
FIT_DESCRIPTION = (
    "The server, its disks and our user there are fit for what an insert into this source sets off (chmv doctor)."
)
LIMITS_DESCRIPTION = "Inserts stay within the limits of this target: parts to delay and to refuse, partitions of one block (chmv doctor)."


def triggering_sources(pipeline: Pipeline) -> list[QName]:
    """Tables whose inserts fire views and that no view writes: where rows come in."""
    edges = pipeline.catalog.edges
    written = {edge.dest for edge in edges if edge.kind == "writes"}
    objects = pipeline.catalog.objects
    fed = dict.fromkeys(edge.source for edge in edges if edge.kind == "trigger" and edge.source not in written)
    return [
        name for name in fed if name in objects and objects[name].kind not in ("external", "function", "inner_table")
    ]


def limited_targets(pipeline: Pipeline) -> list[QName]:
    """Partitioned tables that views write on every insert: where a limit can refuse one."""
    objects = pipeline.catalog.objects
    views = (made for made in objects.values() if made.kind == "materialized_view" and made.target is not None)
    named = dict.fromkeys(view.target for view in views if view.target is not None)
    return [name for name in named if name in objects and objects[name].kind == "table" and objects[name].partition_by]


def judge_server(
    pipeline: Pipeline, server: Server, _: Sequence[Any], names: Sequence[QName]
) -> Mapping[QName, Judgement]:
    """For each source: what is wrong with the server, and with the state of the tables behind it. Its DDL is for `chmv check` to judge."""
    from chmv_assets.core.doctor import SERVER_RULES, examine  # here, so that loading the location does without
    from resources.doctor import read_facts

    facts = read_facts(server, pipeline.catalog, pipeline.settings, sampled=())
    found = examine(facts, SERVER_RULES)
    shown = _thresholds(pipeline.settings.limits)
    return {
        name: _judgement([one for one in found if _concerns(facts, name, one)], {"thresholds": shown}) for name in names
    }


def judge_limits(
    pipeline: Pipeline, server: Server, _: Sequence[Any], names: Sequence[QName]
) -> Mapping[QName, Judgement]:
    """The insert limits of each target, with its views tried on recent rows."""
    from chmv_assets.core.doctor import examine, insert_limits
    from resources.doctor import read_facts

    writers = {name: {view.name for view in pipeline.catalog.views_into(name)} for name in names}
    sampled = set().union(*writers.values()) if writers else set()
    facts = read_facts(server, pipeline.catalog, pipeline.settings, sampled=sampled)
    found = examine(facts, insert_limits.RULES)
    judged: dict[QName, Judgement] = {}
    for name in names:
        subjects = {str(name), *map(str, writers[name])}
        tried = [sample for sample in facts.samples if sample.target == name]
        most = max(tried, key=lambda sample: sample.per_insert, default=None)
        numbers = {} if most is None else {"partitions_per_insert": most.per_insert, "sampled_rows": most.rows}
        judged[name] = _judgement([one for one in found if one.subject in subjects], numbers)
    return judged


def _concerns(facts: Facts, source: QName, ailment: Ailment) -> bool:
    """Whether a finding is about the server, or about a table or view that an insert into the source reaches."""
    if "." not in ailment.subject or ailment.subject.startswith(("disk ", "user ")):
        return True
    tables = {source, *facts.reached.get(source, ())}
    views = {
        made.name
        for made in facts.catalog.objects.values()
        if made.target in tables and made.kind == "materialized_view"
    }
    return ailment.subject in {str(name) for name in tables | views}


def _judgement(found: Sequence[Ailment], metadata: Mapping[str, Any]) -> Judgement:
    grave = [one for one in found if one.severity != "advice"]
    rows = [
        dg.TableRecord(
            {"severity": one.severity, "rule": one.rule, "subject": one.subject, "measured": one.measured, "wanted": one.wanted, "why": one.why,
             "fix": "\n".join(one.fix)}
        )
        for one in found
    ]  # fmt: skip
    errors = any(one.severity == "error" for one in grave)
    return Judgement(
        passed=not grave,
        description="; ".join(f"{one.rule}: {one.subject}: {one.measured}, wanted {one.wanted}" for one in grave)[:2000]
        or "nothing to mend",
        metadata={**({"findings": dg.MetadataValue.table(rows)} if rows else {}), **metadata},
        severity=dg.AssetCheckSeverity.ERROR if errors else dg.AssetCheckSeverity.WARN,
    )


def _thresholds(limits: Limits) -> dg.MetadataValue[Any]:
    """All thresholds with the values in effect, as `chmv thresholds` prints them."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord({"name": one.name, "value": f"{getattr(limits, one.name):g}", "default": f"{one.default:g}", "unit": one.unit, "reason": one.reason})
            for one in THRESHOLDS
        ]
    )  # fmt: skip
