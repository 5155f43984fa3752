"""Named changes of the stage's pipeline: each edits the folder (or the server), and says whether it is behind a gate."""

from __future__ import annotations

from collections.abc import Callable

from deploy_stage import DEDUP, Stage

DAILY = "30_daily"
LARGE = "50_large"


def new_view_and_target(stage: Stage) -> None:
    stage.files["70_kinds"] = f"""
CREATE TABLE {{db}}.kinds (day Date, kind UInt8, events UInt64) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY (day, kind) {DEDUP};
CREATE MATERIALIZED VIEW {{db}}.kinds_mv TO {{db}}.kinds AS SELECT toDate(ts) AS day, kind, count() AS events FROM {{db}}.src GROUP BY day, kind;
"""


def second_view_into_a_target(stage: Stage) -> None:
    stage.files[LARGE] += """
CREATE MATERIALIZED VIEW {db}.small_mv TO {db}.large AS SELECT id, ts, amount FROM {db}.src WHERE amount < 100;
"""


def changed_filter(stage: Stage) -> None:
    stage.edit(LARGE, ("amount > 500", "amount > 300"))


def column_through_the_chain(stage: Stage) -> None:
    stage.edit(
        "10_source", ("arrived DateTime64", "channel LowCardinality(String) DEFAULT 'web',\n    arrived DateTime64")
    )
    stage.edit(
        DAILY,
        ("amount UInt64)", "amount UInt64, web UInt64)"),
        ("sum(amount) AS amount FROM", "sum(amount) AS amount, countIf(channel = 'web') AS web FROM"),
    )
    stage.edit(
        "40_monthly",
        ("amount SimpleAggregateFunction(sum, UInt64))", "amount SimpleAggregateFunction(sum, UInt64), web SimpleAggregateFunction(sum, UInt64))"),
        ("sum(amount) AS amount FROM", "sum(amount) AS amount, sum(web) AS web FROM"),
    )  # fmt: skip


def removed_column(stage: Stage) -> None:
    stage.edit(
        "40_monthly", (", amount SimpleAggregateFunction(sum, UInt64))", ")"), (", sum(amount) AS amount FROM", " FROM")
    )


def renamed_column(stage: Stage) -> None:
    stage.edit(
        "40_monthly",
        ("amount SimpleAggregateFunction", "turnover SimpleAggregateFunction"),
        ("sum(amount) AS amount", "sum(amount) AS turnover"),
    )


def changed_aggregate(stage: Stage) -> None:
    stage.edit(DAILY, ("sum(amount) AS amount", "sum(amount * 2) AS amount"))


def changed_group_by(stage: Stage) -> None:
    stage.edit(
        "60_continents",
        ("continent String, events", "continent String, kind UInt8, events"),
        ("ORDER BY (day, continent)", "ORDER BY (day, continent, kind)"),
        ("AS continent, count()", "AS continent, kind, count()"),
        ("GROUP BY day, continent", "GROUP BY day, continent, kind"),
    )


def changed_order_by(stage: Stage) -> None:
    stage.edit(DAILY, ("ORDER BY (day, country)", "ORDER BY (country, day)"))


def changed_partition_by(stage: Stage) -> None:
    stage.edit(DAILY, ("PARTITION BY toYYYYMMDD(day)", "PARTITION BY toYYYYMM(day)"))


def changed_engine(stage: Stage) -> None:
    stage.edit(
        DAILY,
        ("SummingMergeTree", "AggregatingMergeTree"),
        (
            "events UInt64, amount UInt64",
            "events SimpleAggregateFunction(sum, UInt64), amount SimpleAggregateFunction(sum, UInt64)",
        ),
    )


def changed_type(stage: Stage) -> None:
    stage.edit(LARGE, ("amount UInt32", "amount UInt64"))


def split_target(stage: Stage) -> None:
    stage.edit(LARGE, ("WHERE amount > 500", "WHERE amount > 700"))
    stage.files["55_middle"] = f"""
CREATE TABLE {{db}}.middle (id UInt64, ts DateTime('UTC'), amount UInt32) ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY id {DEDUP};
CREATE MATERIALIZED VIEW {{db}}.middle_mv TO {{db}}.middle AS SELECT id, ts, amount FROM {{db}}.src WHERE amount > 500 AND amount <= 700;
"""


