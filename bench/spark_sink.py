"""Rows into a broker: the sink against a raw producer that sends the same batches, made beforehand.

Both send over four queues with one request in flight in each. The writer alone shows what making messages costs;
the write by Spark also has the way from the JVM, which shares the processors with the broker.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t

from bench.measure import Ratio, in_turn
from rmq_core.client.options import client_options
from rmq_core.client.queue_sender import QueueSender
from rmq_core.client.sending import Outgoing, SendRules
from rmq_core.embedded_broker import EmbeddedBroker, embedded
from rmq_core.protocol.message import MessageQueue
from rmq_spark.options import Scope, parse
from rmq_spark.sink_columns import sink_plan
from rmq_spark.sink_dedup import RowIdentities, context_of
from rmq_spark.sink_rows import RowEncoder
from rmq_spark.writer import RocketMQBatchWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, QUEUES = "Sink", 4
BATCH_ROWS = 10_000
ROWS = 200_000
GOAL = 0.6
RULES = SendRules(group="bench")
SCHEMA = t.StructType(
    [
        t.StructField("body", t.BinaryType()),
        t.StructField("tags", t.StringType()),
        t.StructField("keys", t.StringType()),
    ]
)


def batches(body_size: int) -> list[pa.RecordBatch]:
    """Rows as Spark hands them to a writer."""
    made = []
    for start in range(0, ROWS, BATCH_ROWS):
        numbers = range(start, start + BATCH_ROWS)
        columns = [
            pa.array([b"%0*d" % (body_size, number) for number in numbers], pa.binary()),
            pa.array(["TagA"] * BATCH_ROWS),
            pa.array([str(number) for number in numbers]),
        ]
        made.append(pa.record_batch(columns, names=SCHEMA.names))
    return made


def prebuilt(mq: EmbeddedBroker, rows: list[pa.RecordBatch]) -> list[tuple[MessageQueue, Outgoing]]:
    """The requests that the sink makes of these rows."""
    settings = parse({"nameServer": mq.name_server, "topic": TOPIC}, Scope.WRITE)
    with raw_sender(mq) as sender:
        encoder = RowEncoder(
            sink_plan(SCHEMA, settings),
            settings,
            RULES,
            queues=sender.queues,
            identities=RowIdentities(context_of("bench")),
            first_turn=0,
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        return [request for batch in rows for request in encoder.requests(batch)]


@contextlib.contextmanager
def raw_sender(mq: EmbeddedBroker) -> Iterator[QueueSender]:
    with QueueSender(client_options({"name_server": mq.name_server}), RULES) as sender:
        yield sender


def raw(sender: QueueSender, requests: list[tuple[MessageQueue, Outgoing]]) -> float:
    """Messages a second of a producer that only sends."""
    started = time.perf_counter()
    for queue, request in requests:
        sender.send(queue, request)
    sender.flush()
    return ROWS / (time.perf_counter() - started)


def by_writer(mq: EmbeddedBroker, rows: list[pa.RecordBatch]) -> float:
    """Messages a second of a task of the sink."""
    settings = parse({"nameServer": mq.name_server, "topic": TOPIC}, Scope.WRITE)
    writer = RocketMQBatchWriter(settings, SCHEMA, False)
    started = time.perf_counter()
    written = writer.write(iter(rows))
    if written.rows != ROWS:
        raise RuntimeError(f"{written.rows} of {ROWS} rows were sent")
    return ROWS / (time.perf_counter() - started)


def by_spark(spark: SparkSession, mq: EmbeddedBroker, body_size: int) -> float:
    """Messages a second of a DataFrame that is written."""
    rows = spark.range(0, ROWS, 1, 2).selectExpr(
        f"cast(lpad(id, {body_size}, '0') as binary) AS body", "'TagA' AS tags", "cast(id AS string) AS keys"
    )
    started = time.perf_counter()
    rows.write.format("rocketmq").options(nameServer=mq.name_server, topic=TOPIC).mode("append").save()
    return ROWS / (time.perf_counter() - started)


def run() -> list[Ratio]:
    import rmq_spark

    ratios = []
    spark = rmq_spark.session(
        "bench", master="local[2]", **{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    )
    try:
        for size in (100, 1024):
            with embedded(mappedFileSizeCommitLog=256 << 20) as mq, raw_sender(mq) as sender:
                mq.create_topic(TOPIC, queues=QUEUES)
                rows = batches(size)
                requests = prebuilt(mq, rows)
                baseline = functools.partial(raw, sender, requests)
                for what, ours in (
                    ("a task of the sink", functools.partial(by_writer, mq, rows)),
                    ("a DataFrame written by Spark", functools.partial(by_spark, spark, mq, size)),
                ):
                    ours()
                    figures = in_turn(ours, baseline)
                    ratios.append(Ratio(f"{what}, {size} B", *figures, "messages/s", goal=GOAL))
    finally:
        spark.stop()
    return ratios
