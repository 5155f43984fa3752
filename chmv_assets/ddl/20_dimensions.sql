-- Who and what the facts are about. Small, without partitions, the newest row of a key wins.

CREATE TABLE IF NOT EXISTS shop.users
(
    user_id        UInt64,
    country        LowCardinality(String) COMMENT 'ISO 3166 code of the billing address',
    segment        LowCardinality(String) COMMENT 'new, casual, loyal, vip',
    channel        LowCardinality(String) COMMENT 'How the user found the shop: organic, ads, referral, social',
    registered_at  DateTime('UTC'),
    updated_at     DateTime('UTC') COMMENT 'Version of the row'
)
ENGINE = ReplacingMergeTree(updated_at)
ORDER BY user_id
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Registered users';

CREATE TABLE IF NOT EXISTS shop.products
(
    product_id  UInt32,
    name        String,
    category    LowCardinality(String),
    brand       LowCardinality(String),
    list_price  Decimal(18, 2) COMMENT 'EUR',
    updated_at  DateTime('UTC') COMMENT 'Version of the row'
)
ENGINE = ReplacingMergeTree(updated_at)
ORDER BY product_id
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Everything the shop sells';

CREATE DICTIONARY IF NOT EXISTS shop.users_dict
(
    user_id  UInt64,
    country  String DEFAULT 'unknown',
    segment  String DEFAULT 'unknown'
)
PRIMARY KEY user_id
SOURCE(CLICKHOUSE(DB 'shop' TABLE 'users'))
LAYOUT(HASHED())
LIFETIME(MIN 300 MAX 600)
COMMENT 'shop.users in memory, for enrichment at insert time';
