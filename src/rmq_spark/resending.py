"""Messages that are sent again elsewhere: where they came from, which queue they go to, and how fast.

Origin   ORIGIN_TOPIC, ORIGIN_BROKER, ORIGIN_QUEUE_ID, ORIGIN_QUEUE_OFFSET, ORIGIN_MSG_ID, ORIGIN_BORN_TIMESTAMP and
         ORIGIN_STORE_TIMESTAMP (ISO times in UTC). Those that a message has already stay: the first origin counts.
Queues   What was in queue n goes to the queue n modulo the number of queues there, so that each keeps its order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import NoRouteError
from rmq_spark.options import Settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SENT_COLUMNS: Final = (
    "topic,broker,queueId,queueOffset,body,tags,keys,msgId,bornTimestamp,storeTimestamp,properties,flag"
)
"""The columns of the source that are needed to send a message again."""
_OF_COLUMNS: Final = {
    "ORIGIN_TOPIC": "topic",
    "ORIGIN_BROKER": "broker",
    "ORIGIN_QUEUE_ID": "queueId",
    "ORIGIN_QUEUE_OFFSET": "queueOffset",
    "ORIGIN_MSG_ID": "msgId",
    "ORIGIN_BORN_TIMESTAMP": "bornTimestamp",
    "ORIGIN_STORE_TIMESTAMP": "storeTimestamp",
}
_SLICES_A_SECOND: Final = 10


def with_origin(rows: DataFrame) -> DataFrame:
    """Rows of the source with their origin among the properties, and the sharding key that they had."""
    from pyspark.sql import functions as f

    known = f.coalesce(f.col("properties"), f.create_map().cast("map<string,string>"))
    pairs = [
        f.struct(f.lit(name).alias("key"), _text(f.col(column), column).alias("value"))
        for name, column in _OF_COLUMNS.items()
        if column in rows.columns
    ]
    there = f.filter(f.array(*pairs), lambda pair: pair["value"].isNotNull())
    new = f.map_filter(f.map_from_entries(there), lambda name, _: ~f.map_contains_key(known, name))
    # With a first origin the place of the copy says nothing.
    is_first = ~f.map_contains_key(known, "ORIGIN_TOPIC")
    if "shardingKey" not in rows.columns:
        rows = rows.withColumn("shardingKey", known["__SHARDINGKEY"])
    return rows.withColumn("properties", f.when(is_first, f.map_concat(known, new)).otherwise(known))


def _text(column: Column, name: str) -> Column:
    from pyspark.sql import functions as f

    if name.endswith("Timestamp"):
        return f.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSXXX")
    return column.cast("string")


def queue_count(settings: Settings, topic: str) -> int:
    """How many queues a topic has on its broker with the fewest; 4 for one that its first message makes."""
    with QueueClient(settings.client_options()) as client:
        try:
            queues = client.queues(topic)
        except NoRouteError:
            return 4
    brokers = {each.broker_name for each in queues}
    return min(sum(each.broker_name == name for each in queues) for name in brokers) if brokers else 4


def in_their_queues(rows: DataFrame, count: int) -> DataFrame:
    """Rows with the number of the queue that they go to."""
    from pyspark.sql import functions as f

    return rows.withColumn("queueId", (f.col("queueId") % f.lit(count)).cast("int"))


def throttled(rows: DataFrame, rate: float | None) -> DataFrame:
    """The same rows, and at most so many a second of them: one task sends them all then."""
    if rate is None:
        return rows

    def paced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        step = max(int(rate / _SLICES_A_SECOND), 1)
        due_s = time.monotonic()
        for batch in batches:
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                yield part
                # What a slow sink has lost is not made up for.
                due_s = max(due_s, time.monotonic() - 1) + part.num_rows / rate
                time.sleep(max(due_s - time.monotonic(), 0))

    return rows.coalesce(1).mapInArrow(paced, rows.schema)
