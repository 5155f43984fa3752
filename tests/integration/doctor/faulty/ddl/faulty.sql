-- A pipeline with five faults of its own; what is wrong stands above each. Everything else is as it should be.
CREATE DATABASE faulty;

CREATE TABLE faulty.events (ts DateTime('UTC'), user UInt16, page String, country String, device String)
ENGINE = MergeTree ORDER BY ts SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE faulty.daily (day Date, events UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW faulty.daily_mv TO faulty.daily AS SELECT toDate(ts) AS day, count() AS events FROM faulty.events GROUP BY day;

-- a partition per user
CREATE TABLE faulty.by_user (user UInt16, events UInt64)
ENGINE = SummingMergeTree PARTITION BY user ORDER BY user SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW faulty.by_user_mv TO faulty.by_user AS SELECT user, count() AS events FROM faulty.events GROUP BY user;

-- inserts are refused before they are slowed down
CREATE TABLE faulty.by_page (day Date, page String, events UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY (day, page)
SETTINGS non_replicated_deduplication_window = 10000, parts_to_throw_insert = 300;
CREATE MATERIALIZED VIEW faulty.by_page_mv TO faulty.by_page
AS SELECT toDate(ts) AS day, page, count() AS events FROM faulty.events GROUP BY day, page;

-- a retried insert is doubled here
CREATE TABLE faulty.by_country (day Date, country String, events UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY (day, country);
CREATE MATERIALIZED VIEW faulty.by_country_mv TO faulty.by_country
AS SELECT toDate(ts) AS day, country, count() AS events FROM faulty.events GROUP BY day, country;

-- devices of one day are merged into one row
CREATE TABLE faulty.by_device (day Date, device String, events UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW faulty.by_device_mv TO faulty.by_device
AS SELECT toDate(ts) AS day, device, count() AS events FROM faulty.events GROUP BY day, device;

-- the source forgets after a month what the target keeps for ever
CREATE TABLE faulty.clicks (ts DateTime('UTC'), url String)
ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY ts TTL ts + INTERVAL 30 DAY SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE faulty.clicks_daily (day Date, clicks UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(day) ORDER BY day SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW faulty.clicks_daily_mv TO faulty.clicks_daily AS SELECT toDate(ts) AS day, count() AS clicks FROM faulty.clicks GROUP BY day;
