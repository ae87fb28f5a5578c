"""Producers for threads: many of them, futures and call-backs, limits, broken networks, and the ends of it all."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from rmq_core.client.blocking.producer import Producer
from rmq_core.client.selectors import java_hash
from rmq_core.client.send_hooks import SendContext, SendMode
from rmq_core.client.send_results import BatchSendError, SendError, SendResult
from rmq_core.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    NoRouteError,
    TooManyCallsError,
    UnsupportedError,
)
from rmq_core.protocol.command import Command
from rmq_core.protocol.message import Message, MessageQueue
from support.producing import stored
from support.threaded import Threaded, ThreadedProxy, threaded_cluster, until

CALLBACKS = "rmq-callbacks-PG"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    with threaded_cluster(tmp_path_factory.mktemp("cluster"), masters=2, names=2) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Threaded, request: pytest.FixtureRequest) -> str:
    """A topic of its own on both brokers."""
    name = str(request.node.name).replace("[", "-").replace("]", "")[:100]
    for number in range(2):
        cluster.create_topic(name, number=number)
    return name


def producer_of(cluster: Threaded, **arguments: Any) -> Producer:
    return Producer("PG", **{"name_server": cluster.name_server, **arguments})


@contextlib.contextmanager
def behind_proxies(cluster: Threaded) -> Iterator[tuple[list[ThreadedProxy], dict[str, str]]]:
    """A proxy in front of each broker, and the map that leads clients through them."""
    with contextlib.ExitStack() as stack:
        addresses = [app.broker.address for app in cluster.cluster.apps]
        proxies = [stack.enter_context(cluster.proxy(address)) for address in addresses]
        yield proxies, {address: proxy.address for address, proxy in zip(addresses, proxies, strict=True)}


def contents(cluster: Threaded, topic: str) -> list[bytes]:
    records = cluster.do(stored(cluster.cluster, topic))
    return sorted(record.body for each in records.values() for record in each)


def open_sockets() -> int:
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except OSError:  # that of the listing itself
            continue
    return count


def in_threads(count: int, work: Any) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_many_threads_share_one_producer(cluster: Threaded, topic: str) -> None:
    """Sends 100 messages from each of 16 threads, the first one of all starting the producer."""
    with producer_of(cluster) as producer:

        def work(number: int) -> list[SendResult]:
            return [producer.send(Message(topic, b"%d-%d" % (number, count))) for count in range(100)]

        results = [result for each in in_threads(16, work) for result in each]
        assert all(result.ok for result in results)
        assert len({result.msg_id for result in results}) == 1600
        assert {result.queue for result in results} == set(producer.queues(topic))
    assert contents(cluster, topic) == sorted(b"%d-%d" % (a, b) for a in range(16) for b in range(100))
    records = cluster.do(stored(cluster.cluster, topic))
    for result in results:
        record = records[result.queue.broker_name, result.queue.queue_id][result.queue_offset]
        assert record.properties["UNIQ_KEY"] == result.msg_id


def test_a_thread_finds_its_messages_in_its_order(cluster: Threaded, topic: str) -> None:
    """Sends by sharding key from eight threads, without waiting for answers."""
    with producer_of(cluster) as producer:

        def work(number: int) -> None:
            key = f"key-{number}"
            futures = [
                producer.send_async(Message(topic, b"%d %d" % (number, count), sharding_key=key))
                for count in range(200)
            ]
            queues = {future.result(30).queue for future in futures}
            assert queues == {producer.queues(topic)[abs(java_hash(key)) % 8]}

        in_threads(8, work)
    for records in cluster.do(stored(cluster.cluster, topic)).values():
        by_thread: dict[bytes, list[int]] = {}
        for record in records:
            number, count = record.body.split()
            by_thread.setdefault(number, []).append(int(count))
        assert all(counts == list(range(200)) for counts in by_thread.values())


def test_futures_give_results_and_errors_and_call_back_on_their_own_thread(cluster: Threaded, topic: str) -> None:
    """Adds call-backs before and after the end, one that raises, and one that sends and waits itself."""
    with producer_of(cluster) as producer:
        called: list[tuple[str, str]] = []
        future = producer.send_async(Message(topic, b"1"))
        assert not future.cancel()

        def note(done: concurrent.futures.Future[SendResult]) -> None:
            called.append((threading.current_thread().name, done.result(0).msg_id))

        def fail(done: concurrent.futures.Future[SendResult]) -> None:
            raise RuntimeError("a call-back that fails")

        def send_more(done: concurrent.futures.Future[SendResult]) -> None:
            sent = producer.send(Message(topic, b"2"))
            called.append((threading.current_thread().name, sent.msg_id))
            other = producer.send_async(Message(topic, b"3")).result(30)
            called.append((threading.current_thread().name, other.msg_id))

        for callback in (fail, note, send_more):
            future.add_done_callback(callback)
        future.result(30)
        future.add_done_callback(note)
        until(lambda: len(called) == 4, "all call-backs have run")
        assert {name for name, _ in called} == {CALLBACKS}
        assert contents(cluster, topic) == [b"1", b"2", b"3"]
        failed = producer.send_async(Message("No|topic", b"x"), queue=MessageQueue("No|topic", "nobody", 0))
        assert isinstance(failed.exception(30), SendError | NoRouteError)
        with pytest.raises(ValueError, match="body"):
            producer.send_async(Message(topic, b""))
        with pytest.raises(ValueError, match="queue"):
            producer.send_async(Message(topic, b"x"), queue=MessageQueue("Other", "a", 0))


def test_selectors_and_hooks_run_on_the_thread_that_sends(cluster: Threaded, topic: str) -> None:
    """Notes the thread in every hook and selector of every kind of send."""
    here = threading.current_thread().name
    seen: list[tuple[str, str, SendMode]] = []

    class Look:
        def check_send(self, context: SendContext) -> None:
            seen.append(("check", threading.current_thread().name, context.mode))

        def before_send(self, context: SendContext) -> None:
            seen.append(("before", threading.current_thread().name, context.mode))

        def after_send(self, context: SendContext) -> None:
            seen.append(("after", threading.current_thread().name, context.mode))

    with producer_of(cluster, hooks=[Look()]) as producer:

        def select(queues: Any, message: Message) -> MessageQueue:
            seen.append(("select", threading.current_thread().name, SendMode.SYNC))
            return queues[0]  # type: ignore[no-any-return]

        producer.send(Message(topic, b"a"), selector=select)
        producer.send_batch([Message(topic, b"b"), Message(topic, b"c")], selector=select)
        producer.send_oneway(Message(topic, b"d"), selector=select)
        assert {name for _, name, _ in seen} == {here}
        assert [what for what, _, _ in seen] == ["check", "before", "select", "after"] * 3
        del seen[:]
        producer.send_async(Message(topic, b"e"), selector=select).result(30)
        until(lambda: len(seen) == 4, "the last hook has run")
        assert [name for _, name, _ in seen] == [here] * 3 + [CALLBACKS]
        with pytest.raises(ZeroDivisionError):
            producer.send(Message(topic, b"x"), selector=lambda *_: 1 // 0)  # type: ignore[arg-type]


def test_at_the_limit_threads_wait_for_room(cluster: Threaded, topic: str) -> None:
    """Stalls the brokers with three sends in flight, lets others wait for room or give up, and resumes."""
    with (
        behind_proxies(cluster) as (proxies, between),
        producer_of(cluster, in_flight_max=3, timeout_ms=30_000, broker_address_map=between) as producer,
    ):
        for queue in producer.queues(topic):
            producer.send(Message(topic, b"0"), queue=queue)
        for proxy in proxies:
            proxy.stall()
        futures = [producer.send_async(Message(topic, b"1")) for _ in range(3)]
        with pytest.raises(TooManyCallsError, match="3 sends are in flight"):
            producer.send(Message(topic, b"2"), timeout_ms=50)
        refused = producer.send_async(Message(topic, b"2"), timeout_ms=50)
        assert isinstance(refused.exception(0), TooManyCallsError)
        waiting = threading.Thread(target=lambda: futures.append(producer.send_async(Message(topic, b"1"))))
        waiting.start()
        until(lambda: producer._gate._waiting == 1, "a thread waits for room")
        assert len(futures) == 3
        for proxy in proxies:
            proxy.resume()
        waiting.join(30)
        assert [future.result(30).ok for future in futures] == [True] * 4
        until(lambda: producer._gate.count == producer._gate.size == 0, "all room is given back")


def test_broken_connections_cost_no_message(cluster: Threaded, topic: str) -> None:
    """Cuts every connection again and again under four threads that send in both ways."""
    with (
        behind_proxies(cluster) as (proxies, between),
        producer_of(cluster, timeout_ms=30_000, retries=10, broker_address_map=between) as producer,
    ):
        sent: list[str] = []

        def work(number: int) -> None:
            for _ in range(100):
                future = producer.send_async(Message(topic, b"x"))
                sent.append(producer.send(Message(topic, b"x")).msg_id)
                sent.append(future.result(30).msg_id)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [pool.submit(work, number) for number in range(4)]
            for number in range(1, 9):
                until(lambda number=number: len(sent) >= 80 * number, "messages go on")  # type: ignore[misc]
                proxies[number % 2].cut()
            for each in running:
                each.result(60)
    keys = {
        record.properties["UNIQ_KEY"]
        for records in cluster.do(stored(cluster.cluster, topic)).values()
        for record in records
    }
    assert len(sent) == 800
    assert set(sent) <= keys


def test_what_was_tried_is_told_to_threads_and_futures(cluster: Threaded, topic: str) -> None:
    """Stalls both brokers; each of three attempts must be told, whichever way the message was sent."""
    with (
        behind_proxies(cluster) as (proxies, between),
        producer_of(cluster, timeout_ms=300, broker_address_map=between) as producer,
    ):
        for queue in producer.queues(topic):
            producer.send(Message(topic, b"0"), queue=queue, timeout_ms=30_000)
        for proxy in proxies:
            proxy.stall()
        future = producer.send_async(Message(topic, b"x"))
        with pytest.raises(SendError) as caught:
            producer.send(Message(topic, b"x"))
        for error in (caught.value, future.exception(30)):
            assert isinstance(error, SendError)
            names = [attempt.broker_name for attempt in error.tried]
            assert sorted(names[:2]) == ["broker-a", "broker-b"]
            assert names[2] == names[0]
        with pytest.raises(SendError) as caught:
            producer.send(Message(topic, b"x"), queue=producer.queues(topic)[0])
        assert len(caught.value.tried) == 1
        with pytest.raises(BatchSendError, match="2 of 2"):
            producer.send_batch([Message(topic, b"x"), Message(topic, b"y")])


def test_one_way_and_batches_from_threads_arrive(cluster: Threaded, topic: str) -> None:
    """Sends one-way from eight threads, the first before there is a connection, and batches that are split."""
    with producer_of(cluster, message_size_max=5_000) as producer:

        def work(number: int) -> None:
            for _ in range(100):
                producer.send_oneway(Message(topic, b"o"))

        in_threads(8, work)
        results = producer.send_batch([Message(topic, b"b" * 500) for _ in range(50)])
        assert len(results) == 50
        until(lambda: len(contents(cluster, topic)) == 850, "all messages have arrived")


def test_signed_and_timed_messages_take_the_long_way(cluster: Threaded, topic: str) -> None:
    """Sends with hooks on calls in every way, and a timed message to a broker that looks old."""
    calls: list[int] = []

    class Calls:
        def before_call(self, peer: str, command: Command) -> None:
            calls.append(command.code)

    with producer_of(cluster, hooks=[Calls()]) as producer:
        assert producer.send(Message(topic, b"1")).ok
        assert producer.send_async(Message(topic, b"2")).result(30).ok
        producer.send_oneway(Message(topic, b"3"))
        until(lambda: len(contents(cluster, topic)) == 3, "all messages have arrived")
        assert calls.count(310) == 3
        inner = producer._use()
        assert inner.parts is not None
        for app in cluster.cluster.apps:
            inner.parts.instance.versions[app.broker.address] = 401
        timed = Message(topic, b"later", delay=timedelta(hours=1))
        with pytest.raises(UnsupportedError):
            producer.send(timed)
        assert isinstance(producer.send_async(timed).exception(30), UnsupportedError)
        with pytest.raises(UnsupportedError):
            producer.send_oneway(timed)


def test_automatic_batches_from_threads_keep_each_result(cluster: Threaded, topic: str) -> None:
    """Sends from 16 threads and by futures, which must share requests; flush() sends what is held back."""
    codes: list[int] = []

    class Calls:
        def before_call(self, peer: str, command: Command) -> None:
            codes.append(command.code)

    with producer_of(cluster, auto_batch=True, auto_batch_ms=20, hooks=[Calls()]) as producer:

        def work(number: int) -> list[SendResult]:
            futures = [producer.send_async(Message(topic, b"%d" % number)) for _ in range(50)]
            return [producer.send(Message(topic, b"%d" % number)), *(future.result(30) for future in futures)]

        results = [result for each in in_threads(16, work) for result in each]
        assert len({(result.queue, result.queue_offset) for result in results}) == 16 * 51
        assert codes.count(310) == 0
        assert codes.count(320) < 16 * 51 / 2
        held = producer.send_async(Message(topic, b"held"))
        producer.flush()
        assert held.done()
    assert len(contents(cluster, topic)) == 16 * 51 + 1


def test_calls_on_a_clients_own_thread_raise_instead_of_waiting(cluster: Threaded, topic: str) -> None:
    """Sends within a hook that runs on the clients' loop, and closes there, which asks for the end."""
    errors: list[Exception] = []

    class Calls:
        def before_call(self, peer: str, command: Command) -> None:
            if command.code == 310 and not errors:
                for call in (producer.send, producer.send_async, producer.send_oneway):
                    try:
                        call(Message(topic, b"x"))
                    except ClientError as error:
                        errors.append(error)
                producer.close()

    producer = producer_of(cluster, hooks=[Calls()])
    assert producer.send(Message(topic, b"1")).ok
    assert len(errors) == 3
    assert all("rmq_core.aio" in str(error) for error in errors)
    until(
        lambda: producer._is_closed and producer._inner is not None and producer._inner._is_closed, "it has closed"
    )
    with pytest.raises(ClientClosedError):
        producer.send(Message(topic, b"x"))


