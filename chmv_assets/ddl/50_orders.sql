-- Orders and money.

CREATE TABLE IF NOT EXISTS shop.orders_latest
(
    order_id    UInt64,
    ordered_at  DateTime64(3, 'UTC') COMMENT 'Never changes for an order, so all its rows share a partition',
    changed_at  DateTime64(3, 'UTC'),
    user_id     UInt64,
    status      LowCardinality(String),
    version     UInt32 COMMENT 'The row with the highest version is the present state',
    product_id  UInt32,
    quantity    UInt32,
    amount      Decimal(18, 2) COMMENT 'EUR'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(ordered_at)
ORDER BY order_id
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Present state of every order, read with FINAL';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.orders_latest_mv TO shop.orders_latest
AS SELECT
    order_id,
    ordered_at,
    changed_at,
    user_id,
    status,
    version,
    product_id,
    quantity,
    amount
FROM shop.order_changes;

-- Two views write here: each fills its own measures and leaves the others at zero.
CREATE TABLE IF NOT EXISTS shop.revenue_daily
(
    day       Date,
    orders    UInt64 COMMENT 'Orders placed that day',
    ordered   Decimal(38, 2) COMMENT 'EUR, value of the orders placed that day',
    payments  UInt64 COMMENT 'Answers of the payment providers that day',
    captured  Decimal(38, 2) COMMENT 'EUR',
    refunded  Decimal(38, 2) COMMENT 'EUR',
    fees      Decimal(38, 2) COMMENT 'EUR'
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMMDD(day)
ORDER BY day
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'What was ordered and what was paid, per day';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.revenue_orders_mv TO shop.revenue_daily
AS SELECT
    toDate(ordered_at) AS day,
    count() AS orders,
    sum(amount) AS ordered
FROM shop.order_changes
WHERE status = 'created'
GROUP BY day;

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.revenue_payments_mv TO shop.revenue_daily
AS SELECT
    toDate(paid_at) AS day,
    count() AS payments,
    sumIf(amount, outcome = 'captured') AS captured,
    sumIf(amount, outcome = 'refunded') AS refunded,
    sum(fee) AS fees
FROM shop.payments
GROUP BY day;

CREATE TABLE IF NOT EXISTS shop.settlement_weekly
(
    week      Date COMMENT 'Monday of the week',
    method    LowCardinality(String),
    outcome   LowCardinality(String),
    payments  SimpleAggregateFunction(sum, UInt64),
    settled   SimpleAggregateFunction(sum, Decimal(38, 2)) COMMENT 'EUR',
    fees      SimpleAggregateFunction(sum, Decimal(38, 2)) COMMENT 'EUR',
    largest   SimpleAggregateFunction(max, Decimal(18, 2)) COMMENT 'EUR',
    payers    AggregateFunction(uniq, UInt64) COMMENT 'Read with uniqMerge'
)
ENGINE = AggregatingMergeTree
PARTITION BY toMonday(week)
ORDER BY (week, method, outcome)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'What each provider owes for a week, the books are settled on Mondays';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.settlement_weekly_mv TO shop.settlement_weekly
AS SELECT
    toMonday(paid_at) AS week,
    method,
    outcome,
    count() AS payments,
    sum(amount) AS settled,
    sum(fee) AS fees,
    max(amount) AS largest,
    uniqState(user_id) AS payers
FROM shop.payments
GROUP BY week, method, outcome;
