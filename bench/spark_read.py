"""Rows into Spark from our broker and its files, against what Spark takes when the batches are made beforehand.

The hand-over ceiling is a Python source that yields the same batches again and again, measured in turn with them.
Every read by a task leaves a mark: Spark keeps results of stages, and a figure without reads is worth nothing.
The memory of the executor's Python is looked at while it reads, as far as it grows above what it has idle.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.measure import Ratio, in_turn
from rmq_core.columnar import kernels
from rmq_core.embedded_broker import EmbeddedBroker, embedded
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.record import BatchRecord, encode_batch
from rmq_core.protocol.requests import SendBatchMessage
from rmq_spark.batch_reader import RocketMQBatchReader
from rmq_spark.options import Scope, parse
from rmq_spark.rows import spark_schema
from rmq_spark.source import RocketMQDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = 4
BATCH = 2_000
ROWS = {100: 2_000_000, 1024: 400_000}
ROUNDS = 5
GOAL = 0.6
LARGE_SIZE = 4096
LARGE_ROWS = int(os.environ.get("RMQ_BENCH_LARGE_ROWS", "300000"))
"""One task's range when memory is looked at; 2,500,000 are 10 GB."""
MEMORY_MAX = 300 << 20
MARKS = "RMQ_BENCH_MARKS"


def properties(number: int) -> bytes:
    """What Java's producers send with a message: tag, key, an id of 32 digits."""
    return b"TAGS\x01TagA\x02KEYS\x01key-%d\x02UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % (number, number)


