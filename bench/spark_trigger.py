"""Micro-batches of one row against those of a Python source that does nothing: what planning and offsets cost.

Both have a backlog and take one row at a time, so that no batch waits for news. The figure is Spark's own for the
whole of a trigger, from looking for offsets to the commit; the first batches, which start workers, do not count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.measure import Ratio, in_turn
from bench.spark_read import fill, session
from rmq_core.columnar import row_schema
from rmq_core.embedded_broker import EmbeddedBroker, embedded
from rmq_spark.options import parse
from rmq_spark.rows import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = (4, 64)
WARM, BATCHES = 8, 24
ROUNDS = 3
GOAL = 1 / 1.3
END_S = 300


class EmptySource(DataSource):
    """One row of nulls in each batch."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> StructType:
        return spark_schema(parse({}))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return EmptyReader()


class EmptyReader(DataSourceStreamReader):
    """Its offsets count batches."""

    def __init__(self) -> None:
        self.count = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self.count += 1
        return {"n": self.count}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(end["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = row_schema()
        yield pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)


def batches_a_second(stream: Any, folder: Path) -> float:
    """How many triggers of one row fit into a second, while a query runs that reads this stream."""
    checkpoint = tempfile.mkdtemp(dir=folder)
    query = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        deadline = time.monotonic() + END_S
        while len(taken := [each for each in query.recentProgress if each["numInputRows"]]) < WARM + BATCHES:
            if not query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"{len(taken)} batches: {query.exception()}")
            time.sleep(0.05)
    finally:
        query.stop()
    if any(each["numInputRows"] != 1 for each in taken):
        raise RuntimeError("a batch had more than one row")
    times_ms: list[float] = [each["durationMs"]["triggerExecution"] for each in taken[WARM : WARM + BATCHES]]
    return 1000 / statistics.median(times_ms)


def triggers(spark: SparkSession, mq: EmbeddedBroker, queues: int, folder: Path) -> Ratio:
    """Our source against the empty one."""
    topic = f"Trigger{queues}"
    mq.create_topic(topic, queues=queues)
    fill(mq.address, topic, 100, 256, queues=1)  # with a backlog in each queue, each would give a row

    def ours() -> float:
        stream = spark.readStream.format("rocketmq").option("nameServer", mq.name_server).option("topic", topic)
        return batches_a_second(
            stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1"), folder
        )

    def empty() -> float:
        return batches_a_second(spark.readStream.format("empty"), folder)

    figures = in_turn(ours, empty, rounds=ROUNDS)
    return Ratio(f"micro-batch of one row, {queues} queues", *figures, "batches/s", GOAL)


def run() -> list[Ratio]:
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as name, embedded() as mq:
        spark = session(Path(name))
        spark.dataSource.register(EmptySource)
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
        try:
            return [triggers(spark, mq, queues, Path(name)) for queues in QUEUES]
        finally:
            spark.stop()
