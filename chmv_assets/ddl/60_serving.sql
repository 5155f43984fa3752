-- What readers open: one table that is recomputed as a whole, and plain views that finalise the targets.

CREATE TABLE IF NOT EXISTS shop.customer_value
(
    user_id     UInt64,
    country     LowCardinality(String),
    segment     LowCardinality(String),
    orders      UInt64,
    amount      Decimal(38, 2) COMMENT 'EUR, orders that were not cancelled or refunded',
    last_order  DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY user_id
COMMENT 'Lifetime value per customer, recomputed every hour';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.customer_value_mv
REFRESH EVERY 1 HOUR TO shop.customer_value
AS SELECT
    o.user_id AS user_id,
    any(u.country) AS country,
    any(u.segment) AS segment,
    count() AS orders,
    sum(o.amount) AS amount,
    max(o.ordered_at) AS last_order
FROM shop.orders_latest AS o FINAL
LEFT ANY JOIN shop.users AS u ON u.user_id = o.user_id
WHERE o.status NOT IN ('cancelled', 'refunded')
GROUP BY user_id;

CREATE VIEW IF NOT EXISTS shop.orders_current
AS SELECT
    order_id,
    ordered_at,
    changed_at,
    user_id,
    status,
    product_id,
    quantity,
    amount
FROM shop.orders_latest FINAL;

CREATE VIEW IF NOT EXISTS shop.daily_overview
AS SELECT
    t.day AS day,
    t.all_events AS events,
    t.purchases AS purchases,
    r.orders AS orders,
    r.ordered AS ordered,
    r.captured AS captured,
    r.refunded AS refunded
FROM
(
    SELECT
        day,
        sum(events) AS all_events,
        sumIf(events, event_type = 'purchase') AS purchases
    FROM shop.traffic_daily
    GROUP BY day
) AS t
LEFT JOIN
(
    SELECT
        day,
        sum(orders) AS orders,
        sum(ordered) AS ordered,
        sum(captured) AS captured,
        sum(refunded) AS refunded
    FROM shop.revenue_daily
    GROUP BY day
) AS r ON r.day = t.day;
