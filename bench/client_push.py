"""A backlog consumed by the blocking push consumer with an empty listener: messages a second that come out of it.

Plain and coroutine listeners, and lists of 32. Against a fixed rate; the same bytes pulled and decoded without a
consumer, in one thread of this process, say how fast the machine is at the time.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import rmq_core
from bench.broker_process import QUEUES, TOPIC
from bench.measure import Ratio
from rmq_core.client.blocking.push_consumer import PushConsumer
from rmq_core.client.received import decode_messages
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import BatchRecord, encode_batch
from rmq_core.protocol.requests import PullMessage, SendBatchMessage

SIZE = 128
MESSAGES = 200_000
"""Over all queues."""
BATCH = 1_000
ROUNDS = 5
GOAL = 100_000
_SUBSCRIPTION_IN_PULL = 4
_groups = itertools.count()


def fill(address: str) -> None:
    """Messages of 128 bytes, spread over the queues in batches."""
    body = encode_batch([BatchRecord(0, b"x" * SIZE, b"TAGS\x01TagA\x02KEYS\x01k1\x02")] * BATCH)
    with BlockingChannel(address) as channel:
        for number in range(MESSAGES // BATCH):
            request = SendBatchMessage(
                producer_group="PG",
                topic=TOPIC,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=number % QUEUES,
                sys_flag=0,
                born_timestamp=1_700_000_000_000,
                flag=0,
                properties="",
                reconsume_times=0,
                unit_mode=False,
                batch=True,
            )
            channel.call(request, body, timeout_ms=30_000)


class Counter:
    """Counts messages of listeners, and tells when all have come."""

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self.done = threading.Event()

    def plain(self, message: Any) -> None:
        if next(self._count) == MESSAGES:
            self.done.set()

    async def coroutine(self, message: Any) -> None:
        if next(self._count) == MESSAGES:
            self.done.set()

    def batch(self, messages: list[Any]) -> None:
        for _ in messages:
            self.plain(None)


def consume(name_server: str, listener: Callable[[Counter], Callable[..., Any]], batch_size_max: int = 1) -> float:
    """Messages a second from the start of a consumer to the last message."""
    counter = Counter()
    consumer = PushConsumer(
        f"bench-{next(_groups)}", start_from="earliest", batch_size_max=batch_size_max, name_server=name_server
    )
    consumer.subscribe(TOPIC, listener(counter))
    start = time.perf_counter()
    with consumer:
        if not counter.done.wait(120):
            raise RuntimeError("the backlog was not consumed in two minutes")
        return MESSAGES / (time.perf_counter() - start)


def pull(address: str) -> float:
    """Messages a second that one thread pulls and decodes, 32 at a time."""
    start, count = time.perf_counter(), 0
    with BlockingChannel(address) as channel:
        for queue_id in range(QUEUES):
            queue, offset = MessageQueue(TOPIC, "embedded", queue_id), 0
            while offset < MESSAGES // QUEUES:
                request = PullMessage(
                    consumer_group="CG",
                    topic=TOPIC,
                    queue_id=queue_id,
                    queue_offset=offset,
                    max_msg_nums=32,
                    sys_flag=_SUBSCRIPTION_IN_PULL,
                    commit_offset=0,
                    suspend_timeout_millis=0,
                    sub_version=0,
                    subscription="*",
                    expression_type="TAG",
                )
                answer = channel.call(request, timeout_ms=30_000)
                count += len(decode_messages(answer.body, queue))
                offset = answer.header.next_begin_offset
    return count / (time.perf_counter() - start)


def run() -> list[Ratio]:
    with rmq_core.embedded() as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        fill(broker.address)
        rounds = [
            (
                consume(broker.name_server, lambda counter: counter.plain),
                consume(broker.name_server, lambda counter: counter.coroutine),
                consume(broker.name_server, lambda counter: counter.batch, 32),
                pull(broker.address),
            )
            for _ in range(ROUNDS)
        ]
    plain, coroutine, batch, pulled = (statistics.median(column) for column in zip(*rounds, strict=True))
    return [
        Ratio("push consumer, empty listener", plain, GOAL, "messages/s", goal=1),
        Ratio("push consumer, empty coroutine listener", coroutine, GOAL, "messages/s", goal=1),
        Ratio("push consumer, lists of 32", batch, GOAL, "messages/s"),
        Ratio("push consumer against bare pulls", plain, pulled, "messages/s"),
    ]
