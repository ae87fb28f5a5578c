"""Stream readers that are stopped, changed, crowded and started again, in this process against real brokers.

Numbers C… are those of docs/connector-scenarios.md.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from rmq_core.client.queue_client import QueueClient
from rmq_core.protocol.message import MessageQueue
from rmq_spark import stream_driver
from rmq_spark.batch_reader import RocketMQBatchReader
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Scope, parse
from rmq_spark.stream_driver import FLUSH_S, LEAVING_S
from rmq_spark.stream_queues import QueueWatch
from support.pushing import push_consumer
from support.stream_query import GROUP, TOPIC, Query, bodies, group_offset, members, queue
from support.threaded import Threaded, until

pytestmark = pytest.mark.usefixtures("quick")


def set_progress(running: Threaded, offsets: dict[MessageQueue, int]) -> None:
    with QueueClient(running.options(), group=GROUP) as client:
        list(client.read(next(iter(offsets)), 0, 1))
        client.commit(offsets)


# What a restart goes by


@pytest.mark.parametrize("starting", ["earliest", "latest", "group"])
def test_the_checkpoint_decides_where_a_restart_begins(
    running: Threaded, query: Callable[..., Query], starting: str
) -> None:
    """Another startingOffsets, and a group that others moved to 7 meanwhile: neither counts (C010, C153)."""
    running.send(TOPIC, bodies(*range(8)))
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=3)
    new.batch()
    new.reader.stop()
    set_progress(running, {queue(0): 7})
    new.restart(startingOffsets=starting, maxOffsetsPerTrigger=100)
    assert new.batch() == ["3", "4", "5", "6", "7"]
    assert new.batch() is None


def test_a_stream_begun_by_time_repeats_nothing(running: Threaded, query: Callable[..., Query]) -> None:
    """Stopped and started with three messages between, then with more queues than it began with (C045)."""
    running.send(TOPIC, bodies(1, 2))
    time.sleep(0.01)
    moment = time.time_ns() // 1_000_000
    running.send(TOPIC, bodies(3, 4))
    new = query(startingTimestamp=moment, startingOffsets=None, startingOffsetsByTimestampStrategy="latest")
    assert new.batch() == ["3", "4"]
    new.restart()
    assert new.batch() is None
    new.reader.stop()
    running.send(TOPIC, bodies(5, 6, 7))
    new.restart()
    assert new.until_rows() == ["5", "6", "7"]
    running.create_topic(TOPIC, queues=5)
    running.send(TOPIC, bodies(41, 42), queue_id=4)
    assert new.until_rows() == ["41", "42"]
    assert len(new.positions()) == 5


def test_a_query_without_data_stops_and_starts(running: Threaded, query: Callable[..., Query]) -> None:
    """Before the first call, behind an empty batch 0, and behind a restart that found nothing (C152)."""
    new = query()
    new.restart()
    assert new.batch() == []
    for _ in range(2):
        new.restart()
        assert new.batch() is None
    running.send(TOPIC, bodies(1))
    assert new.until_rows() == ["1"]


def test_a_batch_is_replayed_alike_under_other_options(running: Threaded, query: Callable[..., Query]) -> None:
    """Planned with one set of limits, run with another: the same rows, in more tasks (C156)."""
    for number in (0, 1):
        running.send(TOPIC, bodies(*range(10 * number, 10 * number + 10)), queue_id=number)
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=16)
    assert new.plan()
    start, end = map(json.loads, new.offsets[0])
    before, rows = len(new.reader.partitions(start, end)), sorted(new.tasks())
    new.restart(maxOffsetsPerTrigger=2, minPartitions=6, columns="queueOffset,body")
    assert len(new.reader.partitions(start, end)) >= 6 > before
    assert sorted(new.tasks()) == rows
    new.commit(rows)
    assert len(new.batch() or []) == 2


def test_another_group_follows_from_where_the_checkpoint_is(running: Threaded, query: Callable[..., Query]) -> None:
    """The first group stays where it was, and the second shows what is read from then on (C161)."""
    running.send(TOPIC, bodies(*range(6)))
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    new.batch()
    new.plan()
    new.restart(group="spark-second")
    assert group_offset(running) == 4
    assert new.commit(new.tasks()) == ["4", "5"]
    assert new.batch() is None
    until(lambda: group_offset(running, group="spark-second") == 6, "the second group is stored")
    assert group_offset(running) == 4


# Topics that go


def test_a_planned_batch_beyond_what_is_there_fails(running: Threaded, query: Callable[..., Query]) -> None:
    """Its topic is made again, with fewer messages or with fewer queues, before the replay (C075)."""
    for name, left, said in (("Shorter", 2, r"\[2, 5\)"), ("Narrower", 1, r"Narrower/broker-a/1 \[0, 5\)")):
        running.create_topic(name, queues=2)
        for number in (0, 1):
            running.send(name, bodies(*range(5)), queue_id=number)
        new = query(topic=name, group=name, startingOffsets="earliest")
        new.reader.prepareForTriggerAvailableNow()
        assert new.plan()
        running.delete_topic(name)
        new.restart()
        running.create_topic(name, queues=left)
        for number in range(left):
            running.send(name, bodies(*range(left if left > 1 else 5)), queue_id=number)
        new.reader.prepareForTriggerAvailableNow()
        with pytest.raises(SparkRocketMQError, match=said) as failed:
            new.tasks()
        assert failed.value.condition is Condition.DATA_LOSS


def test_a_pattern_goes_from_a_deleted_topic_to_a_new_one(
    running: Threaded, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    """All its topics are gone for a while; the deleted one is warned of (C081)."""
    running.create_topic("events-a", queues=1)
    running.send("events-a", bodies(1, 2))
    new = query(subscribePattern="events-.*", startingOffsets="earliest", failOnDataLoss="false")
    assert new.batch() == ["1", "2"]
    with caplog.at_level(logging.WARNING):
        running.delete_topic("events-a")
        until(lambda: new.batch() == [], "the queue is left out")
        running.create_topic("events-b", queues=1)
        running.send("events-b", bodies(3, 4))
        assert new.until_rows() == ["3", "4"]
    assert "messages are lost: events-a/broker-a/0" in caplog.text


def test_topics_that_come_grow_and_go_cost_no_living_message(
    running: Threaded, query: Callable[..., Query]
) -> None:
    """50 rounds of a new topic, a deleted one, more queues, or plain data, with batches between them (C090)."""
    chance = random.Random(90)
    queues_of: dict[str, int] = {}
    sent: dict[str, list[str]] = {}
    total = 0
    new = query(subscribePattern="stress-.*", startingOffsets="earliest", failOnDataLoss="false")

    def send(topic: str) -> None:
        nonlocal total
        for number in range(queues_of[topic]):
            running.send(topic, bodies(total, total + 1), queue_id=number)
            sent[topic] += [str(total), str(total + 1)]
            total += 2

    def add() -> None:
        topic = f"stress-{total}"
        queues_of[topic], sent[topic] = 1, []
        running.create_topic(topic, queues=1)
        send(topic)

    def delete() -> None:
        topic = chance.choice(sorted(queues_of))
        running.delete_topic(topic)
        del queues_of[topic], sent[topic]

    def grow() -> None:
        topic = chance.choice(sorted(queues_of))
        queues_of[topic] += 1
        running.create_topic(topic, queues=queues_of[topic])
        send(topic)

    def plain() -> None:
        send(chance.choice(sorted(queues_of)))

    for _ in range(50):
        chance.choice([add, plain, grow, delete] if len(queues_of) > 1 else [add])()
        if chance.random() < 0.6:
            new.batch()
    wanted = {body for each in sent.values() for body in each}

    def is_done() -> bool:
        new.batch()
        return wanted <= set(new.rows)

    until(is_done, "every message of a living topic")
    assert max(Counter(new.rows).values()) == 1


def test_one_look_at_the_routes_finds_a_new_queue(
    running: Threaded, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server shows it, and from then on routes are looked up once and never again (C104)."""
    looks_left = [1_000_000]
    find = QueueWatch._find_alone

    def counted(self: QueueWatch) -> None:
        looks_left[0] -= 1
        if looks_left[0] >= 0:
            find(self)

    monkeypatch.setattr(QueueWatch, "_find_alone", counted)
    new = query(startingOffsets="latest")
    new.batch()
    running.create_topic(TOPIC, queues=3)
    with QueueClient(running.options()) as client:
        until(lambda: len(client.queues(TOPIC, refresh=True)) == 3, "the name server shows it")
    looks_left[0] = 1
    running.send(TOPIC, bodies(21), queue_id=2)
    assert new.until_rows() == ["21"]


