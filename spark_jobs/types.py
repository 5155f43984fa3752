"""ClickHouse types as Spark and Arrow types, both ways. Pure; no connection, no session.

Invariant: a value either travels unchanged or the column is refused by name; nothing wraps, clips or turns into a default.
Choices: UInt8/16/32 take the next wider Spark integer, UInt64 is decimal(20,0); integers and decimals that are too wide for
Spark (Int128, Decimal(76, s), …) are read as text and cannot be written; times are instants (UTC on the wire, microseconds,
which is all that Spark holds); UUID, Enum, FixedString, IPv4/6 and JSON are text.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from chmv_assets.core.errors import TypeRefused
from chmv_assets.core.names import quote_identifier, unquote_identifier

INSTANT = pa.timestamp("us", "UTC")
_INSTANT_CAST = "DateTime64(6, 'UTC')"
_UTC = dt.timezone.utc


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeMap:
    """One ClickHouse type: what Spark sees, what the server casts it to for Arrow, what we send when writing."""

    name: str  # the bare type name, without parameters
    spark: T.DataType
    cast: str
    arrow: pa.DataType | None  # None: can be read only
    nullable: bool = False
    bounds: tuple[object, object] | None = None
    digits: int = 0  # fractional digits of a DateTime64
    children: tuple[TypeMap, ...] = ()


def _leaf(name: str, spark: T.DataType, cast: str, arrow: pa.DataType | None) -> TypeMap:
    return TypeMap(name=name, spark=spark, cast=cast, arrow=arrow)


def _text(name: str, arrow: pa.DataType | None = None) -> TypeMap:
    return _leaf(name, T.StringType(), "String", arrow)


_LEAVES = {
    one.name: one
    for one in (
        _leaf("Int8", T.ByteType(), "Int8", pa.int8()),
        _leaf("Int16", T.ShortType(), "Int16", pa.int16()),
        _leaf("Int32", T.IntegerType(), "Int32", pa.int32()),
        _leaf("Int64", T.LongType(), "Int64", pa.int64()),
        _leaf("UInt8", T.ShortType(), "Int16", pa.uint8()),
        _leaf("UInt16", T.IntegerType(), "Int32", pa.uint16()),
        _leaf("UInt32", T.LongType(), "Int64", pa.uint32()),
        _leaf("UInt64", T.DecimalType(20, 0), "Decimal(20, 0)", pa.uint64()),
        *(_text(name) for name in ("Int128", "UInt128", "Int256", "UInt256")),
        _leaf("BFloat16", T.FloatType(), "Float32", pa.float32()),
        _leaf("Float32", T.FloatType(), "Float32", pa.float32()),
        _leaf("Float64", T.DoubleType(), "Float64", pa.float64()),
        _leaf("Bool", T.BooleanType(), "Bool", pa.bool_()),
        *(
            _text(name, pa.string())
            for name in ("String", "FixedString", "UUID", "IPv4", "IPv6", "Enum8", "Enum16", "JSON")
        ),
    )
}
# The server clips what is outside, even with date_time_overflow_behavior = 'throw' (26.7, Arrow input).
_BOUNDS = {
    "Date": (dt.date(1970, 1, 1), dt.date(2149, 6, 6)),
    "Date32": (dt.date(1900, 1, 1), dt.date(2299, 12, 31)),
    "DateTime": (dt.datetime(1970, 1, 1, tzinfo=_UTC), dt.datetime(2106, 2, 7, 6, 28, 15, 999999, tzinfo=_UTC)),
    "DateTime64": (dt.datetime(1900, 1, 1, tzinfo=_UTC), dt.datetime(2262, 4, 11, 23, 47, 16, tzinfo=_UTC)),
}


def split_type(text: str) -> tuple[str, tuple[str, ...]]:
    """A type's name and its parameters as text.

    >>> split_type("Map(String, Array(UInt8))")
    ('Map', ('String', 'Array(UInt8)'))
    """
    text = text.strip()
    head, bracket, tail = text.partition("(")
    return (head, _split_commas(tail[:-1])) if bracket else (text, ())


def _split_commas(text: str) -> tuple[str, ...]:
    parts, depth, quote, start, at = [], 0, "", 0, 0
    while at < len(text):
        char = text[at]
        if quote:
            at += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'`\"":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
        at += 1
    return (*parts, text[start:].strip())


def map_type(column: str, text: str) -> TypeMap:
    """The mapping of a column's ClickHouse type; an error that names column and type where there is none."""
    found = _map(text)
    if found is None:
        raise TypeRefused(column, text, "Spark has no type for it", "Leave the column out with .schema(...)")
    return found


