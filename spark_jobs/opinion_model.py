"""The words of the second opinion: what is known of tables and views, and the plan that is made of it. Data only.

Who makes a plan is `second_opinion`, who runs it `opinion_run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.measures import LeftOut
from chmv_assets.core.names import QName
from spark_jobs.kinds import Kind

How = Literal["sum", "min", "max", "rows", "version", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionColumn:
    """A column as the server has it."""

    name: str
    type: str
    default_kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionView:
    """One view into the target, and the table whose inserts fire it."""

    name: QName
    select: str
    outputs: Mapping[str, str]  # what the server says that the SELECT gives
    source: QName
    source_columns: Sequence[OpinionColumn]
    source_family: str
    source_keys: Sequence[str]  # of its ORDER BY
    source_sums: Sequence[str] = ()  # columns that its merges add up


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionTarget:
    """The table that is judged."""

    name: QName
    family: str
    columns: Sequence[OpinionColumn]
    keys: Sequence[str]  # of its ORDER BY, columns only
    arguments: Sequence[str] = ()  # of its engine
    partition_words: Sequence[str] = ()
    finalized: Mapping[str, str]  # columns of states: the type of their values
    one_partition: bool = False  # the window is one partition of it
    time_column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """What is read of a table; column number `n` is `c<n>` afterwards."""

    table: QName
    columns: tuple[str, ...]
    time: tuple[str, str, object, object] | None = None  # column, family, from, before: rows outside may be skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMeasure:
    """One compared value per key."""

    label: str
    how: How
    kind: Kind

    @property
    def direction(self) -> Literal["up", "down", "none"]:
        return "down" if self.how == "min" else "none" if self.how == "latest" else "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionPlan:
    """Two sides with the same columns `t0`, `t1`, …; `{source}` in a share's SQL stands for the rows that it reads."""

    columns: tuple[tuple[str, Kind], ...]
    keys: tuple[str, ...]
    measures: tuple[SparkMeasure, ...]
    target: TableRead
    shares: tuple[tuple[TableRead, str], ...]
    condition: str  # selects the window, on either side
    drops_zeros: bool
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    def at(self, column: str) -> str:
        return f"t{[name for name, _ in self.columns].index(column)}"
