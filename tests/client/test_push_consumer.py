"""The push consumer against real brokers: where it begins, what it gets, how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.listen_results import RetryLater, SuspendQueue
from rmq_core.client.push_consumer import PushConsumer
from rmq_core.client.received import ReceivedMessage
from rmq_core.errors import BrokerError, ClientClosedError, ClientError, ConnectError
from rmq_core.protocol.message import MessageQueue
from support.brokers import broker_cluster, run
from support.pushing import SHORT_LEVELS, committed, create_topic, fill, push_consumer, until


def test_plain_functions_and_coroutines_get_every_message_of_their_topics(tmp_path: Path) -> None:
    """Two topics with a listener of each kind, on two brokers, and 400 messages."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            for topic in ("Plain", "Async"):
                await create_topic(cluster, topic, 2)
                for broker in range(2):
                    for queue_id in range(2):
                        bodies = [f"{broker}/{queue_id}/{number}".encode() for number in range(50)]
                        await fill(cluster, topic, bodies, queue_id=queue_id, broker=broker)
            plain: list[bytes] = []
            awaited: list[bytes] = []
            threads: set[str] = set()
            consumer = push_consumer(cluster, "G")

            @consumer.subscribe("Plain")
            def on_plain(message: ReceivedMessage) -> None:
                threads.add(threading.current_thread().name)
                plain.append(message.body)

            @consumer.subscribe("Async")
            async def on_async(message: ReceivedMessage) -> None:
                await asyncio.sleep(0)
                threads.add(threading.current_thread().name)
                awaited.append(message.body)

            async with consumer:
                await until(lambda: len(plain) >= 200 and len(awaited) >= 200)
                assert threading.current_thread().name in threads
                assert any(name.startswith("rmq-listener-G") for name in threads)
            assert len(plain) == len(set(plain)) == 200
            assert sorted(plain) == sorted(awaited)
            for broker in range(2):
                assert await committed(cluster, "G", "Plain", 1, broker=broker) == 50

    run(main())


