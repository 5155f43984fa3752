"""Asset checks that cost next to nothing: one step each for every 250 objects, a constant number of queries per step.

A check's name is a statement that is true when green. Checks look; they never repair.
"""

from collections.abc import Callable, Iterator, Sequence

import dagster as dg

from chmv_assets.collector import collector_paused
from chmv_assets.core.compare import Comparison
from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import QName
from chmv_assets.pipeline import Pipeline
from chmv_assets.translator import AssetTranslator
from resources.clickhouse_resource import ClickHouseResource
from resources.introspect import fetch_objects

HOOKED = "view_is_hooked"
EQUAL = "live_ddl_equals_declared"
_OBJECTS_PER_STEP = 250  # Dagster loads a step in time quadratic in its checks: 0.7 s per job for 2,000 of them


def build_asset_checks(pipeline: Pipeline, translator: AssetTranslator | None = None) -> list[dg.AssetChecksDefinition]:
    """The checks of a pipeline."""
    translator = translator or AssetTranslator()
    catalog = pipeline.catalog
    views = [name for name, made in catalog.objects.items() if made.kind == "materialized_view"]
    declared = [name for name, made in catalog.objects.items() if made.sql and made.kind != "inner_table"]
    with collector_paused():
        hooked = [_hooked_check(pipeline, some, translator, name) for name, some in _steps(HOOKED, views)]
        equal = [_equal_check(pipeline, some, translator, name) for name, some in _steps(EQUAL, declared)]
    return hooked + equal


def _steps(check: str, names: Sequence[QName]) -> Iterator[tuple[str, Sequence[QName]]]:
    """Share the objects out to steps; the first one is called like the check."""
    for number, first in enumerate(range(0, len(names), _OBJECTS_PER_STEP), start=1):
        yield check if number == 1 else f"{check}_{number}", names[first : first + _OBJECTS_PER_STEP]


def _checks_step(
    step: str, specs: Sequence[dg.AssetCheckSpec], check: Callable[..., Iterator[dg.AssetCheckResult]]
) -> dg.AssetChecksDefinition:
    """One op for many checks; by hand, because the decorator derives names from keys, and a table may be called anything."""
    op = dg.op(
        name=step,
        ins={f"asset_{at}": dg.In(dg.Nothing) for at in range(len(specs))},
        out={f"check_{at}": dg.Out(is_required=False) for at in range(len(specs))},
    )(check)
    made: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        node_def=op,
        keys_by_input_name={f"asset_{at}": spec.asset_key for at, spec in enumerate(specs)},
        check_specs_by_output_name={f"check_{at}": spec for at, spec in enumerate(specs)},
        can_subset=True,
    )
    return made


def _selected(
    context: dg.AssetCheckExecutionContext, names: Sequence[QName], translator: AssetTranslator
) -> list[tuple[QName, dg.AssetKey]]:
    wanted = {key.asset_key for key in context.selected_asset_check_keys}
    pairs = ((name, translator.get_asset_key(name)) for name in names)
    return [(name, key) for name, key in pairs if key in wanted]


def _hooked_check(
    pipeline: Pipeline, views: Sequence[QName], translator: AssetTranslator, step: str
) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(
            HOOKED,
            asset=translator.get_asset_key(name),
            description="The server fires this view on inserts into the table that the DDL says, and no other.",
        )
        for name in views
    ]

    def check(context: dg.AssetCheckExecutionContext, clickhouse: ClickHouseResource) -> Iterator[dg.AssetCheckResult]:
        from chmv_assets.live import find_disagreements  # brings sqlglot; loading the location does without

        try:
            with clickhouse.connect(run_id=context.run.run_id, check=HOOKED) as server:
                objects = fetch_objects(server)
        except ChmvError as error:
            raise dg.Failure(description=str(error)) from error
        there = {live.name for live in objects}
        wrong: dict[QName, list[str]] = {}
        for disagreement in find_disagreements(pipeline.catalog, objects):
            wrong.setdefault(disagreement.edge.dest, []).append(str(disagreement))
        for name, key in _selected(context, views, translator):
            problems = [f"{name} is not on the server"] if name not in there else wrong.get(name, [])
            yield dg.AssetCheckResult(
                passed=not problems,
                asset_key=key,
                check_name=HOOKED,
                description="; ".join(problems) or "hooked as declared",
                metadata={
                    "trigger": str(pipeline.catalog.trigger_of(name)),
                    **({"problems": problems} if problems else {}),
                },
            )

    return _checks_step(step, specs, check)


def _equal_check(
    pipeline: Pipeline, names: Sequence[QName], translator: AssetTranslator, step: str
) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(
            EQUAL,
            asset=translator.get_asset_key(name),
            description="What runs on the server is what the DDL folder declares.",
        )
        for name in names
    ]

    def check(context: dg.AssetCheckExecutionContext, clickhouse: ClickHouseResource) -> Iterator[dg.AssetCheckResult]:
        from chmv_assets.live import compare_with_live

        selected = _selected(context, names, translator)
        try:
            with clickhouse.connect(run_id=context.run.run_id, check=EQUAL) as server:
                objects = fetch_objects(server)
                verdicts = compare_with_live(pipeline.catalog, objects, server, [name for name, _ in selected])
        except ChmvError as error:
            raise dg.Failure(description=str(error)) from error
        for name, key in selected:
            yield _equal_result(key, verdicts[name])

    return _checks_step(step, specs, check)


def _equal_result(key: dg.AssetKey, verdict: Comparison) -> dg.AssetCheckResult:
    rows = [
        dg.TableRecord({"property": d.what, "declared": d.declared[:500], "live": d.live[:500]})
        for d in verdict.differences
    ]
    metadata = {"state": verdict.state, **({"differences": dg.MetadataValue.table(rows)} if rows else {})}
    unsure = verdict.state == "cannot tell"
    return dg.AssetCheckResult(
        passed=verdict.state == "equal",
        asset_key=key,
        check_name=EQUAL,
        severity=dg.AssetCheckSeverity.WARN if unsure else dg.AssetCheckSeverity.ERROR,
        description="; ".join(str(d)[:300] for d in verdict.differences) or verdict.state,
        metadata=metadata,
    )
