"""Requests to other clients and their replies, passed on by real brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq_core.client.blocking.producer import Producer as BlockingProducer
from rmq_core.client.producer import Producer
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_results import SendError
from rmq_core.errors import CallTimeoutError, ClientClosedError
from rmq_core.protocol.message import Message, MessageQueue
from support.brokers import Cluster, broker_cluster, run
from support.producing import create, names_of, producing
from support.threaded import threaded_cluster


async def requests_in(cluster: Cluster, topic: str, count: int, *, namespace: str = "") -> list[ReceivedMessage]:
    """So many requests of a topic with one queue per broker, once they have come, as a consumer gets them."""
    wire_topic = f"{namespace}%{topic}" if namespace else topic
    clients = [cluster.client(number) for number in range(len(cluster.apps))]
    while True:
        found = [
            ReceivedMessage(record, MessageQueue(topic, app.settings.broker_name, 0), namespace=namespace)
            for client, app in zip(clients, cluster.apps, strict=True)
            for record in await client.messages(wire_topic, 0)
        ]
        if len(found) >= count:
            return found


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_request_is_answered_by_another_client(tmp_path: Path, namespace: str) -> None:
    """Asks twenty questions at once over two brokers and answers them in another order; also in a namespace."""

    async def main() -> None:
        async with (
            broker_cluster(tmp_path, masters=2) as cluster,
            producing(cluster, "asking", namespace=namespace) as asking,
            producing(cluster, "answering", namespace=namespace) as answering,
        ):
            await create(cluster, f"{namespace}%Quotes" if namespace else "Quotes", queues=1)
            questions = [
                asyncio.create_task(asking.request(Message("Quotes", b"q%d" % number), timeout_ms=20_000))
                for number in range(20)
            ]
            received = await requests_in(cluster, "Quotes", 20, namespace=namespace)
            for message in reversed(received):
                assert message.properties["TTL"] == "20000"
                await answering.reply(message, b"answer to " + message.body)
            answers = await asyncio.gather(*questions)
            assert [answer.body for answer in answers] == [b"answer to q%d" % number for number in range(20)]
            assert {answer.topic for answer in answers} == {"DefaultCluster_REPLY_TOPIC"}
            assert all(answer.properties["MSG_TYPE"] == "reply" for answer in answers)
            assert not (await asking._core.ready()).instance.replies

    run(main())


def test_a_large_reply_comes_back_whole(tmp_path: Path) -> None:
    """Answers with a body that is compressed on its way."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, producing(cluster) as producer:
            await create(cluster, "Quotes", queues=1)
            question = asyncio.create_task(producer.request(Message("Quotes", b"?"), timeout_ms=20_000))
            (message,) = await requests_in(cluster, "Quotes", 1)
            await producer.reply(message, b"0123456789" * 10_000)
            answer = await question
            assert answer.body == b"0123456789" * 10_000
            assert answer.sys_flag & 1

    run(main())


def test_no_reply_in_time_is_told_and_a_late_one_is_ignored(tmp_path: Path) -> None:
    """Answers after the time of the request is over, and then a second request in time."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, producing(cluster) as producer:
            await create(cluster, "Quotes", queues=1)
            with pytest.raises(CallTimeoutError, match="no reply to message"):
                await producer.request(Message("Quotes", b"late"), timeout_ms=150)
            (late,) = await requests_in(cluster, "Quotes", 1)
            assert (await producer.reply(late, b"too late")).ok
            question = asyncio.create_task(producer.request(Message("Quotes", b"soon"), timeout_ms=20_000))
            _, soon = await requests_in(cluster, "Quotes", 2)
            await producer.reply(late, b"too late again")
            await producer.reply(soon, b"in time")
            await producer.reply(soon, b"a second answer")
            assert (await question).body == b"in time"

    run(main())


def test_who_has_gone_cannot_be_answered_and_what_is_no_request_neither(tmp_path: Path) -> None:
    """Closes the producer that asked while it waits, and answers a plain message."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, producing(cluster, "answering") as answering:
            await create(cluster, "Quotes", queues=1)
            async with producing(cluster, "asking") as asking:
                question = asyncio.create_task(asking.request(Message("Quotes", b"?"), timeout_ms=20_000))
                (message,) = await requests_in(cluster, "Quotes", 1)
            with pytest.raises(ClientClosedError, match="before the reply came"):
                await question
            while cluster.broker.clients.producer_group("asking"):
                await asyncio.sleep(0.001)
            with pytest.raises(SendError, match=r"channel of <.*> not found"):
                await answering.reply(message, b"anybody?")
            await answering.send(Message("Quotes", b"plain"))
            _, plain = await requests_in(cluster, "Quotes", 2)
            with pytest.raises(ValueError, match="CORRELATION_ID"):
                await answering.reply(plain, b"x")

    run(main())


def test_a_request_that_cannot_be_sent_says_so(tmp_path: Path) -> None:
    """Asks with no name server there; nothing keeps waiting for a reply."""

    async def main() -> None:
        async with Producer("PG", name_server="127.0.0.1:1") as producer:
            with pytest.raises(ConnectionError):
                await producer.request(Message("Quotes", b"?"))
            assert not (await producer._core.ready()).instance.replies

    run(main())


def test_the_blocking_form_asks_and_answers_too(tmp_path: Path) -> None:
    """Asks from a thread and answers from another, and lets one request go without an answer."""
    with threaded_cluster(tmp_path) as cluster:
        cluster.create_topic("Quotes", queues=1)
        with BlockingProducer("asking", name_server=cluster.name_server) as producer:
            answering: list[ReceivedMessage] = []

            async def answer() -> None:
                async with Producer("answering", name_server=names_of(cluster.cluster)) as replier:
                    (message,) = await requests_in(cluster.cluster, "Quotes", 1)
                    answering.append(message)
                    await replier.reply(message, b"42")

            future = asyncio.run_coroutine_threadsafe(answer(), cluster.loop)
            assert producer.request(Message("Quotes", b"?"), timeout_ms=20_000).body == b"42"
            future.result(30)
            assert producer.reply(answering[0], b"again").ok
            with pytest.raises(CallTimeoutError, match="no reply"):
                producer.request(Message("Quotes", b"?"), timeout_ms=100)
