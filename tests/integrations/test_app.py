"""Listeners, responders, transactions and the template of an App, against a broker of another process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import rmq_core
from rmq_core import ReceivedMessage, TransactionDecision
from rmq_core.errors import CallTimeoutError, ClientClosedError, ClientError
from rmq_core.integrations import App, ConversionError, Template
from rmq_core.integrations.pytest_plugin import RocketMQ
from rmq_core.integrations.settings import spring_settings
from support.waiting import until


@dataclass(frozen=True)
class Order:
    number: int
    shop: str = "s"


@dataclass(frozen=True)
class Quote:
    currency: str
    rate: float


class Listens:
    """A listener in the form of a class."""

    got: list[str] = []  # noqa: RUF012

    def on_message(self, text: str) -> None:
        self.got.append(text)


class Pay:
    """A transaction listener whose database is a dict."""

    def __init__(self) -> None:
        self.paid: dict[int, str] = {}
        self.asked: list[int] = []

    def execute(self, order: Order, argument: str) -> TransactionDecision | None:
        self.paid[order.number] = argument
        return {"commit": TransactionDecision.COMMIT, "rollback": TransactionDecision.ROLLBACK}.get(argument)

    def check(self, order: Order) -> TransactionDecision:
        self.asked.append(order.number)
        return TransactionDecision.COMMIT


def app_of(rocketmq: RocketMQ, **arguments: Any) -> App:
    return App(name_server=rocketmq.name_server, **arguments)


def test_listeners_get_what_their_parameters_ask_for(rocketmq: RocketMQ) -> None:
    """One message, and a listener for each form in which it can be had."""
    topic = rocketmq.topic()
    got: dict[str, Any] = {}
    with app_of(rocketmq) as app:

        @app.listener(topic, group=rocketmq.group(), start_from="earliest")
        def as_order(order: Order) -> None:
            got["order"] = order

        @app.listener(topic, group=rocketmq.group(), start_from="earliest")
        def as_bytes(body: bytes) -> None:
            got["bytes"] = body

        @app.listener(topic, group=rocketmq.group(), start_from="earliest")
        def as_both(data: dict[str, Any], message: ReceivedMessage) -> None:
            got["both"] = (data, message.tags, message.keys, message.properties["shop"])

        @app.listener(topic, group=rocketmq.group(), start_from="earliest", tags="paid")
        def as_message(message) -> None:  # type: ignore[no-untyped-def]
            got["message"] = message.body

        @app.listener(topic, group=rocketmq.group(), start_from="earliest", into=Order)
        async def as_told(value) -> None:  # type: ignore[no-untyped-def]
            await asyncio.sleep(0)
            got["told"] = value

        @app.listener(topic, group=rocketmq.group(), start_from="earliest", batch_size_max=8)
        def as_list(orders: list[Order], messages: list[ReceivedMessage]) -> None:
            got["list"] = (orders, len(messages))

        app.template.send(topic, Order(42), tags="paid", keys=["a", "b"], properties={"shop": "s7"})
        until(lambda: len(got) == 6, what=str(got))
    assert got["order"] == got["told"] == Order(42)
    assert got["bytes"] == got["message"] == b'{"number":42,"shop":"s"}'
    assert got["both"] == ({"number": 42, "shop": "s"}, "paid", ("a", "b"), "s7")
    assert got["list"] == ([Order(42)], 1)
    assert as_order(Order(1)) is None
    assert got["order"] == Order(1)


def test_a_class_with_on_message_is_a_listener_too(rocketmq: RocketMQ) -> None:
    """Two topics of one group share a consumer."""
    first, second, group = rocketmq.topic(), rocketmq.topic(), rocketmq.group()
    seen: list[str] = []
    with app_of(rocketmq) as app:
        app.listener(first, group=group, start_from="earliest")(Listens)

        @app.listener(second, group=group, start_from="earliest")
        def note(text: str) -> None:
            seen.append(text)

        app.template.send(first, "to the class")
        app.template.send(f"{second}:tag", "to the function")
        until(lambda: Listens.got and seen)
        assert (Listens.got, seen) == (["to the class"], ["to the function"])
        assert repr(app) == f"<App 'rmq-app': {group}, started>"


def test_a_body_that_does_not_fit_is_a_failure_and_not_lost(rocketmq: RocketMQ) -> None:
    """With no second try it must be among the dead letters, byte for byte; the next message is consumed."""
    topic, group = rocketmq.topic(), rocketmq.group()
    got: list[Order] = []
    with app_of(rocketmq) as app, rmq_core.Admin(name_server=rocketmq.name_server) as admin:

        @app.listener(topic, group=group, start_from="earliest", reconsume_times_max=0)
        def take(order: Order) -> None:
            got.append(order)

        app.template.send(topic, "no order")
        app.template.send(topic, Order(1))
        dead = f"%DLQ%{group}"
        until(lambda: dead in admin.topics(internal=True) and admin.topic_status(dead).count)
        until(lambda: got)
        assert admin.message_at(rmq_core.MessageQueue(dead, "embedded", 0), 0).body == b"no order"
    assert got == [Order(1)]


def test_requests_are_answered_with_what_the_responder_returns(rocketmq: RocketMQ) -> None:
    """A plain and a coroutine responder; a message that is no request is answered to nobody."""
    quotes, times = rocketmq.topic(), rocketmq.topic()
    asked: list[str] = []
    with app_of(rocketmq) as app:

        @app.responder(quotes, group=rocketmq.group(), start_from="earliest")
        def quote(currency: str) -> Quote:
            asked.append(currency)
            return Quote(currency, 1.25)

        @app.responder(times, group=rocketmq.group(), start_from="earliest")
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return 2 * number

        assert app.template.request(quotes, "EUR", into=Quote, timeout_ms=30_000) == Quote("EUR", 1.25)
        assert app.template.request(times, 21, into=int, timeout_ms=30_000) == 42
        raw = app.template.request(quotes, "USD", timeout_ms=30_000)
        assert raw.body == b'{"currency":"USD","rate":1.25}'
        app.template.send(quotes, "GBP")
        until(lambda: "GBP" in asked)
        with pytest.raises(CallTimeoutError):
            app.template.request(rocketmq.topic(), "nobody", timeout_ms=200)


def test_transactions_are_decided_by_their_listener(rocketmq: RocketMQ) -> None:
    """Commits one and rolls one back: only the first is ever seen."""
    topic = rocketmq.topic()
    got: list[Order] = []
    group = rocketmq.group()
    with app_of(rocketmq) as app:
        pay = Pay()
        app.transaction_listener(group, topics=[topic])(pay)

        @app.listener(topic, group=rocketmq.group(), start_from="earliest")
        def see(order: Order) -> None:
            got.append(order)

        results = [
            app.template.send_in_transaction(topic, Order(number), argument)
            for number, argument in ((1, "rollback"), (2, "commit"))
        ]
        assert [each.decision for each in results] == [TransactionDecision.ROLLBACK, TransactionDecision.COMMIT]
        until(lambda: got)
        assert got == [Order(2)]
        assert pay.paid == {1: "rollback", 2: "commit"}
        with pytest.raises(ValueError, match="group: there is no transaction listener other"):
            app.template.send_in_transaction(topic, Order(3), group="other")
        with pytest.raises(ValueError, match="there is a transaction listener"):
            app.transaction_listener(group, topics=[topic])(Pay)


def test_every_way_of_sending_reaches_the_topic(rocketmq: RocketMQ) -> None:
    """Counts what arrives; values of one key arrive in their order."""
    topic = rocketmq.topic()
    got: list[int] = []
    lock = threading.Lock()
    with app_of(rocketmq) as app:

        @app.listener(topic, group=rocketmq.group(), start_from="earliest", ordered=True)
        def take(number: int) -> None:
            with lock:
                got.append(number)

        template = app.template
        for number in range(5):
            template.send_ordered(topic, number, "key")
        assert template.send_async(topic, 100).result(30).ok
        template.send_oneway(topic, 101)
        assert len(template.send_batch(topic, [102, 103])) == 2
        assert template.send_batch(topic, []) == ()
        until(lambda: len(got) == 9, what=str(got))
    assert [number for number in got if number < 100] == list(range(5))
    assert sorted(got)[5:] == [100, 101, 102, 103]


def test_a_listener_may_send_and_a_coroutine_is_told_that_it_must_not_wait(rocketmq: RocketMQ) -> None:
    """Both pass on what they get by the blocking template: in a coroutine that would hold up all others."""
    topic, further = rocketmq.topic(), rocketmq.topic()
    got: list[str] = []
    errors: list[Exception] = []
    with app_of(rocketmq) as app:

        @app.listener(topic, group=rocketmq.group(), start_from="earliest")
        def pass_on(text: str) -> None:
            app.template.send(further, text + " again")

        @app.listener(topic, group=rocketmq.group(), start_from="earliest")
        async def pass_on_later(text: str) -> None:
            try:
                app.template.send(further, "never")
            except ClientError as error:
                errors.append(error)

        @app.listener(further, group=rocketmq.group(), start_from="earliest")
        def take(text: str) -> None:
            got.append(text)

        app.template.send(topic, "hello")
        until(lambda: got and errors)
    assert got == ["hello again"]
    assert "use rmq_core.aio there" in str(errors[0])


def test_wrong_declarations_raise_where_they_are_written() -> None:
    """Nothing listens at the name server: nothing here may need it."""
    app = App(name_server="127.0.0.1:1")

    def two(first: Order, second: int, third: int) -> None: ...

    def odd(value: complex) -> None: ...

    def batch(order: Order) -> None: ...

    def unresolved(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, options, match in (
        (two, {}, "must take the body, or the body and the message"),
        (odd, {}, "odd.*complex cannot be read"),
        (batch, {"batch_size_max": 2}, "must be a list of something"),
        (unresolved, {}, "'Missing' cannot be resolved.*give it as into="),
        (5, {}, "a listener is a function or a class, not int"),
        (Quote, {}, "missing|on_message"),
    ):
        with pytest.raises(TypeError, match=match):
            app.listener("Orders", group="g", **options)(function)  # type: ignore[arg-type]

    @app.listener("Orders", group="g")
    def fine(order: Order) -> None: ...

    with pytest.raises(ValueError, match="topic: group g listens to Orders already"):
        app.listener("Orders", group="g")(fine)
    with pytest.raises(ValueError, match="group: g has a listener with other settings"):
        app.listener("Other", group="g", concurrency=3)(fine)
    with pytest.raises(ValueError, match="concurrency"):
        app.listener("Other", group="h", concurrency=0)(fine)
    with pytest.raises(TypeError, match="has the method execute"):
        app.transaction_listener("t", topics=["Orders"])(fine)
    with pytest.raises(ValueError, match="there is no transaction listener"):
        app.template.send_in_transaction("Orders", Order(1))
    with pytest.raises(ValueError, match="only once"):
        app.template.send("Orders:paid", Order(1), tags="paid")
    with pytest.raises(ConversionError, match="complex"):
        app.template.send("Orders", 1j)
    with pytest.raises(ValueError, match="sharding_key"):
        app.template.send_ordered("Orders", Order(1), "")
    with pytest.raises(TypeError, match="unknown argument"):
        App(nameserver="x")  # type: ignore[call-arg]
    app.close()
    app.close()
    with pytest.raises(ClientClosedError):
        app.start()
    with pytest.raises(ClientClosedError):
        app.template.send("Orders", Order(1))
    with pytest.raises(ClientError, match="nothing to run"):
        App(name_server="127.0.0.1:1").run()


def test_close_in_a_listener_ends_the_app(rocketmq: RocketMQ) -> None:
    """A listener closes the app that it belongs to; run() returns."""
    topic = rocketmq.topic()
    app = app_of(rocketmq)

    @app.listener(topic, group=rocketmq.group(), start_from="earliest")
    def last(text: str) -> None:
        app.close()

    running = threading.Thread(target=app.run)
    running.start()
    app.template.send(topic, "enough")
    running.join(30)
    assert not running.is_alive()


PROGRAM = """
import sys
from rmq_core.integrations import App

