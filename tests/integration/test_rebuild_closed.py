"""The closed rebuild on the real server: damaged targets become exact again, and nothing else changes.

The oracle is a twin of the target, filled by the server from the live views' own SELECTs over the whole source; both
sides are read with FINAL. Untouched means: the checksum of the raw rows of every other partition is the same.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window, window_of_key
from resources.clickhouse import Server
from resources.engine import EngineInfo
from resources.executor import Executor
from resources.rebuild import Rebuilder

UTC = timezone.utc
NOW = datetime(2026, 8, 1, tzinfo=UTC)
SOURCE = """
CREATE TABLE {db}.{case}_source (id UInt64, ts DateTime('UTC'), country String, amount UInt32, version UInt32)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id;
"""
BERLIN = SOURCE.replace("DateTime('UTC')", "DateTime('Europe/Berlin')")
# 40 days from 20 June; every id has one ts, some ids come with several versions.
ROWS = """
INSERT INTO {db}.{case}_source
SELECT number % 700 AS id, toDateTime('2026-06-20 00:00:00', 'UTC') + (id * 49999) % (40 * 86400) AS ts,
    ['DE', 'FR', 'it\\'s, (x)'][id % 3 + 1], intHash32(number) % 1000, number
FROM numbers({first}, {count})
"""


DEFAULT_WINDOW = window_of_key("2026-07-05", "day", "UTC")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pipeline: `ddl` after the source; the target is `<case>_target` unless said otherwise."""

    ddl: str
    window: Window | None = DEFAULT_WINDOW
    view_class: str = "additive"
    source: str = SOURCE
    prepare: Sequence[str] = ()
    timezone: str = "UTC"


DAILY_SUM = """
CREATE TABLE {db}.{case}_target (day Date, country String, events UInt64, amount UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, country);
CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
SELECT toDate(ts) AS day, country, count() AS events, sum(amount) AS amount FROM {db}.{case}_source GROUP BY day, country;
"""


def rowwise(
    partition_by: str, columns: str = "id UInt64, ts DateTime('UTC'), amount UInt32", engine: str = "MergeTree"
) -> str:
    names = ", ".join(part.split()[0] for part in re.split(r", (?=\w+ [A-Z])", columns))
    return (
        f"CREATE TABLE {{db}}.{{case}}_target ({columns}) ENGINE = {engine} PARTITION BY {partition_by} ORDER BY id;\n"
        f"CREATE MATERIALIZED VIEW {{db}}.{{case}}_mv TO {{db}}.{{case}}_target AS SELECT {names} FROM {{db}}.{{case}}_source;"
    )


CASES = {
    "append": Case(ddl=rowwise("toYYYYMMDD(ts)"), view_class="append"),
    "additive": Case(ddl=DAILY_SUM),
    "states": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (hour DateTime('UTC'), users AggregateFunction(uniqExact, UInt64),
            biggest SimpleAggregateFunction(max, UInt32))
        ENGINE = AggregatingMergeTree PARTITION BY toYYYYMMDD(hour) ORDER BY hour;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toStartOfHour(ts) AS hour, uniqExactState(id) AS users, max(amount) AS biggest
        FROM {db}.{case}_source GROUP BY hour;
        """
    ),
    "replacing": Case(
        ddl=rowwise("toYYYYMM(ts)", "id UInt64, ts DateTime('UTC'), amount UInt32, version UInt32", "ReplacingMergeTree(version)"),
        window=window_of_key("2026-07-01", "month", "UTC"),
        view_class="replacing",
    ),
    "opaque": Case(
        ddl="""
        CREATE TABLE {db}.{case}_names (country String, name String) ENGINE = MergeTree ORDER BY country;
        CREATE TABLE {db}.{case}_target (ts DateTime('UTC'), id UInt64, name String)
        ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) ORDER BY id;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT s.ts AS ts, s.id AS id, n.name AS name FROM {db}.{case}_source AS s
        LEFT ANY JOIN {db}.{case}_names AS n ON n.country = s.country;
        """,
        prepare=["INSERT INTO {db}.{case}_names VALUES ('DE', 'Germany'), ('FR', 'France')"],
        view_class="opaque",
    ),
    "two_views": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, events UInt64, german UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate(ts) AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_other_mv TO {db}.{case}_target AS
        SELECT toDate(ts) AS day, sum(amount) AS german FROM {db}.{case}_source WHERE country = 'DE' GROUP BY day;
        """
    ),
    "chained": Case(
        ddl="""
        CREATE TABLE {db}.{case}_hours (hour DateTime('UTC'), events UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(hour) ORDER BY hour;
        CREATE MATERIALIZED VIEW {db}.{case}_hours_mv TO {db}.{case}_hours AS
        SELECT toStartOfHour(ts) AS hour, count() AS events FROM {db}.{case}_source GROUP BY hour
        SETTINGS max_threads = 1;
        CREATE TABLE {db}.{case}_target (day Date, events SimpleAggregateFunction(sum, UInt64))
        ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate(hour) AS day, sum(events) AS events FROM {db}.{case}_hours GROUP BY day;
        """,
        window=window_of_key("2026-07-01", "month", "UTC"),
    ),
    "weekly": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (week Date, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY toMonday(week) ORDER BY week;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toMonday(ts) AS week, count() AS events FROM {db}.{case}_source GROUP BY week;
        """,
        window=window_of_key("2026-06-29", "week", "UTC"),
    ),
    "monthly": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate(ts) AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        """,
        window=window_of_key("2026-07-01", "month", "UTC"),
    ),
    "dimensions": Case(
        ddl=DAILY_SUM.replace("toYYYYMMDD(day)", "(toYYYYMM(day), country)"),
        window=window_of_key("2026-07-01", "month", "UTC"),
    ),
    "date32": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date32, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY day ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT toDate32(ts) AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        """
    ),
    "datetime64": Case(
        ddl=rowwise("toStartOfDay(ts)", "id UInt64, ts DateTime64(3, 'UTC'), amount UInt32"),
        source=SOURCE.replace("DateTime('UTC')", "DateTime64(3, 'UTC')"),

        view_class="append",
    ),
    "berlin": Case(
        ddl=rowwise("toYYYYMMDD(ts)", "id UInt64, ts DateTime('Europe/Berlin'), amount UInt32"),
        source=BERLIN,
        view_class="append",
    ),
    "berlin_days": Case(ddl=DAILY_SUM, source=BERLIN),
    "berlin_instants_as_days": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, id UInt64) ENGINE = MergeTree PARTITION BY day ORDER BY id;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS SELECT ts AS day, id FROM {db}.{case}_source;
        """,
        source=BERLIN,
        view_class="append",
    ),
    "days_as_instants": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (at DateTime('UTC'), id UInt64)
        ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY id;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS SELECT ts AS at, id FROM {db}.{case}_source;
        """,
        source=SOURCE.replace("DateTime('UTC')", "Date"),
        window=window_of_key("2026-07-05", "day", "Europe/Berlin"),
        view_class="append",
        timezone="Europe/Berlin",
    ),
    "texts_as_days": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, events UInt64)
        ENGINE = SummingMergeTree PARTITION BY day ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT formatDateTime(ts, '%Y-%m-%d') AS day, count() AS events FROM {db}.{case}_source GROUP BY day;
        """
    ),
    "unpartitioned": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (country String, events UInt64) ENGINE = SummingMergeTree ORDER BY country;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        SELECT country, count() AS events FROM {db}.{case}_source GROUP BY country;
        """,
        window=None,
    ),
    "subquery": Case(
        ddl="""
        CREATE TABLE {db}.{case}_target (day Date, big UInt64)
        ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY day;
        CREATE MATERIALIZED VIEW {db}.{case}_mv TO {db}.{case}_target AS
        WITH 500 AS limit_ SELECT day, count() AS big
        FROM (SELECT toDate(ts) AS day, amount FROM {db}.{case}_source) WHERE amount > limit_ GROUP BY day;
        """
    ),
}  # fmt: skip


@dataclass
class Pipe:
    """One case on the server, with everything a test asks of it."""

    client: Client
    server: Server
    database: str
    case: str
    catalog: Catalog
    target: str = "target"
    logged: list[str] = field(default_factory=list)

    def name(self, suffix: str) -> QName:
        return QName(self.database, f"{self.case}_{suffix}")

    def run(self, sql: str) -> None:
        self.client.command(sql.replace("{db}", self.database).replace("{case}", self.case))

    def rebuilder(self, executor: Executor | None = None, **options: Any) -> Rebuilder:
        executor = executor or Executor(self.server, log=self.logged.append)
        return Rebuilder(
            executor, self.catalog, options.pop("timezone", "UTC"), options.pop("now", lambda: NOW), **options
        )

    def publish(self, window: Window | None, **options: Any) -> Any:
        return self.rebuilder(**options).publish(self.catalog.objects[self.name(self.target)], window)

    def rows(self, table: QName) -> dict[str, list[Any]]:
        """Finalised rows per partition."""
        described = self.client.query(
            "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String} ORDER BY position",
            parameters={"d": table.database, "t": table.table},
        ).result_rows
        columns = ", ".join(
            f"arraySort(finalizeAggregation({n}))" if "groupArray" in t
            else f"finalizeAggregation({n})" if t.startswith("AggregateFunction") else n
            for n, t in described
        )  # fmt: skip
        engine = self.catalog.objects[self.name(self.target)].engine
        final = "" if engine == "MergeTree" else "FINAL"
        found: dict[str, list[Any]] = {}
        for partition, *row in self.client.query(
            f"SELECT _partition_id, {columns} FROM {table.sql} {final} ORDER BY ALL",
            settings={"do_not_merge_across_partitions_select_final": 1},
        ).result_rows:
            found.setdefault(partition, []).append(row)
        return found

    def truth(self) -> dict[str, list[Any]]:
        """What the target should hold, by the server's own words about its views."""
        twin = self.name("twin")
        self.client.command(f"DROP TABLE IF EXISTS {twin.sql} SYNC")
        self.client.command(f"CREATE TABLE {twin.sql} AS {self.name(self.target).sql}")
        for view in self.catalog.views_into(self.name(self.target)):
            (select,) = self.client.query(
                "SELECT as_select FROM system.tables WHERE database = {d:String} AND name = {t:String}",
                parameters={"d": view.name.database, "t": view.name.table},
            ).result_rows[0]
            columns = ", ".join(f"`{row[0]}`" for row in self.client.query(f"DESCRIBE ({select})").result_rows)
            self.client.command(f"INSERT INTO {twin.sql} ({columns}) SELECT {columns} FROM ({select})")
        return self.rows(twin)

    def checksums(self) -> dict[str, tuple[int, int]]:
        """Raw rows per partition."""
        rows = self.client.query(
            f"SELECT _partition_id, count(), sum(cityHash64(*)) FROM {self.name(self.target).sql} GROUP BY ALL"
        ).result_rows
        return {partition: (count, checksum) for partition, count, checksum in rows}

    def damage(self, how: str, partitions: Sequence[str]) -> None:
        table = self.name(self.target).sql
        for partition in partitions:
            if how == "drop" or (how == "delete" and self.checksums()[partition][0] == 1):
                self.client.command(f"ALTER TABLE {table} DROP PARTITION ID '{partition}'")
            elif how == "delete":  # every second row; a mutation would do the same but waits for its turn
                half = self.name("half").sql
                self.client.command(f"CREATE TABLE {half} AS {table}")
                self.client.command(
                    f"INSERT INTO {half} SELECT * FROM {table} WHERE _partition_id = '{partition}' AND rowNumberInAllBlocks() % 2"
                )
                self.client.command(f"ALTER TABLE {table} REPLACE PARTITION ID '{partition}' FROM {half}")
                self.client.command(f"DROP TABLE {half} SYNC")
            else:
                columns = self.client.command(
                    f"SELECT arrayStringConcat(groupArray(name), ', ') FROM system.columns WHERE database = '{self.database}' AND table = '{self.case}_{self.target}'"
                )
                self.client.command(
                    f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE _partition_id = '{partition}'"
                )


