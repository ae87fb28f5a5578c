"""The push consumer of programs without a loop, against a broker in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq_core
from rmq_core.client.blocking.producer import Producer
from rmq_core.client.blocking.push_consumer import PushConsumer
from rmq_core.client.received import ReceivedMessage
from rmq_core.embedded_broker import EmbeddedBroker
from rmq_core.errors import ClientClosedError, ClientError
from rmq_core.protocol.message import Message

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with rmq_core.embedded(messageDelayLevel=" ".join(["1s"] * 18)) as running:
        yield running


def until(condition: Callable[[], object], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so in {timeout_s} s: {condition.__code__.co_names}"
        time.sleep(0.01)


def consumer_of(broker: EmbeddedBroker, group: str, **arguments: Any) -> PushConsumer:
    return PushConsumer(group, **{"start_from": "earliest", "name_server": broker.name_server, **arguments})


def send(broker: EmbeddedBroker, topic: str, *bodies: bytes) -> None:
    with Producer("PG", name_server=broker.name_server) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def test_listeners_never_run_on_the_thread_that_talks_to_brokers(broker: EmbeddedBroker) -> None:
    """Notes the threads of plain functions and of coroutines, which must be two kinds, and neither the client's."""
    broker.create_topic("Where", queues=2)
    broker.create_topic("WhereAsync", queues=2)
    send(broker, "Where", *[b"x"] * 20)
    send(broker, "WhereAsync", *[b"x"] * 20)
    plain: list[str] = []
    awaited: list[str] = []
    consumer = consumer_of(broker, "where")

    @consumer.subscribe("Where")
    def on_plain(message: ReceivedMessage) -> None:
        plain.append(threading.current_thread().name)

    @consumer.subscribe("WhereAsync")
    async def on_async(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        awaited.append(threading.current_thread().name)

    with consumer:
        until(lambda: len(plain) == len(awaited) == 20)
    assert {name.rpartition("-")[0] for name in plain} == {"rmq-listener-where"}
    assert set(awaited) == {"rmq-coroutine-listeners"}
    assert {each.name for each in threading.enumerate() if each.name.startswith("rmq")} <= {"rmq-client-io"}


def test_a_plain_listener_may_use_other_clients_and_a_coroutine_is_told_not_to_wait(broker: EmbeddedBroker) -> None:
    """Sends from within both kinds of listener: one works, the other raises at once instead of dead-locking."""
    for topic in ("In", "InAsync", "Out"):
        broker.create_topic(topic, queues=1)
    send(broker, "In", b"1")
    send(broker, "InAsync", b"1")
    out: list[bytes] = []
    refused: list[BaseException] = []
    producer = Producer("PG", name_server=broker.name_server).start()
    consumer = consumer_of(broker, "within")

    @consumer.subscribe("In")
    def forward(message: ReceivedMessage) -> None:
        producer.send(Message("Out", b"forwarded"))

    @consumer.subscribe("InAsync")
    async def forward_badly(message: ReceivedMessage) -> None:
        try:
            producer.send(Message("Out", b"never"))
        except ClientError as error:
            refused.append(error)

    consumer.subscribe("Out", lambda message: out.append(message.body))
    with consumer:
        until(lambda: out and refused)
    producer.close()
    assert out == [b"forwarded"]
    assert "rmq_core.aio" in str(refused[0])


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_listener_may_close_its_own_consumer(broker: EmbeddedBroker, kind: str) -> None:
    """run() on the main thread must come to its end, and the message count as consumed."""
    topic = f"Closing-{kind}"
    broker.create_topic(topic, queues=1)
    send(broker, topic, b"1")
    consumer = consumer_of(broker, topic)

    def plain(message: ReceivedMessage) -> None:
        consumer.close()

    async def coroutine(message: ReceivedMessage) -> None:
        consumer.close()

    consumer.subscribe(topic, plain if kind == "plain" else coroutine)
    consumer.run()
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.start()
    got: list[bytes] = []
    later = consumer_of(broker, topic)
    later.subscribe(topic, lambda message: got.append(message.body))
    with later:
        send(broker, topic, b"2")
        until(lambda: got)
    assert got == [b"2"]


def test_everything_can_be_changed_from_any_thread_while_it_runs(broker: EmbeddedBroker) -> None:
    """Subscribes, leaves, suspends, resumes and resizes from other threads, and from within a listener."""
    for topic in ("Early", "Late"):
        broker.create_topic(topic, queues=1)
    got: list[str] = []
    consumer = consumer_of(broker, "changes", concurrency=2)

    @consumer.subscribe("Early")
    def early(message: ReceivedMessage) -> None:
        got.append("Early")
        consumer.subscribe("Late", lambda message: got.append("Late"))

    with consumer:
        send(broker, "Early", b"1")
        send(broker, "Late", b"1")
        until(lambda: got == ["Early", "Late"])
        consumer.suspend()
        assert consumer.is_suspended
        send(broker, "Late", b"2")
        consumer.concurrency = 7
        assert consumer.concurrency == 7
        consumer.resume()
        until(lambda: len(got) == 3)
        consumer.unsubscribe("Early")
        until(lambda: "Early" not in {queue.topic for queue in consumer.queues})
        with pytest.raises(ValueError, match="concurrency"):
            consumer.concurrency = 0


def test_it_works_beside_a_loop_that_already_runs(broker: EmbeddedBroker) -> None:
    """As in a notebook: start and close are called by a coroutine of somebody else's loop."""
    broker.create_topic("Notebook", queues=1)
    send(broker, "Notebook", b"1")

    async def cell() -> list[bytes]:
        got: list[bytes] = []
        with consumer_of(broker, "notebook") as consumer:
            consumer.subscribe("Notebook", lambda message: got.append(message.body))
            while not got:
                await asyncio.sleep(0.01)
        return got

    assert asyncio.run(cell()) == [b"1"]


def test_wrong_arguments_raise_in_the_caller() -> None:
    """The constructor and subscribe() check before there is a thread or a connection."""
    with pytest.raises(ValueError, match="concurrency"):
        PushConsumer("G", concurrency=0)
    with pytest.raises(TypeError, match="nonsense"):
        PushConsumer("G", nonsense=1)  # type: ignore[call-arg]
    consumer = PushConsumer("G")
    with pytest.raises(ValueError, match="sql"):
        consumer.subscribe("Orders", print, sql="(")
    with pytest.raises(TypeError, match="handler"):
        consumer.subscribe("Orders")(7)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="timeout_ms"):
        consumer.close(timeout_ms=-1)


