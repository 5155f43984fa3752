"""What a pull takes out of the server's text, and what it must leave in."""

from __future__ import annotations

import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.pull_text import (
    ServerDefaults,
    clean_statement,
    count_hidden,
    may_drop_columns,
    render_statement,
    repeats_query,
    with_cluster,
)

DEFAULTS = ServerDefaults(user="ada")


def clean(sql: str, *, drop_columns: bool = False) -> str:
    return clean_statement(sql, DEFAULTS, drop_columns=drop_columns)


def view(sql: str) -> Object:
    catalog = build_catalog([SourceFile(path="live", text=sql)], default_database="d")
    return next(made for made in catalog.objects.values() if made.sql and made.kind != "inner_table")


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (
            "CREATE TABLE d.settings (`settings` UInt8) ENGINE = MergeTree ORDER BY settings SETTINGS index_granularity = 8192, a = 'x' COMMENT 'c'",
            "CREATE TABLE IF NOT EXISTS d.settings (`settings` UInt8) ENGINE = MergeTree ORDER BY settings SETTINGS a = 'x' COMMENT 'c'",
        ),
        (
            "CREATE TABLE d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x SETTINGS a = 1, index_granularity = 8192 COMMENT 'c'",
            "CREATE TABLE IF NOT EXISTS d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x SETTINGS a = 1 COMMENT 'c'",
        ),
        (
            "CREATE TABLE d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x SETTINGS index_granularity = 8192 COMMENT 'c'",
            "CREATE TABLE IF NOT EXISTS d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x COMMENT 'c'",
        ),
        (
            "CREATE TABLE d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x SETTINGS index_granularity = 4096",
            "CREATE TABLE IF NOT EXISTS d.t (`x` UInt8) ENGINE = MergeTree ORDER BY x SETTINGS index_granularity = 4096",
        ),
        (
            "CREATE TABLE d.t (`x` UInt8, CONSTRAINT c CHECK x > 0, CONSTRAINT `__chmv_fence_r1` CHECK now64(3) >= f(1)) ENGINE = Log",
            "CREATE TABLE IF NOT EXISTS d.t (`x` UInt8, CONSTRAINT c CHECK x > 0) ENGINE = Log",
        ),
        (
            "CREATE MATERIALIZED VIEW d.v TO d.t (`x` UInt8) DEFINER = ada SQL SECURITY DEFINER AS SELECT x FROM d.s SETTINGS index_granularity = 8192",
            "CREATE MATERIALIZED VIEW IF NOT EXISTS d.v TO d.t (`x` UInt8) AS SELECT x FROM d.s SETTINGS index_granularity = 8192",
        ),
        (
            "CREATE MATERIALIZED VIEW d.v TO d.t (`x` UInt8) DEFINER = bob SQL SECURITY DEFINER AS SELECT x FROM d.s",
            "CREATE MATERIALIZED VIEW IF NOT EXISTS d.v TO d.t (`x` UInt8) DEFINER = bob SQL SECURITY DEFINER AS SELECT x FROM d.s",
        ),
        (
            "CREATE MATERIALIZED VIEW d.v TO d.t (`x` UInt8) SQL SECURITY NONE AS SELECT x FROM d.s",
            "CREATE MATERIALIZED VIEW IF NOT EXISTS d.v TO d.t (`x` UInt8) SQL SECURITY NONE AS SELECT x FROM d.s",
        ),
        (
            "CREATE VIEW d.v (`x` UInt8) SQL SECURITY INVOKER AS SELECT x FROM d.s",
            "CREATE VIEW IF NOT EXISTS d.v (`x` UInt8) SQL SECURITY INVOKER AS SELECT x FROM d.s",
        ),
        (
            "CREATE DICTIONARY d.x UUID '0-1' (`k` UInt64) PRIMARY KEY k SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)",
            "CREATE DICTIONARY IF NOT EXISTS d.x (`k` UInt64) PRIMARY KEY k SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)",
        ),
    ],
)
def test_only_what_the_server_adds_by_itself_goes(sql: str, wanted: str) -> None:
    assert clean(sql) == wanted
    assert clean(wanted) == wanted


def test_column_lists_go_only_from_views_and_only_when_asked() -> None:
    sql = "CREATE MATERIALIZED VIEW d.v REFRESH EVERY 1 HOUR TO d.t (`x` UInt8) AS SELECT x FROM d.s"
    assert clean(sql, drop_columns=True) == (
        "CREATE MATERIALIZED VIEW IF NOT EXISTS d.v REFRESH EVERY 1 HOUR TO d.t AS SELECT x FROM d.s"
    )
    table = "CREATE TABLE IF NOT EXISTS d.t (`x` UInt8) ENGINE = Log"
    assert clean(table, drop_columns=True) == table


def test_a_list_repeats_its_query_if_names_types_and_order_are_the_same() -> None:
    made = view("CREATE VIEW d.v (`a` Decimal(18, 2), `b c` String) AS SELECT 1")
    assert repeats_query(made, [("a", "Decimal(18,2)"), ("b c", "String")])
    assert not repeats_query(made, [("b c", "String"), ("a", "Decimal(18,2)")])
    assert not repeats_query(made, [("a", "Decimal(18, 3)"), ("b c", "String")])
    commented = view("CREATE VIEW d.v (`a` String COMMENT 'why') AS SELECT 1")
    assert not repeats_query(commented, [("a", "String")])


def test_the_list_of_a_hidden_inner_table_stays() -> None:
    assert not may_drop_columns(view("CREATE MATERIALIZED VIEW d.v (`a` UInt8) ENGINE = Log AS SELECT 1 AS a FROM d.s"))
    assert may_drop_columns(view("CREATE MATERIALIZED VIEW d.v TO d.t (`a` UInt8) AS SELECT 1 AS a FROM d.s"))
    assert may_drop_columns(view("CREATE VIEW d.v (`a` UInt8) AS SELECT 1 AS a"))


def test_a_hidden_secret_is_said_above_the_statement() -> None:
    sql = "CREATE TABLE d.t (`x` UInt8) ENGINE = MySQL('h:1', 'd', 't', 'u', '[HIDDEN]') COMMENT '[HIDDEN]'"
    assert count_hidden(sql) == 1
    text = render_statement(sql, 1)
    assert text.startswith("-- chmv pull: the server hides a secret") and text.endswith(f"\n{sql};\n")
    assert render_statement("CREATE DATABASE d", 0) == "CREATE DATABASE d;\n"


def test_on_cluster_stands_behind_the_name() -> None:
    sql = "CREATE MATERIALIZED VIEW IF NOT EXISTS `d`.`a.b` TO d.t AS SELECT 1"
    assert with_cluster(sql, "c 1") == (
        "CREATE MATERIALIZED VIEW IF NOT EXISTS `d`.`a.b` ON CLUSTER `c 1` TO d.t AS SELECT 1"
    )
    assert with_cluster(sql, "") == sql
    assert view(with_cluster(sql, "c 1")).name == QName("d", "a.b")