def apply_ddl(client: Client, text: str) -> Catalog:
    """Create the objects one by one and read the same text into a catalog."""
    for statement in text.split(";\n"):
        if statement.strip(" \n;"):
            client.command(statement.strip(" \n;"))
    return build_catalog([SourceFile(path="ddl.sql", text=text)]).require_sound()


@pytest.fixture(scope="module")
def make(clickhouse: Client, server: Server, database: str) -> Callable[..., Pipe]:
    """Build a case at first use; with another name it is a fresh one."""
    made: dict[str, Pipe] = {}

    def build(case: Case, name: str, *, rows: int = 2000) -> Pipe:
        if name not in made:
            text = (case.source.strip() + "\n" + case.ddl).replace("{db}", database).replace("{case}", name)
            pipe = Pipe(clickhouse, server, database, name, apply_ddl(clickhouse, text))
            pipe.client.command(f"SYSTEM STOP MERGES {pipe.name('target').sql}")  # they change raw rows
            for sql in case.prepare:
                pipe.run(sql)
            for first in range(0, rows, max(rows // 3, 1)):
                pipe.run(ROWS.format(db=database, case=name, first=first, count=max(rows // 3, 1)))
            made[name] = pipe
        return made[name]

    return build


@pytest.fixture
def left_over(clickhouse: Client) -> Iterator[Callable[[], list[str]]]:
    """Names of scratch tables that this test has made; each test must leave none."""

    def every() -> list[str]:
        found = clickhouse.query("SELECT name FROM system.tables WHERE database = 'chmv' AND name LIKE 'scratch.%'")
        return [name for (name,) in found.result_rows]

    before = set(every())

    def list_tables() -> list[str]:
        return [name for name in every() if name not in before]

    yield list_tables
    for name in list_tables():
        clickhouse.command(f"DROP TABLE chmv.`{name}` SYNC")


def covered(pipe: Pipe, window: Window | None) -> list[str]:
    """Partitions of the truth that hold rows of the window, by the target's own time column."""
    scheme = pipe.catalog.schemes.get(pipe.name("target"))
    if scheme is None or window is None:
        return sorted(pipe.truth())
    start, end = (f"toDateTime({int(at.timestamp())}, 'UTC')" for at in (window.start, window.end))
    column = f"toDateTime(toString({scheme.column}) || ' 00:00:00', 'UTC')" if scheme.is_date else scheme.column
    rows = pipe.client.query(
        f"SELECT DISTINCT _partition_id FROM {pipe.name('twin').sql} WHERE {column} >= {start} AND {column} < {end}"
    ).result_rows
    return sorted(partition for (partition,) in rows)


HOWS = ("drop", "delete", "double")
THOROUGH = ("append", "additive", "replacing", "two_views", "dimensions", "unpartitioned")


@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in CASES for how in (HOWS if name in THOROUGH else HOWS[1:2])]
)
def test_damaged_window_is_exact_after_publish_and_the_rest_untouched(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], name: str, how: str
) -> None:
    case = CASES[name]
    pipe = make(case, name)
    assert {pipe.catalog.facts[v.name].view_class for v in pipe.catalog.views_into(pipe.name("target"))} == {
        case.view_class
    }
    truth = pipe.truth()
    damaged = covered(pipe, case.window)
    assert damaged
    pipe.damage(how, damaged)
    before = pipe.checksums()
    published = pipe.publish(case.window, timezone=case.timezone)
    after, now = pipe.checksums(), pipe.rows(pipe.name("target"))
    assert set(damaged) <= set(published.partitions)
    for partition in set(damaged) | set(published.partitions):
        assert now.get(partition) == truth.get(partition), partition
    others = set(before) - set(published.partitions)
    assert others or name == "unpartitioned"
    assert {p: after[p] for p in others} == {p: before[p] for p in others}
    assert set(after) == set(truth)
    assert published.tries == 1
    assert left_over() == []


def day(key: str) -> Window:
    return window_of_key(key, "day", "UTC")


def test_scratch_of_a_view_is_reused_and_built_again_after_an_insert(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    pipe = make(CASES["additive"], "reuse")
    view = pipe.catalog.objects[pipe.name("mv")]
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is False
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is True
    assert left_over() == [f"scratch.{pipe.database}.reuse_target.{pipe.database}.reuse_mv"]
    pipe.run("INSERT INTO {db}.{case}_source VALUES (1, '2026-07-09 10:00:00', 'DE', 5, 1)")
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is True, "another day's rows do not matter"
    pipe.run("INSERT INTO {db}.{case}_source VALUES (1, '2026-07-05 10:00:00', 'DE', 5, 1)")
    assert pipe.rebuilder().build_scratch(view, day("2026-07-05")).reused is False
    published = pipe.publish(day("2026-07-05"))
    assert [share.reused for share in published.scratches] == [True]
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


def test_readers_see_nothing_of_a_scratch(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    pipe = make(CASES["additive"], "unseen")
    pipe.damage("drop", ["20260705"])
    before = pipe.checksums()
    pipe.rebuilder().build_scratch(pipe.catalog.objects[pipe.name("mv")], day("2026-07-05"))
    assert pipe.checksums() == before


def test_windows_that_share_a_partition_do_not_take_each_others_scratch(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    """A UTC day touches two Berlin days: publishing one window must not leave the next with a mark and no rows."""
    pipe = make(CASES["berlin"], "shared")
    view = pipe.catalog.objects[pipe.name("mv")]
    for key in ("2026-07-05", "2026-07-06", "2026-07-07"):
        pipe.rebuilder().build_scratch(view, day(key))
    for key in ("2026-07-05", "2026-07-06", "2026-07-07"):
        pipe.publish(day(key))
        assert pipe.rows(pipe.name("target")) == pipe.truth(), key
    assert left_over() == []


def test_lost_scratch_is_not_taken_for_an_empty_share(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    """Somebody dropped the scratch of one of two views; its mark must not speak for it."""
    pipe = make(CASES["two_views"], "lost")
    for suffix in ("mv", "other_mv"):
        pipe.rebuilder().build_scratch(pipe.catalog.objects[pipe.name(suffix)], day("2026-07-05"))
    gone = next(name for name in left_over() if name.endswith("other_mv"))
    pipe.client.command(f"DROP TABLE chmv.`{gone}` SYNC")
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize("suffix", ["", "_views"])
def test_emptied_source_is_refused_and_the_target_untouched(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], suffix: str
) -> None:
    pipe = make(CASES["two_views" if suffix else "additive"], f"emptied{suffix}")
    before = pipe.checksums()
    pipe.run("TRUNCATE TABLE {db}.{case}_source")
    with pytest.raises(
        RebuildRefused, match=r"holds rows for this window but its views give none from test_\w+\.emptied"
    ):
        pipe.publish(day("2026-07-05"))
    assert pipe.checksums() == before


def test_expired_window_is_refused_with_the_dates(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    case = Case(ddl=DAILY_SUM, source=SOURCE.replace("ORDER BY id", "ORDER BY id TTL ts + INTERVAL 3650 DAY"))
    pipe = make(case, "expired")
    before = pipe.checksums()
    later = datetime(2036, 7, 20, 12, tzinfo=UTC)
    with pytest.raises(
        RebuildRefused, match=r"starts 2026-07-05 00:00 but .* keeps rows only since 2026-07-23 12:00 \(TTL\)"
    ):
        pipe.publish(day("2026-07-05"), now=lambda: later)
    assert pipe.checksums() == before
    pipe.damage("double", ["20260724"])
    pipe.publish(day("2026-07-24"), now=lambda: later)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize(
    "ttl", ["ts + INTERVAL 1 DAY TO DISK 'default'", "ts + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(3))"]
)
def test_rows_that_only_move_are_still_there(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], ttl: str
) -> None:
    name = "moved" if "DISK" in ttl else "recompressed"
    pipe = make(Case(ddl=DAILY_SUM, source=SOURCE.replace("ORDER BY id", f"ORDER BY id TTL {ttl}")), name)
    pipe.damage("double", ["20260705"])
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_null_source_is_refused(make: Callable[..., Pipe]) -> None:
    source = "CREATE TABLE {db}.{case}_source (id UInt64, ts DateTime('UTC'), country String, amount UInt32, version UInt32) ENGINE = Null;"
    pipe = make(Case(ddl=DAILY_SUM, source=source), "null_source")
    before = pipe.checksums()
    assert before
    with pytest.raises(
        RebuildRefused, match=r"null_source_source is a Null table but wanted a table that holds its rows"
    ):
        pipe.publish(day("2026-07-05"))
    assert pipe.checksums() == before


@dataclass
class Meddling(Executor):
    """Runs a statement of somebody else after each fill of a scratch, so many times."""

    meddle: Callable[[], None] = lambda: None
    times: int = 1
    when: str = "insert"

    def insert_select(self, *arguments: Any, **options: Any) -> None:
        super().insert_select(*arguments, **options)
        self._disturb("insert")

    def replace_partition(self, target: QName, partition_id: str, scratch: QName) -> None:
        self._disturb("swap")
        super().replace_partition(target, partition_id, scratch)

    def _disturb(self, when: str) -> None:
        if when == self.when and self.times:
            self.times -= 1
            self.meddle()


@pytest.mark.parametrize("when", ["insert", "swap"])
def test_insert_into_the_window_during_the_build_is_noticed(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], when: str
) -> None:
    pipe = make(CASES["additive"], f"noticed_{when}")
    pipe.damage("double", ["20260705"])
    row = "INSERT INTO {db}.{case}_source VALUES (9, '2026-07-05 11:00:00', 'DE', 7, 1)"
    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=lambda: pipe.run(row), when=when)
    published = pipe.publish(day("2026-07-05"), executor=executor)
    assert (executor.times, published.tries) == (0, 2)
    assert pipe.rows(pipe.name("target")) == pipe.truth()
    assert left_over() == []


def test_inserts_elsewhere_do_not_disturb(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    pipe = make(CASES["additive"], "elsewhere")
    pipe.damage("double", ["20260705"])
    row = "INSERT INTO {db}.{case}_source VALUES (9, '2026-07-06 11:00:00', 'DE', 7, 1)"
    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=lambda: pipe.run(row), times=3)
    assert pipe.publish(day("2026-07-05"), executor=executor).tries == 1
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.mark.parametrize("name", ["additive", "chained"])
def test_merges_of_the_source_are_no_inserts(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], name: str
) -> None:
    """Parts become fewer, and a Summing source loses rows; nothing else happens."""
    pipe = make(CASES[name], f"merging_{name}")
    source = pipe.name("hours" if name == "chained" else "source")
    window = CASES[name].window
    state = (
        f"SELECT count() FROM system.parts WHERE active AND database = '{source.database}' AND table = '{source.table}'"
    )
    before = pipe.client.query(state).result_rows
    meddle = lambda: pipe.run(f"OPTIMIZE TABLE {source.sql} FINAL")  # noqa: E731
    published = pipe.publish(window, executor=Meddling(pipe.server, log=pipe.logged.append, meddle=meddle))
    assert pipe.client.query(state).result_rows < before
    assert published.tries == 1
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_window_that_never_rests_is_refused_and_the_target_untouched(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    pipe = make(CASES["additive"], "restless")
    row = "INSERT INTO {db}.{case}_source VALUES (9, '2026-07-05 11:00:00', 'DE', 7, 1)"
    executor = Meddling(pipe.server, log=pipe.logged.append, meddle=lambda: pipe.run(row), times=99)
    with pytest.raises(RebuildRefused, match="took inserts during each of 3 tries"):
        pipe.publish(day("2026-07-05"), executor=executor)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


@pytest.fixture
def slow_insert(engine: EngineInfo, make: Callable[..., Pipe]) -> Iterator[Callable[[], None]]:
    """An INSERT that runs until it is killed; gives the function that ends it."""
    pipe = make(CASES["additive"], "slow")
    client = clickhouse_connect.get_client(host="127.0.0.1", port=engine.http_port, autogenerate_session_id=False)
    query_id = f"slow-{random.random()}"

    def run() -> None:
        try:
            client.command(
                "INSERT INTO FUNCTION null('x UInt8') SELECT sleepEachRow(0.05) FROM numbers(100000) "
                "SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0",
                settings={"query_id": query_id},
            )
        except clickhouse_connect.driver.exceptions.DatabaseError:
            return

    thread = threading.Thread(target=run)
    thread.start()
    while not pipe.client.query(f"SELECT 1 FROM system.processes WHERE query_id = '{query_id}'").result_rows:
        pass

    def end() -> None:
        pipe.client.command(f"KILL QUERY WHERE query_id = '{query_id}' SYNC")

    yield end
    end()
    thread.join()
    client.close()


@dataclass
class Clock:
    """Time that passes by sleeping only."""

    seconds: float = 0.0
    on_sleep: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds * 100
        self.on_sleep()


def test_insert_that_does_not_end_is_refused(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], slow_insert: Callable[[], None]
) -> None:
    pipe = make(CASES["additive"], "slow")
    before, clock = pipe.checksums(), Clock()
    with pytest.raises(RebuildRefused, match=r"1 insert\(s\) still run after 60 s"):
        pipe.publish(day("2026-07-05"), clock=clock.now, sleep=clock.sleep)
    assert clock.seconds > 60
    assert pipe.checksums() == before


def test_insert_that_ends_is_waited_for(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]], slow_insert: Callable[[], None]
) -> None:
    pipe = make(CASES["additive"], "slow")
    clock = Clock(on_sleep=slow_insert)
    pipe.damage("double", ["20260705"])
    pipe.publish(day("2026-07-05"), clock=clock.now, sleep=clock.sleep)
    assert pipe.rows(pipe.name("target")) == pipe.truth()


