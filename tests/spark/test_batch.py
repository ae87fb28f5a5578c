"""Batch reads from a running broker. Scenario numbers are those of docs/connector-scenarios.md."""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import InputPartition

from rmq_core.client.queue_client import QueueClient
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.compression import CompressionType, compress
from rmq_core.protocol.message import MessageQueue
from rmq_spark.batch_reader import RocketMQBatchReader, bounds
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Scope, parse
from rmq_spark.rows import checked_columns, spark_schema
from support.spark_world import World, bodies_of, broker_of_its_own, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, world: World, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**world.options, **options).load()


def reader(world: World, **options: str) -> RocketMQBatchReader:
    """The reader that Spark would make, in this process."""
    settings = parse({**world.options, **options}, Scope.READ)
    return RocketMQBatchReader(settings, checked_columns(spark_schema(settings), settings))


def rows(world: World, **options: str) -> list[dict[str, Any]]:
    """Every row as Spark would get them, by way of the reader alone."""
    made = reader(world, **options)
    return [row for partition in made.partitions() for batch in made.read(partition) for row in batch.to_pylist()]


def bodies(found: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in found]


def starts(topic: str, numbers: dict[int, int], broker: str = "embedded") -> str:
    return json.dumps({topic: {broker: {str(queue): offset for queue, offset in numbers.items()}}})


def fill(world: World, *sizes: int) -> str:
    """A topic whose queues hold so many messages, b"<queue>-<offset>"."""
    topic = world.topic(queues=len(sizes))
    for queue, size in enumerate(sizes):
        world.send(topic, [f"{queue}-{number}" for number in range(size)], queue=queue)
    return topic


# Through Spark


def test_a_load_gives_every_message_once_with_its_values(spark: SparkSession, world: World) -> None:
    """C014, C111, C162, C163: values of each default column, absent tags and keys included."""
    topic = world.topic(queues=3)
    world.send(topic, [b"one"], queue=0, properties={"TAGS": "red", "KEYS": "k1 k2", "UNIQ_KEY": "ID1", "p": "x"})
    world.send(topic, [b"two", b"three"], queue=1)
    found = {bytes(row["body"]): row for row in load(spark, world, topic=topic, includeProperties="true").collect()}
    assert set(found) == {b"one", b"two", b"three"}
    one, two = found[b"one"], found[b"two"]
    assert (one["topic"], one["broker"], one["queueId"], one["queueOffset"]) == (topic, "embedded", 0, 0)
    assert (one["tags"], one["keys"], one["msgId"]) == ("red", "k1 k2", "ID1")
    assert one["properties"]["p"] == "x"
    assert one["bornTimestamp"].timestamp() == 1_700_000_000
    assert one["storeTimestamp"] > one["bornTimestamp"]
    assert (two["tags"], two["keys"]) == (None, None)
    assert found[b"three"]["queueOffset"] == 1


def test_two_actions_see_one_range_and_a_new_load_the_news(spark: SparkSession, world: World) -> None:
    """C016, C017: messages arrive between the actions; a union reads everything twice."""
    topic = fill(world, 6, 5)
    frame = load(spark, world, topic=topic)
    assert frame.count() == 11
    world.send(topic, ["late"], queue=0)
    assert frame.count() == 11
    assert Counter(bodies_of(frame.union(frame).collect())) == dict.fromkeys(bodies_of(frame.collect()), 2)
    assert load(spark, world, topic=topic).count() == 12


def test_columns_and_schemas_ask_for_what_is_read(spark: SparkSession, world: World) -> None:
    """C167: a subset in any order, by the option and by .schema(); the values stay."""
    topic = fill(world, 3)
    plain = spark.read.format("rocketmq").options(**world.options, topic=topic)
    by_option = load(spark, world, topic=topic, columns="queueOffset, body")
    by_schema = plain.schema("queueOffset bigint, body binary").load()
    assert by_option.schema == by_schema.schema
    assert [tuple(row) for row in by_option.collect()] == [tuple(row) for row in by_schema.collect()]
    assert by_option.columns == ["queueOffset", "body"]
    with pytest.raises(Exception, match=r"BAD_COLUMN.*nothing"):
        plain.schema("nothing int").load().collect()
    with pytest.raises(Exception, match=r"BAD_COLUMN.*queueId is int"):
        spark.read.format("rocketmq").schema("queueId bigint").options(
            **world.options, topic=topic
        ).load().collect()


