"""The sink on a running broker. Scenario numbers are those of docs/connector-scenarios.md."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql import types as t

from rmq_core.protocol.message import decode_properties
from rmq_core.protocol.record import StoredRecord
from rmq_spark import writer
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Scope, parse
from rmq_spark.sink_dedup import DEDUP_PROPERTY
from rmq_spark.writer import RocketMQBatchWriter, RocketMQStreamWriter, Written
from support.sent import arrived
from support.spark_world import World, broker_of_its_own, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BODY = t.StructType([t.StructField("body", t.StringType())])
OF_BROKER = {"UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER", "WAIT", DEDUP_PROPERTY}


def save(rows: DataFrame, world: World, mode: str = "append", **options: str) -> None:
    rows.write.format("rocketmq").options(**world.options, **options).mode(mode).save()


def found(world: World, topic: str) -> list[StoredRecord]:
    return [record for records in arrived(world.mq.name_server, topic).values() for record in records]


def bodies(world: World, topic: str) -> list[str]:
    return sorted(record.body.decode() for record in found(world, topic))


def batch_of(values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string())], names=["body"])


def batch_writer(world: World, schema: t.StructType = BODY, **options: str) -> RocketMQBatchWriter:
    """The writer as an executor gets it."""
    made = RocketMQBatchWriter(parse({**world.options, **options}, Scope.WRITE), schema, False)
    again: RocketMQBatchWriter = pickle.loads(pickle.dumps(made))
    return again


# Batches


def test_a_dataframe_becomes_messages(spark: SparkSession, world: World) -> None:
    """C187, C197: maps of several sizes and null, text and bytes, tags and keys, read back by raw pulls."""
    topic = world.topic()
    rows = spark.createDataFrame(
        [
            (bytearray(b"\xff\x00"), "red", "k1 k2", {"a": "1"}, 7),
            (bytearray(b"two"), None, None, {"a": "1", "b": "ü"}, None),
            (bytearray(b"three"), "", None, {"x": "1", "y": "2"}, 0),
            (bytearray(b"four"), None, "k4", None, 1),
            (bytearray(b"five"), None, None, {"x": "1", "y": "2", "z": "3"}, -1),
        ],
        "body binary, tags string, keys string, properties map<string,string>, flag int",
    )
    save(rows, world, topic=topic)
    messages = {record.body: record for record in found(world, topic)}
    own = {
        body: {name: value for name, value in record.properties.items() if name not in OF_BROKER}
        for body, record in messages.items()
    }
    assert own == {
        b"\xff\x00": {"TAGS": "red", "KEYS": "k1 k2", "a": "1"},
        b"two": {"a": "1", "b": "ü"},
        b"three": {"x": "1", "y": "2"},
        b"four": {"KEYS": "k4"},
        b"five": {"x": "1", "y": "2", "z": "3"},
    }
    assert (messages[b"\xff\x00"].flag, messages[b"five"].flag) == (7, -1)
    assert len({record.properties["UNIQ_KEY"] for record in messages.values()}) == 5


def test_every_row_of_every_task_arrives_once(spark: SparkSession, world: World) -> None:
    """C188, C191: 999 rows through to_json, then 30,000 in 7 partitions over 4 queues."""
    topic, large = world.topic(), world.topic()
    save(spark.range(1, 1000).select(f.to_json(f.struct("*")).alias("body")), world, topic=topic)
    assert Counter(bodies(world, topic)) == Counter(f'{{"id":{number}}}' for number in range(1, 1000))
    save(spark.range(0, 30_000, 1, 7).selectExpr("cast(id AS string) AS body"), world, topic=large)
    by_queue = arrived(world.mq.name_server, large)
    assert Counter(int(record.body) for records in by_queue.values() for record in records) == Counter(
        range(30_000)
    )
    assert all(by_queue.values())


def test_rows_of_the_source_can_be_written_as_they_are(spark: SparkSession, world: World) -> None:
    """C179: reads a topic and writes its rows to another: queues, tags and properties must agree."""
    source, target = world.topic(), world.topic()
    world.send(
        source, [f"m{number}" for number in range(40)], properties=lambda n: {"TAGS": f"t{n % 3}", "n": str(n)}
    )
    rows = spark.read.format("rocketmq").options(**world.options, topic=source, includeProperties="true").load()
    save(rows.drop("topic"), world, topic=target)
    copied = spark.read.format("rocketmq").options(**world.options, topic=target, includeProperties="true").load()

    def seen(frame: DataFrame) -> set[tuple[Any, ...]]:
        columns = ("queueId", "body", "tags", "keys")
        return {(*(row[name] for name in columns), row["properties"]["n"]) for row in frame.collect()}

    assert seen(rows) == seen(copied)
    assert rows.count() == copied.count() == 40


def test_one_sharding_key_is_one_queue_in_the_order_of_the_rows(spark: SparkSession, world: World) -> None:
    """C190, C198: 6,000 rows of 20 keys, numbered; orderBy names the column."""
    topic = world.topic(queues=8)
    rows = spark.range(0, 6_000, 1, 1).selectExpr("concat(id % 20, ':', id) AS body", "id % 20 AS customer")
    save(rows, world, topic=topic, orderBy="customer", batchSize="100")
    seen: dict[str, list[int]] = {}
    queue_of: dict[str, set[int]] = {}
    for queue, records in arrived(world.mq.name_server, topic).items():
        for record in records:
            customer, number = record.body.decode().split(":")
            seen.setdefault(customer, []).append(int(number))
            queue_of.setdefault(customer, set()).add(queue.queue_id)
    assert len(seen) == 20
    assert all(numbers == sorted(numbers) and len(numbers) == 300 for numbers in seen.values())
    assert all(len(queues) == 1 for queues in queue_of.values())
    assert len(set.union(*queue_of.values())) > 1


def test_compressed_bodies_come_back_as_they_were(spark: SparkSession, world: World) -> None:
    """Small and large bodies with each kind of compression, read by the source."""
    for kind in ("zlib", "lz4", "zstd"):
        topic = world.topic()
        rows = spark.range(0, 50).selectExpr("repeat(cast(id AS string), cast(id * 300 + 1 AS int)) AS body")
        save(rows, world, topic=topic, compression=kind)
        back = spark.read.format("rocketmq").options(**world.options, topic=topic).load()
        assert sorted(bytes(row["body"]) for row in back.collect()) == sorted(
            row["body"].encode() for row in rows.collect()
        )
        assert max(record.size for record in found(world, topic)) < 5_000


def test_a_namespace_is_put_before_topics(spark: SparkSession, world: World) -> None:
    """Writes with one, and looks for the topic on the wire."""
    topic = world.fresh("N")
    save(spark.range(3).selectExpr("'x' AS body"), world, topic=topic, namespace="shop")
    records = found(world, f"shop%{topic}")
    assert [record.properties["INSTANCE_ID"] for record in records] == ["shop"] * 3


@pytest.mark.parametrize(
    ("mode", "said"),
    [("overwrite", "ROCKETMQ_UNSUPPORTED"), ("ignore", "SAVE_MODE"), ("errorifexists", "SAVE_MODE")],
)
def test_only_append_can_write(spark: SparkSession, world: World, mode: str, said: str) -> None:
    """C180: every other mode is refused, and nothing arrives."""
    topic = world.topic()
    with pytest.raises(PySparkException, match=said):
        save(spark.range(3).selectExpr("'x' AS body"), world, mode, topic=topic)
    assert bodies(world, topic) == []


def test_wrong_columns_fail_the_query_before_any_row(spark: SparkSession, world: World) -> None:
    """C174, C175: neither topic nor body; the rest of the cases is in tests/unit/test_sink_rows.py."""
    with pytest.raises(AnalysisException, match=r"ROCKETMQ_BAD_OPTION.*give the option topic, or a column topic"):
        save(spark.range(3).selectExpr("'x' AS body"), world)
    with pytest.raises(AnalysisException, match=r"ROCKETMQ_BAD_COLUMN.*needs the column body"):
        save(spark.range(3), world, topic=world.topic())


# One task


def test_a_task_without_rows_opens_no_connection(world: World) -> None:
    """C193: the name server does not exist, and the batches are none, or empty."""
    settings = parse({"nameServer": "127.0.0.1:1", "topic": "T"}, Scope.WRITE)
    nothing = RocketMQBatchWriter(settings, BODY, False)
    assert nothing.write(iter([])) == Written(0, 0, 0)
    assert nothing.write(iter([batch_of([]), batch_of([])])) == Written(0, 0, 0)


def test_tasks_of_a_process_share_a_connection_and_a_failed_one_is_not_kept(world: World) -> None:
    """C200, C201: a second task takes the sender of the first; other settings, and a failure, make a new one."""
    topic = world.topic()
    task, other = batch_writer(world, topic=topic), batch_writer(world, topic=topic, sendTimeoutMs="3001")
    task.write(iter([batch_of(["a"])]))
    senders = {id(sender) for kept in writer._idle.values() for sender in kept}
    task.write(iter([batch_of(["b"])]))
    assert {id(sender) for kept in writer._idle.values() for sender in kept} == senders
    other.write(iter([batch_of(["c"])]))
    assert {id(sender) for kept in writer._idle.values() for sender in kept} > senders
    [mine] = [kept for key, kept in writer._idle.items() if 3001 in key]
    with pytest.raises(SparkRocketMQError):
        other.write(iter([batch_of(["d", None])]))
    assert mine == []
    assert bodies(world, topic) == ["a", "b", "c"]


def test_a_task_tried_again_gives_consumers_what_drops_the_repeats(world: World) -> None:
    """C192: the rows end in an error after some were sent; the second attempt has them in another order."""
    topic = world.topic()
    task = batch_writer(world, topic=topic)
    values = [f"row-{number % 400}" for number in range(1_000)]

    def failing() -> Iterator[pa.RecordBatch]:
        for start in range(0, 600, 100):
            yield batch_of(values[start : start + 100])
        raise OSError("the executor is lost")

    with pytest.raises(OSError, match="the executor is lost"):
        task.write(failing())
    shuffled = random.Random(7).sample(values, len(values))
    assert task.write(iter([batch_of(shuffled[:300]), batch_of(shuffled[300:])])).rows == 1_000
    records = found(world, topic)
    assert len(records) > 1_000
    by_identity = {record.properties[DEDUP_PROPERTY]: record.body.decode() for record in records}
    assert Counter(by_identity.values()) == Counter(values)


def test_a_body_over_the_brokers_limit_fails_the_task_with_size_and_limit(world: World) -> None:
    """C199: 5 MB, where 4 MB are allowed; a message of nearly 4 MB goes through."""
    topic = world.topic()
    task = batch_writer(world, topic=topic)
    assert task.write(iter([batch_of(["x" * (4_000_000), "small"])])).rows == 2
    with pytest.raises(
        SparkRocketMQError, match=r"ROCKETMQ_SEND_FAILED.*5\d{6}.*4194304.*maxMessageSize"
    ) as caught:
        task.write(iter([batch_of(["x" * 5_000_000])]))
    assert caught.value.condition is Condition.SEND_FAILED
    with pytest.raises(SparkRocketMQError, match=r"ROCKETMQ_BAD_ROW.*a request holds"):
        task.write(iter([batch_of(["x" * 17_000_000])]))
    assert sorted(len(record.body) for record in found(world, topic)) == [5, 4_000_000]


def test_a_topic_is_made_where_the_broker_allows_it_and_named_where_not(world: World) -> None:
    """C196: auto-creation is on by default; a broker without it names the topic."""
    topic = world.fresh("Auto")
    batch_writer(world, topic=topic).write(iter([batch_of(["a", "b"])]))
    assert bodies(world, topic) == ["a", "b"]
    unknown = pytest.raises(SparkRocketMQError, match=r"ROCKETMQ_UNKNOWN_TOPIC.*topic Missing does not exist")
    with broker_of_its_own(autoCreateTopicEnable=False) as strict, unknown:
        batch_writer(strict, topic="Missing").write(iter([batch_of(["a"])]))


def test_nobody_at_the_name_server_is_told_with_its_address() -> None:
    """C148: a port where nothing listens."""
    task = RocketMQBatchWriter(parse({"nameServer": "127.0.0.1:1", "topic": "T"}, Scope.WRITE), BODY, False)
    with pytest.raises(SparkRocketMQError, match=r"ROCKETMQ_UNREACHABLE.*127\.0\.0\.1:1"):
        task.write(iter([batch_of(["a"])]))


def test_delayed_rows_come_later_and_timed_ones_not_at_once(world: World) -> None:
    """Level 1 is a second. Our broker has no timer: it must refuse a delivery time rather than deliver early."""
    topic = world.topic(queues=1)
    schema = BODY.add("delayTimeLevel", t.IntegerType()).add("deliverTime", t.LongType())
    rows = [pa.array(["late", "now"]), pa.array([1, 0], pa.int32()), pa.array([None, None], pa.int64())]
    task = batch_writer(world, schema, topic=topic)
    task.write(iter([pa.record_batch(rows, names=schema.names)]))
    eventually(lambda: len(found(world, topic)) == 2, "the delayed message")
    now, late = found(world, topic)
    assert (now.body, late.body) == (b"now", b"late")
    assert late.store_time_ms - late.born_time_ms >= 1_000
    rows[2] = pa.array([None, 1_900_000_000_000], pa.int64())
    with pytest.raises(SparkRocketMQError, match="ROCKETMQ_SEND_FAILED"):
        task.write(iter([pa.record_batch(rows, names=schema.names)]))


def test_commit_and_abort_say_how_much_was_sent(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Both run on another copy, with what the tasks returned, a task without an answer among them."""
    settings = parse({**world.options, "topic": "T"}, Scope.STREAM_WRITE)
    stream = RocketMQStreamWriter(settings, BODY, True)
    messages = [pickle.loads(pickle.dumps(Written(0, 5, 1))), None, Written(2, 7, 1)]
    with caplog.at_level("INFO", "rmq_spark.writer"):
        stream.commit(messages, 3)
        stream.abort(messages, 4)
        batch = batch_writer(world, topic="T")
        batch.commit(messages)
        batch.abort(messages)
    assert [record.getMessage().count("12 messages") for record in caplog.records] == [1] * 4
    assert "micro-batch 3" in caplog.text