def test_a_running_loop_does_not_mind(cluster: Threaded, topic: str) -> None:
    """Uses the blocking form within a coroutine, as notebooks do."""

    async def main() -> None:
        with producer_of(cluster) as producer:
            assert producer.send(Message(topic, b"x")).ok
            assert producer.send_async(Message(topic, b"y")).result(30).ok

    asyncio.run(main())


def test_closing_waits_for_what_is_in_flight_and_leaves_nothing(cluster: Threaded, topic: str) -> None:
    """Closes with a hundred sends in flight and call-backs to come; counts threads and sockets, five times over."""
    for _ in range(2):  # the second round may not need more than the first
        before = threading.active_count(), open_sockets()
        for _ in range(5):
            producer = producer_of(cluster)
            called: list[Any] = []
            futures = [producer.send_async(Message(topic, b"x")) for _ in range(100)]
            for future in futures:
                future.add_done_callback(called.append)
            producer.close()
            assert all(future.done() and future.result().ok for future in futures)
            assert len(called) == 100
            producer.close()
            assert "closed" in repr(producer)
            with pytest.raises(ClientClosedError):
                producer.send_async(Message(topic, b"x"))
            futures[0].add_done_callback(called.append)
            assert len(called) == 101
        until(lambda before=before: threading.active_count() <= before[0], "no thread is left")  # type: ignore[misc]
        until(lambda before=before: open_sockets() <= before[1], "no socket is left")  # type: ignore[misc]
    assert not [thread for thread in threading.enumerate() if thread.name == CALLBACKS]


