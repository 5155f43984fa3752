"""Before the first row: the facts by which `core.capabilities` judges whether a source takes batches exactly once.

Invariant: three queries, whatever the number of tables; nothing is written. The judgement and the remedy are the core's. (The
same facts are read in `resources.capabilities` with another client: Spark's processes see only the core.)
"""

from __future__ import annotations

from collections.abc import Mapping

from clickhouse_connect.driver.client import Client

from chmv_assets.core.capabilities import (
    Capability,
    TableFacts,
    decide_capability,
    is_replicated,
    needed_settings,
    read_setting,
    walk_targets,
)
from chmv_assets.core.names import QName
from spark_jobs.connection import fetch_rows, plain

_TABLES = """
SELECT database, name, engine, engine_full, arrayZip(dependencies_database, dependencies_table), target_database, target_table,
       toString(uuid)
FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') AND NOT is_temporary
"""
_DEFAULTS = (
    "SELECT name, toUInt64OrZero(value) FROM system.merge_tree_settings WHERE name LIKE '%deduplication_window%'"
)


def fetch_capability(client: Client, source: QName) -> Capability:
    """Whether a source and all that an insert into it reaches deduplicate; `require()` it before the first insert."""
    hooks: dict[QName, list[QName]] = {}
    targets: dict[QName, QName] = {}
    engines: dict[QName, tuple[str, str]] = {}
    for database, table, engine, full, dependent, to_database, to_table, uuid in fetch_rows(client, plain(_TABLES)):
        name = QName(database, table)
        engines[name] = (engine, full)
        hooks[name] = [QName(*pair) for pair in dependent]
        if engine == "MaterializedView":  # plain views are listed as dependent too, but never fire
            targets[name] = QName(to_database or database, to_table or f".inner_id.{uuid}")
    defaults = {str(name): int(value) for name, value in fetch_rows(client, plain(_DEFAULTS))}
    reached = walk_targets(source, hooks, targets) if source in engines else ()
    facts = [table_facts(name, *engines.get(name, ("(missing)", "")), defaults) for name in reached]
    known = fetch_rows(
        client,
        plain("SELECT name FROM system.settings WHERE name IN {names:Array(String)}", names=list(needed_settings())),
    )
    return decide_capability(source, str(client.server_version), facts, {str(name) for (name,) in known})


def table_facts(name: QName, engine: str, engine_full: str, defaults: Mapping[str, int]) -> TableFacts:
    """One table's deduplication settings, its own or else the server's."""

    def setting(key: str) -> int:
        return read_setting(engine_full, key, defaults.get(key, 0))

    if not is_replicated(engine):
        return TableFacts(name=name, engine=engine, window=setting("non_replicated_deduplication_window"))
    return TableFacts(
        name=name,
        engine=engine,
        window=setting("replicated_deduplication_window"),
        window_seconds=setting("replicated_deduplication_window_seconds"),
    )