def test_a_message_shows_what_its_sender_and_its_broker_said(tmp_path: Path) -> None:
    """Reads everything that the page of public names shows of a message."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            properties = {"TAGS": "paid", "KEYS": "42 43", "shop": "s7", "UNIQ_KEY": "7F0000010000AA"}
            await cluster.client().send("Orders", b"body", queue_id=2, properties=properties)
            got: list[ReceivedMessage] = []
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", got.append)
            async with consumer:
                await until(lambda: got)
            (message,) = got
            assert (message.topic, message.body, message.tags) == ("Orders", b"body", "paid")
            assert (message.keys, message.properties["shop"], message.reconsume_times) == (("42", "43"), "s7", 0)
            assert (message.msg_id, message.queue) == ("7F0000010000AA", MessageQueue("Orders", "broker-a", 2))
            assert message.properties["MAX_OFFSET"] == "1"

    run(main())


@pytest.mark.parametrize("start", ["earliest", "latest", "time"])
def test_a_new_group_begins_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    """Messages before and after a moment; the broker's memory, with which it begins young topics, is taken away."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            monkeypatch.setattr(cluster.broker.store, "in_memory", lambda log_offset: False)
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"old"] * 3)
            stored_ms = (await cluster.client().messages("Orders", group="Other"))[-1].store_time_ms
            await until(lambda: time.time_ns() // 1_000_000 > stored_ms)
            moment = datetime.fromtimestamp((stored_ms + 1) / 1000, UTC)
            await fill(cluster, "Orders", [b"new"] * 2)
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G", start_from=moment if start == "time" else start)
            consumer.subscribe("Orders", lambda message: got.append(message.body))
            async with consumer:
                await fill(cluster, "Orders", [b"last"])
                await until(lambda: b"last" in got)
            wanted = {"earliest": {b"old": 3, b"new": 2}, "time": {b"new": 2}, "latest": {}}[start]
            assert {body: got.count(body) for body in got} == {**wanted, b"last": 1}

            # The group exists now: start_from counts no more.
            later = push_consumer(cluster, "G", start_from="earliest")
            later.subscribe("Orders", lambda message: got.append(message.body))
            got.clear()
            async with later:
                await fill(cluster, "Orders", [b"more"])
                await until(lambda: got)
            assert got == [b"more"]

    run(main())


def test_a_group_goes_on_where_its_last_member_stopped(tmp_path: Path) -> None:
    """Two consumers one after the other; the second must get what came between, and nothing twice."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 2)
            got: list[bytes] = []
            for number in range(3):
                await fill(cluster, "Orders", [b"%d/%d" % (number, each) for each in range(100)])
                consumer = push_consumer(cluster, "G", start_from="latest")
                consumer.subscribe("Orders", lambda message: got.append(message.body))
                async with consumer:
                    await until(lambda goal=100 * (number + 1): len(got) >= goal)
            assert len(got) == len(set(got)) == 300

    run(main())


def test_only_the_wanted_tags_come_and_progress_passes_the_others(tmp_path: Path) -> None:
    """Tags of which two have the same hash: the broker cannot tell them apart, the consumer must."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            for tag in ("AaAa", "BBBB", "paid", "AaAa", "other"):
                await fill(cluster, "Orders", [tag.encode()] * 5, tags=tag)
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", lambda message: got.append(message.body), tags="AaAa || paid")
            async with consumer:
                await until(lambda: len(got) >= 15)
                await until(lambda: consumer.positions("Orders").get(MessageQueue("Orders", "broker-a", 0)) == 25)
            assert {body: got.count(body) for body in got} == {b"AaAa": 10, b"paid": 5}
            assert await committed(cluster, "G", "Orders") == 25

    run(main())


def test_sql_chooses_by_properties(tmp_path: Path) -> None:
    """An expression over a number; and the same where the broker does not filter, which start() must tell."""

    async def main() -> None:
        async with broker_cluster(tmp_path, enable_property_filter=True) as cluster:
            client = cluster.client()
            for amount in (50, 150, 99, 101):
                await client.send("Orders", b"%d" % amount, properties={"amount": str(amount)})
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", lambda message: got.append(message.body), sql="amount > 100")
            async with consumer:
                await until(lambda: len(got) >= 2)
            assert got == [b"150", b"101"]
        async with broker_cluster(tmp_path / "plain") as cluster:
            await create_topic(cluster, "Orders")
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", print, sql="amount > 100")
            with pytest.raises(BrokerError, match="SQL92"):
                await consumer.start()
            assert consumer.queues == ()

    run(main())


def test_lists_come_where_lists_were_asked_for(tmp_path: Path) -> None:
    """A hundred messages in lists of at most 10, never a bare message."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(100)])
            await fill(cluster, "Orders", [b"last"])
            sizes: list[int] = []
            consumer = push_consumer(cluster, "G", batch_size_max=10)

            @consumer.subscribe("Orders")
            async def handle(messages: list[ReceivedMessage]) -> None:
                assert isinstance(messages, list)
                sizes.append(len(messages))

            async with consumer:
                await until(lambda: sum(sizes) >= 101)
            assert max(sizes) <= 10
            assert max(sizes) > 1

    run(main())


def test_topics_are_subscribed_and_left_while_the_consumer_runs(tmp_path: Path) -> None:
    """A second topic after the start, then the first one no more; the broker's view of the group follows."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            for topic in ("First", "Second"):
                await create_topic(cluster, topic, 1)
                await fill(cluster, topic, [b"1"])
            got: list[str] = []
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("First", lambda message: got.append(message.topic))
            async with consumer:
                await until(lambda: got == ["First"])
                consumer.subscribe("Second", lambda message: got.append(message.topic))
                await until(lambda: got == ["First", "Second"])
                consumer.unsubscribe("First")
                await until(lambda: "First" not in {queue.topic for queue in consumer.queues})
                assert await committed(cluster, "G", "First") == 1
                group = cluster.broker.clients.consumer_group("G")
                assert group is not None
                await until(lambda: set(group.subscriptions) == {"Second", "%RETRY%G"})
                await fill(cluster, "First", [b"2"])
                await fill(cluster, "Second", [b"2"])
                await until(lambda: len(got) == 3)
            assert got == ["First", "Second", "Second"]

    run(main())


def test_a_topic_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    """Starts the consumer first; the route is found by the next refresh."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Later", lambda message: got.append(message.body))
            async with consumer:
                await create_topic(cluster, "Later", 1)
                await fill(cluster, "Later", [b"here"])
                instance = consumer._instance
                assert instance is not None
                await instance.refresh_routes()
                await until(lambda: got == [b"here"])

    run(main())


def test_nothing_comes_while_the_consumer_is_suspended(tmp_path: Path) -> None:
    """Suspends before the start and while a backlog is being consumed."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 2)
            await fill(cluster, "Orders", [b"x"] * 2_000)
            got: list[bytes] = []
            going = threading.Event()
            consumer = push_consumer(cluster, "G", concurrency=2)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                going.wait()
                got.append(message.body)

            consumer.suspend()
            async with consumer:
                await until(lambda: consumer.queues)
                await asyncio.sleep(0.05)
                assert got == []
                assert consumer.is_suspended
                consumer.resume()
                await until(lambda: any(piece.current for piece in consumer._crew.running()))
                consumer.suspend()
                going.set()
                await until(lambda: not consumer._crew.running())
                seen = len(got)
                assert seen <= 2  # what ran when it was suspended has come to its end
                await asyncio.sleep(0.05)
                assert len(got) == seen
                consumer.resume()
                await until(lambda: len(got) == 2_000)

    run(main())


def test_the_number_of_listeners_at_once_can_be_changed_while_they_run(tmp_path: Path) -> None:
    """Counts the listeners that run at once: 2, then 6, then 1; plain functions and coroutines."""

    async def main(is_coroutine: bool) -> None:
        async with broker_cluster(tmp_path / str(is_coroutine)) as cluster:
            await create_topic(cluster, "Orders", 2)
            await fill(cluster, "Orders", [b"x"] * 1_000)
            lock = threading.Lock()
            running = peak = done = 0

            def enter(step: int) -> None:
                nonlocal running, peak, done
                with lock:
                    running += step
                    peak = max(peak, running)
                    done += step < 0

            def plain(message: ReceivedMessage) -> None:
                enter(1)
                time.sleep(0.002)
                enter(-1)

            async def coroutine(message: ReceivedMessage) -> None:
                enter(1)
                await asyncio.sleep(0.002)
                enter(-1)

            consumer = push_consumer(cluster, "G", concurrency=2)
            consumer.subscribe("Orders", coroutine if is_coroutine else plain)
            async with consumer:
                for size in (2, 6, 1):
                    consumer.concurrency = size
                    await until(lambda size=size: running <= size)
                    peak, goal = 0, done + 60
                    await until(lambda goal=goal: done >= goal)
                    assert peak == size, f"{peak} listeners ran at once, {size} may"
                assert consumer.concurrency == 1

    run(main(False))
    run(main(True))


def test_wrong_arguments_raise_before_anything_is_sent() -> None:
    """Each with a value out of range or of another type; the message names it."""

    def make(**arguments: Any) -> PushConsumer:
        return PushConsumer(**{"group": "G", **arguments})

    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"group": ""}, ValueError),
        ({"group": "a b"}, ValueError),
        ({"group": "DEFAULT_CONSUMER"}, ValueError),
        ({"start_from": "somewhere"}, ValueError),
        ({"start_from": datetime(2026, 1, 1)}, ValueError),
        ({"concurrency": 0}, ValueError),
        ({"concurrency": "20"}, TypeError),
        ({"ordered": "yes"}, TypeError),
        ({"batch_size_max": 0}, ValueError),
        ({"allocate": "nonsense"}, ValueError),
        ({"cache_count_max": 0}, ValueError),
        ({"cache_size_max_bytes": True}, TypeError),
        ({"span_max": -1}, ValueError),
        ({"reconsume_times_max": -1}, ValueError),
        ({"consume_timeout_ms": 0}, ValueError),
        ({"pull_batch_size": 5_000}, ValueError),
        ({"offset_dir": 7}, TypeError),
        ({"topic_cache_count_max": 0}, ValueError),
    ]
    for arguments, kind in wrong:
        (name,) = arguments
        with pytest.raises(kind, match=name):
            make(**arguments)
    with pytest.raises(ValueError, match="instance_name"):
        make(broadcasting=True)
    with pytest.raises(TypeError, match="nonsense"):
        make(nonsense=1)
    consumer = make()
    with pytest.raises(ValueError, match="topic"):
        consumer.subscribe("no topic", print)
    with pytest.raises(TypeError, match="handler"):
        consumer.subscribe("Orders", "print")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="tags"):
        consumer.subscribe("Orders", print, tags="||")
    with pytest.raises(ValueError, match="sql"):
        consumer.subscribe("Orders", print, sql="amount >")
    with pytest.raises(ValueError, match="delay_level"):
        RetryLater(delay_level=-2)
    with pytest.raises(TypeError, match="messages"):
        RetryLater(messages=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delay_ms"):
        SuspendQueue(delay_ms=-1)


def test_start_and_close_may_be_called_again_and_a_closed_one_stays_closed(tmp_path: Path) -> None:
    """Starts twice, closes twice, starts once more; and a second consumer of the group in one client."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders")
            consumer = push_consumer(cluster, "G", instance_name="one")
            consumer.subscribe("Orders", print)
            assert await consumer.start() is consumer
            await consumer.start()
            assert "running" in repr(consumer)
            second = push_consumer(cluster, "G", instance_name="one")
            second.subscribe("Orders", print)
            with pytest.raises(ClientError, match="group G exists already"):
                await second.start()
            assert len(consumer.queues) >= 4
            await consumer.close()
            await consumer.close()
            assert "closed" in repr(consumer)
            with pytest.raises(ClientClosedError):
                await consumer.start()
            async with second:  # what failed may be tried again
                await until(lambda: len(second.queues) >= 4)
            never = push_consumer(cluster, "G")
            await never.close()

    run(main())


def test_a_start_without_name_servers_raises_and_leaves_nothing_behind() -> None:
    """Nobody listens on that port."""

    async def main() -> None:
        threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
        consumer = PushConsumer("G", name_server="127.0.0.1:1")
        consumer.subscribe("Orders", print)
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
            await consumer.start()
        assert set(threading.enumerate()) <= threads
        assert asyncio.all_tasks() == tasks

    run(main())


def test_names_carry_the_namespace_on_the_wire_and_nowhere_else(tmp_path: Path) -> None:
    """Messages of the wrapped topic; one of them is tried again, and still shows the bare topic."""

    async def main() -> None:
        async with broker_cluster(tmp_path, message_delay_level=SHORT_LEVELS) as cluster:
            await create_topic(cluster, "shop%Orders", 1)
            await fill(cluster, "shop%Orders", [b"1"])
            got: list[ReceivedMessage] = []
            consumer = push_consumer(cluster, "G", namespace="shop")

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                got.append(message)
                if message.reconsume_times == 0:
                    raise RetryLater

            async with consumer:
                await until(lambda: len(got) == 2)
            assert [each.topic for each in got] == ["Orders", "Orders"]
            assert [each.queue.topic for each in got] == ["Orders", "%RETRY%G"]
            assert await committed(cluster, "shop%G", "shop%Orders") == 1

    run(main())


def test_every_hook_sees_consumption_and_none_can_break_it(tmp_path: Path) -> None:
    """One hook notes what it sees, another one raises each time."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"good", b"bad"])
            seen: list[tuple[str, bytes, bool, str]] = []

            class Watch:
                def before_consume(self, context: Any) -> None:
                    seen.append(("before", context.messages[0].body, context.is_success, context.status))

                def after_consume(self, context: Any) -> None:
                    seen.append(("after", context.messages[0].body, context.is_success, context.status))
                    assert context.group == "G"
                    assert context.elapsed_ms >= 0

            class Broken:
                def before_consume(self, context: Any) -> None:
                    raise OSError("a defect of the hook")

            consumer = push_consumer(cluster, "G", hooks=[Broken(), Watch()], concurrency=1)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                if message.body == b"bad":
                    raise ValueError("a defect of the listener")

            async with consumer:
                await until(lambda: len(seen) == 4)
            assert seen == [
                ("before", b"good", False, ""),
                ("after", b"good", True, "success"),
                ("before", b"bad", False, ""),
                ("after", b"bad", False, "exception"),
            ]

    run(main())


def test_close_waits_for_running_listeners_and_stores_what_they_did(tmp_path: Path) -> None:
    """A listener that is in the middle of a message when close() is called."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(64)])
            begun, go = threading.Event(), threading.Event()
            consumer = push_consumer(cluster, "G", concurrency=1)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                begun.set()
                go.wait()

            await consumer.start()
            await until(begun.is_set)
            closing = asyncio.create_task(consumer.close())
            await until(lambda: all(queue.is_halted for queue in consumer._queues.table.values()))
            assert not closing.done()
            go.set()
            await closing
            assert await committed(cluster, "G", "Orders") == 1
            assert not [each for each in threading.enumerate() if each.name.startswith("rmq-listener")]

    run(main())


def test_close_gives_up_on_listeners_that_do_not_return(tmp_path: Path) -> None:
    """One blocks a thread, one sleeps in a coroutine; their messages must come again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            go = threading.Event()
            for topic in ("Plain", "Async"):
                await create_topic(cluster, topic, 1)
                await fill(cluster, topic, [b"1"])
            begun: list[str] = []
            consumer = push_consumer(cluster, "G")

            @consumer.subscribe("Plain")
            def plain(message: ReceivedMessage) -> None:
                begun.append("plain")
                go.wait()

            @consumer.subscribe("Async")
            async def coroutine(message: ReceivedMessage) -> None:
                begun.append("async")
                await asyncio.sleep(3_600)

            await consumer.start()
            await until(lambda: len(begun) == 2)
            await consumer.close(timeout_ms=50)
            go.set()
            for topic in ("Plain", "Async"):
                assert await committed(cluster, "G", topic) == 0
            again: list[str] = []
            other = push_consumer(cluster, "G")
            other.subscribe("Plain", lambda message: again.append(message.topic))
            other.subscribe("Async", lambda message: again.append(message.topic))
            async with other:
                await until(lambda: sorted(again) == ["Async", "Plain"])

    run(main())


def test_a_coroutine_listener_may_close_its_own_consumer(tmp_path: Path) -> None:
    """close() within the listener asks and returns; run() then comes to its end."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"1"])
            consumer = push_consumer(cluster, "G")

            @consumer.subscribe("Orders")
            async def handle(message: ReceivedMessage) -> None:
                await consumer.close()

            await asyncio.wait_for(consumer.run(), 20)
            assert await committed(cluster, "G", "Orders") == 1

    run(main())


def test_broadcast_members_get_everything_and_go_on_from_their_own_files(tmp_path: Path) -> None:
    """Two members; one is away for a while and must get what it missed; failures are not tried again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "News", 2)
            await fill(cluster, "News", [b"1", b"2"])
            got: dict[str, list[bytes]] = {"a": [], "b": []}

            def member(name: str) -> PushConsumer:
                consumer = push_consumer(
                    cluster, "G", broadcasting=True, instance_name=name, offset_dir=tmp_path / "offsets"
                )

                def handle(message: ReceivedMessage) -> None:
                    got[name].append(message.body)
                    if message.body == b"1":
                        raise ValueError("not tried again")

                consumer.subscribe("News", handle)
                return consumer

            async with member("a"):
                async with member("b"):
                    await until(lambda: len(got["a"]) == len(got["b"]) == 2)
                await fill(cluster, "News", [b"3"], queue_id=1)
                await until(lambda: len(got["a"]) == 3)
                async with member("b") as again:
                    await until(lambda: len(got["b"]) == 3)
                    assert all(not queue.topic.startswith("%RETRY%") for queue in again.queues)
            assert sorted(got["a"]) == sorted(got["b"]) == [b"1", b"2", b"3"]
            assert (tmp_path / "offsets/a/G/offsets.json").exists()

    run(main())