def test_closing_from_a_call_back_and_from_many_threads_ends(cluster: Threaded, topic: str) -> None:
    """Closes within a call-back while others send, which hear of it and lose nothing acknowledged."""
    producer = producer_of(cluster)
    acknowledged: list[str] = []

    def work(number: int) -> None:
        with contextlib.suppress(ClientClosedError):
            while True:
                acknowledged.append(producer.send(Message(topic, b"x")).msg_id)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(work, number) for number in range(4)]
        until(lambda: len(acknowledged) > 100, "messages go")
        closed = threading.Event()

        def close(_: object) -> None:
            producer.close()
            closed.set()

        producer.send_async(Message(topic, b"x")).add_done_callback(close)
        assert closed.wait(30)
        for each in running:
            each.result(30)
    in_threads(4, lambda _: producer.close())
    assert len(contents(cluster, topic)) >= len(acknowledged)


def test_nobody_there_is_told_at_once_and_a_producer_never_used_closes() -> None:
    """Starts nothing, or finds nobody."""
    Producer("PG", name_server="127.0.0.1:1").close()
    with Producer("PG", name_server="127.0.0.1:1") as producer:
        with pytest.raises(ConnectError):
            producer.send(Message("Orders", b"x"))
        assert isinstance(producer.send_async(Message("Orders", b"x")).exception(30), ConnectError)
        with pytest.raises(ConnectError):
            producer.queues("Orders")
    with pytest.raises(TypeError, match="send_timeout"):
        Producer("PG", send_timeout=3)  # type: ignore[call-arg]
