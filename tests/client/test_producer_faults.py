"""Producers whose brokers and name servers die, hang, answer slowly, break off, move, and refuse."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.app import BrokerApp
from rmq_core.client.deliver import Sender
from rmq_core.client.fault import AVOIDED_MS, LATENCIES_MS, FaultTable, avoided_ms
from rmq_core.client.instance import ClientInstance
from rmq_core.client.options import client_options
from rmq_core.client.producer import Producer
from rmq_core.client.producer_options import ProducerOptions
from rmq_core.client.send_results import SendError, SendStatus
from rmq_core.client.sending import outgoing
from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError, CallTimeoutError, ConnectError
from rmq_core.protocol.message import Message, MessageQueue
from support.brokers import Cluster, broker_cluster, run
from support.producing import create, names_of, producing, stored
from support.proxy import Proxy
from support.scripted import Scripted, scripted


@contextlib.asynccontextmanager
async def behind_proxies(cluster: Cluster) -> AsyncIterator[tuple[list[Proxy], dict[str, str]]]:
    """A proxy in front of each broker, and the map that leads clients through them."""
    async with contextlib.AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(app.broker.address)) for app in cluster.apps]
        addresses = [app.broker.address for app in cluster.apps]
        yield proxies, {address: proxy.address for address, proxy in zip(addresses, proxies, strict=True)}


def scripted_producer(cluster: Scripted, **arguments: Any) -> Producer:
    return Producer("PG", **{"name_server": cluster.name_server, **arguments})


async def restart(app: BrokerApp, *, port: int) -> BrokerApp:
    """The same broker again on its files; port 0 moves it."""
    server = dataclasses.replace(app.server_settings, listen_port=port)
    again = BrokerApp(app.settings, app.store_settings, server, memory_size=24 << 30)
    await again.start()
    return again


def port_of(app: BrokerApp) -> int:
    return int(app.broker.address.rpartition(":")[2])


# Retries


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205])
def test_answers_that_another_broker_may_not_give_are_tried_there(code: int) -> None:
    """Lets whoever is asked first refuse; the message must go to the other broker, with the same identity."""

    async def main() -> None:
        async with scripted("a", "b") as cluster, scripted_producer(cluster) as producer:
            for broker in cluster.brokers.values():
                broker.codes.append(code)
            first = await producer.send(Message("Orders", b"x"))
            assert sorted(len(broker.sends) for broker in cluster.brokers.values()) == [1, 2]
            properties = {send.properties for broker in cluster.brokers.values() for send in broker.sends}
            assert len(properties) == 1
            assert first.msg_id in properties.pop()

    run(main())


@pytest.mark.parametrize("code", [2, 13, 215])
def test_answers_that_would_be_the_same_elsewhere_are_not_tried_again(code: int) -> None:
    """Refuses with flow control and with an illegal message."""

    async def main() -> None:
        async with scripted("a", "b") as cluster, scripted_producer(cluster) as producer:
            for broker in cluster.brokers.values():
                broker.codes.append(code)
            with pytest.raises(SendError) as caught:
                await producer.send(Message("Orders", b"x"))
            assert len(caught.value.tried) == 1
            assert caught.value.code == code
            assert isinstance(caught.value.__cause__, BrokerError)
            assert sum(len(broker.sends) for broker in cluster.brokers.values()) == 1

    run(main())


def test_a_message_for_one_queue_is_tried_once() -> None:
    """Refuses messages with a queue, a selector and a sharding key; none may go anywhere else."""

    async def main() -> None:
        async with scripted("a", "b") as cluster, scripted_producer(cluster) as producer:
            queue = MessageQueue("Orders", "a", 1)
            for broker in cluster.brokers.values():
                broker.codes.extend([14] * 9)
            for send in (
                producer.send(Message("Orders", b"1"), queue=queue),
                producer.send(Message("Orders", b"2"), selector=lambda queues, _: queue),
                producer.send(Message("Orders", b"3", sharding_key="k")),
            ):
                with pytest.raises(SendError) as caught:
                    await send
                assert len(caught.value.tried) == 1
                assert caught.value.code == 14
            with pytest.raises(SendError) as caught:
                await producer.send(Message("Orders", b"4"))
            assert len(caught.value.tried) == 3
            assert {attempt.broker_name for attempt in caught.value.tried} == {"a", "b"}
            assert "tried 3 times" in str(caught.value)
            assert all(attempt.address in str(caught.value) for attempt in caught.value.tried)

    run(main())


def test_messages_that_are_not_safe_are_sent_again_only_where_that_is_wished() -> None:
    """Stores less safely once, and always; a copy that is not safe is better than none."""

    async def main() -> None:
        async with scripted("a", "b") as cluster:
            async with scripted_producer(cluster) as producer:
                for broker in cluster.brokers.values():
                    broker.codes.append(10)
                result = await producer.send(Message("Orders", b"x"))
                assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
                assert not result.ok
            sent_first = {name: len(broker.sends) for name, broker in cluster.brokers.items()}
            async with scripted_producer(cluster, retry_unless_ok=True) as producer:
                for broker in cluster.brokers.values():
                    broker.codes.clear()
                    broker.codes.append(11)
                assert (await producer.send(Message("Orders", b"x"))).ok
                for name, broker in cluster.brokers.items():
                    assert len(broker.sends) - sent_first[name] in (1, 2)
                    broker.codes.extend([12] * 9)
                stored_twice = await producer.send(Message("Orders", b"x"))
                assert stored_twice.status is SendStatus.FLUSH_SLAVE_TIMEOUT
                for broker in cluster.brokers.values():
                    broker.codes.clear()
                    broker.codes.extend([12, 14, 14])
                assert (await producer.send(Message("Orders", b"x"))).status is SendStatus.FLUSH_SLAVE_TIMEOUT

    run(main())


def test_each_attempt_gets_its_share_of_what_remains() -> None:
    """Lets two brokers hang and moves the clock: attempts end after 1/3, 1/3 and 1/3 of the time."""

    async def main() -> None:
        clock = ManualClock()
        async with scripted("a", "b") as cluster:
            never = asyncio.Event()

            async def hang() -> None:
                await never.wait()

            for broker in cluster.brokers.values():
                broker.before_answer = hang
            instance = ClientInstance(client_options({"name_server": cluster.name_server}, clock=clock))
            await instance.start()
            options = ProducerOptions(timeout_ms=900)
            sender = Sender(instance, options.rules("PG", ""), options)
            out = outgoing(Message("Orders", b"x"), sender.rules, now_ms=clock.now_ms())
            target = await sender.find_target("Orders")
            sending = asyncio.create_task(sender.deliver(out, target, queue=None, timeout_ms=900))

            async def until_sent(count: int) -> None:
                while sum(len(broker.sends) for broker in cluster.brokers.values()) < count:
                    await asyncio.sleep(0)

            for number in (1, 2, 3):
                await until_sent(number)
                await clock.advance(299)
                assert sum(len(broker.sends) for broker in cluster.brokers.values()) == number
                await clock.advance(1)
            with pytest.raises(SendError) as caught:
                await sending
            tried = caught.value.tried
            assert [attempt.took_ms for attempt in tried] == [300, 300, 300]
            assert all(isinstance(attempt.error, CallTimeoutError) for attempt in tried)
            assert tried[0].broker_name == tried[2].broker_name != tried[1].broker_name
            never.set()
            await instance.close()

    run(main())


# Networks


def test_a_broker_that_hangs_is_left_for_another_one(tmp_path: Path) -> None:
    """Stalls one of two brokers; every message must be acknowledged by the other one."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, behind_proxies(cluster) as (proxies, between):
            await create(cluster, "Orders")
            async with producing(cluster, timeout_ms=900, broker_address_map=between) as producer:
                await asyncio.gather(*(producer.send(Message("Orders", b"x")) for _ in range(8)))
                proxies[0].stall()
                results = await asyncio.gather(*(producer.send(Message("Orders", b"y")) for _ in range(50)))
                assert {result.queue.broker_name for result in results} == {"broker-b"}

    run(main())


