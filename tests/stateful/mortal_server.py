"""A connection that dies: after a given statement nothing of its owner reaches the server any more, clean-up included.

That is what SIGKILL looks like from the server, for any protocol and without knowing its insides. Before it dies, other people's
deeds can be put between any two statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from resources.clickhouse import Server

Moment = tuple[str, int | str]


class Killed(BaseException):
    """The process is gone; what catches this in order to clean up gets it again from its first statement."""


class MortalServer(Server):
    """Counts statements, and apart from that those that change partitions; runs the deed of a moment before its statement."""

    dead = False
    deeds: Mapping[Moment, Callable[[], None]] = MappingProxyType({})
    statements = 0
    swaps = 0

    def reset(self, deeds: Mapping[Moment, Callable[[], None]] | None = None) -> None:
        """Alive, with deeds at moments of which the counted ones are ("statement", n) and ("swap", n)."""
        self.dead, self.deeds, self.statements, self.swaps = False, deeds or {}, 0, 0

    def kill(self) -> None:
        self.dead = True
        raise Killed

    def _next(self, sql: str) -> None:
        if self.dead:
            raise Killed
        due = [self.deeds.get(("statement", self.statements))]
        self.statements += 1
        if sql.startswith("ALTER TABLE") and " PARTITION " in sql:
            due.append(self.deeds.get(("swap", self.swaps)))
            self.swaps += 1
        for deed in filter(None, due):
            deed()

    def rows(self, sql: str, *arguments: Any, **options: Any) -> list[tuple[Any, ...]]:
        self._next(sql)
        return super().rows(sql, *arguments, **options)

    def command(self, sql: str, *arguments: Any, **options: Any) -> str:
        self._next(sql)
        return super().command(sql, *arguments, **options)
