"""The guide of the clients: every block of it runs as it is written, its loose names filled in."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rmq_core
from rmq_core import Admin, Message, Producer, PushConsumer, TransactionDecision
from rmq_core.integrations import from_body
from support.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def block(word: str) -> str:
    """The one block with a word in it."""
    (found,) = (str(each) for each in BLOCKS if word in each)
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[rmq_core.EmbeddedBroker]:
    with rmq_core.embedded(brokerName="broker-a") as mq:
        for topic in ("Orders", "Quotes", "Metrics", "Logs"):
            mq.create_topic(topic)
        yield mq


@pytest.fixture(autouse=True)
def environment(broker: rmq_core.EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks name no name server."""
    monkeypatch.setenv("NAMESRV_ADDR", broker.name_server)


def run(text: str, **names: Any) -> dict[str, Any]:
    """Run a block at top level, where it may await; its names afterwards."""
    names["__name__"] = "block"
    code = compile(text, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):

        async def main() -> None:
            await result

        asyncio.run(main())
    return names


@contextlib.contextmanager
def running(text: str, ready: str, **names: Any) -> Iterator[dict[str, Any]]:
    """Run a block that does not end by itself: until its object `ready` is there, and closed."""
    failures: list[BaseException] = []

    def target() -> None:
        try:
            run_into(text, names)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    try:
        until(lambda: ready in names or failures)
        yield names
    finally:
        if ready in names:
            names[ready].close()
        thread.join(30)
    assert not thread.is_alive()
    assert not failures, failures


def run_into(text: str, names: dict[str, Any]) -> None:
    names["__name__"] = "block"
    exec(compile(text, str(PAGE), "exec"), names)


@contextlib.contextmanager
def quotes() -> Iterator[None]:
    """Somebody who answers requests for quotes."""
    responder = Producer("quotes-responder")
    consumer = PushConsumer("quotes", start_from="earliest")
    consumer.subscribe("Quotes", lambda message: responder.reply(message, b'{"rate": 1.25}') and None)
    with responder, consumer:
        yield


def test_every_block_has_a_test() -> None:
    """A block that nothing here runs is a promise that nobody keeps."""
    source = Path(__file__).read_text()
    words = re.findall(r'block\("([^"]+)"\)', source)
    assert {next(i for i, each in enumerate(BLOCKS) if word in each) for word in words} == set(range(len(BLOCKS)))


def test_embedded(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints an address that it was given."""
    run(block("rmq_core.embedded"))
    assert "127.0.0.1:" in capsys.readouterr().out


def test_sending() -> None:
    """All ways of sending, to a broker of the name that the block uses; somebody answers the request."""
    with quotes():
        names = run(block("producer.send_oneway"))
    assert names["sent"].ok
    assert names["future"].result(30).ok
    assert names["answer"].body == b'{"rate": 1.25}'


def test_sending_with_coroutines() -> None:
    """The topic must hold a thousand messages more."""
    with Admin() as admin:
        before = admin.topic_status("Orders").count
        run(block("await asyncio.gather"), asyncio=asyncio, Message=Message)
        assert admin.topic_status("Orders").count == before + 1000


def test_transactions() -> None:
    """The local transaction must run once, and with the message that was stored."""
    done: list[str] = []

    def pay_in_database(message: Any) -> TransactionDecision:
        done.append(message.msg_id)
        return TransactionDecision.COMMIT

    names = run(
        block("TransactionProducer"),
        Message=Message,
        pay_in_database=pay_in_database,
        paid=lambda keys: keys == ("42",),
    )
    assert names["result"].decision is TransactionDecision.COMMIT
    assert done == [names["result"].msg_id]
    assert names["was_paid"](SimpleNamespace(keys=("42",))) is TransactionDecision.COMMIT


def test_consuming(capsys: pytest.CaptureFixture[str]) -> None:
    """Sends until the consumer, which begins at the end, has its first message."""
    with running(block("consumer.run()"), "consumer") as names, Producer("shop") as producer:
        printed = []

        def is_consumed() -> bool:
            producer.send(Message("Orders", b"a paid order", tags="paid", keys="42", properties={"shop": "s7"}))
            printed.append(capsys.readouterr().out)
            return "b'a paid order' ('42',) s7 0" in "".join(printed)

        until(is_consumed)
        assert names["consumer"].queues


def test_pulling() -> None:
    """Sends until the loop, which begins at the end, has a message; close() must end it."""
    with running(block("LitePullConsumer"), "consumer") as names, Producer("shop") as producer:

        def is_read() -> bool:
            producer.send(Message("Orders", b"to be read"))
            return getattr(names.get("message"), "body", None) == b"to be read"

        until(is_read)


def test_managing() -> None:
    """The topic exists already, with fewer queues, and the group has read nothing."""
    with Admin() as admin:
        admin.create_group("orders-service")
    names = run(block("admin.lag"), datetime=datetime, UTC=UTC)
    with pytest.raises(rmq_core.RocketMQError):
        names["admin"].topics()  # the block has closed it
    with Admin() as admin:
        assert len(admin.topic_route("Orders").read_queues) == 8


@dataclass
class Order:
    number: int


@dataclass
class Quote:
    rate: float


def test_integrations() -> None:
    """The listener must get the order that the template sent, though the block has no body for it."""
    billed: list[Order] = []
    text = block("app.run()").replace("def bill(order: Order): ...", "def bill(order: Order): billed.append(order)")
    with quotes(), running(text, "app", Order=Order, Quote=Quote, billed=billed) as names:

        def is_billed() -> bool:
            names["app"].template.send("Orders", Order(42), tags="paid")
            return Order(42) in billed

        until(lambda: "quote" in names)
        until(is_billed)
        assert names["quote"] == Quote(1.25)


def test_log_records() -> None:
    """The record must be in its topic."""
    logger = logging.getLogger("shop")
    run(block("RocketMQHandler"))
    (handler,) = logger.handlers
    try:
        handler.flush()
        with Admin() as admin:
            until(lambda: admin.topic_status("Logs").count == 1)
    finally:
        logger.removeHandler(handler)
        handler.close()


def test_openmessaging(broker: rmq_core.EmbeddedBroker) -> None:
    """At the address of the broker that runs, in place of the one of the page."""
    with Admin() as admin:
        before = admin.topic_status("Orders").count
        run(block("messaging_access_point").replace("127.0.0.1:9876", broker.name_server))
        assert admin.topic_status("Orders").count == before + 1


def test_a_body_is_what_its_reader_asks_for() -> None:
    """The promise beside the block: any of these."""
    assert from_body(b'{"number": 42}', Order) == Order(42)