def _map(text: str) -> TypeMap | None:
    name, args = split_type(text)
    if name in _LEAVES:
        return _LEAVES[name]
    if name in ("LowCardinality", "SimpleAggregateFunction"):
        return _map(args[-1])
    if name == "Nullable":
        inner = _map(args[0])
        return inner and replace(inner, nullable=True, cast=f"Nullable({inner.cast})")
    if name in ("Decimal", "Date", "Date32", "DateTime", "DateTime64"):
        return _map_scalar(name, args)
    if name in ("Array", "Map", "Tuple"):
        return _map_nested(name, args)
    return None


def _map_scalar(name: str, args: tuple[str, ...]) -> TypeMap:
    if name == "Decimal":
        precision, scale = int(args[0]), int(args[1])
        if precision > 38:
            return _text(name)
        return _leaf(
            name, T.DecimalType(precision, scale), f"Decimal({precision}, {scale})", pa.decimal128(precision, scale)
        )
    if name in ("Date", "Date32"):
        return replace(_leaf(name, T.DateType(), "Date32", pa.date32()), bounds=_BOUNDS[name])
    digits = int(args[0]) if name == "DateTime64" else 0
    return replace(_leaf(name, T.TimestampType(), _INSTANT_CAST, INSTANT), bounds=_BOUNDS[name], digits=digits)


def _map_nested(name: str, args: tuple[str, ...]) -> TypeMap | None:
    named = [_tuple_element(at, arg) for at, arg in enumerate(args, 1)] if name == "Tuple" else [("", a) for a in args]
    mapped = [_map(kind) for _, kind in named]
    children = tuple(child for child in mapped if child is not None)
    if len(children) != len(mapped):
        return None
    writable = all(child.arrow is not None for child in children)
    spark: T.DataType
    if name == "Array":
        (item,) = children
        spark, cast = T.ArrayType(item.spark, item.nullable), f"Array({item.cast})"
        arrow = pa.list_(item.arrow) if writable else None
    elif name == "Map":
        key, value = children
        spark, cast = T.MapType(key.spark, value.spark, value.nullable), f"Map({key.cast}, {value.cast})"
        arrow = pa.map_(key.arrow, value.arrow) if writable else None
    else:
        names = [label for label, _ in named]
        spark = T.StructType([T.StructField(n, c.spark, c.nullable) for n, c in zip(names, children, strict=True)])
        casts = ", ".join(f"{quote_identifier(n)} {c.cast}" for n, c in zip(names, children, strict=True))
        cast = f"Tuple({casts})"
        arrow = pa.struct([(n, c.arrow) for n, c in zip(names, children, strict=True)]) if writable else None
    return TypeMap(name=name, spark=spark, cast=cast, arrow=arrow, children=children)


def _tuple_element(position: int, text: str) -> tuple[str, str]:
    """`name Type` or a bare `Type`, which Spark then calls `_1`, `_2`, …"""
    if text[:1] in '`"':
        end = 1
        while text[end] != text[0]:
            end += 2 if text[end] == "\\" else 1
        return unquote_identifier(text[: end + 1]), text[end + 1 :].strip()
    head, _, tail = text.partition(" ")
    return (head, tail.strip()) if tail and "(" not in head else (f"_{position}", text)


