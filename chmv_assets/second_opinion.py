"""The second opinion: what Spark, computing a window from the source's rows by itself, says of a target.

It asks the server for types and for rows, never for results; what is computed, and what cannot be, is decided in `spark_jobs.second_opinion`. A
difference counts only if nothing came in meanwhile. Spark starts when the first window turns out to be computable, not before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from chmv_assets.core.cadence import split_tuple
from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.measures import is_summable, read_simple_type
from chmv_assets.core.model import Object, family
from chmv_assets.core.names import QName, quote_identifier, unquote_identifier
from chmv_assets.core.normal_form import CannotCompare, engine_arguments
from chmv_assets.core.rebuild import Feed
from chmv_assets.core.reconcile import eaten_by_ttl
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.introspect import describe_select, fetch_columns
from resources.reconcile import Reconciled, Reconciler
from resources.stillness import ARRIVING, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.opinion_model import OpinionColumn, OpinionPlan, OpinionTarget, OpinionView

TRIES = 3


@dataclass
class SecondOpinion:
    """Judges windows of one pipeline's targets, with one session for all of them."""

    pipeline: Pipeline
    server: Server
    spark: Callable[[], SparkSession]
    cluster: str = ""  # as of `Reconciler`
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    clock: Callable[[], float] = time.monotonic
    _reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        catalog, zone = self.pipeline.catalog, self.pipeline.settings.timezone
        self._reconciler = Reconciler(self.server, catalog, zone, now=self.now, cluster=self.cluster)

    def run(self, target: Object, window: Window | None) -> Reconciled:
        """Give the opinion on one window, or on all of a target; one that cannot be had is one too."""
        started = self.clock()
        try:
            feeds = self._feeds(target, window)
            plan = self._plan(target, window, feeds)
            return self._compare(target, window, feeds, plan, started)
        except (CannotCompare, RebuildRefused) as error:
            why = str(error)
        except ServerError as error:
            if error.code is None:  # no answer at all: that is no opinion
                raise
            why = f"the server refused a question: {error}"
        return Reconciled(
            target=target.name, window=window, status="cannot tell", reason=why, seconds=self.clock() - started
        )

    def _compare(
        self, target: Object, window: Window | None, feeds: Sequence[Feed], plan: OpinionPlan, started: float
    ) -> Reconciled:
        from spark_jobs.opinion_run import Place, run_opinion

        place = Place(url=self.server.endpoint.url, user=self.server.endpoint.user)
        watch = Watch(bench=self._reconciler.bench, target=target, window=window, feeds=feeds)
        tries, doubts = 0, ARRIVING
        while tries < TRIES:
            tries += 1
            before = watch.look()
            counts, samples = run_opinion(self.spark(), place, plan)
            if counts.is_equal:
                doubts = ""
                break
            if watch.is_still(before):
                doubts = watch.doubts(before)
                break
        return Reconciled(
            target=target.name, window=window, reason=doubts,
            status="equal" if counts.is_equal else "cannot tell" if doubts else "different",
            compared=(*plan.keys, *(measure.label for measure in plan.measures)), left_out=plan.left_out, notes=plan.notes,
            counts=counts, samples=samples, tries=tries, seconds=self.clock() - started,
        )  # fmt: skip

    # --- what there is to know -------------------------------------------------------------------------------------

    def _feeds(self, target: Object, window: Window | None) -> list[Feed]:
        catalog = self.pipeline.catalog
        views = catalog.views_into(target.name)
        if not views:
            raise CannotCompare(f"no view writes into {target.name}")
        for view in views:
            facts = catalog.facts.get(view.name)
            if facts is None or facts.view_class == "opaque":
                why = facts.why if facts is not None else "its SELECT could not be read"
                raise CannotCompare(f"{view.name} is not computed in Spark: {why}")
        asked = window if target.name in catalog.schemes else None
        feeds = [self._reconciler.bench.feed(view, window)[0] for view in views]
        for table in (target, *(feed.source for feed in feeds)):
            if why := eaten_by_ttl(table, asked, self.now()):
                raise CannotCompare(why)
        return feeds

    def _plan(self, target: Object, window: Window | None, feeds: Sequence[Feed]) -> OpinionPlan:
        from spark_jobs.second_opinion import plan_opinion

        views = [self._view(feed) for feed in feeds]
        zone = self.pipeline.settings.timezone
        covered = feeds[0].window
        return plan_opinion(self._target(target, window, feeds[0]), views, covered, zone, self.server.timezone)

    def _target(self, target: Object, window: Window | None, feed: Feed) -> OpinionTarget:
        from spark_jobs.opinion_model import OpinionTarget

        columns = self._columns(target.name)
        parts = split_tuple(target.order_by)
        _, partitions = self._reconciler.bench.feed(feed.view, window)
        return OpinionTarget(
            name=target.name, family=family(target.engine), columns=columns,
            keys=[unquote_identifier(part) for part in parts], arguments=engine_arguments(target),
            partition_words=re.findall(r"\w+", target.partition_by), finalized=self._finalized(target.name, columns),
            one_partition=len(partitions) == 1, time_column=feed.time_column,
        )  # fmt: skip

    def _view(self, feed: Feed) -> OpinionView:
        from spark_jobs.opinion_model import OpinionView

        source, kind = feed.source, family(feed.source.engine)
        if kind not in ("plain", "summing", "aggregating"):
            raise CannotCompare(
                f"{source.name} is {source.engine or source.kind}, which does not keep the rows that {feed.view.name} saw"
            )
        columns = self._columns(source.name)
        keys = [unquote_identifier(part) for part in split_tuple(source.order_by)]
        outputs = describe_select(self.server, feed.view.select, self._reconciler.bench.session(feed.view))
        return OpinionView(
            name=feed.view.name, select=feed.view.select, outputs=dict(outputs), source=source.name, source_columns=columns,
            source_family=kind, source_keys=keys, source_sums=_summed(source, columns, keys),
        )  # fmt: skip

    def _columns(self, name: QName) -> list[OpinionColumn]:
        from spark_jobs.opinion_model import OpinionColumn

        found = fetch_columns(self.server, name)
        if not found:
            raise CannotCompare(f"{name} is not on the server")
        return [OpinionColumn(name=column, type=kind, default_kind=word) for column, kind, word in found]

    def _finalized(self, name: QName, columns: Sequence[OpinionColumn]) -> dict[str, str]:
        states = [column.name for column in columns if column.type.startswith("AggregateFunction(")]
        if not states:
            return {}
        values = ", ".join(
            f"finalizeAggregation({quote_identifier(state)}) AS {quote_identifier(state)}" for state in states
        )
        return dict(describe_select(self.server, f"SELECT {values} FROM {name.sql}", ""))


def _summed(source: Object, columns: Sequence[OpinionColumn], keys: Sequence[str]) -> list[str]:
    """Columns of a source whose sum over any rows is the same before and after merges."""
    named = engine_arguments(source)
    mentioned = {*keys, *re.findall(r"\w+", source.partition_by)}
    found = []
    for column in columns:
        simple = read_simple_type(column.type)
        adds = simple is not None and simple.function == "sum"
        if family(source.engine) == "summing" and simple is None and is_summable(column.type):
            adds = not named or column.name in named
        if adds and column.name not in mentioned:
            found.append(column.name)
    return found
