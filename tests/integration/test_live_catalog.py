"""The live server as a catalog: its hooks agree with the parser, and every kind of drift is seen for what it is."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.compare import Comparison
from chmv_assets.core.model import Edge
from chmv_assets.core.names import QName, parse_qname, quote_identifier, unquote_identifier
from chmv_assets.core.statements import split_statements
from chmv_assets.live import Disagreement, build_live_catalog, compare_with_live, find_disagreements
from resources.clickhouse import Server
from resources.introspect import fetch_objects

DEMO = Path(__file__).parents[2] / "chmv_assets" / "ddl"
# What the demo does not have: an inner table, a view over a view, a SELECT that sqlglot cannot read, odd names.
MORE = """
CREATE MATERIALIZED VIEW shop.inner_mv ENGINE = SummingMergeTree PARTITION BY day ORDER BY day
AS SELECT toDate(event_time) AS day, count() AS events FROM shop.events GROUP BY day;
CREATE TABLE shop.over_view (order_id UInt64) ENGINE = MergeTree ORDER BY order_id;
CREATE MATERIALIZED VIEW shop.over_view_mv TO shop.over_view AS SELECT order_id FROM shop.orders_current;
CREATE TABLE shop.unreadable (order_id UInt64) ENGINE = MergeTree ORDER BY order_id TTL toDate(order_id) + INTERVAL 30 DAY;
CREATE MATERIALIZED VIEW shop.unreadable_mv TO shop.unreadable
AS SELECT COLUMNS('^order_id$') REPLACE STRICT (order_id + 1 AS order_id) FROM shop.payments
WHERE user_id IN (SELECT user_id FROM shop.users);
CREATE TABLE shop.`odd.na``me` (`a b` UInt8 DEFAULT 1, c String ALIAS toString(`a b`)) ENGINE = MergeTree ORDER BY `a b`
SETTINGS non_replicated_deduplication_window = 5, index_granularity = 4096 COMMENT 'it''s
two lines';
CREATE MATERIALIZED VIEW shop.`odd mv` TO shop.`odd.na``me` AS SELECT toUInt8(COUNT(*)) AS `a b` FROM shop.payments;
"""


@dataclass(frozen=True)
class Shop:
    """A copy of the demo under a name of its own."""

    client: Client
    server: Server
    database: str

    def text(self, sql: str) -> str:
        return re.sub(r"\bshop\b", self.database, sql)

    def run(self, sql: str) -> None:
        self.client.command(self.text(sql))

    def files(self) -> list[SourceFile]:
        demo = [SourceFile(path=f.name, text=self.text(f.read_text())) for f in sorted(DEMO.glob("*.sql"))]
        return [*demo, SourceFile(path="70_more.sql", text=self.text(MORE))]

    def catalog(self, files: list[SourceFile] | None = None) -> Catalog:
        return build_catalog(files or self.files(), default_database=self.database).require_sound()

    def compare(self, catalog: Catalog | None = None) -> dict[str, Comparison]:
        """Every declared object against the server, by its name without the database."""
        catalog = catalog or self.catalog()
        names = [name for name, made in catalog.objects.items() if made.sql and made.kind != "inner_table"]
        found = compare_with_live(catalog, fetch_objects(self.server, [self.database]), self.server, names)
        return {name.table: verdict for name, verdict in found.items()}

    def name(self, table: str) -> QName:
        return QName(self.database, table)


def create(client: Client, server: Server) -> Shop:
    shop = Shop(client, server, f"live_{secrets.token_hex(3)}")
    for file in shop.files():
        for statement in split_statements(file)[0]:
            client.command(statement.text)
    return shop


@pytest.fixture(scope="module")
def shop(clickhouse: Client, server: Server) -> Iterator[Shop]:
    """Read only: tests that change something take `scratch_shop`."""
    made = create(clickhouse, server)
    yield made
    clickhouse.command(f"DROP DATABASE {made.database} SYNC")


def test_hooks_agree_with_the_parsed_triggers(shop: Shop) -> None:
    catalog, objects = build_live_catalog(shop.server, [shop.database])
    assert find_disagreements(catalog, objects) == ()
    triggers = {edge for edge in catalog.edges if edge.kind == "trigger"}
    assert Edge(shop.name("orders_current"), shop.name("over_view_mv"), "trigger") in triggers
    assert Edge(shop.name("events"), shop.name("inner_mv"), "trigger") in triggers
    assert len(triggers) == 16
    assert find_disagreements(shop.catalog(), objects) == (), "the folder agrees with the server as well"


def test_live_graph_is_the_declared_graph(shop: Shop) -> None:
    live, _ = build_live_catalog(shop.server, [shop.database])
    declared = shop.catalog()
    assert set(live.edges) == set(declared.edges)
    assert {n: (o.kind, o.engine) for n, o in live.objects.items()} == {
        n: (o.kind, o.engine) for n, o in declared.objects.items()
    }
    assert {n: live.cadence(n) for n in live.objects} == {n: declared.cadence(n) for n in declared.objects}


def test_the_server_reads_what_sqlglot_cannot(shop: Shop) -> None:
    catalog, _ = build_live_catalog(shop.server, [shop.database])
    view = catalog.objects[shop.name("unreadable_mv")]
    assert (shop.catalog().objects[view.name].reader, view.reader) == ("tolerant", "server")
    assert {(r.name.table, r.kind, r.via) for r in view.references} == {
        ("payments", "trigger", "server"),
        ("users", "lookup", "server"),
    }


def test_view_created_again_on_another_source_is_a_disagreement(
    clickhouse: Client, server: Server, database: str
) -> None:
    def run(text: str) -> None:
        for statement in text.split(";"):
            clickhouse.command(statement)

    tables = "; ".join(f"CREATE TABLE {database}.{t} (x UInt8) ENGINE = MergeTree ORDER BY x" for t in ("a", "b", "t"))
    view = f"CREATE MATERIALIZED VIEW {database}.mv TO {database}.t AS SELECT x FROM {database}."
    run(f"{tables}; {view}a")
    declared = build_catalog([SourceFile(path="x.sql", text=f"{tables}; {view}a")])
    assert find_disagreements(declared, fetch_objects(server, [database])) == ()
    run(f"DROP TABLE {database}.mv SYNC; {view}b")
    a, b, mv = (QName(database, name) for name in ("a", "b", "mv"))
    assert find_disagreements(declared, fetch_objects(server, [database])) == (
        Disagreement(Edge(a, mv, "trigger"), "parser"),
        Disagreement(Edge(b, mv, "trigger"), "server"),
    )


def test_every_object_is_equal_right_after_creation(shop: Shop) -> None:
    verdicts = shop.compare()
    assert {name: verdict for name, verdict in verdicts.items() if verdict != Comparison("equal")} == {}
    assert len(verdicts) == 40


def respelled(shop: Shop, how: str) -> list[SourceFile]:
    files = []
    for file in shop.files():
        text = file.text
        if how == "white space":
            text = re.sub(r"\n(?!two lines)", "\n\n   ", text).replace(",\n", "\n ,\n")
        elif how == "comments":
            text = re.sub(r",\n", ", /* x ; ' */ -- , y\n", text)
        elif how == "lower case":
            words = r"\b(CREATE|TABLE|MATERIALIZED|VIEW|IF|NOT|EXISTS|TO|AS|SELECT|FROM|GROUP|BY|ORDER|PARTITION|ENGINE|SETTINGS|LEFT|JOIN|ON|WHERE|AND|IN|DICTIONARY|SOURCE|LAYOUT|LIFETIME|PRIMARY|KEY|REFRESH|EVERY|DEFAULT|ARRAY)\b"
            text = re.sub(words, lambda match: match.group().lower(), text)
        elif how == "bare names":
            text = re.sub(rf"(?<!')\b{shop.database}\.(?=[`a-z])", "", text)
            text = f"USE {shop.database};\n{text}"
        elif how == "quoted names":
            text = re.sub(rf"(?<!')\b{shop.database}\.([a-z_]+)", rf'"{shop.database}".`\1`', text)
        files.append(SourceFile(path=file.path, text=text))
    return files


@pytest.mark.parametrize("how", ["white space", "comments", "lower case", "bare names", "quoted names"])
def test_spelling_is_no_change(shop: Shop, how: str) -> None:
    files = respelled(shop, how)
    assert sum(one.text != two.text for one, two in zip(files, shop.files(), strict=True)) >= 6
    verdicts = shop.compare(shop.catalog(files))
    assert {name: verdict for name, verdict in verdicts.items() if verdict != Comparison("equal")} == {}


@pytest.fixture(scope="module")
def scratch_shop(clickhouse: Client, server: Server) -> Iterator[Shop]:
    """Each test changes an object of its own here."""
    made = create(clickhouse, server)
    yield made
    clickhouse.command(f"DROP DATABASE {made.database} SYNC")


CHANGES = [
    ("traffic_hourly", "ALTER TABLE shop.traffic_hourly ADD COLUMN bots UInt64", "column bots"),
    ("traffic_daily", "ALTER TABLE shop.traffic_daily DROP COLUMN items", "column items"),
    ("visitors_daily", "ALTER TABLE shop.visitors_daily MODIFY TTL day + INTERVAL 1 YEAR", "TTL"),
    ("unreadable", "ALTER TABLE shop.unreadable MODIFY TTL toDate(order_id) + INTERVAL 31 DAY", "TTL"),
    (
        "sessions_daily",
        "ALTER TABLE shop.sessions_daily MODIFY SETTING non_replicated_deduplication_window = 7",
        "setting non_replicated_deduplication_window",
    ),
    (
        "attributes_daily",
        "ALTER TABLE shop.attributes_daily MODIFY SETTING parts_to_throw_insert = 99",
        "setting parts_to_throw_insert",
    ),
    (
        "revenue_payments_mv",
        "ALTER TABLE shop.revenue_payments_mv MODIFY QUERY SELECT toDate(paid_at) AS day, count() AS payments FROM shop.payments GROUP BY day",
        "query",
    ),
    ("events", "ALTER TABLE shop.events MODIFY COMMENT 'other'", "COMMENT"),
    ("payments", "ALTER TABLE shop.payments MODIFY COLUMN method String", "type of method"),
    ("users", "ALTER TABLE shop.users MODIFY COLUMN segment DEFAULT 'new'", "default of segment"),
    ("products", "ALTER TABLE shop.products COMMENT COLUMN brand 'whose'", "comment of brand"),
    ("orders_latest", "ALTER TABLE shop.orders_latest ADD COLUMN extra UInt8, MODIFY ORDER BY (order_id, extra)", "ORDER BY"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "sql", "what"), CHANGES, ids=[f"{table}-{what}" for table, _, what in CHANGES])
def test_change_on_the_server_is_named(scratch_shop: Shop, table: str, sql: str, what: str) -> None:
    assert scratch_shop.compare()[table] == Comparison("equal")
    scratch_shop.run(sql)
    verdict = scratch_shop.compare()[table]
    assert verdict.state == "changed"
    assert what in {difference.what for difference in verdict.differences}
    allowed = {what, "column extra"}  # a sorting key can only grow by a new column
    assert {difference.what for difference in verdict.differences} <= allowed


def test_dropped_object_is_missing(scratch_shop: Shop) -> None:
    scratch_shop.run("DROP TABLE shop.daily_overview SYNC")
    assert scratch_shop.compare()["daily_overview"] == Comparison("missing")


def test_target_and_engine_changes_are_named(scratch_shop: Shop) -> None:
    scratch_shop.run("DROP TABLE shop.over_view_mv SYNC")
    scratch_shop.run(
        "CREATE MATERIALIZED VIEW shop.over_view_mv TO shop.unreadable AS SELECT order_id FROM shop.orders_current"
    )
    scratch_shop.run("DROP TABLE shop.customer_value SYNC")
    scratch_shop.run(
        "CREATE TABLE shop.customer_value (user_id UInt64, country LowCardinality(String), segment LowCardinality(String), "
        "orders UInt64, amount Decimal(38, 2), last_order DateTime64(3, 'UTC')) ENGINE = ReplacingMergeTree(orders) ORDER BY user_id"
    )
    verdicts = scratch_shop.compare()
    assert [d.what for d in verdicts["over_view_mv"].differences] == ["target"]
    assert {"ENGINE", "engine arguments"} <= {d.what for d in verdicts["customer_value"].differences}


def test_statement_that_the_server_cannot_parse_cannot_be_told(shop: Shop) -> None:
    text = f"CREATE TABLE {shop.database}.events (event_id UInt64 FOO BAR) ENGINE = MergeTree ORDER BY event_id"
    catalog = build_catalog([SourceFile(path="x.sql", text=text)], default_database=shop.database)
    assert shop.compare(catalog) == {"events": Comparison("cannot tell")}


# Everything but lone surrogates, which are no UTF-8.
NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), min_size=200, max_size=200, unique=True
)
HOSTILE = ["a`b", "``", 'a"b', "a.b", "a\\b", "\\", "\\`", "\\n", "a\nb", "\r\t\0\b\f", "é", "表", "😀", " ", "'", "--", "/*", "a;b",
           "\x1b", "\x7f", "\a\v", "%", "{x}", "SELECT", "1", "\u200b", "$$", "#", "\u202e", "/"]  # fmt: skip


@given(NAMES)
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large, HealthCheck.too_slow],
)
def test_server_reads_quoted_names_as_they_are(server: Server, names: list[str]) -> None:
    """200 columns per query; the server itself says how it read each of them."""
    columns = ", ".join(f"{i} AS {quote_identifier(name)}" for i, name in enumerate(names))
    assert [row[0] for row in server.rows(f"DESCRIBE (SELECT {columns})")] == names


def test_hostile_tables_come_back_under_their_names(clickhouse: Client, server: Server, database: str) -> None:
    names = [QName(database, f"hostile{name}") for name in HOSTILE if "/" not in name and "\0" not in name]
    for name in names:
        clickhouse.command(f"CREATE TABLE {name.sql} ({quote_identifier(name.table)} UInt8) ENGINE = Memory")
    objects = {live.name: live for live in fetch_objects(server, [database]) if live.name.table.startswith("hostile")}
    assert set(objects) == set(names)
    catalog, _ = build_live_catalog(server, [database])
    for name in names:
        assert parse_qname(name.sql, "x") == parse_qname(str(name), "x") == name
        assert [column.name for column in catalog.objects[name].columns] == [name.table], (
            "read back from the server's text"
        )
        assert unquote_identifier(quote_identifier(name.table)) == name.table


def test_other_spellings_of_a_type_are_no_change(clickhouse: Client, server: Server, database: str) -> None:
    """`INT` is stored as Int32, `Enum8('a', 'b')` with its numbers: the declared text is still what runs."""
    sql = f"CREATE TABLE {database}.spelled (i INT, t TEXT, e Enum8('a', 'b'), n Nullable(BIGINT), d DateTime64) ENGINE = MergeTree ORDER BY i"
    clickhouse.command(sql)
    catalog = build_catalog([SourceFile(path="a.sql", text=sql)])
    name = QName(database, "spelled")
    assert compare_with_live(catalog, fetch_objects(server), server, [name])[name].state == "equal"
    clickhouse.command(f"ALTER TABLE {database}.spelled MODIFY COLUMN n Nullable(Int128)")
    (difference,) = compare_with_live(catalog, fetch_objects(server), server, [name])[name].differences
    assert (difference.what, difference.live) == ("type of n", "Nullable(Int128)")


def test_table_that_a_refresh_fills_is_no_object(clickhouse: Client, server: Server, database: str) -> None:
    clickhouse.command(f"CREATE TABLE {database}.slow (n UInt64) ENGINE = MergeTree ORDER BY n")
    clickhouse.command(
        f"CREATE MATERIALIZED VIEW {database}.slow_mv REFRESH EVERY 1 DAY TO {database}.slow AS SELECT sum(number + sleepEachRow(0.2)) AS n "
        "FROM numbers(100) SETTINGS max_block_size = 1"
    )
    clickhouse.command(f"SYSTEM REFRESH VIEW {database}.slow_mv")
    hidden = f"SELECT count() FROM system.tables WHERE database = '{database}' AND startsWith(name, '.tmp.inner')"
    for _ in range(200):
        if int(str(clickhouse.command(hidden))):
            break
        time.sleep(0.05)
    else:
        pytest.fail("the refresh made no table")
    catalog, _ = build_live_catalog(server, [database])
    assert not [name for name in catalog.objects if name.table.startswith(".tmp")]
    clickhouse.command(f"SYSTEM CANCEL VIEW {database}.slow_mv")
    clickhouse.command(f"DROP TABLE {database}.slow_mv SYNC")