def spark_arrow(kind: T.DataType) -> pa.DataType:
    """The Arrow type that Spark's JVM expects for one of its types."""
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", spark_arrow(kind.elementType), nullable=kind.containsNull))
    if isinstance(kind, T.MapType):
        value = pa.field("value", spark_arrow(kind.valueType), nullable=kind.valueContainsNull)
        return pa.map_(pa.field("key", spark_arrow(kind.keyType), nullable=False), value)
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, spark_arrow(f.dataType), nullable=f.nullable) for f in kind.fields])
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    plain: dict[type[T.DataType], pa.DataType] = {
        T.ByteType: pa.int8(), T.ShortType: pa.int16(), T.IntegerType: pa.int32(), T.LongType: pa.int64(),
        T.FloatType: pa.float32(), T.DoubleType: pa.float64(), T.BooleanType: pa.bool_(), T.StringType: pa.string(),
        T.BinaryType: pa.binary(), T.DateType: pa.date32(), T.TimestampType: INSTANT,
        T.TimestampNTZType: pa.timestamp("us"),
    }  # fmt: skip
    if type(kind) not in plain:
        raise TypeRefused("", kind.simpleString(), "ClickHouse has nothing that becomes it", "Cast it after reading")
    return plain[type(kind)]


def spark_schema_arrow(schema: T.StructType) -> pa.Schema:
    """The Arrow schema that every batch of a read has to have."""
    return pa.schema([pa.field(f.name, spark_arrow(f.dataType), nullable=f.nullable) for f in schema.fields])


_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def accepts(target: TypeMap, given: T.DataType) -> bool:
    """Whether every value of a Spark type that fits at all arrives unchanged; ranges are checked row by row."""
    if target.arrow is None:
        return False
    if isinstance(given, T.NullType):
        return target.nullable
    if pa.types.is_integer(target.arrow):
        return isinstance(given, _INTEGERS) or (isinstance(given, T.DecimalType) and given.scale == 0)
    if pa.types.is_string(target.arrow):
        return isinstance(given, (T.StringType, T.BinaryType))
    if target.name == "Float64":
        return isinstance(given, (T.FloatType, T.DoubleType))
    if target.name == "Decimal":
        return isinstance(given, T.DecimalType)
    if target.name == "Array":
        return isinstance(given, T.ArrayType) and accepts(target.children[0], given.elementType)
    if target.name == "Map":
        key, value = target.children
        return isinstance(given, T.MapType) and accepts(key, given.keyType) and accepts(value, given.valueType)
    if isinstance(target.spark, T.StructType):
        if not isinstance(given, T.StructType) or given.names != target.spark.names:
            return False
        return all(accepts(child, field.dataType) for child, field in zip(target.children, given.fields, strict=True))
    return type(given) is type(target.spark)


def to_clickhouse(column: str, values: pa.Array, target: TypeMap) -> pa.Array:
    """The values in the Arrow type that the column takes; refuses what does not fit instead of wrapping it."""
    try:
        sent = values if values.type.equals(target.arrow) else values.cast(target.arrow)
    except MemoryError:  # Arrow's own is one too; it says nothing about the value
        raise
    except pa.ArrowException as error:
        raise TypeRefused(column, target.name, f"a value does not fit ({error})", "Clean the rows first") from error
    _check_values(column, sent, target)
    return sent


def _check_values(column: str, values: pa.Array, target: TypeMap) -> None:
    if values.null_count and not target.nullable:
        raise TypeRefused(
            column, target.name, "a value is null and would become a default", "Fill nulls or drop the rows first"
        )
    if target.bounds is not None and len(values):
        low, high = target.bounds
        found = pc.min_max(values)
        least, most = found["min"].as_py(), found["max"].as_py()
        if least is not None and (least < low or most > high):
            wrong = least if least < low else most
            raise TypeRefused(
                column, target.name, f"{wrong} is outside {low} … {high} and would be clipped", "Clean the rows first"
            )
    if target.name == "Array":
        _check_values(column, values.flatten(), target.children[0])
    elif target.name == "Map":
        _check_values(column, values.keys, target.children[0])
        _check_values(column, values.items, target.children[1])
    elif target.name == "Tuple":
        for at, child in enumerate(target.children):
            _check_values(column, values.field(at), child)