def test_a_limit_ends_the_read_early_and_leaves_no_thread(spark: SparkSession, world: World) -> None:
    """take() closes the iterator in the middle; the same worker reads on afterwards."""
    topic = fill(world, 5000)
    frame = load(spark, world, topic=topic)
    assert [len(frame.take(3)) for _ in range(5)] == [3] * 5
    assert frame.count() == 5000


def test_at_least_the_asked_number_of_tasks_reads_all(spark: SparkSession, world: World) -> None:
    """C123: queues of 10, 10 and 1 in six tasks or more."""
    topic = fill(world, 10, 10, 1)
    frame = load(spark, world, topic=topic, minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    assert len(set(bodies_of(frame.collect()))) == 21


def test_options_are_refused_at_load_with_their_name(spark: SparkSession, world: World) -> None:
    """C139, C140: before any action."""
    with pytest.raises(Exception, match=r"ROCKETMQ_BAD_OPTION.*maxOffsetsPerTrigger"):
        load(spark, world, topic="T", maxOffsetsPerTriger="5")
    with pytest.raises(Exception, match=r"ROCKETMQ_BAD_OPTION.*nameServer"):
        spark.read.format("rocketmq").option("topic", "T").load()


# The reader in this process


def test_the_names_of_queues_may_be_given_in_four_ways(world: World) -> None:
    """C001, C091-C094: two topics of one stem, and one beside them that nobody asked for."""
    stem = world.fresh("orders")
    first, second = (
        world.topic(queues=3, name=f"{stem}.a".replace(".", "_")),
        world.topic(queues=2, name=f"{stem}_b"),
    )
    other = world.topic(queues=1)
    for topic, queues in ((first, 3), (second, 2), (other, 1)):
        world.send(topic, [f"{topic}/{number}" for number in range(queues)], queues=queues)
    expected = {f"{first}/{number}".encode() for number in range(3)}
    both = expected | {f"{second}/{number}".encode() for number in range(2)}
    assert set(bodies(rows(world, topic=first))) == expected
    assert set(bodies(rows(world, subscribe=f"{first}, {second},"))) == both
    assert set(bodies(rows(world, subscribePattern=f"{stem}_[ab]"))) == both
    assigned = json.dumps({first: {"embedded": [0, 2]}})
    assert set(bodies(rows(world, assign=assigned))) == expected - {f"{first}/1".encode()}


def test_a_pattern_never_meets_topics_of_rocketmq(world: World) -> None:
    """C097: everything that a broker makes for itself is there, and `.*` matches it."""
    topic = fill(world, 1)
    settings = parse({**world.options, "subscribePattern": ".*"}, Scope.READ)
    with QueueClient(settings.client_options()) as client:
        start, _ = bounds(client, settings)
        known = client.topics()
    names = {queue.topic for queue in start}
    assert topic in names
    assert {"TBW102", "DefaultCluster", "embedded", "SCHEDULE_TOPIC_XXXX"} <= set(known)
    assert not names & {"TBW102", "DefaultCluster", "embedded", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC"}
    assert not [name for name in names if name.startswith(("%", "rmq_sys_", "RMQ_SYS_"))]


def test_missing_topics_and_queues_are_named(world: World) -> None:
    """C092, C099: nothing is read of what is there."""
    topic = fill(world, 1)
    with pytest.raises(SparkRocketMQError, match="no-such-topic") as missing:
        reader(world, subscribe=f"{topic},no-such-topic", fetchRetryIntervalMs="0").partitions()
    assert missing.value.condition is Condition.UNKNOWN_TOPIC
    with pytest.raises(SparkRocketMQError, match=f"{topic}/embedded/7") as queue:
        reader(world, assign=json.dumps({topic: {"embedded": [0, 7]}})).partitions()
    assert queue.value.condition is Condition.UNKNOWN_QUEUE


def test_explicit_starts_and_ends(world: World) -> None:
    """C003, C015, C026, C128: -2, -1 and numbers; ends are exclusive; news come only where the end is open."""
    topic = fill(world, 10, 10, 10)
    options = {
        "topic": topic,
        "startingOffsets": starts(topic, {0: -2, 1: -2, 2: 0}),
        "endingOffsets": starts(topic, {0: -1, 1: -1, 2: 1}),
    }
    assert len(rows(world, **options)) == 21
    world.send(topic, ["more"] * 10, queue=1)
    assert len(rows(world, **options)) == 31
    one = {"assign": json.dumps({topic: {"embedded": [2]}})}
    found = rows(world, **one, startingOffsets=starts(topic, {2: 1}), endingOffsets=starts(topic, {2: 4}))
    assert [row["queueOffset"] for row in found] == [1, 2, 3]


def test_offsets_must_name_exactly_the_queues(world: World) -> None:
    """C004, C005, C040: one too few, one too many, and times likewise."""
    topic = fill(world, 1, 1, 1)
    for numbers in ({0: 0, 1: 0}, {0: 0, 1: 0, 2: 0, 3: 0}):
        with pytest.raises(SparkRocketMQError, match="exactly the queues") as error:
            reader(world, topic=topic, startingOffsets=starts(topic, numbers)).partitions()
        assert f"{topic}/embedded/2" in str(error.value)
        assert "-2" in str(error.value)
        with pytest.raises(SparkRocketMQError, match="exactly the queues"):
            reader(world, topic=topic, endingOffsetsByTimestamp=starts(topic, numbers)).partitions()


def test_a_group_starts_a_batch_where_it_stands(world: World) -> None:
    """C008, C029: progress on one queue, none on the other, and both fallbacks."""
    topic, group = fill(world, 12, 4), world.group()
    world.set_progress(group, topic, {0: 5})
    options = {"topic": topic, "group": group, "startingOffsets": "group"}
    assert len(rows(world, **options)) == 7 + 4
    assert len(rows(world, **options, fallbackOffsets="latest")) == 7
    assert world.progress(group, topic, 0) == 5


def test_a_start_past_the_end_fails_by_queue_and_numbers(world: World) -> None:
    """C024: resolved 3 against resolved 1; and an end that the queue has not reached."""
    topic = fill(world, 5)
    half = world.topic(queues=1)
    world.send(half, ["old"], queue=0)
    first = rows(world, topic=half)[0]["storeTimestamp"]
    eventually(lambda: _stored_after(world, first), "a later store time")
    world.send(half, ["new"] * 4, queue=0)
    then = str(round(rows(world, topic=half)[1]["storeTimestamp"].timestamp() * 1000))
    with pytest.raises(SparkRocketMQError, match="resolved start 3 lies past resolved end 1") as error:
        reader(world, topic=half, startingOffsets=starts(half, {0: 3}), endingTimestamp=then).partitions()
    assert error.value.condition is Condition.BAD_OFFSETS
    with pytest.raises(SparkRocketMQError, match="is to be read up to 9, and ends at 5"):
        reader(world, topic=topic, endingOffsets=starts(topic, {0: 9})).partitions()


def test_times_choose_starts_and_ends(world: World) -> None:
    """C031-C042, C046: three rounds a moment apart, by the store times that the broker gave them."""
    topic = world.topic(queues=3)
    times = []
    for round_ in range(3):
        world.send(topic, [f"{round_}-{number}" for number in range(9)], queues=3)
        stored = [
            row["storeTimestamp"] for row in rows(world, topic=topic) if row["body"].startswith(b"%d-" % round_)
        ]
        times.append(min(stored))
        latest = max(stored)
        eventually(functools.partial(_stored_after, world, latest), "a later store time")
    ms = [str(round(time.timestamp() * 1000)) for time in times]
    by_time = {"topic": topic, "startingTimestamp": ms[1], "endingTimestamp": ms[2]}
    assert {body[:2] for body in bodies(rows(world, **by_time))} == {b"1-"}
    assert len(rows(world, **by_time)) == 9
    per_queue = starts(topic, dict.fromkeys(range(3), int(ms[1])))
    assert len(rows(world, topic=topic, startingOffsetsByTimestamp=per_queue)) == 18
    assert len(rows(world, topic=topic, endingOffsetsByTimestamp=per_queue)) == 9
    everything = {"topic": topic, "startingOffsetsByTimestamp": per_queue, "startingOffsets": "earliest"}
    assert len(rows(world, **everything, startingTimestamp=ms[2])) == 9
    assert len(rows(world, **everything)) == 18
    assert len(rows(world, topic=topic, startingTimestamp="0")) == 27
    numbers = starts(topic, {0: -1, 1: -1, 2: 1})
    first = starts(topic, dict.fromkeys(range(3), int(ms[0])))
    assert len(rows(world, topic=topic, startingOffsetsByTimestamp=first, endingOffsets=numbers)) == 9 + 9 + 1
    begun = starts(topic, {0: -2, 1: -2, 2: 0})
    assert len(rows(world, topic=topic, startingOffsets=begun, endingTimestamp=ms[2])) == 18
    ended = {"topic": topic, "endingOffsets": "latest", "endingOffsetsByTimestamp": per_queue}
    assert len(rows(world, **ended, endingTimestamp=ms[2])) == 18
    assert len(rows(world, topic=topic, startingTimestamp=str(int(ms[2]) - 1))) == 9
    far = str(2**50)
    with pytest.raises(SparkRocketMQError, match=f"no message at or after {far}") as error:
        rows(world, topic=topic, startingTimestamp=far)
    assert error.value.condition is Condition.NO_MESSAGE_AT_TIME
    assert rows(world, topic=topic, startingTimestamp=far, startingOffsetsByTimestampStrategy="latest") == []
    assert len(rows(world, topic=topic, endingTimestamp=far)) == 27


def _stored_after(world: World, time: Any) -> bool:
    """Whether the broker's clock has moved on: it stamps in milliseconds."""
    topic = world.topic(queues=1)
    world.send(topic, [b"now"], queue=0)
    return bool(rows(world, topic=topic)[0]["storeTimestamp"] > time)


def test_an_empty_queue_is_no_missing_match(world: World) -> None:
    """C047: three messages on q0, none on q1."""
    topic = fill(world, 3, 0)
    assert len(rows(world, topic=topic, startingTimestamp="0")) == 3


def test_tags_and_sql_are_filtered_by_the_broker_and_holes_are_no_loss(world: World) -> None:
    """C085, C147: every tenth of 1,000; a tag whose hash is that of another one does not come through."""
    topic = world.topic(queues=1)
    # "Aa" and "BB" have one hash in Java.
    world.send(topic, [str(number) for number in range(1000)], queue=0,
               properties=lambda number: {"TAGS": "Aa" if number % 10 == 0 else "BB" if number % 10 == 1 else "no",
                                          "amount": str(number)})  # fmt: skip
    assert len(rows(world, topic=topic, tags="Aa")) == 100
    assert len(rows(world, topic=topic, tags="Aa || BB")) == 200
    assert set(bodies(rows(world, topic=topic, tags="Aa", columns="body"))) == {
        b"%d" % n for n in range(0, 1000, 10)
    }
    assert sorted(map(int, bodies(rows(world, topic=topic, sql="amount BETWEEN 5 AND 8")))) == [5, 6, 7, 8]


def test_bodies_come_out_as_the_producer_gave_them(world: World) -> None:
    """C171: every byte, four megabytes, and each compression."""
    topic = world.topic(queues=1)
    plain = [bytes(range(256)), b"x" * (4 * 1024 * 1024 - 1000)]
    world.send(topic, plain, queue=0)
    packed = [bytes([65 + number]) * 100_000 for number in range(3)]
    for body, kind in zip(packed, CompressionType, strict=True):
        world.send(topic, [compress(body, kind)], queue=0, sys_flag=kind.sys_flag)
    world.send(topic, [compress(b"old" * 1000, CompressionType.ZLIB)], queue=0, sys_flag=flags.COMPRESSED)
    assert bodies(rows(world, topic=topic)) == [*plain, *packed, b"old" * 1000]


def test_properties_of_every_kind_come_through(world: World) -> None:
    """C165, C166, C172: a name twice, no name at all, a pair without a separator."""
    topic = world.topic(queues=1)
    for text in ("a\x011\x02a\x012\x02", "", "broken\x02b\x013\x02", "ü\x01€\x02"):
        world.send(topic, [b"m"], queue=0, raw_properties=text)
    found = [dict(row["properties"]) for row in rows(world, topic=topic, columns="properties")]
    own = [{name: value for name, value in each.items() if name in ("a", "b", "ü")} for each in found]
    assert own == [{"a": "2"}, {}, {"b": "3"}, {"ü": "€"}]


def test_a_queue_of_half_messages_is_not_read_before_they_are_committed(world: World) -> None:
    """C030: half messages live in another topic until END_TRANSACTION."""
    from rmq_core.protocol import requests as r

    topic = world.topic(queues=1)
    fields = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "X1"}
    request = r.SendMessageV2(
        producer_group="PG", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=flags.TRANSACTION_PREPARED, born_timestamp=1_700_000_000_000, flag=0,
        properties="".join(f"{name}\x01{value}\x02" for name, value in fields.items()), reconsume_times=0,
        unit_mode=False, batch=False,
    )  # fmt: skip
    world.channel.call(request, b"half", timeout_ms=10_000)
    world.send(topic, ["whole"], queue=0)
    assert bodies(rows(world, topic=topic)) == [b"whole"]


def test_dead_letters_and_retries_are_read_like_any_topic(world: World) -> None:
    """C098: named outright."""
    group = world.fresh("G")
    topic = f"%DLQ%{group}"
    world.topic(queues=1, name=topic)
    world.send(topic, ["dead"], queue=0)
    assert bodies(rows(world, topic=topic)) == [b"dead"]


def test_an_empty_topic_gives_no_rows_and_no_error(world: World) -> None:
    """C065: one task that reads nothing."""
    topic = world.topic(queues=4)
    made = reader(world, topic=topic)
    assert [partition.value for partition in made.partitions()] == [()]
    assert list(made.read(InputPartition(()))) == []


def test_a_planned_range_that_was_deleted_is_loss_by_the_option(world: World) -> None:
    """C080: the topic is made again, smaller, between planning and reading."""
    topic = fill(world, 50)
    made, lenient = reader(world, topic=topic), reader(world, topic=topic, failOnDataLoss="false")
    plans = made.partitions(), lenient.partitions()
    world.delete_topic(topic)
    with pytest.raises(SparkRocketMQError, match=r"\[0, 50\)") as error:
        list(made.read(plans[0][0]))
    assert error.value.condition is Condition.DATA_LOSS
    assert list(lenient.read(plans[1][0])) == []


def test_a_planned_queue_that_was_taken_away_is_loss_by_the_option(world: World) -> None:
    """The topic shrinks to one queue between planning and reading: the broker refuses the number of the other."""
    topic = fill(world, 3, 4)
    made, lenient = reader(world, topic=topic), reader(world, topic=topic, failOnDataLoss="false")
    plans = made.partitions(), lenient.partitions()
    world.topic(name=topic, queues=1)
    with pytest.raises(SparkRocketMQError, match=rf"{topic}/embedded/1 \[0, 4\): the queue is gone") as error:
        [list(made.read(each)) for each in plans[0]]
    assert error.value.condition is Condition.DATA_LOSS
    found = [row for each in plans[1] for batch in lenient.read(each) for row in batch.to_pylist()]
    assert sorted(bodies(found)) == [b"0-0", b"0-1", b"0-2"]


def test_a_group_ahead_of_its_queue_is_loss_by_the_option(world: World) -> None:
    """C082: progress 9 on a queue of two messages, as after a topic was made again."""
    topic, group = fill(world, 2), world.group()
    world.set_progress(group, topic, {0: 9})
    options = {"topic": topic, "group": group, "startingOffsets": "group"}
    with pytest.raises(SparkRocketMQError, match="offset went from 9 back to 2"):
        rows(world, **options)
    assert rows(world, **options, failOnDataLoss="false") == []


def test_nothing_at_the_name_server_ends_with_its_address(world: World) -> None:
    """C148: a free port, and few tries."""
    settings = {"nameServer": "127.0.0.1:1", "topic": "T", "fetchRetries": "2", "fetchRetryIntervalMs": "10"}
    with pytest.raises(SparkRocketMQError, match=r"127\.0\.0\.1:1") as error:
        RocketMQBatchReader(parse(settings, Scope.READ), ("body",)).partitions()
    assert error.value.condition is Condition.UNREACHABLE


def test_small_answers_and_buffers_give_the_same_rows(world: World) -> None:
    """Pulls of one, of seven, buffers smaller than a message, and many tasks."""
    topic = world.topic(queues=2)
    world.send(topic, [f"{number}".zfill(3000) for number in range(200)], queues=2)
    expected = rows(world, topic=topic)
    assert len(expected) == 200
    cases = [
        {"pullBatchSize": "1"},
        {"pullBatchSize": "7", "fetchBufferBytes": "1k"},
        {"maxRecordsPerPartition": "11"},
        {"compiled": "off"},
        {"minRowsPerPartition": "1"},
    ]
    for options in cases:
        found = rows(world, topic=topic, **options)
        assert sorted(found, key=_place) == sorted(expected, key=_place), options


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["queueId"], row["queueOffset"]


def test_two_brokers_of_one_topic_are_read_apart(world: World) -> None:
    """C105: equal queue numbers on two brokers, with other contents."""
    with broker_of_its_own(brokerName="second", namesrvAddr=world.mq.name_server) as second:
        topic = world.topic(queues=1)
        second.mq.create_topic(topic, queues=1)
        world.send(topic, ["first"] * 3, queue=0)
        second.send(topic, ["second"] * 2, queue=0)
        both = {MessageQueue(topic, "embedded", 0), MessageQueue(topic, "second", 0)}

        def routed() -> bool:
            settings = parse({**world.options, "topic": topic}, Scope.READ)
            with QueueClient(settings.client_options()) as client:
                return set(client.queues(topic)) == both

        eventually(routed, "both brokers in the route")
        found = Counter((row["broker"], row["body"]) for row in rows(world, topic=topic))
        assert found == {("embedded", b"first"): 3, ("second", b"second"): 2}
