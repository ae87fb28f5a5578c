"""Ordered consumption: one after another, by one member at a time, failures included."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from rmq_core.client.listen_results import ConsumeResult, RetryLater, SuspendQueue
from rmq_core.client.process_queue import LOCK_VALID_MS
from rmq_core.client.push_consumer import PushConsumer
from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from rmq_core.protocol.message import MessageQueue
from support.brokers import Cluster, broker_cluster, run
from support.pushing import SHORT_LEVELS, committed, create_topic, fill, push_consumer, until


class Watcher:
    """Notes who consumes what, and whether two ever had one queue."""

    def __init__(self) -> None:
        self.orders: dict[MessageQueue, list[int]] = defaultdict(list)
        self.clashes: list[MessageQueue] = []
        self._busy: set[MessageQueue] = set()
        self._lock = threading.Lock()

    def enter(self, message: ReceivedMessage) -> None:
        with self._lock:
            if message.queue in self._busy:
                self.clashes.append(message.queue)
            self._busy.add(message.queue)
            self.orders[message.queue].append(int(message.body))

    def leave(self, message: ReceivedMessage) -> None:
        with self._lock:
            self._busy.discard(message.queue)

    def handle(self, message: ReceivedMessage) -> None:
        self.enter(message)
        self.leave(message)

    async def handle_slowly(self, message: ReceivedMessage) -> None:
        self.enter(message)
        await asyncio.sleep(0)
        self.leave(message)

    def seen(self) -> int:
        return sum(len(set(numbers)) for numbers in self.orders.values())

    def check(self, count: int) -> None:
        """Every queue in its order: what was consumed again after a change of owner was consumed again in order."""
        assert self.clashes == []
        for queue, numbers in self.orders.items():
            highest = -1
            for number in numbers:
                assert number <= highest + 1, f"{queue}: {number} came after {highest}"
                highest = max(highest, number)
            assert highest == count - 1


async def held_by(cluster: Cluster, group: str, queue: MessageQueue, client_id: str = "stranger") -> bool:
    """Whether a stranger is refused the broker's lock; if he gets it, he keeps it."""
    body = LockBatchRequestBody(group, client_id, (queue,), False)
    answer = await cluster.client().call(r.LockBatchMq(), body.encode())
    return queue not in LockBatchResponseBody.decode(answer.body).locked


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_the_messages_of_each_queue_come_one_after_another(tmp_path: Path, kind: str) -> None:
    """Twenty workers and four queues of 500: no two calls of one queue at once, and no message out of turn."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 4)
            for queue_id in range(4):
                await fill(cluster, "Orders", [b"%d" % each for each in range(500)], queue_id=queue_id)
            watcher = Watcher()
            consumer = push_consumer(cluster, "G", ordered=True)
            consumer.subscribe("Orders", watcher.handle if kind == "plain" else watcher.handle_slowly)
            async with consumer:
                await until(lambda: watcher.seen() >= 2_000)
                assert await held_by(cluster, "G", MessageQueue("Orders", "broker-a", 0))
            watcher.check(500)
            assert all(len(numbers) == 500 for numbers in watcher.orders.values())
            assert not await held_by(cluster, "G", MessageQueue("Orders", "broker-a", 0))
            assert await committed(cluster, "G", "Orders", 3) == 500

    run(main())


def test_a_message_that_fails_comes_again_before_any_other(tmp_path: Path) -> None:
    """Fails in every way that an ordered listener has; each time the same message must be the next one."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(7)])
            got: list[tuple[int, int]] = []
            failing = {1: ValueError(), 2: SuspendQueue(delay_ms=10), 3: RetryLater(), 5: asyncio.CancelledError()}
            failed: set[int] = set()
            consumer = push_consumer(cluster, "G", ordered=True, suspend_ms=10)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> ConsumeResult | None:
                number = int(message.body)
                got.append((number, message.reconsume_times))
                if number in failing and number not in failed:
                    failed.add(number)
                    raise failing[number]
                if number == 4 and number not in failed:
                    failed.add(number)
                    return ConsumeResult.SUSPEND_QUEUE
                return None

            async with consumer:
                await until(lambda: len(got) >= 12)
            assert [number for number, _ in got] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
            # A queue that only asked for a pause has not failed.
            assert [times for _, times in got] == [0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0]
            assert cluster.broker.store.max_offset("%RETRY%G", 0) == 0

    run(main())


