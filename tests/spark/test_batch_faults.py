"""Batch reads while brokers, connections and files fail, and what they leave on the broker."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import SubscriptionGroupConfig
from rmq_core.protocol.message import MessageQueue
from rmq_spark import connections
from rmq_spark.batch_reader import RocketMQBatchReader
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Scope, parse
from rmq_spark.rows import spark_schema
from support.threaded import Threaded, threaded_cluster

TOPIC = "Orders"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Threaded]:
    """A broker of small files, so that retention has something to delete."""
    with threaded_cluster(tmp_path, mapped_file_size_commit_log=1 << 20, file_reserved_time=0) as made:
        made.create_topic(TOPIC, queues=1)
        yield made


def reader(running: Threaded, **options: str) -> RocketMQBatchReader:
    settings = parse({"nameServer": running.name_server, "topic": TOPIC, **options}, Scope.READ)
    return RocketMQBatchReader(settings, tuple(spark_schema(settings).fieldNames()))


def numbers(made: RocketMQBatchReader, partitions: list[Any]) -> list[int]:
    found = (row["body"] for each in partitions for batch in made.read(each) for row in batch.to_pylist())
    return [int(body.split()[0]) for body in found]


def fill(running: Threaded, count: int) -> None:
    running.send(TOPIC, [b"%d " % number + b"x" * 1000 for number in range(count)])


def delete_old_files(running: Threaded) -> int:
    """Let retention take what it may; the first offset that is left."""
    store = running.broker.store

    async def clean() -> None:
        store.keep_all()
        for start in store.log.segments.starts:
            os.utime(store.log.segments.path(start), (1, 1))
        store.retention.request()
        assert store.retention.run().log_files > 0

    running.do(clean())
    with QueueClient(running.options()) as client:
        return client.min_offsets([MessageQueue(TOPIC, "broker-a", 0)])[MessageQueue(TOPIC, "broker-a", 0)]


def test_what_retention_took_is_loss_with_its_span(running: Threaded, caplog: pytest.LogCaptureFixture) -> None:
    """C012, C078, C079, C086, C087, C088: planned from 0 on, and the oldest files go before the tasks read."""
    fill(running, 4000)
    strict, lenient = reader(running, group="g"), reader(running, failOnDataLoss="false")
    plans = strict.partitions(), lenient.partitions()
    least = delete_old_files(running)
    assert 0 < least < 4000
    with pytest.raises(SparkRocketMQError) as error:
        numbers(strict, plans[0])
    assert error.value.condition is Condition.DATA_LOSS
    for part in (f"{TOPIC}/broker-a/0 [0, {least})", "group g", "failOnDataLoss"):
        assert part in str(error.value)
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        assert numbers(lenient, plans[1]) == list(range(least, 4000))
    assert [record.getMessage().count(f"[0, {least})") for record in caplog.records] == [1]
    start = f'{{"{TOPIC}":{{"broker-a":{{"0":1}}}}}}'
    again = reader(running, startingOffsets=start, failOnDataLoss="false")
    assert numbers(again, again.partitions()) == list(range(least, 4000))


def test_a_broken_connection_is_replaced_inside_the_task(running: Threaded) -> None:
    """C209: cut several times while pulls are in flight; every row once and in order."""
    fill(running, 12_000)
    with running.proxy() as proxy:
        address = running.broker.address
        options = {
            "brokerAddressMap": f"{address}={proxy.address}",
            "pullBatchSize": "100",
            "fetchBufferBytes": "1m",
        }
        made = reader(running, **options)
        found: list[int] = []
        for partition in made.partitions():
            before = proxy.connections_made
            for number, batch in enumerate(made.read(partition)):
                found += [int(row["body"].split()[0]) for row in batch.to_pylist()]
                if number < 3:
                    proxy.cut()
        assert found == list(range(12_000))
        assert proxy.connections_made > before


def test_a_restarted_broker_is_read_on(running: Threaded) -> None:
    """C209: the worker's connection is one to the broker that was; the task goes on with the new one."""
    fill(running, 500)
    made = reader(running)
    partitions = made.partitions()
    assert numbers(made, partitions) == list(range(500))
    running.restart()
    assert numbers(made, partitions) == list(range(500))


def test_a_broker_that_stays_away_or_refuses_is_named(running: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that may not read, and then a broker that is stopped behind the plan and does not come back."""
    fill(running, 10)
    config = SubscriptionGroupConfig(group_name="closed", consume_enable=False)
    running.do(running.client().call(r.UpdateAndCreateSubscriptiongroup(), config.encode()))
    closed = reader(running, group="closed")
    with pytest.raises(SparkRocketMQError, match=r"\[ROCKETMQ_REFUSED\].*group=closed") as refused:
        numbers(closed, closed.partitions())
    assert refused.value.condition is Condition.REFUSED
    impatient = functools.partial(QueueClient, retry_budget_ms=300)
    monkeypatch.setattr(connections, "QueueClient", impatient)
    made = reader(running, fetchRetries="2")  # other settings than before: a client of its own
    partitions = made.partitions()
    running.stop()
    with pytest.raises(SparkRocketMQError, match=r"\[ROCKETMQ_UNREACHABLE\].*brokerAddressMap") as away:
        numbers(made, partitions)
    assert away.value.condition is Condition.UNREACHABLE


def test_queues_are_those_that_may_be_read(running: Threaded) -> None:
    """C107: eight to read, four to write; the other four are empty and still there."""
    request = r.UpdateAndCreateTopic(
        topic="Wide", default_topic="TBW102", read_queue_nums=8, write_queue_nums=4, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    running.do(running.client().call(request))
    for queue in range(4):
        running.send("Wide", [b"%d" % queue], queue_id=queue)
    with QueueClient(running.options()) as client:
        assert len(client.queues("Wide")) == 8
    settings = parse({"nameServer": running.name_server, "topic": "Wide"}, Scope.READ)
    made = RocketMQBatchReader(settings, ("body",))
    assert sorted(numbers(made, made.partitions())) == [0, 1, 2, 3]


@pytest.mark.parametrize("group", ["readers", None])
def test_a_batch_is_no_member_and_stores_no_progress(running: Threaded, group: str | None) -> None:
    """C149, C216: with a group and without one; the broker is asked who is there while nothing is stored."""
    fill(running, 50)
    made = reader(running, **({} if group is None else {"group": group}))
    assert numbers(made, made.partitions()) == list(range(50))
    name = group or "TOOLS_CONSUMER"
    with pytest.raises(BrokerError):
        running.do(running.client().call(r.GetConsumerListByGroup(name)))
    with QueueClient(running.options()) as client:
        queue = MessageQueue(TOPIC, "broker-a", 0)
        assert client.group_offsets([queue], group=name) == {queue: None}


def test_many_threads_read_one_topic_side_by_side(running: Threaded) -> None:
    """C210: 20 threads, 5 reads each, of 1,000 messages; all share the worker's connection."""
    fill(running, 1000)
    made = reader(running, columns="body")
    partitions = made.partitions()
    found: list[list[int]] = []

    def read() -> None:
        found.extend(numbers(made, partitions) for _ in range(5))

    threads = [threading.Thread(target=read) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 100
    assert all(each == list(range(1000)) for each in found)