# Company


def test_a_second_query_is_refused_and_shared_ones_read_everything(
    running: Threaded, query: Callable[..., Query]
) -> None:
    """The refusal names the first one's member; with sharedGroup each gets all messages (C213)."""
    running.send(TOPIC, bodies(1, 2, 3))
    first = query(startingOffsets="earliest")
    first.batch()
    (name,) = members(running)
    with pytest.raises(SparkRocketMQError) as failed:
        query(startingOffsets="earliest").batch()
    assert failed.value.condition is Condition.GROUP_IN_USE
    assert str(name) in str(failed.value)
    first.reader.stop()
    shared = [query(startingOffsets="earliest", sharedGroup="true") for _ in range(2)]
    assert [each.batch() for each in shared] == [["1", "2", "3"]] * 2
    running.send(TOPIC, bodies(4))
    assert [each.until_rows() for each in shared] == [["4"]] * 2


def test_a_query_waits_for_one_that_is_leaving(
    running: Threaded, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped and started at once: the first still stores its progress, for as long as it may."""
    assert LEAVING_S > 2 * FLUSH_S
    monkeypatch.setattr(stream_driver, "LEAVING_S", LEAVING_S)
    running.send(TOPIC, bodies(1, 2))
    first = query(startingOffsets="earliest")
    first.batch()
    first.plan()
    leaving = threading.Timer(1, first.reader.stop)
    leaving.start()
    try:
        assert query(startingOffsets="group", fallbackOffsets="earliest").batch() == []
    finally:
        leaving.join()
    assert group_offset(running) == 2


def test_queries_that_share_a_group_never_take_it_back(running: Threaded, query: Callable[..., Query]) -> None:
    """In a group that no broker knew: a slow one stores nothing behind a fast one, and then passes it (C214)."""
    running.send(TOPIC, bodies(*range(6)))
    shared = {"startingOffsets": "earliest", "sharedGroup": "true"}
    fast, slow = query(**shared), query(**shared, maxOffsetsPerTrigger=2)

    def stored(each: Query) -> int:
        progress = each.reader._open().progress
        assert progress is not None
        assert progress.flush(10)
        return group_offset(running)

    fast.batch()
    assert fast.batch() is None
    assert stored(fast) == 6
    running.send(TOPIC, bodies(6, 7))
    for _ in range(3):
        slow.batch()
        assert stored(slow) == 6
    fast.reader.stop()
    assert slow.until_rows() == ["6", "7"]
    assert slow.batch() is None
    assert stored(slow) == 8


def test_a_push_consumer_in_the_group_keeps_the_query_out(running: Threaded, query: Callable[..., Query]) -> None:
    """A real one, which goes on getting every queue (C215)."""
    got: list[bytes] = []
    consumer = push_consumer(running.cluster, GROUP)
    consumer.subscribe(TOPIC, lambda message: got.append(message.body))
    running.do(consumer.start())
    try:
        (name,) = members(running)
        with pytest.raises(SparkRocketMQError) as failed:
            query(startingOffsets="earliest").batch()
        assert failed.value.condition is Condition.GROUP_IN_USE
        assert str(name) in str(failed.value)
        for number in (0, 1):
            running.send(TOPIC, bodies(number), queue_id=number)
        until(lambda: sorted(got) == bodies(0, 1), "the consumer has both queues")
    finally:
        running.do(consumer.close())


def test_a_batch_read_beside_a_stream_disturbs_nothing(running: Threaded, query: Callable[..., Query]) -> None:
    """The same group and queues, between two batches of the stream and while it has one planned (C217)."""
    running.send(TOPIC, bodies(1, 2, 3))
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=2)
    new.batch()
    options = {"nameServer": running.name_server, "topic": TOPIC, "group": GROUP, "startingOffsets": "earliest"}
    read = RocketMQBatchReader(parse(options, Scope.READ), ("body",))
    assert new.plan()
    until(lambda: group_offset(running) == 2, "the first batch is stored")
    there = members(running)
    assert sum(batch.num_rows for each in read.partitions() for batch in read.read(each)) == 3
    assert (members(running), group_offset(running)) == (there, 2)
    assert new.commit(new.tasks()) == ["3"]
    assert new.batch() is None
    until(lambda: group_offset(running) == 3, "the second batch is stored")
