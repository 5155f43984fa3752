-- Rollups of the event stream. Keys are sums, minima, maxima or aggregate states: partial rows of one key may arrive in
-- any number of blocks and merge to the same answer.

CREATE TABLE IF NOT EXISTS shop.traffic_hourly
(
    hour        DateTime('UTC'),
    event_type  LowCardinality(String),
    device      LowCardinality(String),
    events      UInt64,
    items       UInt64 COMMENT 'Products put into carts or bought',
    load_ms     UInt64 COMMENT 'Sum over the events, divide by events for the mean'
)
ENGINE = SummingMergeTree
PARTITION BY toStartOfHour(hour)
ORDER BY (hour, event_type, device)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Traffic per hour, event type and device';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.traffic_hourly_mv TO shop.traffic_hourly
AS SELECT
    toStartOfHour(event_time) AS hour,
    event_type,
    device,
    count() AS events,
    sum(quantity) AS items,
    sum(load_ms) AS load_ms
FROM shop.events
GROUP BY hour, event_type, device;

-- Chained: fires on what traffic_hourly_mv writes. It sees partial rows, hence sums of sums and no count.
CREATE TABLE IF NOT EXISTS shop.traffic_daily
(
    day         Date,
    event_type  LowCardinality(String),
    device      LowCardinality(String),
    events      SimpleAggregateFunction(sum, UInt64),
    items       SimpleAggregateFunction(sum, UInt64),
    load_ms     SimpleAggregateFunction(sum, UInt64)
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(day)
ORDER BY (day, event_type, device)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Traffic per day, event type and device, rolled up from the hours';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.traffic_daily_mv TO shop.traffic_daily
AS SELECT
    toDate(hour) AS day,
    event_type,
    device,
    sum(events) AS events,
    sum(items) AS items,
    sum(load_ms) AS load_ms
FROM shop.traffic_hourly
GROUP BY day, event_type, device;

CREATE TABLE IF NOT EXISTS shop.visitors_daily
(
    day       Date,
    country   LowCardinality(String),
    segment   LowCardinality(String),
    users     AggregateFunction(uniq, UInt64) COMMENT 'Read with uniqMerge',
    sessions  AggregateFunction(uniq, UInt64) COMMENT 'Read with uniqMerge',
    revenue   SimpleAggregateFunction(sum, Decimal(38, 2)) COMMENT 'EUR'
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMMDD(day)
ORDER BY (day, country, segment)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Distinct visitors per day, country and segment';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.visitors_daily_mv TO shop.visitors_daily
AS SELECT
    toDate(event_time) AS day,
    country,
    segment,
    uniqState(user_id) AS users,
    uniqState(session_id) AS sessions,
    sum(revenue) AS revenue
FROM shop.events_enriched
GROUP BY day, country, segment;

CREATE TABLE IF NOT EXISTS shop.page_speed_hourly
(
    hour       DateTime('UTC'),
    page       LowCardinality(String),
    device     LowCardinality(String),
    loads      SimpleAggregateFunction(sum, UInt64),
    slowest    SimpleAggregateFunction(max, UInt32) COMMENT 'Milliseconds',
    load_time  AggregateFunction(quantilesTiming(0.5, 0.9, 0.99), UInt32) COMMENT 'Read with quantilesTimingMerge(0.5, 0.9, 0.99)'
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMMDD(hour)
ORDER BY (hour, page, device)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'How long pages take to load: median, p90 and p99 per hour';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.page_speed_hourly_mv TO shop.page_speed_hourly
AS SELECT
    toStartOfHour(event_time) AS hour,
    page,
    device,
    count() AS loads,
    max(load_ms) AS slowest,
    quantilesTimingState(0.5, 0.9, 0.99)(load_ms) AS load_time
FROM shop.events
GROUP BY hour, page, device;

CREATE TABLE IF NOT EXISTS shop.sessions_daily
(
    day         Date,
    session_id  UInt64,
    user_id     UInt64,
    started_at  SimpleAggregateFunction(min, DateTime64(3, 'UTC')),
    ended_at    SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
    events      SimpleAggregateFunction(sum, UInt64),
    carts       SimpleAggregateFunction(sum, UInt64),
    converted   SimpleAggregateFunction(max, UInt8) COMMENT '1 when the session has a purchase'
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMMDD(day)
ORDER BY (day, session_id, user_id)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One row per session and day, a session over midnight has two';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.sessions_daily_mv TO shop.sessions_daily
AS SELECT
    toDate(event_time) AS day,
    session_id,
    user_id,
    min(event_time) AS started_at,
    max(event_time) AS ended_at,
    count() AS events,
    countIf(event_type = 'add_to_cart') AS carts,
    max(event_type = 'purchase') AS converted
FROM shop.events
GROUP BY day, session_id, user_id;

CREATE TABLE IF NOT EXISTS shop.attributes_daily
(
    day        Date,
    attribute  LowCardinality(String),
    value      String,
    events     UInt64
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(day)
ORDER BY (day, attribute, value)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'How often each attribute of the front end had which value';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.attributes_daily_mv TO shop.attributes_daily
AS SELECT
    toDate(event_time) AS day,
    attribute,
    value,
    count() AS events
FROM shop.events
ARRAY JOIN
    mapKeys(attributes) AS attribute,
    mapValues(attributes) AS value
GROUP BY day, attribute, value;

-- Joins a lookup: a product that moves to another category changes only what arrives afterwards.
CREATE TABLE IF NOT EXISTS shop.category_sales_daily
(
    day       Date,
    category  LowCardinality(String),
    brand     LowCardinality(String),
    sales     UInt64,
    items     UInt64,
    revenue   Decimal(38, 2) COMMENT 'EUR'
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMMDD(day)
ORDER BY (day, category, brand)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Sales per day, category and brand, with the category a product had when the sale arrived';

CREATE MATERIALIZED VIEW IF NOT EXISTS shop.category_sales_daily_mv TO shop.category_sales_daily
AS SELECT
    toDate(e.event_time) AS day,
    p.category AS category,
    p.brand AS brand,
    count() AS sales,
    sum(e.quantity) AS items,
    sum(e.price * e.quantity) AS revenue
FROM shop.events AS e
LEFT ANY JOIN shop.products AS p ON p.product_id = e.product_id
WHERE e.event_type = 'purchase'
GROUP BY day, category, brand;