def test_a_connection_that_breaks_off_costs_no_message(tmp_path: Path) -> None:
    """Cuts answers off after every number of bytes, in their length, header and end; all sends must succeed."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, behind_proxies(cluster) as ((proxy,), between):
            await create(cluster, "Orders", queues=1)
            async with producing(cluster, broker_address_map=between, timeout_ms=20_000) as producer:
                ids = set()
                for size in (0, 1, 3, 4, 7, 8, 9, 50, 100, 150, 200, 250, 299, 301):
                    await producer.send(Message("Orders", b"before"))
                    proxy.cut_after(size)
                    results = await asyncio.gather(*(producer.send(Message("Orders", b"x")) for _ in range(5)))
                    ids |= {result.msg_id for result in results}
                assert proxy.connections_made >= 14
            records = (await stored(cluster, "Orders", queues=1))["broker-a", 0]
            assert ids <= {record.properties["UNIQ_KEY"] for record in records}
            assert len(ids) == 14 * 5

    run(main())


def test_a_broker_that_answers_slowly_is_waited_for(tmp_path: Path) -> None:
    """Delays answers, within the time of a send and beyond it."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, behind_proxies(cluster) as ((proxy,), between):
            await create(cluster, "Orders")
            async with producing(cluster, broker_address_map=between, retries=0) as producer:
                proxy.delay_ms = 50
                assert (await producer.send(Message("Orders", b"x"), timeout_ms=20_000)).ok
                proxy.delay_ms = 2_000
                with pytest.raises(SendError, match="did not answer in time"):
                    await producer.send(Message("Orders", b"x"), timeout_ms=100)

    run(main())


