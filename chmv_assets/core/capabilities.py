"""Can a source take batches exactly once? Facts in, a strategy or a refusal with the statements that cure it out. Pure.

A retried slice is a no-op only if the source *and* every table behind it keep a deduplication log: each decides by itself.
Three queries give the facts, whatever the number of tables; `resources.capabilities` and `spark_jobs.preflight` run them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chmv_assets.core.batches import COMMIT_SETTINGS
from chmv_assets.core.errors import IngestRefused
from chmv_assets.core.model import family
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import Statement

Strategy = Literal["token_slices", "refuse"]

WANTED_WINDOW = 10_000  # entries are blocks x partitions
WANTED_WINDOW_SECONDS = (
    7 * 86_400
)  # replicated tables forget by age too; the default of one hour is too short for a night
OLDEST_VERSION = (24, 8)
_REPLICATED = ("Replicated", "Shared")
_WINDOWS = {False: "non_replicated_deduplication_window", True: "replicated_deduplication_window"}  # is it replicated?
_WINDOW_SECONDS = "replicated_deduplication_window_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What a table says about deduplication; settings as its CREATE statement or the server's defaults have them."""

    name: QName
    engine: str
    window: int
    window_seconds: int | None = None  # replicated tables only


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What may be done with a source."""

    source: QName
    version: str
    tables: tuple[TableFacts, ...]  # the source first, then everything behind it
    problems: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()  # what cures the problems, as far as statements can

    @property
    def strategy(self) -> Strategy:
        return "refuse" if self.problems else "token_slices"

    def require(self) -> None:
        """Raise unless batches are exact here."""
        if self.problems:
            raise IngestRefused(str(self.source), self.problems, self.statements)


def is_replicated(engine: str) -> bool:
    return engine.startswith(_REPLICATED)


def read_setting(engine_full: str, name: str, default: int) -> int:
    """A number from the SETTINGS clause of `system.tables.engine_full`.

    >>> read_setting("MergeTree ORDER BY x SETTINGS a = 5, b = 7", "b", 0), read_setting("Log", "b", 3)
    (7, 3)
    """
    found = setting_of(engine_full, name)
    return default if found is None else found


def setting_of(engine_full: str, name: str) -> int | None:
    """What a table sets by itself; None: nothing, the server's default holds.

    >>> text = "MergeTree ORDER BY x SETTINGS inactive_parts_to_delay_insert = 7, parts_to_delay_insert = 60, index_granularity = 8192"
    >>> setting_of(text, "parts_to_delay_insert"), setting_of(text, "max_delay_to_insert")
    (60, None)
    """
    found = re.search(rf"\b{re.escape(name)} = '?(\d+)", engine_full.rpartition("SETTINGS")[2])
    return int(found.group(1)) if found else None


def walk_targets(
    source: QName, hooks: Mapping[QName, Sequence[QName]], targets: Mapping[QName, QName]
) -> tuple[QName, ...]:
    """The source and all tables that an insert into it reaches through its views, each once."""
    reached: dict[QName, None] = {source: None}
    waiting = [source]
    while waiting:
        for view in hooks.get(waiting.pop(), ()):
            target = targets.get(view)
            if target is not None and target not in reached:
                reached[target] = None
                waiting.append(target)
    return tuple(reached)


def needed_settings() -> tuple[str, ...]:
    """Settings without which a repeated commit is not exact."""
    return (*COMMIT_SETTINGS, "insert_deduplication_token")


def read_tables() -> Statement:
    """Every table with its engine, what depends on it, and (of a view) its target."""
    sql = """
        SELECT database, name, engine, engine_full, arrayZip(dependencies_database, dependencies_table), target_database,
               target_table, toString(uuid)
        FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') AND NOT is_temporary
        """
    return Statement(sql=sql, parameters={}, settings={})


def read_defaults() -> Statement:
    """The server's deduplication settings, which count for tables without their own."""
    sql = "SELECT name, toUInt64OrZero(value) FROM system.merge_tree_settings WHERE name IN {names:Array(String)}"
    return Statement(sql=sql, parameters={"names": [*_WINDOWS.values(), _WINDOW_SECONDS]}, settings={})


