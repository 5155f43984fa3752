"""A pipeline in a database of its own; `{db}` in a statement is its name."""

from __future__ import annotations

from dataclasses import dataclass, field

from chmv_assets.core.names import QName
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server


@dataclass
class DatabaseSite:
    """The pipeline and a connection."""

    server: Server
    database: str
    pipeline: Pipeline
    logged: list[str] = field(default_factory=list)

    def name(self, table: str) -> QName:
        return QName(self.database, table)

    def run(self, sql: str) -> None:
        self.server.command(sql.replace("{db}", self.database))

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return self.server.rows(sql.replace("{db}", self.database))