# Streams


def lines(spark: SparkSession, folder: Path, *values: str) -> DataFrame:
    """A stream of the lines of the files in a folder, and one more file."""
    folder.mkdir(exist_ok=True)
    (folder / f"{len(list(folder.iterdir()))}.txt").write_text("\n".join(values))
    return spark.readStream.text(str(folder))


def run(rows: DataFrame, world: World, checkpoint: Path, mode: str = "append", **options: str) -> StreamingQuery:
    """Write everything there is, and end."""
    query = (
        rows.writeStream.format("rocketmq")
        .options(**world.options, **options, checkpointLocation=str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_writes_by_column_and_by_option(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """C184, C185, C186, C194: five rows and five more by a column of topics; then the option beats it."""
    topic, other = world.topic(), world.topic()
    rows = lines(spark, tmp_path / "in", *"abcde").selectExpr("value AS body", f"'{topic}' AS topic")
    first = run(rows, world, tmp_path / "ckpt")
    assert bodies(world, topic) == list("abcde")
    assert [each["sink"]["numOutputRows"] for each in first.recentProgress] == [5]
    lines(spark, tmp_path / "in", *"fghij")
    run(rows, world, tmp_path / "ckpt")
    assert bodies(world, topic) == list("abcdefghij")
    never = rows.withColumn("topic", f.lit("NeverMade"))
    run(never, world, tmp_path / "ckpt-2", topic=other)
    assert bodies(world, other) == list("abcdefghij")
    with pytest.raises(Exception, match="NeverMade"):
        arrived(world.mq.name_server, "NeverMade")


def test_complete_mode_sends_the_whole_result_each_time(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """C195: counts in two micro-batches; update mode is refused by Spark."""
    topic = world.topic()
    counts = lines(spark, tmp_path / "in", "a", "b", "a").groupBy("value").count()
    rows = counts.selectExpr("concat(value, '=', count) AS body")
    run(rows, world, tmp_path / "ckpt", "complete", topic=topic)
    assert bodies(world, topic) == ["a=2", "b=1"]
    lines(spark, tmp_path / "in", "b", "c")
    run(rows, world, tmp_path / "ckpt", "complete", topic=topic)
    assert bodies(world, topic) == ["a=2", "a=2", "b=1", "b=2", "c=1"]
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        run(rows, world, tmp_path / "ckpt-2", "update", topic=topic)


def test_a_micro_batch_that_is_run_again_repeats_its_identities(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """C178, C192: a row without a topic fails the query late; repaired and restarted, every row is there."""
    topic = world.topic()
    repaired = tmp_path / "repaired"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        rows = lines(spark, tmp_path / "in", *[f"row-{number % 70}" for number in range(100)], "poison")

        def topics(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                values = batch.column(0).to_pylist()
                named = [topic if value != "poison" or repaired.exists() else None for value in values]
                yield pa.record_batch([batch.column(0), pa.array(named, pa.string())], names=["body", "topic"])

        mapped = rows.mapInArrow(topics, "body string, topic string")
        with pytest.raises(StreamingQueryException, match=r"ROCKETMQ_BAD_ROW.*column topic is None.*option topic"):
            run(mapped, world, tmp_path / "ckpt")
        repaired.touch()
        run(mapped, world, tmp_path / "ckpt")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    records = found(world, topic)
    by_identity = {record.properties[DEDUP_PROPERTY]: record.body.decode() for record in records}
    wanted = Counter([f"row-{number % 70}" for number in range(100)] + ["poison"])
    assert Counter(by_identity.values()) == wanted
    assert len(records) > 101
    assert all(decode_properties(record.property_bytes)["UNIQ_KEY"] for record in records)
