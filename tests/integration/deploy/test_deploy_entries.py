"""Views over tables that hold no rows (Null, Kafka), and views that make their own table: created and removed like anything else, where nothing has to be computed."""

from __future__ import annotations

import pytest
from deploy_stage import ALL, DEDUP, Stage

from chmv_assets.core.errors import DeployRefused
from chmv_assets.deploy import make_rollback, open_applier
from resources.deploy import Progress

INBOX = f"""
CREATE TABLE {{db}}.inbox (id UInt64, ts DateTime('UTC')) ENGINE = Null;
CREATE TABLE {{db}}.passed (id UInt64, day Date) ENGINE = MergeTree PARTITION BY toYYYYMM(day) ORDER BY id {DEDUP};
CREATE MATERIALIZED VIEW {{db}}.passed_mv TO {{db}}.passed AS SELECT id, toDate(ts) AS day FROM {{db}}.inbox;
CREATE TABLE {{db}}.per_day (day Date, n UInt64) ENGINE = SummingMergeTree ORDER BY day {DEDUP};
CREATE MATERIALIZED VIEW {{db}}.per_day_mv TO {{db}}.per_day AS SELECT day, count() AS n FROM {{db}}.passed GROUP BY day;
"""
SECOND = f"""
CREATE TABLE {{db}}.odd (id UInt64) ENGINE = MergeTree ORDER BY id {DEDUP};
CREATE MATERIALIZED VIEW {{db}}.odd_mv TO {{db}}.odd AS SELECT id FROM {{db}}.inbox WHERE id % 2 = 1;
"""
QUEUE = f"""
CREATE TABLE {{db}}.queue (id UInt64) ENGINE = Kafka('127.0.0.1:1', 'topic', 'group', 'JSONEachRow');
CREATE TABLE {{db}}.eaten (id UInt64, topic String, at DateTime('UTC')) ENGINE = MergeTree ORDER BY id {DEDUP};
CREATE MATERIALIZED VIEW {{db}}.eaten_mv TO {{db}}.eaten AS SELECT id, _topic AS topic, assumeNotNull(_timestamp) AS at FROM {{db}}.queue;
"""
INNER = """
CREATE TABLE {db}.fresh (id UInt64, kind UInt8) ENGINE = MergeTree ORDER BY id;
CREATE MATERIALIZED VIEW {db}.hidden ENGINE = SummingMergeTree ORDER BY kind AS SELECT kind, count() AS n FROM {db}.fresh GROUP BY kind;
"""


def insert(stage: Stage, table: str, select: str, first: int = 0) -> None:
    stage.server.command(
        f"INSERT INTO {stage.database}.{table} SELECT {select} FROM numbers({first}, 100)", settings={"async_insert": 0}
    )


def count(stage: Stage, what: str) -> int:
    return int(stage.server.rows(f"SELECT {what.format(db=stage.database)}")[0][0])


def test_a_pipeline_behind_a_null_table_is_deployed_and_taken_back(stage: Stage) -> None:
    stage.files["80_inbox"] = INBOX
    plan = stage.plan()
    assert plan.risk == "safe"
    (cutover,) = plan.cutovers
    assert [one.view.table for one in cutover.switches] == ["per_day_mv", "passed_mv"], "nothing goes past a view"
    why = next(one.why for one in plan.changes if one.name.table == "passed_mv")
    assert why.endswith(".inbox holds no rows, so it is fired by what arrives from then on")
    stage.apply(plan)
    insert(stage, "inbox", "number, toDateTime('2026-08-01 00:00:00', 'UTC')")
    assert count(stage, "sum(n) FROM {db}.per_day") == count(stage, "count() FROM {db}.passed") == 100
    assert stage.plan().is_empty
    back = make_rollback(stage.server)
    assert back.risk == "destructive" and not back.cutovers
    open_applier(stage.server, lambda _line: None).apply(back, ALL)
    del stage.files["80_inbox"]
    stage.check()


def test_a_second_view_over_a_null_table_that_is_in_use_is_fired_from_then_on(stage: Stage) -> None:
    stage.files["80_inbox"] = INBOX
    stage.apply(stage.plan())
    insert(stage, "inbox", "number, toDateTime('2026-08-01 00:00:00', 'UTC')")
    stage.files["81_second"] = SECOND
    plan = stage.plan()
    assert plan.risk == "safe" and {one.name.table for one in plan.changes} == {"odd", "odd_mv"}
    stage.apply(plan)
    insert(stage, "inbox", "number, toDateTime('2026-08-01 00:00:00', 'UTC')", first=100)
    assert count(stage, "count() FROM {db}.odd") == 50 and count(stage, "min(id) FROM {db}.odd") == 101
    assert count(stage, "count() FROM {db}.passed") == count(stage, "sum(n) FROM {db}.per_day") == 200
    del stage.files["81_second"]
    plan = stage.plan()
    assert plan.risk == "destructive" and not plan.cutovers
    stage.apply(plan)
    insert(stage, "inbox", "number, toDateTime('2026-08-01 00:00:00', 'UTC')", first=200)
    assert count(stage, "sum(n) FROM {db}.per_day") == 300 and stage.plan().is_empty


