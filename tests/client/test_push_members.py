"""Groups whose members come and go, and brokers that do."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq_core
from rmq_core.client.listen_results import RetryLater
from rmq_core.client.push_consumer import PushConsumer
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.subscriptions import renewed
from rmq_core.embedded_broker import EmbeddedBroker
from rmq_core.net.channel import Channel
from rmq_core.protocol import requests as r
from rmq_core.protocol.message import MessageQueue
from support.brokers import Client, broker_app, broker_cluster, run
from support.cluster import address_of
from support.proxy import Proxy
from support.pushing import SHORT_LEVELS, create_topic, fill, push_consumer, until


def test_every_message_is_consumed_while_members_come_and_go(tmp_path: Path) -> None:
    """100,000 messages on two brokers; up to five members join and leave, one by one and two at once."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, names=2) as cluster:
            await create_topic(cluster, "Orders", 4)
            for broker in range(2):
                for queue_id in range(4):
                    bodies = [b"%d/%d/%d" % (broker, queue_id, each) for each in range(12_500)]
                    await fill(cluster, "Orders", bodies, queue_id=queue_id, broker=broker)
            counts: Counter[bytes] = Counter()
            lock = threading.Lock()

            def plain(message: ReceivedMessage) -> None:
                with lock:
                    counts[message.body] += 1

            async def coroutine(message: ReceivedMessage) -> None:
                plain(message)

            async def member(number: int) -> PushConsumer:
                consumer = push_consumer(cluster, "G", cache_count_max=200)
                consumer.subscribe("Orders", coroutine if number % 2 else plain)
                return await consumer.start()

            members = [await member(0), await member(1)]
            for goal in (10_000, 20_000, 30_000):
                await until(lambda goal=goal: len(counts) >= goal)
                members.append(await member(goal // 10_000))
            for goal in (40_000, 50_000):
                await until(lambda goal=goal: len(counts) >= goal)
                await members.pop(0).close()
            await until(lambda: len(counts) >= 60_000)
            await asyncio.gather(members.pop(0).close(), members.pop(0).close())
            await until(lambda: len(counts) == 100_000, 60)
            await asyncio.gather(*(each.close() for each in members))

    run(main())


def test_all_queues_have_one_owner_each_when_things_have_settled(tmp_path: Path) -> None:
    """Five members over ten queues, then three, then one: shares are even, and together they are everything."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create_topic(cluster, "Orders", 5)
            members = []
            for _ in range(5):
                consumer = push_consumer(cluster, "G")
                consumer.subscribe("Orders", print)
                members.append(await consumer.start())

            def shares() -> list[list[MessageQueue]]:
                return [[queue for queue in each.queues if queue.topic == "Orders"] for each in members]

            def settled() -> bool:
                owned = [queue for share in shares() for queue in share]
                sizes = {len(share) for share in shares()}
                return len(owned) == len(set(owned)) == 10 and max(sizes) - min(sizes) <= 1

            for size in (5, 3, 1):
                while len(members) > size:
                    await members.pop().close()
                await until(settled)
            await members[0].close()

    run(main())


def test_a_member_that_vanishes_loses_its_queues_to_the_others(tmp_path: Path) -> None:
    """Cuts the only way of one member to the broker, and leaves the other one alone."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create_topic(cluster, "Orders", 4)
            got: list[bytes] = []
            lost = push_consumer(cluster, "G", broker_address_map={cluster.broker.address: proxy.address})
            other = push_consumer(cluster, "G")
            for each in (lost, other):
                each.subscribe("Orders", lambda message: got.append(message.body))
            async with lost, other:
                await until(lambda: sum(queue.topic == "Orders" for queue in other.queues) == 2)
                proxy.lead_to("127.0.0.1:1")
                proxy.cut()
                await until(lambda: sum(queue.topic == "Orders" for queue in other.queues) == 4)
                for queue_id in range(4):
                    await fill(cluster, "Orders", [b"%d" % queue_id], queue_id=queue_id)
                await until(lambda: len(got) >= 4)
                proxy.lead_to(cluster.broker.address)
                await until(lambda: sum(queue.topic == "Orders" for queue in other.queues) == 2)

    run(main())


def test_pulls_go_on_over_connections_that_break_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    """Breaks the connection inside answers, eight times; nothing may be lost."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(6_000)])
            got: list[int] = []
            consumer = push_consumer(
                cluster, "G", ordered=True, broker_address_map={cluster.broker.address: proxy.address}
            )
            consumer.subscribe("Orders", lambda message: got.append(int(message.body)))
            async with consumer:
                for number in range(8):
                    made = proxy.connections_made
                    proxy.cut_after(1_000 + 2_997 * number)
                    await until(lambda made=made: proxy.connections_made > made or len(set(got)) == 6_000)
                await until(lambda: len(set(got)) == 6_000)
            assert sorted(set(got)) == list(range(6_000))

    run(main())


def test_a_broker_that_hangs_delays_only_its_own_queues(tmp_path: Path) -> None:
    """One of two brokers stops answering without closing anything, and comes back."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, Proxy(cluster.broker.address) as proxy:
            await create_topic(cluster, "Orders", 1)
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G", broker_address_map={cluster.broker.address: proxy.address})
            consumer.subscribe("Orders", lambda message: got.append(message.body))
            async with consumer:
                await until(lambda: sum(queue.topic == "Orders" for queue in consumer.queues) == 2)
                proxy.stall()
                await fill(cluster, "Orders", [b"held"], broker=0)
                for number in range(20):
                    await fill(cluster, "Orders", [b"%d" % number], broker=1)
                    await until(lambda number=number: b"%d" % number in got)
                assert b"held" not in got
                proxy.resume()
                await until(lambda: b"held" in got)

    run(main())


def test_a_pull_before_the_heartbeat_brings_the_heartbeat_at_once(tmp_path: Path) -> None:
    """The broker forgets the group, later it knows an older subscription: messages come all the same."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", lambda message: got.append(message.body))
            async with consumer:
                await fill(cluster, "Orders", [b"1"])
                await until(lambda: got == [b"1"])
                client_id = consumer._around.instance.client_id
                connection = await consumer._around.instance.channel(cluster.broker.address).connect()
                await connection.call(r.UnregisterClient(client_id, consumer_group="G"))
                assert cluster.broker.clients.consumer_group("G") is None
                await fill(cluster, "Orders", [b"2"])
                await until(lambda: got == [b"1", b"2"])
                assert cluster.broker.clients.consumer_group("G") is not None
                # A version that the broker has not heard of.
                newer = renewed(consumer._announced["Orders"])
                consumer._subscriptions["Orders"] = consumer._announced["Orders"] = newer
                await fill(cluster, "Orders", [b"3"])
                await fill(cluster, "Orders", [b"4"])
                await until(lambda: len(got) == 4)
                group = cluster.broker.clients.consumer_group("G")
                assert group is not None
                await until(lambda: group.subscriptions["Orders"].sub_version >= newer.sub_version)

    run(main())


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker in a process of its own, to be killed and started again on the same ports with the same store."""
    first = rmq_core.embedded(tmp_path / "store", messageDelayLevel=SHORT_LEVELS)
    first.start()
    try:
        yield first
    finally:
        first.close()


def _again(broker: EmbeddedBroker, store: Path) -> EmbeddedBroker:
    port, name_port = (each.rpartition(":")[2] for each in (broker.address, broker.name_server))
    return rmq_core.embedded(store, listenPort=port, namesrvPort=name_port, messageDelayLevel=SHORT_LEVELS).start()


@pytest.mark.parametrize("ordered", [False, True])
def test_nothing_is_lost_when_the_broker_is_killed_and_started_again(
    tmp_path: Path, restartable: EmbeddedBroker, ordered: bool
) -> None:
    """Kills it twice under two consumers with failing listeners, while more messages come after each start."""

    async def main() -> None:
        broker = restartable
        broker.create_topic("Orders", queues=4)
        seen: Counter[bytes] = Counter()
        orders: dict[int, list[int]] = {each: [] for each in range(4)}
        lock = threading.Lock()

        def handle(message: ReceivedMessage) -> None:
            with lock:
                seen[message.body] += 1
                if not message.queue.topic.startswith("%RETRY%"):
                    orders[message.queue.queue_id].append(int(message.body.partition(b"/")[2]))
                if seen[message.body] == 1 and len(seen) % 50 == 0:
                    raise RetryLater(delay_level=1)

        consumers = []
        for _ in range(2):
            consumer = PushConsumer(
                "G", name_server=broker.name_server, start_from="earliest", ordered=ordered, suspend_ms=10
            )
            consumer.subscribe("Orders", handle)
            consumers.append(await consumer.start())

        count = 0
        try:
            for round_ in range(3):
                channel = Channel(broker.address)
                client = Client(channel)
                for _ in range(500):
                    body = b"%d/%d" % (count % 4, count // 4)
                    await client.send("Orders", body, queue_id=count % 4)
                    count += 1
                await channel.close()
                if round_ < 2:
                    await until(lambda goal=count - 400: len(seen) >= goal, 60)
                    await asyncio.to_thread(broker.kill)
                    again = await asyncio.to_thread(_again, broker, tmp_path / "store")
                    await asyncio.to_thread(broker.close)
                    broker = again
            await until(lambda: len(seen) == count, 60)
            if ordered:
                for numbers in orders.values():
                    highest = -1
                    for number in numbers:
                        assert number <= highest + 1
                        highest = max(highest, number)
        finally:
            await asyncio.gather(*(each.close(timeout_ms=1_000) for each in consumers))
            if broker is not restartable:
                await asyncio.to_thread(broker.close)

    run(main())


def test_consumers_find_a_broker_that_moved_to_another_address(tmp_path: Path) -> None:
    """The broker stops and comes back on another port; name servers tell the new address."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", lambda message: got.append(message.body))
            async with consumer:
                await fill(cluster, "Orders", [b"1"])
                await until(lambda: got == [b"1"])
                before = cluster.broker.address
                await cluster.close_clients()
                await cluster.apps[0].close(drain_ms=100)
                names = ";".join(address_of(each) for each in cluster.name_servers)
                cluster.apps[0] = broker_app(tmp_path, names)
                await cluster.apps[0].start()
                assert cluster.broker.address != before
                await fill(cluster, "Orders", [b"2"])
                await until(lambda: b"2" in got)

    run(main())


def test_nothing_of_a_consumer_is_left_when_it_is_closed(tmp_path: Path) -> None:
    """After close() the broker knows no member, and no thread, task or connection of the consumer is there."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 2)
            await fill(cluster, "Orders", [b"x"] * 100)
            got: list[Any] = []

            def ours() -> list[object]:
                threads = [each for each in threading.enumerate() if each.name.startswith("rmq-listener")]
                coroutines: list[Any] = [each.get_coro() for each in asyncio.all_tasks()]
                running = [each for each in coroutines if "/rmq_core/client/" in each.cr_code.co_filename]
                return [*threads, *running]

            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", got.append)
            async with consumer:
                await until(lambda: len(got) == 100)
                assert ours()
            assert cluster.broker.clients.consumer_group("G") is None
            await until(lambda: not ours())

    run(main())