_PROGRAM = """
import os, sys, threading, time
from rmq_core.client.blocking.push_consumer import PushConsumer
from rmq_core.errors import ForkedError
consumer = PushConsumer(sys.argv[2], start_from="earliest", name_server=sys.argv[1])
"""


@contextlib.contextmanager
def _program(broker: EmbeddedBroker, group: str, text: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM + text, broker.name_server, group],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def _wait_for_line(program: subprocess.Popen[str], wanted: str) -> None:
    assert program.stdout is not None
    said = []
    for line in program.stdout:
        said.append(line)
        if line.strip() == wanted:
            return
    raise AssertionError(f"the program ended without saying {wanted!r}; it said {''.join(said)}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_run_after_the_running_listener_and_a_second_one_at_once(
    broker: EmbeddedBroker, number: signal.Signals
) -> None:
    """One program whose listener returns after the signal, and one whose listener never does."""
    topic = f"Signals-{number.name}"
    broker.create_topic(topic, queues=1)
    send(broker, topic, b"1")
    listener = f"""
def listener(message):
    print("begun", flush=True)
    {{}}
    print("returned", flush=True)
consumer.subscribe({topic!r}, listener)
close = consumer.close
def say_so():
    print("closing", flush=True)
    close()
consumer.close = say_so
consumer.run()
print("ended", flush=True)
"""
    with _program(broker, f"patient-{number.name}", listener.format("time.sleep(0.5)")) as patient:
        _wait_for_line(patient, "begun")
        patient.send_signal(number)
        _wait_for_line(patient, "returned")
        _wait_for_line(patient, "ended")
        assert patient.wait(20) == 0
    with _program(broker, f"stuck-{number.name}", listener.format("threading.Event().wait()")) as stuck:
        _wait_for_line(stuck, "begun")
        stuck.send_signal(number)
        _wait_for_line(stuck, "closing")
        stuck.send_signal(number)
        _wait_for_line(stuck, "ended")
        assert stuck.wait(8) == 0  # before the ten seconds that a patient close takes


def test_the_coroutine_form_ends_by_a_signal_too(broker: EmbeddedBroker) -> None:
    """asyncio.run(consumer.run()) with a busy coroutine listener when the signal comes; and a child of a fork."""
    broker.create_topic("Coroutines", queues=1)
    send(broker, "Coroutines", b"1")
    text = """
import asyncio
from rmq_core.client import push_consumer
inner = push_consumer.PushConsumer(sys.argv[2], start_from="earliest", name_server=sys.argv[1])
async def listener(message):
    print("begun", flush=True)
    await asyncio.sleep(0.5)
    print("returned", flush=True)
inner.subscribe("Coroutines", listener)
if hasattr(os, "fork") and (child := os.fork()) == 0:
    wrong = 0
    for action in (lambda: asyncio.run(inner.start()), lambda: inner.unsubscribe("Coroutines")):
        try:
            action()
        except ForkedError:
            wrong += 1
    asyncio.run(inner.close())
    os._exit(wrong)
if hasattr(os, "fork"):
    assert os.waitpid(child, 0)[1] >> 8 == 2
asyncio.run(inner.run())
print("ended", flush=True)
"""
    with _program(broker, "coroutines", text) as program:
        _wait_for_line(program, "begun")
        program.send_signal(signal.SIGTERM)
        _wait_for_line(program, "returned")
        _wait_for_line(program, "ended")
        assert program.wait(20) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_cannot_use_its_parents_consumer(broker: EmbeddedBroker) -> None:
    """The child gets ForkedError from everything but close(); the parent's consumer goes on."""
    broker.create_topic("Forked", queues=1)
    text = """
got = threading.Event()
consumer.subscribe("Forked", lambda message: got.set())
consumer.start()
child = os.fork()
if child == 0:
    wrong = 0
    for action in (consumer.start, consumer.suspend, lambda: consumer.subscribe("Other", print), consumer.run):
        try:
            action()
        except ForkedError:
            wrong += 1
    consumer.close()
    os._exit(wrong)
print("child", os.waitpid(child, 0)[1] >> 8, flush=True)
print("parent", got.wait(20), flush=True)
consumer.close()
"""
    with _program(broker, "forked", text) as program:
        _wait_for_line(program, "child 4")
        send(broker, "Forked", b"1")
        _wait_for_line(program, "parent True")
        assert program.wait(20) == 0


def test_a_program_that_forgets_to_close_still_ends(broker: EmbeddedBroker) -> None:
    """Falls off the end of the main program with a running consumer and a listener that does not return."""
    broker.create_topic("Forgotten", queues=1)
    send(broker, "Forgotten", b"1")
    text = """
begun = threading.Event()
def listener(message):
    begun.set()
    threading.Event().wait()
consumer.subscribe("Forgotten", listener)
consumer.start()
begun.wait()
print("over", flush=True)
"""
    with _program(broker, "forgotten", text) as program:
        _wait_for_line(program, "over")
        assert program.wait(10) == 0
