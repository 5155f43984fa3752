-- Row by row: one row in, at most one row out.

CREATE TABLE IF NOT EXISTS shop.events_enriched
(
    event_id     UInt64,
    event_time   DateTime64(3, 'UTC'),
    ingested_at  DateTime64(6, 'UTC'),
    session_id   UInt64,
    user_id      UInt64,
    event_type   LowCardinality(String),
    page         LowCardinality(String),
    device       LowCardinality(String),
    country      LowCardinality(String) COMMENT 'Country of the user when the event arrived',
    segment      LowCardinality(String) COMMENT 'Segment of the user when the event arrived',
    product_id   UInt32,
    order_id     UInt64,
    revenue      Decimal(18, 2) COMMENT 'EUR, only on purchase'
)
ENGINE = MergeTree
PARTITION BY toYYYYMMDD(event_time)
ORDER BY (country, event_type, event_time)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Events with the facts about their user, the table analysts start from';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.events_enriched_mv TO shop.events_enriched
AS SELECT
    event_id,
    event_time,
    ingested_at,
    session_id,
    user_id,
    event_type,
    page,
    device,
    dictGet('shop.users_dict', 'country', user_id) AS country,
    dictGet('shop.users_dict', 'segment', user_id) AS segment,
    product_id,
    order_id,
    if(event_type = 'purchase', price * quantity, 0) AS revenue
FROM shop.events;
