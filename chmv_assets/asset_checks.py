"""Asset checks: cheap ones, one step for every 250 objects with a constant number of queries, and one that compares data.

The latter has a step per target, since it runs between the target and what is downstream, and blocks that. A check's name is a
statement that is true when green. Checks look; they never repair. Each is a description and a judge; how they become steps
is in `check_steps`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from chmv_assets.check_steps import Judgement, checks_definition, declared_targets, share_out
from chmv_assets.collector import collector_paused
from chmv_assets.core.names import QName
from chmv_assets.ddl_judgement import EQUAL, ddl_judgement
from chmv_assets.failures import told_to_dagster
from chmv_assets.fitness_check import (
    FIT,
    FIT_DESCRIPTION,
    LIMITS_DESCRIPTION,
    LIMITS_FIT,
    judge_limits,
    judge_server,
    limited_targets,
    triggering_sources,
)
from chmv_assets.pipeline import Pipeline
from chmv_assets.reconcile_check import DESCRIPTION, MATCHES, judge_target
from chmv_assets.translator import AssetTranslator
from resources.clickhouse import Server
from resources.clickhouse_resource import ClickHouseResource
from resources.introspect import LiveObject, fetch_objects

HOOKED = "view_is_hooked"
_RECENT = 5  # materializations of others that may have been noted since our run's own

Judge = Callable[[Pipeline, Server, Sequence[LiveObject], Sequence[QName]], Mapping[QName, Judgement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    name: str
    description: str
    judge: Judge  # the objects of the server, and which of them to judge


def build_asset_checks(pipeline: Pipeline, translator: AssetTranslator | None = None) -> list[dg.AssetChecksDefinition]:
    """The checks of a pipeline."""
    translator = translator or AssetTranslator()
    objects = pipeline.catalog.objects.items()
    views = [name for name, made in objects if made.kind == "materialized_view"]
    declared = list(pipeline.catalog.declared())
    with collector_paused():
        cheap = [
            _build_step(check, step, pipeline, some, translator)
            for check, names in (
                (_HOOKED, views),
                (_EQUAL, declared),
                (_FIT, triggering_sources(pipeline)),
                (_LIMITS_FIT, limited_targets(pipeline)),
            )
            for step, some in share_out(check.name, names)
        ]
        return cheap + [
            _build_comparison(f"{MATCHES}_{at}_{_plain(target)}", pipeline, target, translator)
            for at, target in enumerate(declared_targets(pipeline.catalog), start=1)
        ]


def _plain(name: QName) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", f"{name.database}_{name.table}")


def _build_comparison(
    step: str, pipeline: Pipeline, name: QName, translator: AssetTranslator
) -> dg.AssetChecksDefinition:
    """The comparison of one target with its sources, as one op."""
    key = translator.get_asset_key(name)
    target = pipeline.catalog.objects[name]

    def run(context: dg.AssetCheckExecutionContext, clickhouse: ClickHouseResource) -> Iterator[dg.AssetCheckResult]:
        made = context.instance.fetch_materializations(key, limit=_RECENT).records
        with told_to_dagster(target), clickhouse.connect(run_id=context.run.run_id, check=MATCHES) as server:
            found = judge_target(
                pipeline, server, target, context.run.tags, context.log.info,
                was_materialized=any(one.run_id == context.run.run_id for one in made),
            )  # fmt: skip
        yield found.result(key, MATCHES)

    spec = dg.AssetCheckSpec(MATCHES, asset=key, description=DESCRIPTION, blocking=True)
    return checks_definition(step, [spec], run)


def _build_step(
    check: _Check, step: str, pipeline: Pipeline, names: Sequence[QName], translator: AssetTranslator
) -> dg.AssetChecksDefinition:
    """One check of some objects, as one op."""
    keys = {name: translator.get_asset_key(name) for name in names}

    def run(context: dg.AssetCheckExecutionContext, clickhouse: ClickHouseResource) -> Iterator[dg.AssetCheckResult]:
        wanted = {key.asset_key for key in context.selected_asset_check_keys}
        selected = [name for name, key in keys.items() if key in wanted]
        with told_to_dagster(), clickhouse.connect(run_id=context.run.run_id, check=check.name) as server:
            found = check.judge(pipeline, server, fetch_objects(server), selected)
        for name in selected:
            yield found[name].result(keys[name], check.name)

    specs = [dg.AssetCheckSpec(check.name, asset=key, description=check.description) for key in keys.values()]
    return checks_definition(step, specs, run)


def _judge_hooks(
    pipeline: Pipeline, _: Server, objects: Sequence[LiveObject], names: Sequence[QName]
) -> Mapping[QName, Judgement]:
    from chmv_assets.live import find_disagreements  # brings sqlglot; loading the location does without

    there = {live.name for live in objects}
    wrong: dict[QName, list[str]] = {}
    for disagreement in find_disagreements(pipeline.catalog, objects):
        wrong.setdefault(disagreement.edge.dest, []).append(str(disagreement))
    problems = {n: wrong.get(n, []) if n in there else [f"{n} is not on the server"] for n in names}
    return {name: _hook_judgement(problems[name], str(pipeline.catalog.trigger_of(name))) for name in names}


def _hook_judgement(problems: Sequence[str], trigger: str) -> Judgement:
    return Judgement(
        passed=not problems,
        description="; ".join(problems) or "hooked as declared",
        metadata={"trigger": trigger, **({"problems": list(problems)} if problems else {})},
    )


def _judge_ddl(
    pipeline: Pipeline, server: Server, objects: Sequence[LiveObject], names: Sequence[QName]
) -> Mapping[QName, Judgement]:
    from chmv_assets.live import compare_with_live  # as above

    verdicts = compare_with_live(pipeline.catalog, objects, server, names)
    return {name: ddl_judgement(verdicts[name]) for name in names}


_HOOKED = _Check(
    name=HOOKED,
    description="The server fires this view on inserts into the table that the DDL says, and no other.",
    judge=_judge_hooks,
)
_EQUAL = _Check(name=EQUAL, description="What runs on the server is what the DDL folder declares.", judge=_judge_ddl)
_FIT = _Check(name=FIT, description=FIT_DESCRIPTION, judge=judge_server)
_LIMITS_FIT = _Check(name=LIMITS_FIT, description=LIMITS_DESCRIPTION, judge=judge_limits)
