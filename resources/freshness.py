"""Reads for the freshness sensor: at most three queries, whatever the number of tables. Nothing here writes or creates.

A journal that is not there yet says nothing. Which of its tables exist is asked until all do, once per process from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chmv_assets.core.freshness import (
    JOURNAL_TABLES,
    Seen,
    decode_journal,
    decode_refreshes,
    read_journal,
    read_present,
    read_refreshes,
)
from chmv_assets.core.names import QName
from resources.clickhouse import Server


@dataclass
class FreshnessReader:
    """What holds targets back, from one server. One per sensor: it remembers that the journal is complete."""

    periods: Mapping[QName, float] = field(default_factory=dict)  # of the declared refreshable views, in seconds
    _complete_at: str = ""  # the server whose journal has every table

    def read(self, server: Server, now_ms: int, cluster: str = "") -> Seen:
        """Everything that one tick needs to know."""
        statement = read_journal(self._present(server), now_ms, cluster)
        seen = Seen() if statement is None else decode_journal(server.fetch(statement))
        if not self.periods:
            return seen
        refreshes = decode_refreshes(server.fetch(read_refreshes(cluster)), self.periods)
        return replace(seen, lags=(*seen.lags, *refreshes))

    def forget(self) -> None:
        """Ask again which tables there are: a read has failed, the journal may be another one."""
        self._complete_at = ""

    def _present(self, server: Server) -> set[str]:
        if self._complete_at == server.endpoint.url:
            return set(JOURNAL_TABLES)
        present = {str(name) for (name,) in server.fetch(read_present())}
        if present == set(JOURNAL_TABLES):
            self._complete_at = server.endpoint.url
        return present