def test_a_changed_query_over_a_null_table_is_left_to_people(stage: Stage) -> None:
    stage.files["80_inbox"] = INBOX
    stage.apply(stage.plan())
    stage.edit("80_inbox", ("FROM {db}.inbox;", "FROM {db}.inbox WHERE id > 5;"))
    plan = stage.plan()
    assert plan.risk == "manual"
    assert plan.changes[0].why.endswith("which is Null and takes no gate; stop its writers and change it by hand")


def test_a_new_view_behind_a_target_that_has_rows_needs_a_gate_that_a_null_table_does_not_take(stage: Stage) -> None:
    stage.files["80_inbox"] = INBOX
    stage.apply(stage.plan())
    insert(stage, "inbox", "number, toDateTime('2026-08-01 00:00:00', 'UTC')")
    stage.files["82_third"] = """
CREATE TABLE {db}.ids (ids UInt64) ENGINE = SummingMergeTree ORDER BY tuple();
CREATE MATERIALIZED VIEW {db}.ids_mv TO {db}.ids AS SELECT count() AS ids FROM {db}.passed;
"""
    assert stage.plan().risk == "manual"


def test_a_target_that_a_table_with_rows_fills_too_is_left_to_people(stage: Stage) -> None:
    stage.files["80_inbox"] = INBOX
    stage.apply(stage.plan())
    stage.files["83_mixed"] = """
CREATE MATERIALIZED VIEW {db}.mixed_mv TO {db}.large AS SELECT id, ts, 1::UInt32 AS amount FROM {db}.inbox;
"""
    assert stage.plan().risk == "manual"


def test_a_dictionary_that_only_passing_rows_look_up_is_replaced(stage: Stage) -> None:
    stage.files["80_inbox"] = INBOX.replace(
        "toDate(ts) AS day", "toDate(ts) + length(dictGetOrDefault('{db}.codes', 'name', id, '')) AS day"
    )
    stage.files["25_codes"] = """
CREATE TABLE {db}.codes_table (id UInt64, name String) ENGINE = MergeTree ORDER BY id;
CREATE DICTIONARY {db}.codes (id UInt64, name String) PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{db}' TABLE 'codes_table')) LAYOUT(HASHED()) LIFETIME(0);
"""
    stage.apply(stage.plan())
    insert(stage, "inbox", "number, toDateTime('2026-08-01 00:00:00', 'UTC')")
    stage.edit("25_codes", ("LAYOUT(HASHED())", "LAYOUT(FLAT())"))
    plan = stage.plan()
    assert plan.risk == "safe" and not plan.cutovers and [one.action for one in plan.changes] == ["replace"]
    stage.apply(plan)
    assert count(stage, "count() FROM {db}.passed") == 100 and stage.plan().is_empty


def test_a_view_over_kafka_is_deployed_with_what_only_kafka_gives(stage: Stage) -> None:
    stage.files["80_queue"] = QUEUE
    plan = stage.plan()
    assert plan.risk == "safe"
    stage.apply(plan)
    assert stage.plan().is_empty
    stage.edit("80_queue", ("_topic AS topic", "_no_such AS topic"))
    stage.files["81_queue"] = QUEUE.split(";\n", 1)[1].replace("eaten", "other").replace("_topic AS", "_nothing AS")
    stage.edit("80_queue", ("_no_such AS topic", "_topic AS topic"))
    with pytest.raises(DeployRefused, match=r"the server refuses it over a clone .*_nothing"):
        stage.apply(stage.plan())
    del stage.files["80_queue"], stage.files["81_queue"]
    stage.apply(stage.plan())
    stage.check()


def test_a_view_that_makes_its_own_table_is_created_over_a_new_one_and_goes_with_it(stage: Stage) -> None:
    stage.files["80_inner"] = INNER
    plan = stage.plan()
    assert plan.risk == "safe"
    stage.apply(plan)
    insert(stage, "fresh", "number, number % 2")
    assert count(stage, "sum(n) FROM {db}.hidden") == 100 and stage.plan().is_empty
    stage.files["81_again"] = INNER.split(";\n", 1)[1].replace("hidden", "late")
    assert stage.plan().risk == "manual", "its history cannot be computed into a hidden table"
    del stage.files["80_inner"], stage.files["81_again"]
    plan = stage.plan()
    assert plan.risk == "destructive" and not plan.cutovers
    assert any(one.why.endswith("its hidden table goes with it, with its rows") for one in plan.changes)
    stage.apply(plan)
    stage.check()


def test_a_writer_that_is_faster_than_such_a_view_is_told(stage: Stage) -> None:
    stage.files["80_inner"] = INNER

    def on_progress(progress: Progress) -> None:
        if progress.title.startswith("cut over") and not progress.step:
            insert(stage, "fresh", "number, number % 2")

    with pytest.raises(DeployRefused, match=r"rows arrived before its views were there .*--resume"):
        open_applier(stage.server, lambda _line: None, on_progress).apply(stage.plan(), ALL)
    open_applier(stage.server, lambda _line: None).apply(make_rollback(stage.server), ALL)
    del stage.files["80_inner"]
    stage.check()
