"""Every kind of client, started, used and shut down: no thread, no task, no socket and no warning is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq_core
from rmq_core import Message, TransactionDecision, aio
from rmq_core.client.group_member import GroupMember
from rmq_core.client.options import client_options
from rmq_core.client.queue_client import QueueClient
from rmq_core.client.subscriptions import subscription
from rmq_core.embedded_broker import EmbeddedBroker, embedded
from rmq_core.integrations import App
from rmq_core.integrations.logging import RocketMQHandler
from support.pulling import numbered

ROOT = Path(__file__).parents[2]
TOPIC = "Left"


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with embedded() as broker:
        broker.create_topic(TOPIC, queues=2)
        with rmq_core.Producer("filling", name_server=broker.name_server) as producer:
            producer.send_batch([Message(TOPIC, body) for body in numbered(10)])
        yield broker


def send_all_ways(name_server: str) -> None:
    with rmq_core.Producer("sends", name_server=name_server) as producer:
        producer.send(Message(TOPIC, b"x"))
        futures = [producer.send_async(Message(TOPIC, b"x")) for _ in range(20)]
        called = threading.Event()
        futures[-1].add_done_callback(lambda _: called.set())
        assert called.wait(30)


def send_in_a_transaction(name_server: str) -> None:
    with rmq_core.TransactionProducer(
        "pays", topics=[TOPIC], check=lambda _: TransactionDecision.ROLLBACK, name_server=name_server
    ) as producer:
        producer.send(Message(TOPIC, b"x"), execute=lambda _: TransactionDecision.COMMIT)


def listen(name_server: str) -> None:
    heard = threading.Semaphore(0)

    async def hear(message: Any) -> None:
        heard.release()

    for handler in (lambda message: heard.release(), hear):
        group = f"listens-{os.urandom(4).hex()}"
        consumer = rmq_core.PushConsumer(group, start_from="earliest", name_server=name_server)
        consumer.subscribe(TOPIC, handler)
        with consumer:
            for _ in range(10):
                assert heard.acquire(timeout=30)


def poll(name_server: str) -> None:
    with rmq_core.LitePullConsumer(
        f"polls-{os.urandom(4).hex()}",
        start_from="earliest",
        name_server=name_server,
        on_assignment=lambda change: None,
    ) as consumer:
        consumer.subscribe(TOPIC)
        assert consumer.poll(timeout_ms=30_000, count_max=1)
        assert next(iter(consumer))


def pull(name_server: str) -> None:
    with rmq_core.PullConsumer("pulls", name_server=name_server) as consumer:
        assert consumer.pull(consumer.queues(TOPIC)[0], 0)


def pull_by_schedule(name_server: str) -> None:
    called = threading.Event()
    with rmq_core.PullSchedule("scheduled", name_server=name_server) as schedule:
        schedule.register(TOPIC, lambda queue, context: called.set())
        assert called.wait(30)


def administrate(name_server: str) -> None:
    with rmq_core.Admin(name_server=name_server) as admin:
        assert TOPIC in admin.topics()


def read_queues(name_server: str) -> None:
    options = client_options({"name_server": name_server})
    with QueueClient(options) as client:
        assert client.queues(TOPIC)
        member = GroupMember(client, "driver", [subscription(TOPIC)])
        member.join()
        member.leave()


def run_an_app(name_server: str) -> None:
    heard = threading.Event()
    app = App(name_server=name_server)
    app.listener(TOPIC, group=f"app-{os.urandom(4).hex()}", start_from="earliest")(lambda body: heard.set())
    with app:
        app.template.send(TOPIC, b"x")
        assert heard.wait(30)


def log(name_server: str) -> None:
    handler = RocketMQHandler(TOPIC, group="logs", name_server=name_server)
    handler.emit(logging.makeLogRecord({"msg": "x", "name": "some.program"}))
    handler.flush()
    handler.close()
    assert not handler.dropped


BLOCKING: list[Callable[[str], None]] = [
    send_all_ways,
    send_in_a_transaction,
    listen,
    poll,
    pull,
    pull_by_schedule,
    administrate,
    read_queues,
    run_an_app,
    log,
]


def open_files() -> int:
    """Sockets and what event loops consist of; where the system does not say, nothing."""
    count = 0
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # that of the listing itself
                count += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "anon_inode:", "pipe:"))
    return count


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
        gc.collect()
    left = [each.name for each in threading.enumerate() if each not in threads]
    assert left == []
    assert open_files() <= files
    assert [
        str(each.message) for each in said if issubclass(each.category, (ResourceWarning, RuntimeWarning))
    ] == []


@pytest.mark.parametrize("use", BLOCKING, ids=lambda use: use.__name__)
def test_a_blocking_client_leaves_nothing_and_the_next_one_begins_anew(mq: EmbeddedBroker, use: Any) -> None:
    """Uses it twice; between and after there is not even the loop's thread, right when close() has returned."""
    for _ in range(2):
        with nothing_left():
            use(mq.name_server)


async def _send(name_server: str) -> None:
    async with aio.Producer("sends", name_server=name_server) as producer:
        await asyncio.gather(*(producer.send(Message(TOPIC, b"x")) for _ in range(20)))


async def _send_in_a_transaction(name_server: str) -> None:
    async with aio.TransactionProducer(
        "pays", topics=[TOPIC], check=lambda _: TransactionDecision.ROLLBACK, name_server=name_server
    ) as producer:
        await producer.send(Message(TOPIC, b"x"), execute=lambda _: TransactionDecision.COMMIT)