def merged_targets(stage: Stage) -> None:
    stage.files.pop("60_continents")
    stage.edit(DAILY, ("GROUP BY day, country;", """GROUP BY day, country;
CREATE MATERIALIZED VIEW {db}.continents_mv TO {db}.daily AS
SELECT toDate(ts) AS day, dictGetOrDefault('{db}.names_dict', 'continent', tuple(country), 'none') AS country, count() AS events
FROM {db}.src GROUP BY day, country;"""))  # fmt: skip


def changed_chain_middle(stage: Stage) -> None:
    stage.edit(DAILY, ("FROM {db}.src GROUP BY", "FROM {db}.src WHERE kind != 2 GROUP BY"))


def changed_chain_end(stage: Stage) -> None:
    stage.edit("40_monthly", ("FROM {db}.daily GROUP BY", "FROM {db}.daily WHERE country != 'JP' GROUP BY"))


def changed_dictionary(stage: Stage) -> None:
    stage.edit(
        "20_names", ("continent String DEFAULT 'none') PRIMARY", "continent String DEFAULT 'nowhere') PRIMARY"),
        ("LIFETIME(0)", "LIFETIME(MIN 100 MAX 200)"),
    )  # fmt: skip


def moved_target(stage: Stage) -> None:
    stage.files[LARGE] = stage.files[LARGE].replace("{db}.large ", "{db}.huge ").replace("{db}.large\n", "{db}.huge\n")


def dropped_view(stage: Stage) -> None:
    stage.files.pop(LARGE)


def dropped_one_of_two(stage: Stage) -> None:
    second_view_into_a_target(stage)
    stage.apply(stage.plan())
    stage.files[LARGE] = (
        stage.files[LARGE].replace("large_mv TO", "GONE TO").split("CREATE MATERIALIZED VIEW {db}.GONE")[0]
        + """
CREATE MATERIALIZED VIEW {db}.small_mv TO {db}.large AS SELECT id, ts, amount FROM {db}.src WHERE amount < 100;
"""
    )


def table_ttl(stage: Stage) -> None:
    stage.edit(LARGE, ("ORDER BY id SETTINGS", "ORDER BY id TTL ts + INTERVAL 20 YEAR SETTINGS"))


def settings(stage: Stage) -> None:
    stage.edit(DAILY, ("window = 10000", "window = 20000, merge_max_block_size = 4096"))


def comments(stage: Stage) -> None:
    stage.edit(DAILY, ("events UInt64, amount UInt64)", "events UInt64 COMMENT 'it''s a count', amount UInt64)"))
    stage.edit("10_source", ("window = 10000;", "window = 10000 COMMENT 'what arrives';"))


def renamed_view(stage: Stage) -> None:
    stage.edit(DAILY, ("daily_mv", "per_day_mv"))


def view_dropped_by_hand(stage: Stage) -> None:
    stage.server.command(f"DROP TABLE {stage.database}.daily_mv SYNC")


def view_altered_by_hand(stage: Stage) -> None:
    stage.server.command(
        f"ALTER TABLE {stage.database}.large_mv MODIFY QUERY SELECT id, ts, amount FROM {stage.database}.src WHERE amount > 900"
    )


def source_index_and_default(stage: Stage) -> None:
    stage.edit(
        "10_source", ("DEFAULT now64(3)\n", "DEFAULT now64(3),\n    INDEX by_amount amount TYPE minmax GRANULARITY 4\n")
    )


def source_column_wider(stage: Stage) -> None:
    stage.edit("10_source", ("kind UInt8", "kind UInt16"))


def several_at_once(stage: Stage) -> None:
    changed_filter(stage)
    changed_aggregate(stage)
    new_view_and_target(stage)
    changed_dictionary(stage)


CHANGES: dict[str, Callable[[Stage], None]] = {
    one.__name__: one
    for one in (
        new_view_and_target, second_view_into_a_target, changed_filter, column_through_the_chain, removed_column, renamed_column, changed_aggregate,
        changed_group_by, changed_order_by, changed_partition_by, changed_engine, changed_type, split_target, merged_targets, changed_chain_middle,
        changed_chain_end, changed_dictionary, moved_target, dropped_view, dropped_one_of_two, table_ttl, settings, comments, renamed_view,
        view_dropped_by_hand, view_altered_by_hand, source_index_and_default, source_column_wider, several_at_once,
    )
}  # fmt: skip