def test_source_partition_that_was_replaced_is_seen(
    make: Callable[..., Pipe], left_over: Callable[[], list[str]]
) -> None:
    """A scratch built before the source's rows were exchanged for as many others is not used after it."""
    pipe = make(CASES["additive"], "exchanged")
    view = pipe.catalog.objects[pipe.name("mv")]
    pipe.rebuilder().build_scratch(view, day("2026-07-05"))
    source, other = pipe.name("source").sql, pipe.name("other").sql
    pipe.client.command(f"CREATE TABLE {other} AS {source}")
    pipe.client.command(f"INSERT INTO {other} SELECT * REPLACE (amount + 1 AS amount) FROM {source}")
    pipe.client.command(f"ALTER TABLE {source} REPLACE PARTITION ID '20260705' FROM {other}")
    assert pipe.publish(day("2026-07-05")).scratches[0].reused is False
    assert pipe.rows(pipe.name("target"))["20260705"] == pipe.truth()["20260705"]


def test_unqualified_names_mean_the_default_database(
    clickhouse: Client, server: Server, database: str, left_over: Callable[[], list[str]]
) -> None:
    text = (SOURCE + DAILY_SUM).replace("{case}", "bare")
    apply_ddl(clickhouse, text.replace("{db}", database))
    catalog = build_catalog([SourceFile(path="x.sql", text=text.replace("{db}.", ""))], default_database=database)
    pipe = Pipe(clickhouse, server, database, "bare", catalog.require_sound())
    pipe.run(ROWS.format(db=database, case="bare", first=0, count=500))
    pipe.damage("double", ["20260705"])
    pipe.publish(day("2026-07-05"))
    assert pipe.rows(pipe.name("target")) == pipe.truth()


