"""The SQL of the demo's rows: every column as an expression over a row number and a few bound parameters.

Only texts, put together once at import. Expressions use integers and hashes, so that every server gives the same value;
parameters (`{salt:UInt64}`, …) are bound by `demo_data`, which also says what a load is and how it is cut
into inserts.

A group is 20 events = five sessions of 1, 2, 3, 5 and 9 events. The longest may end in a purchase; the order and its
payments follow from the same group, and what would happen after the window's end has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping

DAY_MS = 86_400_000
GROUP_EVENTS = 20


def _array(*values: object) -> str:
    return "[" + ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in values) + "]"


def _pick(choices: tuple[str, ...], hashed: str) -> str:
    """One of the choices; repeat a choice to make it more likely."""
    return f"{_array(*choices)}[1 + {hashed} % {len(choices)}]"


def _skewed(hashed: str, count: str) -> str:
    """A number from 1 to count, low ones far more often: the square of a uniform value, in integers."""
    uniform = f"(({hashed}) % 1000003)"
    return f"1 + intDiv({uniform} * {uniform} * {count}, 1000006000009)"


def _cents(product: str) -> str:
    price = f"499 + 100 * (cityHash64({product}, 11) % 40) * (1 + cityHash64({product}, 12) % 5)"
    return f"toInt64(if({product} = 0, 0, {price}))"


def _sometimes(every: int, hashed: str, entry: str) -> str:
    """The map entry for one row in `every`, else no entry."""
    return f"if({hashed} % {every} = 0, {entry}, CAST(map(), 'Map(String, String)'))"


def _euros(cents: str) -> str:
    return f"CAST(toDecimal64({cents}, 2) / 100, 'Decimal(18, 2)')"


def _time(ms: str) -> str:
    return f"fromUnixTimestamp64Milli({ms}, 'UTC')"


def _arrival(ms: str, hashed: str) -> str:
    """Seconds after the fact; one row in 200 is late by 16 minutes to 3 hours."""
    lag = f"if({hashed} % 200 = 0, 960000 + intDiv({hashed}, 200) % 9840000, 200 + intDiv({hashed}, 200) % 4800)"
    return f"CAST({_time(f'least({ms} + toInt64({lag}), toInt64({{end_ms:Int64}}))')}, 'DateTime64(6, \\'UTC\\')')"


_WALL_MS = f"""intDiv(busy, {DAY_MS}) * {DAY_MS} + if(busy % {DAY_MS} < {DAY_MS // 5},
        intDiv(busy % {DAY_MS} * 5, 3), {DAY_MS // 3} + intDiv((busy % {DAY_MS} - {DAY_MS // 5}) * 5, 6))"""
_SESSION_LENGTHS = (1, 2, 3, 5, 9)
_SLOTS = tuple(slot for slot, length in enumerate(_SESSION_LENGTHS) for _ in range(length))
_STEPS = tuple(step for length in _SESSION_LENGTHS for step in range(length))
_BROWSING = (
    *("page_view",),
    *("page_view", "product_view"),
    *("page_view", "search", "product_view"),
    *("page_view", "product_view", "product_view", "add_to_cart", "page_view"),
)
_LEAVING = (
    *("page_view", "search", "product_view", "product_view", "add_to_cart"),
    *("product_view", "add_to_cart", "checkout", "page_view"),
)
_BUYING = (
    *("page_view", "search", "product_view", "product_view", "add_to_cart"),
    *("checkout", "purchase", "page_view", "page_view"),
)
_PURCHASE_STEP = 6
_PURCHASE_PLACE = GROUP_EVENTS - _SESSION_LENGTHS[-1] + _PURCHASE_STEP

# What all rows of one session share. Needs `grp` and `slot`.
_SESSION = f"""
    toInt64({{busy_start:Int64}} + intDiv(grp * {{busy_span:UInt64}}, {{groups:UInt64}})) AS busy,
    grp * {len(_SESSION_LENGTHS)} + slot AS session,
    cityHash64(session, {{salt:UInt64}}) AS session_hash,
    {_WALL_MS} + toInt64(session_hash % {{visit_ms:UInt64}}) AS session_ms,
    {_skewed("cityHash64(session_hash, 1)", "{users:UInt64}")} AS visitor,
    toUInt32({_skewed("cityHash64(session_hash, 2)", "{products:UInt64}")}) AS wanted,
    slot = {len(_SESSION_LENGTHS) - 1} AND intDiv(session_hash, 128) % 100 < 55 AS buys,
    toUInt32(1 + intDiv(session_hash, 65536) % 3) AS amount_wanted"""


def _step_ms(step: str, number: str) -> str:
    return (
        f"session_ms + toInt64({step}) * {{step_ms:Int64}} + "
        f"toInt64(cityHash64({number}, {{salt:UInt64}}, 3) % {{step_ms:UInt64}})"
    )


EVENTS_FROM = f"""FROM
(
    WITH
    intDiv(number, {GROUP_EVENTS}) AS grp,
    toUInt8(number % {GROUP_EVENTS}) + 1 AS place,
    {_array(*_SLOTS)}[place] AS slot,
    {_array(*_STEPS)}[place] AS step,{_SESSION}
    SELECT
        number AS n, grp, session, session_hash, visitor, buys,
        cityHash64(number, {{salt:UInt64}}, 4) AS h,
        {_step_ms("step", "number")} AS ms,
        if(buys, {_array(*_BROWSING, *_BUYING)}[place], {_array(*_BROWSING, *_LEAVING)}[place]) AS type,
        {_skewed("cityHash64(session_hash, step, 5)", "{products:UInt64}")} AS viewed,
        toUInt32(multiIf(type IN ('page_view', 'search'), 0, type = 'product_view', viewed, wanted)) AS product,
        if(type IN ('add_to_cart', 'checkout', 'purchase'), amount_wanted, 0) AS items
    FROM numbers({{first:UInt64}}, {{count:UInt64}})
)
ORDER BY n"""
_DEVICES = ("mobile", "mobile", "mobile", "mobile", "mobile", "desktop", "desktop", "desktop", "desktop", "tablet")
_BROWSERS = ("chrome", "chrome", "chrome", "chrome", "safari", "safari", "firefox", "edge")
_CAMPAIGNS = ("autumn", "autumn", "newsletter", "retargeting", "influencer")
EVENTS: Mapping[str, str] = {
    "event_id": "{base:UInt64} + n",
    "event_time": _time("ms"),
    "ingested_at": _arrival("ms", "cityHash64(h, 1)"),
    "session_id": "{base:UInt64} + session",
    "user_id": "visitor",
    "event_type": "type",
    "page": "transform(type, ['search', 'product_view', 'add_to_cart', 'checkout', 'purchase'],"
    " ['/search', '/product', '/cart', '/checkout', '/thanks'], ['/', '/', '/sale', '/help'][1 + h % 4])",
    "device": _pick(_DEVICES, "intDiv(session_hash, 8)"),
    "product_id": "product",
    "order_id": "if(type = 'purchase', {base:UInt64} + grp, 0)",
    "quantity": "items",
    "price": _euros(_cents("product")),
    "load_ms": "toUInt32(60 + h % 300 + intDiv(h, 512) % 300"
    " + if(intDiv(h, 1048576) % 50 = 0, intDiv(h, 64) % 6000, 0))",
    "attributes": f"mapConcat(map('browser', {_pick(_BROWSERS, 'intDiv(session_hash, 16)')}), "
    + _sometimes(3, "intDiv(session_hash, 32)", "map('variant', ['a', 'b'][1 + visitor % 2])")
    + ", "
    + _sometimes(4, "intDiv(session_hash, 64)", f"map('campaign', {_pick(_CAMPAIGNS, 'intDiv(session_hash, 256)')})")
    + ")",
}

# One row per order, with the times of all that may happen to it. Out of 100 orders 8 are cancelled, 4 refunded.
_ORDERS = f"""
    WITH
    number AS grp,
    toUInt8({len(_SESSION_LENGTHS) - 1}) AS slot,{_SESSION}
    SELECT
        grp, visitor, wanted, amount_wanted,
        cityHash64(session_hash, 6) AS h,
        h % 100 AS fate,
        {_step_ms(str(_PURCHASE_STEP), f"(grp * {GROUP_EVENTS} + {_PURCHASE_PLACE})")} AS ordered_ms,
        ordered_ms + toInt64(30000 + h % 300000) AS paid_ms,
        paid_ms + toInt64(43200000 + cityHash64(h, 1) % 172800000) AS shipped_ms,
        shipped_ms + toInt64(86400000 + cityHash64(h, 2) % 259200000) AS delivered_ms,
        delivered_ms + toInt64(86400000 + cityHash64(h, 3) % 432000000) AS refunded_ms,
        {_cents("wanted")} * amount_wanted AS cents
    FROM numbers({{first:UInt64}}, {{count:UInt64}})
    WHERE buys"""
CHANGES_FROM = f"""FROM
({_ORDERS}
)
ARRAY JOIN
    multiIf(fate < 8, ['created', 'cancelled'],
        fate < 12, ['created', 'paid', 'shipped', 'delivered', 'refunded'],
        ['created', 'paid', 'shipped', 'delivered']) AS status_reached,
    multiIf(fate < 8, [ordered_ms, ordered_ms + toInt64(600000 + h % 7200000)],
        fate < 12, [ordered_ms, paid_ms, shipped_ms, delivered_ms, refunded_ms],
        [ordered_ms, paid_ms, shipped_ms, delivered_ms]) AS ms,
    range(1, multiIf(fate < 8, 3, fate < 12, 6, 5)) AS version_reached
WHERE ms < {{end_ms:Int64}}
ORDER BY grp, version_reached"""
CHANGES: Mapping[str, str] = {
    "order_id": "{base:UInt64} + grp",
    "ordered_at": _time("ordered_ms"),
    "changed_at": _time("ms"),
    "ingested_at": _arrival("ms", "cityHash64(h, ms)"),
    "user_id": "visitor",
    "status": "status_reached",
    "version": "toUInt32(version_reached)",
    "product_id": "wanted",
    "quantity": "amount_wanted",
    "amount": _euros("cents"),
}
PAYMENTS_FROM = f"""FROM
({_ORDERS}
)
ARRAY JOIN
    multiIf(fate < 8, ['failed'], fate < 12, ['captured', 'refunded'],
        fate < 20, ['failed', 'captured'], ['captured']) AS outcome_reached,
    multiIf(fate < 8, [ordered_ms + 20000], fate < 12, [paid_ms, refunded_ms],
        fate < 20, [ordered_ms + 20000, paid_ms], [paid_ms]) AS ms
WHERE ms < {{end_ms:Int64}}
ORDER BY grp, ms"""
_METHODS = ("card", "card", "card", "card", "paypal", "paypal", "paypal", "invoice", "invoice", "voucher")
PAYMENTS: Mapping[str, str] = {
    "payment_id": "{base:UInt64} + grp * 4 + indexOf(['failed', 'captured', 'refunded'], outcome_reached)",
    "paid_at": _time("ms"),
    "ingested_at": _arrival("ms", "cityHash64(h, ms, 1)"),
    "order_id": "{base:UInt64} + grp",
    "user_id": "visitor",
    "method": _pick(_METHODS, "intDiv(h, 100)"),
    "outcome": "outcome_reached",
    "amount": _euros("cents"),
    "fee": _euros("if(outcome_reached = 'captured', 25 + intDiv(cents * 14, 1000), 0)"),
}


_COUNTRIES = (*("DE",) * 8, *("FR",) * 4, *("GB",) * 3, *("NL",) * 2, "AT", "PL", "IT", "ES", "SE", "US")
_SEGMENTS = ("new", "new", "new", "new", "casual", "casual", "casual", "loyal", "loyal", "vip")
_CHANNELS = ("organic", "organic", "organic", "ads", "ads", "referral", "social")
_CATEGORIES = ("books", "garden", "kitchen", "toys", "sports", "music", "office", "pets")
_BRANDS = ("Arcadia", "Boreal", "Cassini", "Dorado", "Ember", "Fjord")
_REGISTERED = "toDateTime('2024-01-01 00:00:00', 'UTC') + toIntervalSecond(cityHash64(number, 24) % 51840000)"
USERS: Mapping[str, str] = {
    "user_id": "number + 1",
    "country": _pick(_COUNTRIES, "cityHash64(number, 21)"),
    "segment": _pick(_SEGMENTS, "cityHash64(number, 22)"),
    "channel": _pick(_CHANNELS, "cityHash64(number, 23)"),
    "registered_at": _REGISTERED,
    "updated_at": _REGISTERED,
}
PRODUCTS: Mapping[str, str] = {
    "product_id": "toUInt32(number + 1)",
    "name": "concat('Product ', toString(number + 1))",
    "category": _pick(_CATEGORIES, "cityHash64(number, 31)"),
    "brand": _pick(_BRANDS, "cityHash64(number, 32)"),
    "list_price": _euros(_cents("toUInt32(number + 1)")),
    "updated_at": "toDateTime('2024-01-01 00:00:00', 'UTC')",
}
