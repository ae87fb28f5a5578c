"""Sending to queues from plain threads: order, loss, bounds, and brokers that go away."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.client.options import ClientOptions, client_options
from rmq_core.client.queue_sender import QueueSender, QueueSendError
from rmq_core.client.sending import Outgoing, SendRules, batch_piece, outgoing, outgoing_batch
from rmq_core.embedded_broker import EmbeddedBroker, embedded
from rmq_core.errors import ConnectError, NoRouteError
from rmq_core.protocol.message import Message, MessageQueue
from support.brokers import broker_cluster, run
from support.cluster import address_of
from support.proxy import Proxy
from support.sent import arrived, bodies

RULES = SendRules(group="PG")


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with embedded() as broker:
        yield broker


def options(name_server: str, **more: object) -> ClientOptions:
    return client_options({"name_server": name_server, **more})  # type: ignore[typeddict-item]


def single(topic: str, body: bytes) -> Outgoing:
    return outgoing(Message(topic, body), RULES, now_ms=int(time.time() * 1000))


def batch(topic: str, *contents: bytes) -> Outgoing:
    now_ms = int(time.time() * 1000)
    pieces = [batch_piece(Message(topic, body), RULES, now_ms=now_ms) for body in contents]
    return outgoing_batch(pieces, RULES, now_ms=now_ms)


def first_times(seen: list[bytes]) -> list[bytes]:
    """Without what came again."""
    return list(dict.fromkeys(seen))


def test_messages_keep_their_order_in_each_of_many_queues(mq: EmbeddedBroker) -> None:
    """Sends 50 requests, of one message and of three, to each of 16 queues in turn."""
    mq.create_topic("Ordered", queues=16)
    with QueueSender(options(mq.name_server), RULES) as sender:
        queues = sender.queues("Ordered")
        assert len(queues) == 16
        for number in range(50):
            for queue in queues:
                parts = [b"%d-%d" % (number, part) for part in range(3 if number % 2 else 1)]
                sender.send(queue, batch("Ordered", *parts) if len(parts) > 1 else single("Ordered", parts[0]))
        sender.flush()
        assert sender.requests_acknowledged == 16 * 50
    wanted = [b"%d-%d" % (number, part) for number in range(50) for part in range(3 if number % 2 else 1)]
    for records in arrived(mq.name_server, "Ordered").values():
        assert [record.body for record in records] == wanted


def test_one_request_of_a_queue_is_in_flight(mq: EmbeddedBroker) -> None:
    """Looks, after each send, at what the sender has on its way: never two for one queue."""
    mq.create_topic("OneByOne", queues=2)
    with QueueSender(options(mq.name_server), RULES) as sender:
        queues = sender.queues("OneByOne")
        for number in range(100):
            sender.send(queues[number % 2], single("OneByOne", b"%d" % number))
            assert len(sender._busy) <= 2
        sender.flush()
    found = arrived(mq.name_server, "OneByOne")
    assert [len(records) for records in found.values()] == [50, 50]


def test_a_topic_that_does_not_exist_is_made_by_its_first_message(mq: EmbeddedBroker) -> None:
    """Sends to every queue that the default topic lends to a new one."""
    with QueueSender(options(mq.name_server), RULES) as sender:
        queues = sender.queues("MadeBySending")
        assert len(queues) == 4
        for queue in queues:
            sender.send(queue, single("MadeBySending", b"%d" % queue.queue_id))
        sender.flush()
    assert bodies(mq.name_server, "MadeBySending") == [b"0", b"1", b"2", b"3"]


def test_a_message_that_is_too_large_fails_with_the_limit_and_at_once(mq: EmbeddedBroker) -> None:
    """Sends more than maxMessageSize: the broker's refusal must come through, and not be tried again."""
    mq.create_topic("Large", queues=1)
    with QueueSender(options(mq.name_server), RULES) as sender:
        out = single("Large", b"x" * 100)
        out.body = b"x" * (5 << 20)
        sender.send(sender.queues("Large")[0], out)
        with pytest.raises(QueueSendError, match=str(4 << 20)) as caught:
            sender.flush()
    assert caught.value.code == 13
    assert len(caught.value.tried) == 1


def test_a_broker_that_no_name_server_knows_fails_within_the_budget(mq: EmbeddedBroker) -> None:
    """Names a broker that is not there."""
    with QueueSender(options(mq.name_server), RULES, away_budget_ms=50) as sender:
        sender.send(MessageQueue("Ordered", "nowhere", 0), single("Ordered", b"lost"))
        with pytest.raises(QueueSendError, match="no name server knows a master of broker nowhere"):
            sender.flush()


def test_no_name_server_and_no_topic_are_told_apart(mq: EmbeddedBroker) -> None:
    """Asks for queues where nobody listens, and of a topic that no broker would make."""
    strict = SendRules(group="PG", default_topic="NoSuchDefault")
    with (
        QueueSender(options(mq.name_server), strict) as sender,
        pytest.raises(NoRouteError, match="create it first"),
    ):
        sender.queues("NotThere")
    with QueueSender(options("127.0.0.1:1"), RULES) as sender, pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        sender.queues("Ordered")