def test_a_slow_listener_stops_the_pulls_at_the_limit_and_loses_nothing(tmp_path: Path) -> None:
    """A backlog of 3,000 against a cache of 100: what is fetched ahead stays near the limit."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(3_000)])
            got: list[bytes] = []
            go = threading.Event()
            most = 0
            consumer = push_consumer(cluster, "G", cache_count_max=100)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                nonlocal most
                go.wait()
                most = max(most, sum(len(queue.messages) for queue in consumer._queues.table.values()))
                got.append(message.body)

            async with consumer:
                await until(lambda: any(queue.is_waiting for queue in consumer._queues.table.values()))
                assert got == []
                go.set()
                await until(lambda: len(got) >= 3_000)
                assert consumer._around.flow.size_bytes == 0
            assert len(set(got)) == len(got) == 3_000
            assert most <= 100 + 32

    run(main())


def test_the_limit_over_all_queues_holds_them_all_back_and_lets_them_go_on(tmp_path: Path) -> None:
    """Four queues whose messages are larger together than the consumer may keep."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 4)
            for queue_id in range(4):
                await fill(cluster, "Orders", [b"x" * 10_000] * 100, queue_id=queue_id)
            got: list[int] = []
            most = 0
            consumer = push_consumer(cluster, "G", cache_size_max_bytes=200_000)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                nonlocal most
                most = max(most, consumer._around.flow.size_bytes)
                got.append(message.size)

            async with consumer:
                await until(lambda: len(got) >= 400)
            assert len(got) == 400
            # Each queue may have had one pull under way when the limit was reached.
            assert most <= 200_000 + 4 * (256 << 10)

    run(main())