ODD = Case(
    source="""
    CREATE TABLE {db}.`{case}_sour.ce ``x``` (id UInt64, `ts'é` DateTime('UTC')) ENGINE = MergeTree PARTITION BY toYYYYMMDD(`ts'é`) ORDER BY id;
    """,
    ddl="""
    CREATE TABLE {db}.`{case}_target` (`d``ay` Date, `n \\"n` UInt64) ENGINE = SummingMergeTree PARTITION BY `d``ay` ORDER BY `d``ay`;
    CREATE MATERIALIZED VIEW {db}.`{case}_m'v` TO {db}.`{case}_target` AS
    SELECT toDate(`ts'é`) AS `d``ay`, count() AS `n \\"n` FROM {db}.`{case}_sour.ce ``x``` GROUP BY `d``ay`;
    """,
)  # fmt: skip


def test_hostile_names_are_rebuilt_too(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    pipe = make(ODD, "odd", rows=0)
    source = QName(pipe.database, "odd_sour.ce `x`")
    pipe.client.command(
        f"INSERT INTO {source.sql} SELECT number, toDateTime('2026-07-01 00:00:00', 'UTC') + number * 5000 FROM numbers(100)"
    )
    view = pipe.catalog.objects[QName(pipe.database, "odd_m'v")]
    target = pipe.catalog.objects[pipe.name("target")]
    pipe.client.command(f"INSERT INTO {target.name.sql} SELECT * FROM {target.name.sql}")
    for key in ("2026-07-01", "2026-07-03"):
        pipe.rebuilder().build_scratch(view, day(key))
        assert pipe.publish(day(key)).scratches[0].reused is True
    expected = pipe.client.query(
        f"SELECT toDate(`ts'é`) AS d, count() FROM {source.sql} WHERE d IN ('2026-07-01', '2026-07-03') GROUP BY d ORDER BY d"
    )
    found = pipe.client.query(
        f"SELECT * FROM {target.name.sql} WHERE `d``ay` IN ('2026-07-01', '2026-07-03') ORDER BY ALL"
    )
    assert found.result_rows == expected.result_rows
    assert left_over() == []


def test_random_life_of_a_pipeline(make: Callable[..., Pipe], left_over: Callable[[], list[str]]) -> None:
    """Thirty rounds of inserts, damage and publications; after each the published window is exact."""
    chance = random.Random(20261116)
    pipes = [make(CASES[name], f"life_{name}", rows=900) for name in ("two_views", "replacing", "dimensions")]
    for round_number in range(30):
        pipe = chance.choice(pipes)
        for _ in range(chance.randint(0, 2)):
            pipe.run(
                ROWS.format(
                    db=pipe.database, case=pipe.case, first=chance.randrange(10_000), count=chance.randint(1, 40)
                )
            )
        truth = pipe.truth()
        monthly = pipe.case != "life_two_views"
        moment = datetime(2026, 6, 20, tzinfo=UTC) + timedelta(days=chance.randrange(40))
        window = window_of_key(
            f"{moment:%Y-%m}-01" if monthly else f"{moment:%Y-%m-%d}", "month" if monthly else "day", "UTC"
        )
        damaged = [p for p in covered(pipe, window) if p in pipe.checksums()]
        pipe.damage(chance.choice(["drop", "delete", "double"]), damaged[: chance.randint(1, 3)])
        before = pipe.checksums()
        published = pipe.publish(window)
        now, after = pipe.rows(pipe.name("target")), pipe.checksums()
        assert {p: now.get(p) for p in published.partitions} == {p: truth.get(p) for p in published.partitions}, (
            round_number
        )
        assert set(covered(pipe, window)) <= set(published.partitions)
        assert {p: v for p, v in after.items() if p not in published.partitions} == {
            p: v for p, v in before.items() if p not in published.partitions
        }
    assert left_over() == []
