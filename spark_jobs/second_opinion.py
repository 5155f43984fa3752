"""The second opinion on a window: what Spark makes of the source's rows against what the target holds, as Spark SQL. Planning is pure.

Expected are the views' SELECTs, translated (`translate`) and put into the target's columns as an INSERT does it; actual are the target's rows as they
are stored. Spark itself merges both by the rules of the engine; nothing of the server's views, FINAL or -Merge is used. Invariant: a column is
compared only if all of it is translated and the server's type of it is the one inferred here; else it is left out by name, and a key or a
condition that cannot be translated makes it `CannotCompare`. What is compared is decided in
`opinion_form`, a view's share in `opinion_share`; running a plan is in `opinion_run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chmv_assets.core.measures import LeftOut
from chmv_assets.core.normal_form import CannotCompare
from chmv_assets.core.windows import Window
from spark_jobs.kinds import Kind, parse_kind
from spark_jobs.opinion_form import build_form
from spark_jobs.opinion_model import OpinionColumn, OpinionPlan, OpinionTarget, OpinionView, SparkMeasure, TableRead
from spark_jobs.opinion_share import Share
from spark_jobs.opinion_window import bounds, window_sql


def plan_opinion(
    target: OpinionTarget, views: Sequence[OpinionView], window: Window | None, zone: str, server_zone: str
) -> OpinionPlan:
    """Plan the comparison of one window. Raises CannotCompare."""
    kinds = {column.name: _kind(target, column, server_zone) for column in target.columns}
    keys, measures, left_out = build_form(target, kinds)
    wanted = list(
        dict.fromkeys(
            (*keys, *(m.label for m in measures if m.how != "rows"), *([target.time_column] if window else []))
        )
    )
    if window is not None and (not target.time_column or kinds.get(target.time_column) is None):
        raise CannotCompare(f"{target.name} has no column of time that Spark could select the window by")
    placed = [Share(view, server_zone).place(target, wanted, kinds) for view in views]
    dropped = dict(_dropped(views, placed, wanted))
    if lost := [name for name in (*keys, target.time_column if window else "") if name in dropped]:
        if target.family != "plain" or target.time_column in lost:
            raise CannotCompare(f"{lost[0]}: {dropped[lost[0]]}")
        keys = tuple(name for name in keys if name not in dropped)
    measures = tuple(measure for measure in measures if measure.label not in dropped)
    columns = tuple((name, kind) for name in wanted if name not in dropped and (kind := kinds[name]) is not None)
    if not keys and not measures:
        raise CannotCompare("none of its columns can be computed in Spark")
    if target.family == "replacing" and not any(m.how == "version" for m in measures):
        measures = ()
    sums = [measure for measure in measures if measure.how == "sum"]
    from_sums = any(view.source_family == "summing" for view in views)
    reads = [share.read(columns, window, zone) for share in placed]
    return OpinionPlan(
        columns=columns, keys=keys, measures=measures, shares=tuple(reads),
        target=TableRead(
            table=target.name, columns=tuple(name for name, _ in columns),
            time=bounds(target.time_column, kinds[target.time_column], window, zone, 0) if window else None,
        ),
        condition=window_sql(columns, target.time_column, window, zone),
        drops_zeros=bool(sums) and (target.family == "summing" or from_sums),
        left_out=(*left_out, *(LeftOut(name, why) for name, why in dropped.items())),
        notes=tuple(_notes(target, sums, from_sums)),
    )  # fmt: skip


def _notes(target: OpinionTarget, sums: Sequence[SparkMeasure], from_sums: bool) -> Iterator[str]:
    if sums and (target.family == "summing" or from_sums):
        yield "keys whose sums are all zero count as absent, since merges remove them"
    if target.family == "replacing":
        yield "of several rows with the newest version any may win: there only key and version are compared"


def _kind(target: OpinionTarget, column: OpinionColumn, server_zone: str) -> Kind | None:
    return parse_kind(target.finalized.get(column.name, column.type), server_zone)


def _dropped(views: Sequence[OpinionView], placed: Sequence[Share], wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in wanted:
        for view, share in zip(views, placed, strict=True):
            if name in share.reasons:
                yield name, f"{view.name} makes it with {share.reasons[name]}, for which no equal in Spark is known"
                break
