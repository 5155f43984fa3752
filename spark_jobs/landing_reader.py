"""Landing files → one DataFrame in which every row is either typed or has a reason why not.

JSON lines and CSV are read as text values and cast here, so that a bad value costs its row, not the file; Parquet has types
and is checked for range and null only. Nothing is dropped: good and bad rows together are the rows of the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812

from spark_jobs.types import map_type

REASON = "_chmv_reason"
RAW = "_chmv_row"
FILE = "_chmv_file"
_CORRUPT = "_chmv_corrupt"
INTEGER_BOUNDS = {
    "Int8": (-(2**7), 2**7 - 1), "Int16": (-(2**15), 2**15 - 1), "Int32": (-(2**31), 2**31 - 1),
    "Int64": (-(2**63), 2**63 - 1), "UInt8": (0, 2**8 - 1), "UInt16": (0, 2**16 - 1), "UInt32": (0, 2**32 - 1),
    "UInt64": (0, 2**64 - 1),
}  # fmt: skip
_WRAPPER = re.compile(r"^(?:Nullable|LowCardinality)\((.*)\)$", re.DOTALL)
_ENUM_NAME = re.compile(r"'((?:[^'\\]|\\.|'')*)'\s*=")


@dataclass(frozen=True, slots=True)
class LandingColumn:
    """A column to load: its name, its ClickHouse type, and the Spark type that carries it."""

    name: str
    clickhouse_type: str
    spark_type: T.DataType

    @property
    def nullable(self) -> bool:
        return self.clickhouse_type.startswith(("Nullable(", "LowCardinality(Nullable("))

    @property
    def bare_type(self) -> str:
        """The type without Nullable and LowCardinality."""
        kind = self.clickhouse_type
        while match := _WRAPPER.match(kind):
            kind = match.group(1)
        return kind


def enum_names(kind: str) -> list[str]:
    """The names of an Enum type.

    >>> enum_names("Enum8('a' = 1, 'it\\\\'s' = 2)")
    ['a', "it's"]
    """
    return [name.replace("\\'", "'").replace("''", "'") for name in _ENUM_NAME.findall(kind)]


def fixed_length(kind: str) -> int:
    """The bytes that a FixedString holds.

    >>> fixed_length("FixedString(16)")
    16
    """
    return int(kind.partition("(")[2].rstrip(")"))


def read_landing(
    spark: SparkSession, paths: Sequence[str], file_format: str, found: Sequence[str], columns: Sequence[LandingColumn]
) -> DataFrame:
    """Read files that have the columns `found`, in that order, into the columns to load.

    Gives these plus the reason (null for a good row), the raw row and its file.
    """
    if file_format == "parquet":
        frame = spark.read.parquet(*paths)
        raw = F.to_json(F.struct(*(F.col(quote_column(name)) for name in frame.columns)))
        given = {field.name: field.dataType for field in frame.schema.fields}
        typed = [(c, F.col(quote_column(c.name)), _cast(c, given[c.name])) for c in columns]
        return _judged(frame, typed, raw, F.lit(None).cast("string"))
    by_name = {column.name: column for column in columns}
    fields = [T.StructField(name, _text_type(by_name.get(name)), True) for name in found]
    schema = T.StructType([*fields, T.StructField(_CORRUPT, T.StringType(), True)])
    reader = spark.read.schema(schema).option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _CORRUPT)
    if file_format == "jsonl":
        frame = reader.json(list(paths))
    else:
        frame = reader.option("header", True).option("enforceSchema", False).csv(list(paths))
    raw = F.coalesce(F.col(_CORRUPT), F.to_json(F.struct(*(F.col(quote_column(name)) for name in found))))
    return _judged(
        frame,
        [(c, F.col(quote_column(c.name)), _cast(c, _text_type(c))) for c in columns],
        raw,
        F.when(F.col(_CORRUPT).isNotNull(), F.lit("not a readable record")),
    )


def quote_column(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text_type(column: LandingColumn | None) -> T.DataType:
    """How a value is read before it is cast: as text, except lists, maps and tuples, which JSON spells itself."""
    nested = (T.ArrayType, T.MapType, T.StructType)
    return column.spark_type if column is not None and isinstance(column.spark_type, nested) else T.StringType()


def _cast(column: LandingColumn, given: T.DataType) -> Column:
    """The value in its type, or null where it has none; `cast` would fail the whole job."""
    if given == column.spark_type:
        return F.col(quote_column(column.name))
    return F.expr(f"try_cast({quote_column(column.name)} AS {column.spark_type.simpleString()})")


def _judged(
    frame: DataFrame, typed: Sequence[tuple[LandingColumn, Column, Column]], raw: Column, corrupt: Column
) -> DataFrame:
    reasons = [corrupt]
    for column, given, value in typed:
        reasons += _reasons(column, given, value)
    first_reason = F.coalesce(*reasons)
    chosen = [value.alias(column.name) for column, _, value in typed]
    return frame.select(*chosen, first_reason.alias(REASON), raw.alias(RAW), F.input_file_name().alias(FILE))


def _reasons(column: LandingColumn, given: Column, value: Column) -> list[Column]:
    found = [
        F.when(given.isNotNull() & value.isNull(), F.lit(f"{column.name}: not a {column.clickhouse_type}")),
    ]
    if not column.nullable:
        found.append(F.when(given.isNull(), F.lit(f"{column.name}: null, but it is not Nullable")))
    if column.bare_type in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[column.bare_type]
        wide = value.cast("decimal(38,0)")
        out = (wide < F.lit(Decimal(low))) | (wide > F.lit(Decimal(high)))  # a UInt64's bound is no Java long
        found.append(F.when(out, F.lit(f"{column.name}: out of range for {column.bare_type}")))
    if column.bare_type.startswith("Enum"):
        known = value.isin(enum_names(column.bare_type))
        found.append(F.when(~known, F.lit(f"{column.name}: not a name of its Enum")))
    if column.bare_type.startswith("FixedString"):
        too_long = F.octet_length(value) > fixed_length(column.bare_type)
        found.append(F.when(too_long, F.lit(f"{column.name}: longer than {column.bare_type}")))
    if (bounds := map_type(column.name, column.clickhouse_type).bounds) is not None:
        out = (value < F.lit(bounds[0])) | (value > F.lit(bounds[1]))
        found.append(F.when(out, F.lit(f"{column.name}: out of range for {column.bare_type}")))
    return found
