"""Read what `core.capabilities` decides by: three queries, whatever the number of tables. Writes nothing."""

from __future__ import annotations

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
from resources.clickhouse import Server

_DEFAULTS = """
SELECT name, toUInt64OrZero(value) FROM system.merge_tree_settings
WHERE name IN ('non_replicated_deduplication_window', 'replicated_deduplication_window', 'replicated_deduplication_window_seconds')
"""
_TABLES = """
SELECT database, name, engine, engine_full, arrayZip(dependencies_database, dependencies_table),
       target_database, target_table, toString(uuid)
FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') AND NOT is_temporary
"""


def probe_capability(server: Server, source: QName) -> Capability:
    """Whether a source and everything behind it deduplicate; `require()` the answer before the first insert."""
    hooks: dict[QName, list[QName]] = {}
    targets: dict[QName, QName] = {}
    engines: dict[QName, tuple[str, str]] = {}
    for database, table, engine, full, dependent, target_database, target_table, uuid in server.rows(_TABLES):
        name = QName(database, table)
        engines[name] = (engine, full)
        hooks[name] = [QName(*pair) for pair in dependent]
        if engine == "MaterializedView":  # plain views and Merge tables are listed as dependent too, but never fire
            targets[name] = QName(target_database or database, target_table or f".inner_id.{uuid}")
    defaults = {str(name): int(value) for name, value in server.rows(_DEFAULTS)}
    reached = walk_targets(source, hooks, targets) if source in engines else ()
    facts = [_facts(name, *engines.get(name, ("(missing)", "")), defaults) for name in reached]
    return decide_capability(source, server.version, facts, server.knows_settings(needed_settings()))


def _facts(name: QName, engine: str, full: str, defaults: dict[str, int]) -> TableFacts:
    if not is_replicated(engine):
        window = "non_replicated_deduplication_window"
        return TableFacts(name=name, engine=engine, window=read_setting(full, window, defaults.get(window, 0)))
    window, seconds = "replicated_deduplication_window", "replicated_deduplication_window_seconds"
    return TableFacts(
        name=name,
        engine=engine,
        window=read_setting(full, window, defaults.get(window, 0)),
        window_seconds=read_setting(full, seconds, defaults.get(seconds, 0)),
    )
