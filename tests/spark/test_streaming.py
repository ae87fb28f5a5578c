"""Streaming queries as users run them, on a session and a broker. C… are numbers of docs/connector-scenarios.md."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumerConnection
from support.ports import steady_port
from support.spark_world import World, bodies_of, broker_of_its_own, eventually
from support.threaded import Threaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def stream(spark: SparkSession, world: World, topic: str, **options: Any) -> DataFrame:
    given = {**world.options, "startingOffsets": "earliest", **options}
    named = {} if {"subscribe", "subscribePattern", "assign"} & set(given) else {"topic": topic}
    return (
        spark.readStream.format("rocketmq")
        .options(**named, **{key: str(value) for key, value in given.items() if value is not None})
        .load()
    )


@contextlib.contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def to_parquet(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return (
        writer.option("path", str(folder / "out")).trigger(**(trigger or {"processingTime": "0 seconds"})).start()
    )


def written(folder: Path) -> list[str]:
    """The bodies in the sink, sorted: of the files that Spark has committed, without asking Spark."""
    files: list[str] = []
    for log in (folder / "out" / "_spark_metadata").glob("[0-9]*"):
        files += [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
    paths = {unquote(urlsplit(path).path) for path in files}
    return sorted(body.decode() for path in paths for body in pq.read_table(path)["body"].to_pylist())


def finish(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(120)
    return query


def drain(spark: SparkSession, world: World, topic: str, folder: Path, **options: Any) -> StreamingQuery:
    """One run over what is there."""
    return finish(to_parquet(stream(spark, world, topic, **options), folder, availableNow=True))


def texts(*numbers: int) -> list[str]:
    return [f"{number:04d}" for number in numbers]


def durable_end(folder: Path) -> dict[str, Any]:
    """The end of the newest batch that Spark has committed."""
    checkpoint = folder / "checkpoint"
    committed = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    end = json.loads((checkpoint / "offsets" / str(committed)).read_text().splitlines()[-1])
    assert isinstance(end, dict)
    return end


def progress(world: World, group: str, topic: str, queues: int) -> dict[str, int | None]:
    return {str(queue): world.progress(group, topic, queue) for queue in range(queues)}


def members(world: World, group: str) -> list[str | None]:
    try:
        answer = world.channel.call(r.GetConsumerConnectionList(group))
    except BrokerError:
        return []
    return [each.client_id for each in ConsumerConnection.decode(answer.body).connection_set]


# Exactly once


def test_available_now_reads_everything_once_over_runs(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Two runs with messages in between, limited batches; the group is where the checkpoint is (C071, C076)."""
    topic, group = world.topic(queues=3), world.fresh("stream")
    sent: list[str] = []
    for run in range(2):
        more = texts(*range(100 * run, 100 * run + 40))
        world.send(topic, more, queues=3)
        sent += more
        query = drain(spark, world, topic, tmp_path, group=group, maxOffsetsPerTrigger=20)
        assert len([each for each in query.recentProgress if each["numInputRows"]]) >= 2
        assert written(tmp_path) == sent
        assert progress(world, group, topic, 3) == durable_end(tmp_path)["queues"][topic]["embedded"]
        eventually(lambda: not members(world, group), "the query left its group")
    drain(spark, world, topic, tmp_path, group=group)
    assert written(tmp_path) == sent


