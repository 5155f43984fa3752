"""What each scratch covers: a small table of marks, so that a target can use what its views have built already.

A mark names the view's and target's DDL and the state of the source it was computed from. Equal marks mean equal content;
anything else is built again. Scratches that nobody published within a day are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild import SCRATCH_DATABASE
from chmv_assets.core.windows import Window
from resources.executor import Executor

MARKS = QName(SCRATCH_DATABASE, "scratch_marks")
EXPIRE_SECONDS = 86_400
_MISSING = frozenset({60, 81})


@dataclass
class ScratchMarks:
    """Reads and writes marks; makes its table when it is not there."""

    executor: Executor

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
            if error.code not in _MISSING:
                raise
        self._prepare()
        return []

    def read(self, scratch: QName, window: Window | None) -> str:
        """The mark of a share, or nothing."""
        rows = self._rows(
            f"SELECT mark FROM {MARKS.sql} FINAL WHERE scratch = {{s:String}} AND window = {{w:String}}",
            {"s": scratch.table, "w": window_key(window)},
        )
        return str(rows[0][0]) if rows else ""

    def write(self, scratch: QName, window: Window | None, mark: str) -> None:
        sql = f"INSERT INTO {MARKS.sql} (scratch, window, mark) SELECT {{s:String}}, {{w:String}}, {{m:String}}"
        values = {"s": scratch.table, "w": window_key(window), "m": mark}
        try:
            self.executor.server.command(sql, values)
        except ServerError as error:
            if error.code not in _MISSING:
                raise
            self._prepare()
            self.executor.server.command(sql, values)

    def forget(self, scratch: QName, window: Window | None) -> None:
        self.write(scratch, window, "")

    def expire(self) -> None:
        """Drop scratch tables whose newest share is older than a day and was never published."""
        rows = self._rows(
            f"SELECT scratch FROM {MARKS.sql} FINAL GROUP BY scratch "
            "HAVING max(built_at) < now() - {age:UInt32} AND countIf(mark != '') > 0",
            {"age": EXPIRE_SECONDS},
        )
        for (scratch,) in rows:
            name = QName(SCRATCH_DATABASE, str(scratch))
            self.executor.drop_table(name)
            self.executor.server.command(f"DELETE FROM {MARKS.sql} WHERE scratch = {{s:String}}", {"s": name.table})


def window_key(window: Window | None) -> str:
    """A window as the key of its mark."""
    return f"{window.start.isoformat()}/{window.end.isoformat()}" if window is not None else "all"