def test_wrong_arguments_are_refused(mq: EmbeddedBroker) -> None:
    """Gives limits that would stop everything."""
    for wrong in ({"timeout_ms": 0}, {"retries": -1}, {"away_budget_ms": -1}, {"bytes_in_flight_max": 0}):
        with pytest.raises(ValueError):
            QueueSender(options(mq.name_server), RULES, **wrong)


def test_connections_that_break_lose_nothing_and_keep_the_order(tmp_path: Path) -> None:
    """Cuts all connections again and again while 4 queues get 300 requests each."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            names = address_of(cluster.name_servers[0])
            reached = options(names, broker_address_map={cluster.broker.address: proxy.address})

            def send() -> None:
                with QueueSender(reached, RULES) as sender:
                    queues = sender.queues("Cut")
                    for number in range(300):
                        for queue in queues:
                            sender.send(queue, batch("Cut", b"%d-a" % number, b"%d-b" % number))
                    sender.flush()

            sending = asyncio.create_task(asyncio.to_thread(send))
            cuts = 0
            while not sending.done():
                before = cluster.broker.store.log.end
                while cluster.broker.store.log.end == before and not sending.done():
                    await asyncio.sleep(0.001)
                proxy.cut()
                cuts += 1
            await sending
            assert cuts > 3
            assert proxy.connections_made > 3
            wanted = [b"%d-%b" % (number, part) for number in range(300) for part in (b"a", b"b")]
            found = await asyncio.to_thread(arrived, names, "Cut")
            assert len(found) == 4
            for records in found.values():
                assert first_times([record.body for record in records]) == wanted

    run(main())


def test_a_broker_that_hangs_is_given_up_after_the_retries_and_the_bytes_are_bounded(tmp_path: Path) -> None:
    """Stalls the way to the broker: sending must stop at the limit, and fail after so many tries."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            names = address_of(cluster.name_servers[0])
            reached = options(names, broker_address_map={cluster.broker.address: proxy.address})
            taken: list[int] = []

            def send() -> None:
                with QueueSender(reached, RULES, timeout_ms=300, retries=1, bytes_in_flight_max=10_000) as sender:
                    queue = sender.queues("Hung")[0]
                    sender.send(queue, single("Hung", b"first"))
                    sender.flush()
                    asyncio.run_coroutine_threadsafe(stall(), loop).result()
                    for number in range(100):
                        sender.send(queue, single("Hung", b"x" * 1_000))
                        taken.append(number)

            async def stall() -> None:
                proxy.stall()

            loop = asyncio.get_running_loop()
            with pytest.raises(QueueSendError, match="did not answer in time") as caught:
                await asyncio.to_thread(send)
            assert len(caught.value.tried) == 2
            assert caught.value.code is None
            assert 5 < len(taken) < 10

    run(main())


def test_queues_are_served_while_no_name_server_answers(tmp_path: Path) -> None:
    """Stops the name server once the route is known, and cuts the connection to the broker as well."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            names = address_of(cluster.name_servers[0])
            reached = options(names, broker_address_map={cluster.broker.address: proxy.address})
            with contextlib.closing(QueueSender(reached, RULES)) as sender:
                queues = await asyncio.to_thread(sender.queues, "Alone")
                await asyncio.to_thread(sender.send, queues[0], single("Alone", b"one"))
                await asyncio.to_thread(sender.flush)
                await cluster.name_servers[0].close()
                proxy.cut()
                await asyncio.to_thread(sender.send, queues[0], single("Alone", b"two"))
                await asyncio.to_thread(sender.flush)
                assert sender.queues("Alone") == queues
            found = await cluster.client().messages("Alone")
            assert [record.body for record in found] == [b"one", b"two"]

    run(main())


def test_a_broker_killed_and_started_again_gets_everything(tmp_path: Path) -> None:
    """Kills the broker, and with it the name server, in the middle; starts both again on the same ports."""
    with embedded(tmp_path / "store", flushDiskType="SYNC_FLUSH") as first:
        first.create_topic("Killed", queues=2)
        ports = {
            "listenPort": first.address.rpartition(":")[2],
            "namesrvPort": first.name_server.rpartition(":")[2],
        }
        with QueueSender(options(first.name_server), RULES) as sender:
            queues = sender.queues("Killed")
            for number in range(100):
                sender.send(queues[number % 2], single("Killed", b"%03d" % number))
            assert first._process is not None
            first._process.send_signal(signal.SIGKILL)
            first._process.wait()
            for number in range(100, 110):
                sender.send(queues[number % 2], single("Killed", b"%03d" % number))
            first.close()
            with embedded(tmp_path / "store", flushDiskType="SYNC_FLUSH", **ports) as second:
                for number in range(110, 200):
                    sender.send(queues[number % 2], single("Killed", b"%03d" % number))
                sender.flush()
                for queue, records in arrived(second.name_server, "Killed").items():
                    wanted = [b"%03d" % number for number in range(200) if number % 2 == queue.queue_id]
                    assert first_times([record.body for record in records]) == wanted
