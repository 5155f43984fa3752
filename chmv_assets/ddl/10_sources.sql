-- What the shop's services send. Nothing here is derived, every table is append-only and keeps its dedup log, so that a
-- retried batch is a no-op in the source and in every target behind it.

CREATE TABLE IF NOT EXISTS shop.events
(
    event_id     UInt64 COMMENT 'Unique per event, given by the collector',
    event_time   DateTime64(3, 'UTC') COMMENT 'When the visitor acted, on the collector''s clock',
    ingested_at  DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'When the row arrived in ClickHouse',
    session_id   UInt64 COMMENT 'Visits end after 30 idle minutes',
    user_id      UInt64 COMMENT 'shop.users',
    event_type   LowCardinality(String) COMMENT 'page_view, search, product_view, add_to_cart, checkout, purchase',
    page         LowCardinality(String),
    device       LowCardinality(String) COMMENT 'mobile, desktop, tablet',
    product_id   UInt32 COMMENT 'shop.products, 0 where no product is involved',
    order_id     UInt64 COMMENT 'Set on purchase, else 0',
    quantity     UInt32,
    price        Decimal(18, 2) COMMENT 'Unit price shown to the visitor, EUR',
    load_ms      UInt32 COMMENT 'Time until the page was usable',
    attributes   Map(LowCardinality(String), String) COMMENT 'Whatever the front end attaches: browser, campaign, variant, …'
)
ENGINE = MergeTree
PARTITION BY toYYYYMMDD(event_time)
ORDER BY (event_type, user_id, event_time)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Every action of every visitor, as the collector sent it';

CREATE TABLE IF NOT EXISTS shop.order_changes
(
    order_id     UInt64,
    ordered_at   DateTime64(3, 'UTC') COMMENT 'When the order was placed, the same on every change of one order',
    changed_at   DateTime64(3, 'UTC') COMMENT 'When this status was reached',
    ingested_at  DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'When the row arrived in ClickHouse',
    user_id      UInt64 COMMENT 'shop.users',
    status       LowCardinality(String) COMMENT 'created, paid, shipped, delivered, cancelled, refunded',
    version      UInt32 COMMENT 'Counts the changes of one order from 1, the highest is the present state',
    product_id   UInt32 COMMENT 'shop.products',
    quantity     UInt32,
    amount       Decimal(18, 2) COMMENT 'EUR, including tax'
)
ENGINE = MergeTree
PARTITION BY toYYYYMMDD(ordered_at)
ORDER BY (order_id, version)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Change log of the order service: one row per status that an order reaches';

CREATE TABLE IF NOT EXISTS shop.payments
(
    payment_id   UInt64,
    paid_at      DateTime64(3, 'UTC') COMMENT 'When the provider answered',
    ingested_at  DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'When the row arrived in ClickHouse',
    order_id     UInt64,
    user_id      UInt64 COMMENT 'shop.users',
    method       LowCardinality(String) COMMENT 'card, paypal, invoice, voucher',
    outcome      LowCardinality(String) COMMENT 'captured, failed, refunded',
    amount       Decimal(18, 2) COMMENT 'EUR, always positive, the outcome tells the direction',
    fee          Decimal(18, 2) COMMENT 'What the provider keeps, EUR'
)
ENGINE = MergeTree
PARTITION BY toYYYYMMDD(paid_at)
ORDER BY (order_id, paid_at)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Answers of the payment providers, attempts that failed included';
