"""Names and values that try to be something else, on the real server: each arrives as it was sent, or is refused by name.

10,000 of them in few round trips, each as an identifier, a literal, a bound value of three types, a setting and a comment of the query log; and hundreds
as real databases, tables, columns and partitions through the verbs of the executor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
from hostile import hostile_tables, hostile_texts

from chmv_assets.core.errors import ServerError
from chmv_assets.core.names import (
    QName,
    parse_qname,
    quote_identifier,
    quote_map,
    quote_string,
    unquote_identifier,
)
from chmv_assets.core.serving import quote_regex
from chmv_assets.core.tokens import string_value, tokenize
from resources.clickhouse import Server
from resources.executor import Executor
from resources.introspect import fetch_existing, fetch_part_names, fetch_partitions

COUNT, SEED = 10_000, 20261118
TABLES = 100
TEXTS = hostile_texts(COUNT, SEED)


def chunks(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    left = iter(texts)
    return iter(lambda: list(islice(left, size)), [])


def test_there_are_ten_thousand_different_ones() -> None:
    assert len(set(TEXTS)) == COUNT
    kinds = (
        "`",
        "'",
        '"',
        ".",
        "\\",
        "\n",
        "\0",
        "%",
        "{x:String}",
        "\u202e",
        "\u200b",
        "e\u0301",
        "\U0001f986",
        "\x1b",
    )
    assert all(sum(kind in text for text in TEXTS) > 50 for kind in kinds)


def test_identifiers_come_back_as_they_were_sent(server: Server) -> None:
    for names in chunks(TEXTS, 1_000):
        selected = ", ".join(f"{at} AS {quote_identifier(name)}" for at, name in enumerate(names))
        found = server.driver.query(f"SELECT {selected}")
        assert list(found.column_names) == names
        assert list(found.result_rows[0]) == list(range(len(names)))


def test_literals_and_bound_values_come_back_as_they_were_sent(server: Server) -> None:
    for values in chunks(TEXTS, 400):
        literal = ", ".join(quote_string(value) for value in values)
        pairs = [(value, value[::-1]) for value in values]
        found = server.rows(
            f"SELECT [{literal}], {{v:Array(String)}}, {{p:Array(Tuple(String, String))}}",
            {"v": values, "p": pairs},
        )
        assert found == [(values, values, pairs)]
    for values in chunks(TEXTS, 200):
        places = ", ".join(f"{{p{at}:String}}" for at in range(len(values)))
        found = server.rows(f"SELECT {places}", {f"p{at}": value for at, value in enumerate(values)})
        assert found == [tuple(values)]


def test_our_own_readers_read_what_is_quoted() -> None:
    for text in TEXTS:
        name = QName(text, text[::-1])
        assert unquote_identifier(quote_identifier(text)) == text
        assert string_value(quote_string(text)) == text
        assert parse_qname(str(name), "default") == name
        for quoted in (quote_identifier(text), quote_string(text)):
            tokens, broken = tokenize(f"SELECT {quoted} FROM t")
            assert broken is None and [token.text for token in tokens] == ["SELECT", quoted, "FROM", "t"]


def test_settings_arrive_as_they_were_sent(server: Server) -> None:
    for values in chunks(TEXTS, 250):
        filters = {value: f"x != {quote_string(value)}" for value in values}
        found = server.rows(
            "SELECT mapKeys(f), mapValues(f) FROM (SELECT CAST(getSetting('additional_table_filters'), 'Map(String, String)') AS f)",
            settings={"additional_table_filters": quote_map(filters)},
        )
        assert dict(zip(*found[0], strict=True)) == filters


def test_patterns_match_exactly_the_names_that_they_are_made_of(server: Server) -> None:
    names = [text for text in TEXTS if "\0" not in text][
        :2_000
    ]  # no name of an object holds one: the server refuses it
    for some in chunks(names, 200):
        found = server.rows(f"SELECT arrayMap(n -> match(n, {quote_regex(some)}), {{n:Array(String)}})", {"n": some})
        others = server.rows(
            f"SELECT arraySum(arrayMap(n -> match(concat(n, 'x'), {quote_regex(some)}) AND NOT has({{n:Array(String)}}, concat(n, 'x')), {{n:Array(String)}}))",
            {"n": some},
        )
        assert found == [([1] * len(some),)] and others == [(0,)]


def test_what_a_connection_says_of_itself_arrives_in_the_log(server: Server) -> None:
    said = {f"k{at}": text for at, text in enumerate(TEXTS[:300])}
    with Server(server.endpoint, log_comment=said) as other:
        found = other.rows("SELECT getSetting('log_comment')")
    assert json.loads(found[0][0]) == said


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"])
def test_half_a_surrogate_pair_is_refused_and_nothing_is_sent(server: Server, name: str) -> None:
    for send in (
        lambda: server.rows(f"SELECT 1 AS {quote_identifier(name)}"),
        lambda: server.rows("SELECT {v:String}", {"v": name}),
        lambda: server.command(f"DROP TABLE IF EXISTS {QName('default', name).sql}"),
        lambda: server.text(f"SELECT {quote_string(name)}"),
    ):
        with pytest.raises(ServerError, match="half a surrogate pair"):
            send()


def test_columns_of_any_name_can_be_made_filled_and_read(server: Server, database: str) -> None:
    columns = hostile_texts(400, SEED + 1)
    table = QName(database, "wide")
    listed = ", ".join(f"{quote_identifier(name)} UInt16 COMMENT {quote_string(name)}" for name in columns)
    server.command(f"CREATE TABLE {table.sql} ({listed}) ENGINE = Memory")
    names = ", ".join(quote_identifier(name) for name in columns)
    server.command(f"INSERT INTO {table.sql} ({names}) SELECT {', '.join(str(at) for at in range(len(columns)))}")
    found = server.driver.query(f"SELECT {names} FROM {table.sql}")
    assert list(found.column_names) == columns and list(found.result_rows[0]) == list(range(len(columns)))
    said = server.rows(
        "SELECT name, comment FROM system.columns WHERE database = {d:String} AND table = {t:String} ORDER BY position",
        {"d": table.database, "t": table.table},
    )
    assert said == [(name, name) for name in columns]


def test_tables_of_any_name_go_through_every_verb_of_the_executor(server: Server, database: str) -> None:
    """Made like another, filled, a partition replaced by its id, one dropped, merges stopped and started, merged, dropped."""
    executor = Executor(server, log=lambda _line: None)
    values = hostile_tables(TABLES, SEED + 2)
    model = QName(database, "model")
    server.command(f"CREATE TABLE {model.sql} (p String, v String) ENGINE = MergeTree PARTITION BY p ORDER BY v")
    tables = [QName(database, value) for value in values]
    for at, table in enumerate(tables):
        odd = values[-at - 1]
        executor.create_like(table, model)
        server.command(f"INSERT INTO {table.sql} SELECT {{p:String}}, {{v:String}}", {"p": odd, "v": table.table})
    states = fetch_partitions(server, tables)
    assert set(states) == set(tables) == fetch_existing(server, tables)
    scratch = tables[0]
    for table in tables[1:]:
        (state,) = states[table]
        executor.stop_merges(table)
        executor.replace_partition(table, states[scratch][0].partition_id, scratch)
        executor.start_merges(table)
        executor.optimize_partition(table, state.partition_id)
        assert len(fetch_part_names(server, table)) == 2
        executor.drop_partition(table, state.partition_id)
    left = server.rows(
        "SELECT uniqExact(table), count(), uniqExact(partition_id) FROM system.parts WHERE active AND database = {d:String}",
        {"d": database},
    )
    assert left[0][0] == left[0][1] == TABLES and left[0][2] == 1
    for table in [*tables, model]:
        executor.drop_table(table)
    assert fetch_existing(server, tables) == set()


def test_databases_of_any_name_are_made_used_and_dropped(server: Server) -> None:
    executor = Executor(server, log=lambda _line: None)
    before = server.rows("SELECT name FROM system.databases")
    for name in hostile_tables(25, SEED + 3):
        table = QName(name, name[::-1])
        executor.create_database(name)
        try:
            executor.run_ddl("t", f"CREATE TABLE {quote_identifier(table.table)} (x UInt8) ENGINE = Memory", name)
            assert fetch_existing(server, [table]) == {table}
        finally:
            server.command(f"DROP DATABASE {quote_identifier(name)} SYNC")
    assert server.rows("SELECT name FROM system.databases") == before