def test_a_running_query_follows_and_comes_back(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """ProcessingTime, stopped and started again; the group's progress is read after each batch (C151, C158)."""
    topic, group = world.topic(queues=2), world.fresh("stream")
    sent: list[str] = []
    for run in range(2):
        with running(to_parquet(stream(spark, world, topic, group=group), tmp_path)):
            for step in range(3):
                more = texts(*range(100 * run + 10 * step, 100 * run + 10 * step + 7))
                sent.extend(more)
                world.send(topic, more, queues=2)
                eventually(lambda: written(tmp_path) == sorted(sent), f"{len(sent)} rows")
                eventually(
                    lambda: sum(each or 0 for each in progress(world, group, topic, 2).values()) == len(sent),
                    "the group is behind them",
                )
                assert progress(world, group, topic, 2) == durable_end(tmp_path)["queues"][topic]["embedded"]
                assert len(members(world, group)) == 1
        eventually(lambda: not members(world, group), "the query left its group", timeout_s=10)


@pytest.mark.parametrize("point", ["planned", "tasks", "sink"])
def test_a_query_that_dies_reads_the_same_again(
    spark: SparkSession, world: World, tmp_path: Path, point: str
) -> None:
    """It dies behind the plan, in a task, or when the sink has the rows and Spark no commit (C155)."""
    topic, group = world.topic(queues=2), world.fresh("stream")
    world.send(topic, texts(*range(20)), queues=2)
    drain(spark, world, topic, tmp_path, group=group)
    before = progress(world, group, topic, 2)
    world.send(topic, texts(*range(20, 50)), queues=2)
    rows = stream(spark, world, topic, group=group)
    if point == "tasks":
        rows = rows.withColumn("body", f.expr("IF(CAST(body AS STRING) >= '0030', raise_error('dies'), body)"))
    query = to_parquet(rows, tmp_path, availableNow=True)
    if point == "tasks":
        with pytest.raises(StreamingQueryException, match="dies"):
            query.awaitTermination(120)
    else:
        finish(query)
        # As if the process had ended before Spark wrote that the batch is done.
        (last,) = [path for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name == "1"]
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        if point == "planned":
            sink = tmp_path / "out" / "_spark_metadata"
            (sink / "1").unlink()
            (sink / ".1.crc").unlink(missing_ok=True)
    if point == "tasks":
        assert progress(world, group, topic, 2) == before
    world.send(topic, texts(*range(50, 60)), queues=2)
    drain(spark, world, topic, tmp_path, group=group)
    assert written(tmp_path) == texts(*range(60))
    assert progress(world, group, topic, 2) == durable_end(tmp_path)["queues"][topic]["embedded"]


def test_a_deleted_checkpoint_goes_on_from_the_group(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """A new query with the default starting offsets begins where the group is (C160)."""
    topic, group = world.topic(queues=1), world.fresh("stream")
    world.send(topic, texts(1, 2, 3), queue=0)
    drain(spark, world, topic, tmp_path / "one", group=group)
    world.send(topic, texts(4, 5), queue=0)
    drain(spark, world, topic, tmp_path / "two", group=group, startingOffsets=None)
    assert written(tmp_path / "two") == texts(4, 5)


def test_once_ignores_limits(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """One batch with everything, whatever the options say (C054)."""
    topic = world.topic(queues=2)
    world.send(topic, texts(*range(30)), queues=2)
    rows = stream(spark, world, topic, maxOffsetsPerTrigger=5)
    query = finish(to_parquet(rows, tmp_path, once=True))
    assert written(tmp_path) == texts(*range(30))
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [30]


# Filters, resets, new queues


@pytest.mark.parametrize("how", [{"tags": "paid"}, {"sql": "TAGS = 'paid'"}])
def test_a_filtered_stream_reads_every_match_once(
    spark: SparkSession, world: World, tmp_path: Path, how: dict[str, str]
) -> None:
    """Every tenth message matches; offsets have holes, and the group's progress passes them (C085)."""
    topic, group = world.topic(queues=2), world.fresh("stream")
    world.send(
        topic,
        texts(*range(200)),
        queues=2,
        properties=lambda number: {"TAGS": "paid" if number % 10 == 0 else "new"},
    )
    drain(spark, world, topic, tmp_path, group=group, maxOffsetsPerTrigger=120, **how)
    assert written(tmp_path) == texts(*range(0, 200, 10))
    assert progress(world, group, topic, 2) == {"0": 100, "1": 100}


def test_a_reset_moves_a_running_query(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Reset by time to the beginning while it runs: it reads everything again, and goes on."""
    topic, group = world.topic(queues=2), world.fresh("stream")
    world.send(topic, texts(*range(10)), queues=2)
    with running(to_parquet(stream(spark, world, topic, group=group), tmp_path)):
        eventually(lambda: written(tmp_path) == texts(*range(10)), "the first rows")
        eventually(lambda: progress(world, group, topic, 2) == {"0": 5, "1": 5}, "they are stored")
        world.channel.call(r.InvokeBrokerToResetOffset(topic, group, 0, is_force=True))
        eventually(lambda: written(tmp_path) == sorted(texts(*range(10)) * 2), "all of them again")
        world.send(topic, texts(10), queue=0)
        eventually(lambda: len(written(tmp_path)) == 21, "the query goes on")
        eventually(lambda: progress(world, group, topic, 2) == {"0": 6, "1": 5}, "progress goes on")
    # A replay of the batch that followed the reset, from its checkpoint alone.
    ends = [
        json.loads(path.read_text().splitlines()[-1]) for path in (tmp_path / "checkpoint/offsets").glob("[0-9]*")
    ]
    assert [end["seek"][topic]["embedded"] for end in ends if "seek" in end] == [{"0": 0, "1": 0}]


def test_queues_and_topics_that_come_are_read_from_their_start(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """A pattern from `latest`: more queues, and a topic that is made while the query runs (C011, C095, C096)."""
    stem = world.fresh("orders")
    world.topic(name=f"{stem}-a", queues=1)
    rows = stream(spark, world, "", subscribePattern=f"{stem}-.*", startingOffsets="latest", group=world.fresh("g"))
    with running(to_parquet(rows, tmp_path)) as query:
        eventually(lambda: query.lastProgress, "the first batch")
        world.topic(name=f"{stem}-a", queues=3)
        world.topic(name=f"{stem}-b", queues=1)
        world.send(f"{stem}-a", texts(1, 2), queue=2)
        world.send(f"{stem}-b", texts(3), queue=0)
        eventually(lambda: written(tmp_path) == texts(1, 2, 3), "rows of new queues and topics")


# Progress and errors


def test_an_idle_query_writes_nothing_and_stops_while_its_broker_hangs(
    spark: SparkSession, running: Threaded, tmp_path: Path
) -> None:
    """A pattern from `latest` behind an old message: three rows are counted as three, then nothing comes, and then
    the broker takes requests without an answer; the process that planned is gone with the query (C064, C066, C219).
    """
    cluster = running
    cluster.send("Orders", [b"old"])
    with cluster.proxy() as proxy:
        options = {
            "nameServer": cluster.name_server, "subscribePattern": "Ord.*", "startingOffsets": "latest",
            "brokerAddressMap": f"{cluster.broker.address}={proxy.address}", "group": "idle",
        }  # fmt: skip
        rows = spark.readStream.format("rocketmq").options(**options).load()
        before = planners()
        spark.conf.set("spark.sql.streaming.stopTimeout", "30s")
        try:
            query = to_parquet(rows, tmp_path / "query")
            eventually(lambda: query.recentProgress, "the first batch")
            assert planners() > before
            cluster.send("Orders", [b"1", b"2", b"3"])
            eventually(lambda: written(tmp_path / "query") == ["1", "2", "3"], "the rows")
            log = tmp_path / "query" / "checkpoint" / "offsets"
            offsets = sorted(path.name for path in log.iterdir())
            threading.Event().wait(3)
            assert sorted(path.name for path in log.iterdir()) == offsets
            assert sum(each["numInputRows"] for each in query.recentProgress) == 3
            proxy.stall()
        finally:
            query.stop()
            spark.conf.unset("spark.sql.streaming.stopTimeout")
        eventually(lambda: planners() <= before, "the planning process is gone", timeout_s=20)


def planners() -> set[int]:
    """Processes below this one that answer Spark's questions about streaming sources."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents[int(folder.name)] = parent, (folder / "cmdline").read_text()
    found: set[int] = set()
    for process, (above, command) in parents.items():
        while above in parents and above != os.getpid():
            above = parents[above][0]  # noqa: PLW2901
        if above == os.getpid() and "streaming" in command:
            found.add(process)
    return found


def test_a_self_join_reads_the_stream_as_two_sources(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Four messages: each branch is a source with a place in the offset log, and a stranger in a group (C212)."""
    topic, group = world.topic(queues=1), world.fresh("join")
    world.send(topic, texts(1, 2, 3, 4), queue=0)

    def joined(folder: Path, **options: str) -> StreamingQuery:
        rows = stream(spark, world, topic, group=group, **options).select("body", "queueOffset")
        both = rows.join(rows.withColumnRenamed("body", "other"), "queueOffset").select("body")
        return to_parquet(both, folder, availableNow=True)

    with pytest.raises(StreamingQueryException, match="joined with itself"):
        joined(tmp_path / "one").awaitTermination(60)
    query = finish(joined(tmp_path / "two", sharedGroup="true"))
    assert written(tmp_path / "two") == texts(1, 2, 3, 4)
    assert sum(each["numInputRows"] for each in query.recentProgress) == 8
    for path in (tmp_path / "two" / "checkpoint" / "offsets").glob("[0-9]*"):
        assert len(path.read_text().splitlines()) == 4  # version, the query's own line, two sources
    assert progress(world, group, topic, 1) == {"0": 4}


def test_progress_shows_true_lag(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """A limited query behind its backlog: latestOffset is the queue's end, endOffset what was read (C223)."""
    topic = world.topic(queues=1)
    world.send(topic, texts(*range(20)), queue=0)
    rows = stream(spark, world, topic, maxOffsetsPerTrigger=6)
    query = finish(to_parquet(rows, tmp_path, availableNow=True))
    first = next(each for each in query.recentProgress if each["numInputRows"])
    (source,) = first["sources"]
    latest, end = (
        json.loads(_text(source[name]))["queues"][topic]["embedded"]["0"] for name in ("latestOffset", "endOffset")
    )
    assert (end, latest) == (6, 20)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def test_a_group_in_use_is_refused_by_name(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """A second query in the group of a running one; its own group keeps its one member."""
    topic, group = world.topic(queues=1), world.fresh("stream")
    with running(to_parquet(stream(spark, world, topic, group=group), tmp_path / "one")) as query:
        eventually(lambda: members(world, group), "the first query is a member")
        second = to_parquet(stream(spark, world, topic, group=group), tmp_path / "two")
        with pytest.raises(StreamingQueryException, match="ROCKETMQ_GROUP_IN_USE"):
            second.awaitTermination(60)
        assert query.isActive
        assert len(members(world, group)) == 1


def test_a_watermark_and_a_window_hold(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """A windowed count over the store time, in an aggregating query with state (C168)."""
    topic = world.topic(queues=2)
    world.send(topic, texts(*range(9)), queues=2)
    counted = (
        stream(spark, world, topic)
        .withWatermark("storeTimestamp", "10 seconds")
        .groupBy(f.window("storeTimestamp", "1 day"))
        .count()
        .select("count")
    )
    name = world.fresh("counts").replace("-", "_")
    writer = counted.writeStream.format("memory").queryName(name).outputMode("complete")
    finish(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
    total = spark.table(name).agg(f.sum("count").alias("count"))
    assert_df_equality(total, spark.createDataFrame([(9,)], "count long"), ignore_nullable=True)


def test_a_broker_that_restarts_under_a_query_costs_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Killed and started again on the same files and ports while batches run: every row once."""
    store, ports = tmp_path / "store", {"listenPort": steady_port(), "namesrvPort": steady_port()}
    settings: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH", **ports}
    sent = texts(*range(60))
    folder = tmp_path / "query"
    with broker_of_its_own(store=store, **settings) as world:
        topic = world.topic(queues=2)
        world.send(topic, sent[:30], queues=2)
        query = to_parquet(stream(spark, world, topic, group="survivors", maxOffsetsPerTrigger=7), folder)
        eventually(lambda: written(folder) == sent[:30], "the first rows")
    with running(query), broker_of_its_own(store=store, **settings) as world:
        world.send(topic, sent[30:], queues=2)
        eventually(lambda: written(folder) == sent, "the rest", timeout_s=90)
        assert query.isActive
        eventually(lambda: progress(world, "survivors", topic, 2) == {"0": 30, "1": 30}, "progress is stored")
        eventually(lambda: members(world, "survivors"), "the query is a member again")


def test_foreach_batch_sees_the_same_rows_twice(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Two actions on one batch while messages arrive (C157)."""
    topic = world.topic(queues=2)
    world.send(topic, texts(*range(10)), queues=2)
    seen: list[tuple[list[str], list[str]]] = []

    def both(rows: DataFrame, _: int) -> None:
        first = bodies_of(rows.collect())
        world.send(topic, texts(99), queue=0)
        seen.append((first, bodies_of(rows.collect())))

    use: Callable[[DataFrame, int], None] = both
    writer = stream(spark, world, topic).writeStream.foreachBatch(use)
    finish(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
    assert seen == [(texts(*range(10)), texts(*range(10)))]
