"""The columns that a sink takes, checked against a DataFrame before anything is sent.

Names are matched without case, as Spark does. Columns the sink does not know are not sent, so that rows of the
source can be written as they are; one whose name is nearly that of a missing column is worth a warning.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import types as t

from rmq_core.columnar import COLUMNS
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Settings

_log: Final = logging.getLogger(__name__)
_NEAR: Final = 0.7


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """One column of a sink."""

    name: str
    attribute: str
    takes: str
    is_right: Callable[[t.DataType], bool]


def _is_text(kind: t.DataType) -> bool:
    return isinstance(kind, t.StringType | t.VarcharType | t.CharType)


def _is_body(kind: t.DataType) -> bool:
    return isinstance(kind, t.BinaryType) or _is_text(kind)


def _is_int(kind: t.DataType) -> bool:
    return isinstance(kind, t.IntegerType | t.ShortType | t.ByteType)


def _is_time(kind: t.DataType) -> bool:
    return isinstance(kind, t.TimestampType | t.LongType)


def _is_text_map(kind: t.DataType) -> bool:
    return isinstance(kind, t.MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


SINK_COLUMNS: Final = (
    SinkColumn("body", "body", "binary or string", _is_body),
    SinkColumn("topic", "topic", "string", _is_text),
    SinkColumn("tags", "tags", "string", _is_text),
    SinkColumn("keys", "keys", "string", _is_text),
    SinkColumn("properties", "properties", "map<string,string>", _is_text_map),
    SinkColumn("shardingKey", "sharding_key", "string", _is_text),
    SinkColumn("queueId", "queue_id", "int", _is_int),
    SinkColumn("delayTimeLevel", "delay_level", "int", _is_int),
    SinkColumn("deliverTime", "deliver_time", "timestamp, or bigint of milliseconds", _is_time),
    SinkColumn("flag", "flag", "int", _is_int),
    SinkColumn("dedupKey", "dedup_key", "string", _is_text),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """Where each part of a message stands in a row; None where it does not."""

    body: int
    topic: int | None = None
    tags: int | None = None
    keys: int | None = None
    properties: int | None = None
    sharding_key: int | None = None
    queue_id: int | None = None
    delay_level: int | None = None
    deliver_time: int | None = None
    flag: int | None = None
    dedup_key: int | None = None


def sink_plan(schema: t.StructType, settings: Settings) -> SinkPlan:
    """Find the columns of messages. Raises SparkRocketMQError (BAD_COLUMN, BAD_OPTION)."""
    places = _places(schema)
    _check_needed(places, schema, settings)
    found: dict[str, int] = {}
    for column in SINK_COLUMNS:
        place = places.get(column.name.lower())
        if place is None:
            continue
        kind = schema.fields[place].dataType
        if not column.is_right(kind):
            raise _bad_column(
                f"column {column.name} is {kind.simpleString()}, and must be {column.takes}; cast it", column.name
            )
        found[column.attribute] = place
    if settings.topic is not None:
        found.pop("topic", None)
    if settings.order_by is not None:
        found["sharding_key"] = _order_column(places, schema, settings.order_by)
    _warn_of_misspelt(schema, places)
    return SinkPlan(**found)


def _places(schema: t.StructType) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, name in enumerate(schema.names):
        if name.lower() in places:
            raise _bad_column(f"column {name} stands twice; give one of them another name", name)
        places[name.lower()] = place
    return places


def _check_needed(places: dict[str, int], schema: t.StructType, settings: Settings) -> None:
    if "body" not in places:
        near = difflib.get_close_matches("body", schema.names, n=1, cutoff=0.5)
        hint = f"; is it the column {near[0]}?" if near else ""
        listed = ", ".join(schema.names) or "no columns"
        raise _bad_column(
            f"a sink needs the column body (binary or string), and there is {listed}{hint} "
            'Make one, for example by selectExpr("to_json(struct(*)) AS body")',
            "body",
        )
    if settings.topic is None and "topic" not in places:
        raise SparkRocketMQError(
            Condition.BAD_OPTION,
            "nothing says which topic to send to: give the option topic, or a column topic (string)",
            option="topic",
        )


def _order_column(places: dict[str, int], schema: t.StructType, name: str) -> int:
    place = places.get(name.lower())
    if place is None:
        near = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.0)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise _bad_column(f"orderBy names the column {name}, which is not there{hint}", name)
    kind = schema.fields[place].dataType
    if isinstance(kind, t.MapType | t.ArrayType | t.StructType | t.BinaryType) or not isinstance(
        kind, t.AtomicType
    ):
        raise _bad_column(
            f"orderBy names the column {name}, which is {kind.simpleString()}; cast it to string", name
        )
    return place


def _warn_of_misspelt(schema: t.StructType, places: dict[str, int]) -> None:
    missing = {column.name.lower(): column.name for column in SINK_COLUMNS if column.name.lower() not in places}
    known = {column.name.lower() for column in SINK_COLUMNS} | {name.lower() for name in COLUMNS}
    for name in schema.names:
        if name.lower() in known:
            continue
        near = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=_NEAR)
        if near:
            _log.warning("column %s is not sent; a sink has a column %s: is it that?", name, missing[near[0]])


def _bad_column(message: str, column: str) -> SparkRocketMQError:
    return SparkRocketMQError(Condition.BAD_COLUMN, message, column=column)