def test_a_queue_goes_on_behind_a_message_that_failed_too_often(tmp_path: Path) -> None:
    """Two tries after the first one, then to the dead letters; another one goes there at once."""

    async def main() -> None:
        async with broker_cluster(tmp_path, message_delay_level=SHORT_LEVELS) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(4)])
            got: list[int] = []
            consumer = push_consumer(cluster, "G", ordered=True, suspend_ms=10, reconsume_times_max=2)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                got.append(int(message.body))
                if message.body == b"1":
                    raise ValueError("stubborn")
                if message.body == b"2":
                    raise RetryLater(delay_level=-1)

            async with consumer:
                await until(lambda: 3 in got)
                await until(lambda: cluster.broker.store.max_offset("%DLQ%G", 0) == 2)
            assert got == [0, 1, 1, 1, 2, 3]
            dead = await cluster.client().messages("%DLQ%G")
            assert [each.body for each in dead] == [b"1", b"2"]
            assert {each.properties["RETRY_TOPIC"] for each in dead} == {"Orders"}
            assert await committed(cluster, "G", "Orders") == 4

    run(main())


def test_of_an_ordered_list_everything_from_the_first_failure_on_comes_again(tmp_path: Path) -> None:
    """Names the third and the fifth of a list of six: the first two are consumed, nothing else is."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(6)])
            got: list[list[int]] = []
            consumer = push_consumer(cluster, "G", ordered=True, suspend_ms=10, batch_size_max=6)

            @consumer.subscribe("Orders")
            def handle(messages: list[ReceivedMessage]) -> None:
                got.append([int(each.body) for each in messages])
                if len(got) == 1:
                    raise RetryLater(messages=[messages[4], messages[2]])

            async with consumer:
                await until(lambda: len(got) >= 2)
            assert got == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5]]

    run(main())


def test_who_gives_a_queue_up_keeps_its_lock_until_the_listener_has_returned(tmp_path: Path) -> None:
    """A second member joins while every queue's listener is busy; it must get nothing before they return."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 2)
            for queue_id in range(2):
                await fill(cluster, "Orders", [b"0", b"1", b"2"], queue_id=queue_id)
            go = threading.Event()
            got: dict[str, list[tuple[int, int]]] = {"first": [], "second": []}

            def listener(name: str, *, waits: bool) -> PushConsumer:
                consumer = push_consumer(cluster, "G", ordered=True, instance_name=name)

                def handle(message: ReceivedMessage) -> None:
                    got[name].append((message.queue.queue_id, int(message.body)))
                    if waits:
                        go.wait()

                consumer.subscribe("Orders", handle)
                return consumer

            async with listener("first", waits=True) as first:
                await until(lambda: len(got["first"]) == 2)
                async with listener("second", waits=False) as second:
                    await until(lambda: any(queue.is_halted for queue in first._queues.table.values()))
                    lost = next(queue for queue in first._queues.table.values() if queue.is_halted)
                    await until(lambda: lost.release_attempts == 1)
                    assert got["second"] == []
                    assert await held_by(cluster, "G", lost.queue)
                    go.set()
                    await until(lambda: len(got["second"]) == 2)
                    assert second.queues
            number = lost.queue.queue_id
            # What the first one had begun counts: the second one goes on behind it.
            assert [each for queue_id, each in got["first"] if queue_id == number] == [0]
            assert got["second"] == [(number, 1), (number, 2)]

    run(main())


def test_a_queue_whose_lock_another_client_has_is_not_consumed(tmp_path: Path) -> None:
    """A stranger holds one of two queues; the consumer asks again until the stranger lets go."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 2)
            for queue_id in range(2):
                await fill(cluster, "Orders", [b"0"], queue_id=queue_id)
            held = MessageQueue("Orders", "broker-a", 1)
            assert not await held_by(cluster, "G", held)
            got: list[int] = []
            consumer = push_consumer(cluster, "G", ordered=True)
            consumer.subscribe("Orders", lambda message: got.append(message.queue.queue_id))
            async with consumer:
                await until(lambda: got == [0])
                body = LockBatchRequestBody("G", "stranger", (held,), False)
                await cluster.client().call(r.UnlockBatchMq(), body.encode())
                await until(lambda: got == [0, 1])

    run(main())


def test_a_lock_that_the_broker_gave_away_stops_the_queue_at_once(tmp_path: Path) -> None:
    """A stranger takes the lock, consumes some, and lets go; the consumer must go on behind him."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(10)])
            queue = MessageQueue("Orders", "broker-a", 0)
            got: list[int] = []
            consumer = push_consumer(cluster, "G", ordered=True)
            pausing = True

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                got.append(int(message.body))
                if pausing and message.body == b"3":
                    raise SuspendQueue(delay_ms=30_000)

            async with consumer:
                await until(lambda: got == [0, 1, 2, 3])
                ours = consumer._queues.table[queue]
                body = LockBatchRequestBody("G", consumer._around.instance.client_id, (queue,), False)
                await cluster.client().call(r.UnlockBatchMq(), body.encode())
                assert not await held_by(cluster, "G", queue)
                await consumer._queues.renew_locks()
                assert not ours.may_consume()
                await cluster.client().call(r.UpdateConsumerOffset("G", "Orders", 0, 7))
                pausing = False
                theirs = LockBatchRequestBody("G", "stranger", (queue,), False)
                await cluster.client().call(r.UnlockBatchMq(), theirs.encode())
                await until(lambda: got[4:] == [7, 8, 9])
            assert await committed(cluster, "G", "Orders") == 10

    run(main())


