"""The rows of the source as Spark knows them: the schema of load(), and the columns that a schema asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import types as t

from rmq_core.columnar import COLUMNS, row_schema
from rmq_spark.errors import Condition, SparkRocketMQError, bad_option
from rmq_spark.options import Settings

_SPARK_TYPES: Final[dict[pa.DataType, t.DataType]] = {
    pa.string(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.timestamp("us", tz="UTC"): t.TimestampType(),
    pa.map_(pa.string(), pa.string()): t.MapType(t.StringType(), t.StringType(), valueContainsNull=True),
}


def spark_schema(settings: Settings) -> t.StructType:
    """The rows that the options ask for. Raises SparkRocketMQError (BAD_OPTION) for what is no column."""
    try:
        arrow = row_schema(settings.columns, include_properties=settings.include_properties)
    except ValueError as error:
        raise bad_option("columns", settings.columns, str(error)) from None
    return t.StructType([t.StructField(field.name, _SPARK_TYPES[field.type]) for field in arrow])


def checked_columns(schema: t.StructType, settings: Settings) -> tuple[str, ...]:
    """The columns of a schema that the user may have given, in its order.

    Raises SparkRocketMQError (BAD_COLUMN) for a column that is not there, has another type, or may not be null.
    """
    known = {field.name: field.dataType for field in spark_schema_of(COLUMNS)}
    for field in schema:
        if field.name not in known:
            raise _bad_column(f"there is no column {field.name}; there are {', '.join(known)}", field.name)
        if field.dataType != known[field.name]:
            wanted, given = known[field.name].simpleString(), field.dataType.simpleString()
            raise _bad_column(f"column {field.name} is {wanted}, and the schema says {given}", field.name)
        if not field.nullable:
            raise _bad_column(f"column {field.name} is nullable, and the schema says NOT NULL", field.name)
    names = tuple(schema.fieldNames())
    if not names:
        raise _bad_column("the schema has no column", "")
    if settings.columns is not None and names != tuple(spark_schema(settings).fieldNames()):
        raise _bad_column("the schema and the option columns ask for different columns; give one of them", "")
    return names


def spark_schema_of(names: Sequence[str]) -> t.StructType:
    """The types of some columns."""
    return t.StructType([t.StructField(field.name, _SPARK_TYPES[field.type]) for field in row_schema(names)])


def _bad_column(text: str, name: str) -> SparkRocketMQError:
    return SparkRocketMQError(Condition.BAD_COLUMN, text, column=name)
