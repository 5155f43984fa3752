"""Which tables of a pipeline the tuner may touch. Pure over the catalog; sensors and runs share it."""

from __future__ import annotations

from collections.abc import Iterable

from chmv_assets.core.model import family
from chmv_assets.core.tuner import Tunable
from chmv_assets.core.tunings import Tuning
from chmv_assets.pipeline import Pipeline
from chmv_assets.watermark_moves import reached_targets


def tunables_of(pipeline: Pipeline) -> tuple[Tunable, ...]:
    """The declared MergeTree tables whose settings do not say `recovery: off`, with the landing sources that reach them."""
    catalog, settings = pipeline.catalog, pipeline.settings
    landings = [name for name in sorted(catalog.objects) if settings.policy(name).landing is not None]
    reached = {source: set(reached_targets(catalog, source)) | {source} for source in landings}
    return tuple(
        Tunable(table=name, sources=tuple(source for source in landings if name in reached[source]))
        for name, made in sorted(catalog.objects.items())
        if made.kind == "table" and family(made.engine) and settings.policy(name).recovery != "off"
    )


def own_tunings(pipeline: Pipeline, tunings: Iterable[Tuning]) -> list[Tuning]:
    """Those of tables that this folder declares: folders of several teams may share a server and its journal."""
    return [one for one in tunings if one.subject in pipeline.catalog.objects]