async def _listen(name_server: str) -> None:
    heard = asyncio.Event()

    async def hear(message: Any) -> None:
        heard.set()

    group = f"listens-{os.urandom(4).hex()}"
    consumer = aio.PushConsumer(group, start_from="earliest", name_server=name_server)
    consumer.subscribe(TOPIC, hear)
    async with consumer:
        await asyncio.wait_for(heard.wait(), 30)


async def _poll(name_server: str) -> None:
    group = f"polls-{os.urandom(4).hex()}"
    async with aio.LitePullConsumer(group, start_from="earliest", name_server=name_server) as consumer:
        await consumer.subscribe(TOPIC)
        assert await consumer.poll(timeout_ms=30_000)


async def _pull(name_server: str) -> None:
    async with aio.PullConsumer("pulls", name_server=name_server) as consumer:
        assert await consumer.pull((await consumer.queues(TOPIC))[0], 0)


async def _pull_by_schedule(name_server: str) -> None:
    called = asyncio.Event()
    async with aio.PullSchedule("scheduled", name_server=name_server) as schedule:
        await schedule.register(TOPIC, lambda queue, context: called.set())
        await asyncio.wait_for(called.wait(), 30)


async def _administrate(name_server: str) -> None:
    async with aio.Admin(name_server=name_server) as admin:
        assert TOPIC in await admin.topics()


@pytest.mark.parametrize(
    "use",
    [_send, _send_in_a_transaction, _listen, _poll, _pull, _pull_by_schedule, _administrate],
    ids=lambda use: use.__name__,
)
def test_a_coroutine_client_leaves_nothing_on_its_loop(mq: EmbeddedBroker, use: Callable[[str], Any]) -> None:
    """After close() this task is the only one of the loop; when that ends, every socket is closed."""

    async def main() -> None:
        await use(mq.name_server)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with nothing_left():
        asyncio.run(main())


def test_one_of_several_clients_closes_and_the_others_go_on(mq: EmbeddedBroker) -> None:
    """Many threads open and close clients of their own at once, while one is used throughout."""
    with nothing_left(), rmq_core.Producer("stays", name_server=mq.name_server) as stays:
        failed: list[BaseException] = []

        def come_and_go() -> None:
            try:
                for _ in range(5):
                    send_all_ways(mq.name_server)
                    administrate(mq.name_server)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert stays.send(Message(TOPIC, b"x")).ok
        assert failed == []


def test_clients_of_many_threads_share_no_end(mq: EmbeddedBroker) -> None:
    """The same without one that stays: loops end and begin while others want one."""
    with nothing_left():
        failed: list[BaseException] = []

        def come_and_go() -> None:
            try:
                for _ in range(20):
                    with rmq_core.Producer("comes", name_server=mq.name_server) as producer:
                        assert producer.send(Message(TOPIC, b"x")).ok
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


def _in_child(name: str, name_server: str, done: Any) -> None:
    for use in BLOCKING:
        if use.__name__ == name:
            use(name_server)
    done.send((sorted(each.name for each in threading.enumerate() if each.name.startswith("rmq-")),))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this platform does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_a_child_that_inherits_a_loop_starts_its_own_and_ends(mq: EmbeddedBroker, is_open: bool) -> None:
    """Forks while a client of the parent is open, and after it was closed; the child uses every kind, then ends."""
    context = multiprocessing.get_context("fork")
    parent = rmq_core.Producer("parent", name_server=mq.name_server)
    parent.send(Message(TOPIC, b"x"))
    if not is_open:
        parent.close()
    for use in BLOCKING:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_in_child, args=(use.__name__, mq.name_server, sender))
        child.start()
        sender.close()
        assert receiver.poll(60), use.__name__
        assert receiver.recv() == ([],)
        child.join(30)
        assert child.exitcode == 0, use.__name__
        receiver.close()
    if is_open:
        assert parent.send(Message(TOPIC, b"x")).ok
        parent.close()


_FORGETFUL = """
import sys, rmq_core
from rmq_core import Message, TransactionDecision
name_server, topic = sys.argv[1:]
producer = rmq_core.Producer("sends", name_server=name_server)
producer.send_async(Message(topic, b"x"))
paying = rmq_core.TransactionProducer(
    "pays", topics=[topic], check=lambda _: TransactionDecision.COMMIT, name_server=name_server
).start()
consumer = rmq_core.PushConsumer("listens", name_server=name_server)
consumer.subscribe(topic, lambda message: None)
consumer.start()
polling = rmq_core.LitePullConsumer("polls", name_server=name_server)
polling.subscribe(topic)
polling.poll(timeout_ms=1)
pulling = rmq_core.PullConsumer("pulls", name_server=name_server).start()
scheduled = rmq_core.PullSchedule("scheduled", name_server=name_server)
scheduled.register(topic, lambda queue, context: None)
admin = rmq_core.Admin(name_server=name_server)
admin.topics()
print("end")
"""


def test_a_program_that_closes_nothing_ends_in_silence(mq: EmbeddedBroker) -> None:
    """One of each kind is open at the end of a program that shows every warning."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", _FORGETFUL, mq.name_server, TOPIC],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert (done.stdout, done.stderr) == ("end\n", "")