def read_known_settings() -> Statement:
    """Which of the needed settings the server has."""
    sql = "SELECT name FROM system.settings WHERE name IN {names:Array(String)}"
    return Statement(sql=sql, parameters={"names": list(needed_settings())}, settings={})


def decode_capability(
    source: QName,
    version: str,
    *,
    tables: Iterable[Sequence[Any]],
    defaults: Iterable[Sequence[Any]],
    known_settings: Iterable[Sequence[Any]],
) -> Capability:
    """Judge a source by the rows of `read_tables`, `read_defaults` and `read_known_settings`."""
    hooks: dict[QName, list[QName]] = {}
    targets: dict[QName, QName] = {}
    engines: dict[QName, tuple[str, str]] = {}
    for database, table, engine, engine_full, dependent, to_database, to_table, uuid in tables:
        name = QName(database, table)
        engines[name] = (engine, engine_full)
        hooks[name] = [QName(*pair) for pair in dependent]
        if engine == "MaterializedView":  # plain views and Merge tables are listed as dependent too, but never fire
            targets[name] = QName(to_database or database, to_table or f".inner_id.{uuid}")
    fallback = {str(name): int(value) for name, value in defaults}
    reached = walk_targets(source, hooks, targets) if source in engines else ()
    facts = [table_facts(name, *engines.get(name, ("(missing)", "")), fallback) for name in reached]
    return decide_capability(source, version, facts, {str(name) for (name,) in known_settings})


def table_facts(name: QName, engine: str, engine_full: str, defaults: Mapping[str, int]) -> TableFacts:
    """One table's deduplication settings, its own or else the server's."""
    replicated = is_replicated(engine)

    def setting(key: str) -> int:
        return read_setting(engine_full, key, defaults.get(key, 0))

    return TableFacts(
        name=name,
        engine=engine,
        window=setting(_WINDOWS[replicated]),
        window_seconds=setting(_WINDOW_SECONDS) if replicated else None,
    )


def decide_capability(
    source: QName, version: str, tables: Iterable[TableFacts], known_settings: Collection[str]
) -> Capability:
    """Judge a source by its facts; all problems at once."""
    facts = tuple(tables)
    problems: list[str] = []
    statements: list[str] = []
    if not facts:
        problems.append("there is no such table on the server")
    if _number(version) < OLDEST_VERSION:
        problems.append(f"server version {version} is older than {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}")
    missing = sorted(set(needed_settings()) - set(known_settings))
    if missing:
        problems.append(f"server {version} lacks the setting(s) {', '.join(missing)} (upgrade to 26.2 or newer)")
    for one in facts:
        problem, alters = judge_table(one)
        problems += problem
        statements += alters
    return Capability(
        source=source, version=version, tables=facts, problems=tuple(problems), statements=tuple(statements)
    )


def judge_table(facts: TableFacts) -> tuple[list[str], list[str]]:
    """What keeps one table from being exact, and the statements that cure it."""
    if (
        facts.engine == "Null"
    ):  # keeps no rows; passes the token on to its views (measured on 26.7, first and in mid-chain)
        return [], []
    if not family(facts.engine):
        return [f"{facts.name} has engine {facts.engine}, which keeps no deduplication log"], []
    problems: list[str] = []
    wanted: list[str] = []
    if facts.window < WANTED_WINDOW:
        problems.append(f"{facts.name} remembers {facts.window} blocks, fewer than {WANTED_WINDOW}")
        wanted.append(f"{_WINDOWS[is_replicated(facts.engine)]} = {WANTED_WINDOW}")
    if facts.window_seconds is not None and facts.window_seconds < WANTED_WINDOW_SECONDS:
        problems.append(f"{facts.name} forgets blocks after {facts.window_seconds} s, before {WANTED_WINDOW_SECONDS} s")
        wanted.append(f"{_WINDOW_SECONDS} = {WANTED_WINDOW_SECONDS}")
    return problems, [f"ALTER TABLE {facts.name.sql} MODIFY SETTING {', '.join(wanted)}"] if wanted else []


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
