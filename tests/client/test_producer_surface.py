"""What users are shown of producers runs as it is written, and both forms take and give the same."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rmq_core
from rmq_core import Message, MessageQueue, Producer, TransactionDecision, TransactionProducer, aio
from rmq_core.client.received import ReceivedMessage
from rmq_core.embedded_broker import EmbeddedBroker, embedded
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.record import decode_pull_body
from rmq_core.protocol.requests import PullMessage
from support.sent import bodies
from support.threaded import until


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with embedded(transactionCheckInterval=50, transactionTimeOut=50) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _name_server(mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", mq.name_server)


def answer_requests(mq: EmbeddedBroker, topic: str) -> None:
    """Answers the first message of a topic with one queue, as a consumer would."""
    request = PullMessage(
        consumer_group="answering",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_millis=20_000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    with BlockingChannel(mq.address) as channel, Producer("answering") as producer:
        records: list[Any] = []
        while not records:
            records = decode_pull_body(channel.call(request, timeout_ms=30_000).body)
        broker_name = producer.queues(topic)[0].broker_name
        message = ReceivedMessage(records[0], MessageQueue(topic, broker_name, 0))
        producer.reply(message, b"1.08")


def test_sending_as_it_is_shown(mq: EmbeddedBroker) -> None:
    """Runs the lines that show what a producer can do, and looks for each message."""
    for topic in ("Orders", "Metrics", "Quotes"):
        mq.create_topic(topic, queues=1)
    answering = threading.Thread(target=answer_requests, args=(mq, "Quotes"))
    answering.start()
    with Producer("asking") as producer:
        broker_a = producer.queues("Orders")[0].broker_name
    with Producer("orders-service") as producer:
        sent = producer.send(Message("Orders", b'{"id": 42}', tags="paid", keys="42", properties={"shop": "s7"}))
        assert (sent.ok, sent.status.name, sent.queue_offset) == (True, "OK", 0)
        assert sent.msg_id
        assert sent.offset_msg_id
        assert sent.queue == MessageQueue("Orders", broker_a, 0)
        producer.send(Message("Orders", b"sharded", sharding_key="customer-7"))
        producer.send(Message("Orders", b"delayed", delay_level=3))
        producer.send(Message("Orders", b"placed"), queue=MessageQueue("Orders", broker_a, 0), timeout_ms=1000)
        producer.send_batch([Message("Orders", b"a"), Message("Orders", b"b")])
        producer.send_oneway(Message("Metrics", b"one-way"))
        future = producer.send_async(Message("Orders", b"future"))
        assert future.result(30).ok
        answer = producer.request(Message("Quotes", b"EUR"), timeout_ms=20_000)
        assert answer.body == b"1.08"
    answering.join(30)
    assert bodies(mq.name_server, "Orders") == sorted([b'{"id": 42}', b"sharded", b"placed", b"a", b"b", b"future"])
    until(lambda: bodies(mq.name_server, "Metrics") == [b"one-way"], "the one-way message arrives")


def test_sending_from_coroutines_as_it_is_shown(mq: EmbeddedBroker) -> None:
    """Sends a thousand messages at once."""
    mq.create_topic("Many")

    async def main() -> None:
        async with aio.Producer("orders-service") as producer:
            await asyncio.gather(*(producer.send(Message("Many", b"%d" % i)) for i in range(1000)))

    asyncio.run(main())
    assert sorted(map(int, bodies(mq.name_server, "Many"))) == list(range(1000))


def test_a_transaction_as_it_is_shown(mq: EmbeddedBroker) -> None:
    """Pays for one order at once, and lets the broker ask about two others."""
    mq.create_topic("Paid")
    database: dict[tuple[str, ...], bool] = {("yes",): True, ("no",): False}

    def paid(keys: tuple[str, ...]) -> bool:
        return database[keys]

    def was_paid(message: ReceivedMessage) -> TransactionDecision:
        return TransactionDecision.COMMIT if paid(message.keys) else TransactionDecision.ROLLBACK

    def pay_in_database(half: Any) -> TransactionDecision:
        return TransactionDecision.COMMIT

    with TransactionProducer("pay", topics=["Paid"], check=was_paid) as producer:
        result = producer.send(Message("Paid", b"now"), execute=pay_in_database)
        assert result.decision is TransactionDecision.COMMIT
        for key in ("yes", "no"):
            producer.send(Message("Paid", key.encode(), keys=key), execute=lambda half: TransactionDecision.UNKNOWN)
        until(lambda: bodies(mq.name_server, "Paid") == [b"now", b"yes"], "what was paid is visible")


@pytest.mark.parametrize("name", ["Producer", "TransactionProducer"])
def test_both_forms_take_the_same(name: str) -> None:
    """Compares the names and signatures of the coroutine form with those of the blocking form."""
    blocking, coroutines = getattr(rmq_core, name), getattr(aio, name)
    public = [each for each in vars(coroutines) if not each.startswith("_")]
    assert len(public) >= 4
    for each in (*public, "__init__"):
        ours, theirs = (inspect.signature(getattr(form, each)) for form in (coroutines, blocking))
        assert list(ours.parameters.values()) == list(theirs.parameters.values()), each
        if each not in ("start", "__init__"):
            assert ours.return_annotation == theirs.return_annotation, each
    only_blocking = {each for each in vars(blocking) if not each.startswith("_")} - set(public)
    assert only_blocking == ({"send_async"} if name == "Producer" else set())