def test_nothing_acknowledged_is_lost_when_a_broker_dies_and_comes_back(tmp_path: Path) -> None:
    """Stops and starts each of two brokers while twenty tasks send; then every acknowledged message is there."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, names=2) as cluster:
            await create(cluster, "Orders")
            async with producing(cluster, timeout_ms=5_000) as producer:
                acknowledged: list[str] = []
                failed: list[SendError] = []
                is_over = False

                async def send_on() -> None:
                    while not is_over:
                        try:
                            acknowledged.append((await producer.send(Message("Orders", b"x"))).msg_id)
                        except SendError as error:
                            failed.append(error)

                tasks = [asyncio.create_task(send_on()) for _ in range(20)]
                for number in (0, 1):
                    while not any(task.done() for task in tasks) and len(acknowledged) < 500 * (2 * number + 1):
                        await asyncio.sleep(0)
                    app = cluster.apps[number]
                    port = port_of(app)
                    await app.close(drain_ms=50)
                    before = len(acknowledged)
                    while not any(task.done() for task in tasks) and len(acknowledged) < before + 200:
                        await asyncio.sleep(0)
                    cluster.apps[number] = await restart(app, port=port)
                is_over = True
                await asyncio.gather(*tasks)
                assert not failed, failed[0]
                await (await producer._core.ready()).instance.refresh_routes()  # as it does twice a minute
                names = {(await producer.send(Message("Orders", b"last"))).queue.broker_name for _ in range(16)}
                assert names == {"broker-a", "broker-b"}
            keys = {
                record.properties["UNIQ_KEY"]
                for records in (await stored(cluster, "Orders")).values()
                for record in records
            }
            assert len(acknowledged) >= 1000
            assert set(acknowledged) <= keys

    run(main())


def test_a_broker_that_moved_is_found_at_its_new_address(tmp_path: Path) -> None:
    """Starts the only broker again on another port, with nobody refreshing routes by the clock."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, "Orders")
            async with producing(cluster, timeout_ms=20_000) as producer:
                first = await producer.send(Message("Orders", b"x"))
                app = cluster.apps[0]
                old = app.broker.address
                await app.close(drain_ms=50)
                cluster.apps[0] = await restart(app, port=0)
                assert cluster.apps[0].broker.address != old
                second = await producer.send(Message("Orders", b"y"))
                assert second.ok
                assert second.queue.broker_name == first.queue.broker_name

    run(main())


def test_one_name_server_is_enough(tmp_path: Path) -> None:
    """Stops either of two name servers and sends to topics whose route is not known yet."""

    async def main() -> None:
        async with broker_cluster(tmp_path, names=2) as cluster:
            for number in range(2):
                await create(cluster, f"Topic{number}")
            async with producing(cluster) as producer:
                await cluster.name_servers[0].close(drain_ms=50)
                assert (await producer.send(Message("Topic0", b"x"))).ok
                await cluster.name_servers[1].close(drain_ms=50)
                assert (await producer.send(Message("Topic0", b"known"))).ok
                with pytest.raises(ConnectError):
                    await producer.send(Message("Topic1", b"unknown"))

    run(main())