def fill(address: str, topic: str, body_size: int, count: int, queues: int = QUEUES) -> None:
    """So many messages, spread over the queues in batches."""
    body = bytes(range(65, 91)) * (body_size // 26 + 1)
    step = max(min(BATCH, (2 << 20) // (body_size + 150)), 1)
    with contextlib.closing(BlockingChannel(address)) as channel:
        for number in range(0, count, step):
            records = [BatchRecord(0, body[:body_size], properties(number + each)) for each in range(step)]
            request = SendBatchMessage(
                producer_group="PG",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=number // step % queues,
                sys_flag=0,
                born_timestamp=1_700_000_000_000,
                flag=0,
                properties="",
                reconsume_times=0,
                unit_mode=False,
                batch=True,
            )
            channel.call(request, encode_batch(records), timeout_ms=60_000)


# Sources that leave marks


def mark(text: str) -> None:
    """Leave a mark that the driver can count."""
    Path(os.environ[MARKS], f"{uuid.uuid4()}").write_text(text)


def marks() -> list[str]:
    """What was left since the last look."""
    found = []
    for path in Path(os.environ[MARKS]).iterdir():
        found.append(path.read_text())
        path.unlink()
    return found


class MarkedReader(DataSourceReader):
    """Another reader, whose reads are counted and whose process is watched."""

    def __init__(self, inner: DataSourceReader) -> None:
        self.inner = inner

    def partitions(self) -> Any:
        return self.inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with watched() as seen:
            yield from self.inner.read(partition)
        mark(f"{seen.idle} {seen.peak}")


@dataclass
class Memory:
    """Bytes of a process that are its own, before and at most."""

    idle: int
    peak: int


def own_memory() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) << 10


_idle: list[int] = []


@contextlib.contextmanager
def watched() -> Iterator[Memory]:
    if not _idle:
        _idle.append(own_memory())
    seen = Memory(_idle[0], own_memory())
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            seen.peak = max(seen.peak, own_memory())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


class MarkedSource(RocketMQDataSource):
    """The format as it is."""

    @classmethod
    def name(cls) -> str:
        return "marked"

    def reader(self, schema: StructType) -> DataSourceReader:
        return MarkedReader(super().reader(schema))


class PrebuiltSource(DataSource):
    """The same rows without any work: batches that exist are handed over again."""

    FORMAT: ClassVar = "prebuilt"

    @classmethod
    def name(cls) -> str:
        return cls.FORMAT

    def schema(self) -> StructType:
        return spark_schema(parse({}))

    def reader(self, schema: StructType) -> DataSourceReader:
        return MarkedReader(PrebuiltReader(self.options["file"], int(self.options["rows"])))


class PrebuiltReader(DataSourceReader):
    """Hands over the batches of a file until there are enough rows."""

    def __init__(self, file: str, rows: int) -> None:
        self.file, self.rows = file, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // QUEUES) for _ in range(QUEUES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(self.file) as stream:
            batches = list(stream)
        left: int = partition.value
        while left > 0:
            for batch in batches:
                yield batch if batch.num_rows <= left else batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    break


# Measuring


def drained(frame_of: Callable[[], Any], rows: int, tasks: int) -> float:
    """Rows a second into a sink that drops them."""
    marks()
    start = time.perf_counter()
    frame_of().write.format("noop").mode("overwrite").save()
    rate = rows / (time.perf_counter() - start)
    if len(marks()) != tasks:
        raise RuntimeError("a result came without reading")
    return rate


def prebuilt(mq: EmbeddedBroker, topic: str, folder: Path) -> str:
    """A file with the batches of the first rows of a topic."""
    settings = parse({"nameServer": mq.name_server, "topic": topic, "maxRecordsPerPartition": "50000"}, Scope.READ)
    reader = RocketMQBatchReader(settings, tuple(spark_schema(settings).fieldNames()))
    batches = list(reader.read(reader.partitions()[0]))
    path = folder / f"{topic}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return str(path)


def reads(spark: SparkSession, mq: EmbeddedBroker, body_size: int, folder: Path) -> list[Ratio]:
    """Online and offline against the ceiling."""
    topic, rows = f"Read{body_size}", ROWS[body_size]
    mq.create_topic(topic, queues=QUEUES)
    fill(mq.address, topic, body_size, rows)
    file = prebuilt(mq, topic, folder)

    def ceiling() -> float:
        made = spark.read.format("prebuilt").option("file", file).option("rows", str(rows))
        return drained(made.load, rows, QUEUES)

    def online() -> float:
        made = spark.read.format("marked").option("nameServer", mq.name_server).option("topic", topic)
        return drained(made.load, rows, QUEUES)

    def offline() -> float:
        made = spark.read.format("marked").option("topic", topic).option("path", str(mq.store_path))
        made = made.option("splitBytes", str((body_size + 250) * rows // QUEUES * 2))
        return drained(made.load, rows, QUEUES)

    found = []
    for name, read in (("online", online), ("offline", offline)):
        read(), ceiling()  # connections, compiled loops, the page cache
        ours, baseline = in_turn(read, ceiling, rounds=ROUNDS)
        found.append(Ratio(f"spark read {name}, {body_size} B", ours, baseline, "rows/s", GOAL))
    return found


def memory(spark: SparkSession, mq: EmbeddedBroker) -> Ratio:
    """The most that an executor's Python grew by while one task read a large range."""
    topic = "Large"
    mq.create_topic(topic, queues=1)
    fill(mq.address, topic, LARGE_SIZE, LARGE_ROWS, queues=1)
    marks()
    made = spark.read.format("marked").option("nameServer", mq.name_server).option("topic", topic)
    made.load().write.format("noop").mode("overwrite").save()
    idle, peak = map(int, marks()[0].split())
    return Ratio(
        f"room of an executor, {LARGE_ROWS * LARGE_SIZE >> 20} MiB read",
        MEMORY_MAX,
        max(peak - idle, 1),
        "bytes",
        1.0,
    )


def session(folder: Path) -> SparkSession:
    """Two cores, and workers that find this module."""
    from pyspark.sql import SparkSession

    root = str(Path(__file__).parents[1])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ[MARKS] = str(folder / "marks")
    (folder / "marks").mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(MarkedSource)
    spark.dataSource.register(PrebuiltSource)
    return spark


@contextlib.contextmanager
def quiet_broker() -> Iterator[EmbeddedBroker]:
    """A broker that does not fill a new cache for its sends, which takes half a minute, beside what is measured."""
    wanted = os.environ.get("RMQ_COMPILED")
    os.environ["RMQ_COMPILED"] = "0"
    try:
        mq = embedded(mappedFileSizeCommitLog=1 << 30).start()
    finally:
        del os.environ["RMQ_COMPILED"]
        if wanted is not None:
            os.environ["RMQ_COMPILED"] = wanted
    with contextlib.closing(mq):
        yield mq


def run() -> list[Ratio]:
    """Every ratio."""
    kernels.load()  # what workers find in their cache after a while
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as name, quiet_broker() as mq:
        spark = session(Path(name))
        try:
            found = [ratio for size in ROWS for ratio in reads(spark, mq, size, Path(name))]
            return [*found, memory(spark, mq)]
        finally:
            spark.stop()
