"""What each scratch covers: a small table of marks, so that a target can use what its views have built already.

A mark names the view's and target's DDL and the state of the source it was computed from. Equal marks mean equal content;
anything else is built again. Scratches that nobody published within a day are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE
from chmv_assets.core.windows import Window
from resources.executor import Executor

MARKS = QName(SCRATCH_DATABASE, "scratch_marks")
EXPIRE_SECONDS = 86_400


@dataclass
class ScratchMarks:
    """Reads and writes marks; makes its table when it is not there."""

    executor: Executor
    _known: dict[tuple[str, str], str] = field(default_factory=dict)  # what we read or wrote last
    _expired: bool = False

    def _prepare(self) -> None:
        self.executor.create_database(SCRATCH_DATABASE)
        self.executor.run_ddl(
            str(MARKS),
            f"CREATE TABLE IF NOT EXISTS {MARKS.sql} (scratch String, window String, mark String, "
            "built_at DateTime64(6, 'UTC') DEFAULT now64(6, 'UTC')) "
            "ENGINE = ReplacingMergeTree(built_at) ORDER BY (scratch, window)",
        )

    def _rows(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return self.executor.server.rows(sql, values)
        except ServerError as error:
            if not error.is_missing:
                raise
        self._prepare()
        return []

    def read(self, scratch: QName, window: Window | None) -> str:
        """The mark of a share, or nothing."""
        rows = self._rows(
            f"SELECT mark FROM {MARKS.sql} FINAL WHERE scratch = {{s:String}} AND window = {{w:String}}",
            {"s": scratch.table, "w": window_key(window)},
        )
        mark = str(rows[0][0]) if rows else ""
        self._known[scratch.table, window_key(window)] = mark
        return mark

    def write(self, scratch: QName, window: Window | None, mark: str) -> None:
        sql = f"INSERT INTO {MARKS.sql} (scratch, window, mark) SELECT {{s:String}}, {{w:String}}, {{m:String}}"
        values = {"s": scratch.table, "w": window_key(window), "m": mark}
        self._known.pop((scratch.table, window_key(window)), None)
        try:
            self.executor.server.command(sql, values)
        except ServerError as error:
            if not error.is_missing:
                raise
            self._prepare()
            self.executor.server.command(sql, values)

    def forget(self, scratch: QName, window: Window | None) -> None:
        """A mark whose share is gone says so too late, by itself; this one says it at once."""
        if self._known.get((scratch.table, window_key(window))) != "":
            self.write(scratch, window, "")

    def expire(self) -> None:
        """Drop scratch tables of views that nobody has filled or published for a day; looked for once per rebuilder.

        Those of gated rebuilds have an id (12 digits in older versions) instead of a view's name, and the journal to clear them away.
        """
        if self._expired:
            return
        self._expired = True
        rows = self._rows(
            "SELECT name FROM system.tables WHERE database = {database:String} AND startsWith(name, 'scratch.') "
            "AND NOT match(name, '^scratch\\\\.[0-9a-f]{12}([0-9a-f]{8})?\\\\.[0-9]+$') AND metadata_modification_time < now() - {age:UInt32} "
            f"AND name NOT IN (SELECT scratch FROM {MARKS.sql} FINAL WHERE built_at >= now() - {{age:UInt32}})",
            {"database": SCRATCH_DATABASE, "age": EXPIRE_SECONDS},
        )
        for (scratch,) in rows:
            name = QName(SCRATCH_DATABASE, str(scratch))
            self.executor.drop_table(name)
            self.executor.server.command(f"DELETE FROM {MARKS.sql} WHERE scratch = {{s:String}}", {"s": name.table})


def window_key(window: Window | None) -> str:
    """A window as the key of its mark."""
    return f"{window.start.isoformat()}/{window.end.isoformat()}" if window is not None else "all"