def test_a_producer_starts_before_its_cluster(tmp_path: Path) -> None:
    """Starts it while nobody is there, and sends once somebody is."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy("127.0.0.1:1") as proxy:
            await create(cluster, "Orders")
            async with Producer("PG", name_server=proxy.address) as producer:
                with pytest.raises(ConnectError):
                    await producer.send(Message("Orders", b"x"))
                proxy.lead_to(names_of(cluster)[0])
                assert (await producer.send(Message("Orders", b"x"))).ok

    run(main())


# Avoidance


def test_times_to_avoid_a_broker_follow_the_tables() -> None:
    """Looks at every limit of the tables, just below it, and beyond the last one."""
    assert avoided_ms(0) == 0
    for number, (latency, duration) in enumerate(zip(LATENCIES_MS, AVOIDED_MS, strict=True)):
        assert avoided_ms(latency) == duration
        assert avoided_ms(latency - 1) == (AVOIDED_MS[number - 1] if number else 0)
    assert (avoided_ms(550), avoided_ms(1e9)) == (30_000, 600_000)


def test_faulty_brokers_are_left_alone_for_their_time() -> None:
    """Moves a clock over slow answers, failures and the times that they cost."""

    async def main() -> None:
        clock = ManualClock()
        table = FaultTable(clock)
        queues = [MessageQueue("T", name, number) for name in "abc" for number in range(2)]
        assert {table.choose(queues, number, None) for number in range(6)} == set(queues)
        assert table.least_bad() is None
        table.answered("a", 600)
        table.failed("b", 5, is_reachable=False)
        assert not table.is_available("a")
        assert {table.choose(queues, number, None).broker_name for number in range(6)} == {"c"}
        await clock.advance(30_000)
        assert {table.choose(queues, number, None).broker_name for number in range(6)} == {"a", "c"}
        assert {table.choose(queues, number, "a").broker_name for number in range(6)} == {"c"}
        table.failed("c", 9, is_reachable=False)
        assert table.choose(queues, 4, "a").broker_name == "a"
        table.answered("a", 15_000)
        # Nobody is available: the better half by latency is b, which failed fast.
        assert {table.choose(queues, number, None).broker_name for number in range(6)} == {"b"}
        only_a = [queue for queue in queues if queue.broker_name == "a"]
        assert table.choose(only_a, 0, None).broker_name == "a"
        assert "b" not in {item.broker_name for item in table.items()}
        await clock.advance(600_000)
        assert table.is_available("a")
        assert table.is_available("c")

    asyncio.run(main())


def test_a_detector_brings_a_broker_back_as_soon_as_it_answers() -> None:
    """Probes an unreachable broker that answers at the third probe, long before its time is over."""

    async def main() -> None:
        clock = ManualClock()
        table = FaultTable(clock, detects=True)
        table.failed("a", 5, is_reachable=False)
        table.failed("b", 5, is_reachable=True)
        probes: list[str] = []

        async def probe(name: str) -> bool:
            probes.append(name)
            return len(probes) == 3

        detecting = asyncio.create_task(table.detect(probe))
        await clock.advance(4_000)
        assert not table.is_available("a")
        await clock.advance(600_000)
        assert probes == ["a"] * 3
        assert table.is_available("a")
        detecting.cancel()

    asyncio.run(main())


def test_a_producer_avoids_a_broker_that_failed_and_takes_it_back(tmp_path: Path) -> None:
    """Stalls one of two brokers behind a producer with a detector, and lets it answer again."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, behind_proxies(cluster) as (proxies, between):
            await create(cluster, "Orders")
            async with producing(
                cluster, timeout_ms=900, broker_address_map=between, avoid_faulty=True, detect_faulty=True
            ) as producer:
                await asyncio.gather(*(producer.send(Message("Orders", b"x")) for _ in range(8)))
                proxies[0].stall()
                faults = (await producer._core.ready()).sender.faults
                assert faults is not None
                while faults.is_available("broker-a"):
                    assert (await producer.send(Message("Orders", b"x"))).queue.broker_name == "broker-b"
                assert [item.is_reachable for item in faults.items() if item.broker_name == "broker-a"] == [False]
                for _ in range(50):  # at once: nobody waits for the broker that hangs
                    assert (await producer.send(Message("Orders", b"y"))).queue.broker_name == "broker-b"
                proxies[0].resume()
                while not faults.is_available("broker-a"):
                    await asyncio.sleep(0.01)
                names = {(await producer.send(Message("Orders", b"z"))).queue.broker_name for _ in range(16)}
                assert names == {"broker-a", "broker-b"}

    run(main())