def test_a_lock_that_was_not_renewed_in_time_does_not_count(tmp_path: Path) -> None:
    """Ages the lock of a queue whose worker is in the middle of a piece: it must stop before the next message."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(10)])
            begun, go = threading.Event(), threading.Event()
            got: list[int] = []
            consumer = push_consumer(cluster, "G", ordered=True)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                got.append(int(message.body))
                begun.set()
                go.wait()

            async with consumer:
                await until(begun.is_set)
                (queue,) = [each for each in consumer._queues.table.values() if not each.is_retry]
                queue.lock_ms -= LOCK_VALID_MS
                go.set()
                await until(lambda: not queue.running)
                assert got == [0]
                await consumer._queues.renew_locks()  # as happens every 20 s
                await until(lambda: len(got) == 10)
            assert got == list(range(10))

    run(main())


def test_order_and_single_ownership_hold_while_members_come_and_go(tmp_path: Path) -> None:
    """Up to four members on two brokers, joining and leaving while eight queues of 1,500 are being consumed."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, names=2) as cluster:
            await create_topic(cluster, "Orders", 4)
            for broker in range(2):
                for queue_id in range(4):
                    bodies = [b"%d" % each for each in range(1_500)]
                    await fill(cluster, "Orders", bodies, queue_id=queue_id, broker=broker)
            watcher = Watcher()

            def member(kind: int) -> PushConsumer:
                consumer = push_consumer(cluster, "G", ordered=True)
                consumer.subscribe("Orders", watcher.handle_slowly if kind % 2 else slow)
                return consumer

            def slow(message: ReceivedMessage) -> None:
                watcher.enter(message)
                time.sleep(0.0005)
                watcher.leave(message)

            members = [await member(0).start()]
            for number in range(1, 4):
                seen = watcher.seen()
                await until(lambda goal=seen + 500: watcher.seen() >= goal)
                members.append(await member(number).start())
            for _ in range(2):
                seen = watcher.seen()
                await until(lambda goal=seen + 500: watcher.seen() >= goal)
                await members.pop(0).close()
            await until(lambda: watcher.seen() == 8 * 1_500, 60)
            await asyncio.gather(*(each.close() for each in members))
            watcher.check(1_500)

    run(main())


def test_ordered_broadcasts_need_no_lock(tmp_path: Path) -> None:
    """Two members get all messages in order; a lock that is older than it may be is no hindrance."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "News", 1)
            await fill(cluster, "News", [b"%d" % each for each in range(50)])
            got: dict[str, list[int]] = {"a": [], "b": []}

            def member(name: str) -> PushConsumer:
                consumer = push_consumer(
                    cluster,
                    "G",
                    ordered=True,
                    broadcasting=True,
                    instance_name=name,
                    offset_dir=tmp_path / "offsets",
                )
                consumer.subscribe("News", lambda message: got[name].append(int(message.body)))
                return consumer

            async with member("a") as first, member("b"):
                await until(lambda: len(got["a"]) == len(got["b"]) == 50)
                (queue,) = first._queues.table.values()
                queue.lock_ms -= LOCK_VALID_MS
                await fill(cluster, "News", [b"50"])
                await first._queues.renew_locks()
                await until(lambda: len(got["a"]) == len(got["b"]) == 51)
            assert got["a"] == got["b"] == list(range(51))
            assert not await held_by(cluster, "G", MessageQueue("News", "broker-a", 0))

    run(main())