app = App(name_server=sys.argv[1])

@app.listener(sys.argv[2], group="program", start_from="earliest")
def take(text: str):
    print(text, flush=True)

app.run()
print("ended", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_program_ends_with_sigterm(rocketmq: RocketMQ) -> None:
    """run() in a program of its own, which is told to stop after its first message."""
    topic = rocketmq.topic()
    command = [sys.executable, "-c", PROGRAM, rocketmq.name_server, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        with app_of(rocketmq) as app:
            app.template.send(topic, "hello")
        assert program.stdout.readline() == "hello\n"
        os.kill(program.pid, signal.SIGTERM)
        assert program.stdout.readline() == "ended\n"
        assert program.wait(30) == 0


def test_springs_settings_are_read_or_refused() -> None:
    """The keys of a Spring application, nested and dotted; what is not heeded must not be accepted."""
    nested = {
        "rocketmq": {
            "name-server": "h:1",
            "producer": {
                "group": "g",
                "send-message-timeout": 5000,
                "retry-times-when-send-failed": 3,
                "retry-times-when-send-async-failed": 3,
                "max-message-size": 1000,
                "access-key": "a",
                "secret-key": "b",
            },
        }
    }
    found = spring_settings(nested)
    assert found == {
        "name_server": "h:1",
        "group": "g",
        "credentials": rmq_core.Credentials("a", "b"),
        "producer": {"timeout_ms": 5000, "retries": 3, "message_size_max": 1000},
    }
    assert spring_settings({"rocketmq.name-server": "h:1"})["name_server"] == "h:1"
    assert "'g'" in repr(App.from_settings(nested))
    with pytest.raises(ValueError, match=r"rocketmq\.producer\.grop is not known"):
        spring_settings({"rocketmq.producer.grop": "x"})
    with pytest.raises(ValueError, match="equally often"):
        spring_settings({"producer": {"retry-times-when-send-async-failed": 5}})


def test_a_template_needs_no_app(rocketmq: RocketMQ) -> None:
    """Over a producer that is there already."""
    topic = rocketmq.topic()
    with rmq_core.Producer("alone", name_server=rocketmq.name_server) as producer:
        assert Template(producer).send(topic, {"a": 1}).ok


def test_importing_the_package_loads_no_client() -> None:
    """In a fresh interpreter."""
    program = "import sys, rmq_core.integrations; sys.exit(any('rmq_core.client' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", program], check=True)
