"""Producers with coroutines over real brokers: where messages go, what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.options import Credentials
from rmq_core.client.producer import Producer
from rmq_core.client.selectors import at_random, by_hash, java_hash
from rmq_core.client.send_hooks import SendContext, SendKind, SendMode
from rmq_core.client.send_results import BatchSendError, SendError, SendStatus
from rmq_core.errors import (
    CallTimeoutError,
    ClientClosedError,
    ClientError,
    ConnectError,
    NoRouteError,
    TooManyCallsError,
    UnsupportedError,
)
from rmq_core.protocol.command import Command
from rmq_core.protocol.compression import CompressionType, decompress_body
from rmq_core.protocol.message import Message, MessageQueue
from support.brokers import broker_cluster, run
from support.producing import create, names_of, producing, stored
from support.proxy import Proxy


def test_sends_are_spread_over_all_queues_of_all_brokers(tmp_path: Path) -> None:
    """Sends 80 messages in turn and 1,000 at once to two brokers, and reads every one of them back."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, names=2) as cluster:
            await create(cluster, "Orders")
            async with producing(cluster) as producer:
                assert len(await producer.queues("Orders")) == 8
                sent = [await producer.send(Message("Orders", b"%d" % number)) for number in range(80)]
                assert set(Counter(result.queue for result in sent).values()) == {10}
                sent += await asyncio.gather(
                    *(producer.send(Message("Orders", b"%d" % number)) for number in range(80, 1080))
                )
            records = await stored(cluster, "Orders")
            assert sorted(int(record.body) for each in records.values() for record in each) == list(range(1080))
            for number, result in enumerate(sent):
                record = records[result.queue.broker_name, result.queue.queue_id][result.queue_offset]
                assert record.body == b"%d" % number
                assert record.properties["UNIQ_KEY"] == result.msg_id == result.transaction_id
                assert result.ok
                assert result.status is SendStatus.OK
                assert result.region_id == "DefaultRegion"
                assert int(result.offset_msg_id[16:], 16) == record.log_offset

    run(main())


def test_a_topic_that_does_not_exist_is_made_by_its_first_message(tmp_path: Path) -> None:
    """Sends to an unknown topic, with and without brokers that create topics by themselves."""

    async def main() -> None:
        async with (
            broker_cluster(tmp_path / "yes") as cluster,
            producing(cluster, default_topic_queues=2) as producer,
        ):
            queues = {(await producer.send(Message("New", b"x"))).queue.queue_id for _ in range(10)}
            assert queues == {0, 1}
        async with (
            broker_cluster(tmp_path / "no", auto_create_topic_enable=False) as cluster,
            producing(cluster) as producer,
        ):
            with pytest.raises(NoRouteError, match="New"):
                await producer.send(Message("New", b"x"))

    run(main())


def test_a_sharding_key_keeps_its_messages_in_one_queue_and_in_order(tmp_path: Path) -> None:
    """Sends for 20 keys in turn over two brokers, and compares the queues with Java's hashes."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create(cluster, "Orders", queues=3)
            async with producing(cluster) as producer:
                queues = await producer.queues("Orders")
                assert list(queues) == sorted(queues)
                for number in range(100):
                    key = f"customer-{number % 20}"
                    result = await producer.send(Message("Orders", b"%d" % number, sharding_key=key))
                    assert result.queue == queues[abs(java_hash(key)) % len(queues)]
            for records in (await stored(cluster, "Orders", queues=3)).values():
                numbers = [int(record.body) for record in records]
                assert numbers == sorted(numbers)

    run(main())


def test_a_queue_a_hash_and_a_rule_of_ones_own_decide_where_a_message_goes(tmp_path: Path) -> None:
    """Names a queue, selects by number and at random, and selects by a function that sees all queues."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create(cluster, "Orders")
            async with producing(cluster) as producer:
                queue = MessageQueue("Orders", "broker-b", 2)
                assert (await producer.send(Message("Orders", b"x"), queue=queue)).queue == queue
                queues = await producer.queues("Orders")
                for key in (3, 11, -5):
                    result = await producer.send(Message("Orders", b"x"), selector=by_hash(key))
                    assert result.queue == queues[abs(key) % 8]
                assert (await producer.send(Message("Orders", b"x"), selector=at_random)).queue in queues
                seen: list[Any] = []

                def last(all_queues: Any, message: Message) -> MessageQueue:
                    seen.append((tuple(all_queues), message.body))
                    return all_queues[-1]  # type: ignore[no-any-return]

                results = await producer.send_batch(
                    [Message("Orders", b"a"), Message("Orders", b"b")], selector=last
                )
                assert {result.queue for result in results} == {queues[-1]}
                assert seen == [(queues, b"a")]
                with pytest.raises(ValueError, match="selector must give"):
                    await producer.send(Message("Orders", b"x"), selector=lambda *_: MessageQueue("Orders", "x", 0))
                with pytest.raises(ZeroDivisionError):
                    await producer.send(Message("Orders", b"x"), selector=lambda *_: queues[1 // 0])

    run(main())


def test_wrong_arguments_raise_before_anything_is_sent(tmp_path: Path) -> None:
    """Calls with arguments that do not go together while no cluster is there at all."""

    async def main() -> None:
        producer = Producer("PG", name_server="127.0.0.1:1")
        message = Message("Orders", b"x")
        wrong: list[tuple[Any, type[Exception], str]] = [
            (producer.send("Orders"), TypeError, "message"),  # type: ignore[arg-type]
            (producer.send(message, timeout_ms=0), ValueError, "timeout_ms"),
            (producer.send(message, queue=("Orders", "a", 0)), TypeError, "queue"),  # type: ignore[arg-type]
            (
                producer.send(message, queue=MessageQueue("Other", "a", 0)),
                ValueError,
                "queue belongs to topic Other",
            ),
            (producer.send(message, selector="hash"), TypeError, "selector"),  # type: ignore[arg-type]
            (
                producer.send(message, queue=MessageQueue("Orders", "a", 0), selector=at_random),
                ValueError,
                "either queue or selector",
            ),
            (producer.send(Message("Orders", b"")), ValueError, "body"),
            (producer.send_batch([]), ValueError, "messages"),
            (producer.send_oneway(Message("Orders", b"")), ValueError, "body"),
            (producer.request(Message("Orders", b"")), ValueError, "body"),
            (producer.reply(message, b"x"), TypeError, "message"),  # type: ignore[arg-type]
            (producer.queues(b"Orders"), TypeError, "topic"),  # type: ignore[arg-type]
        ]
        for call, error, says in wrong:
            with pytest.raises(error, match=says):
                await call
        for group, kind in (
            ("", ValueError),
            ("a b", ValueError),
            (3, TypeError),
            ("DEFAULT_PRODUCER", ValueError),
        ):
            with pytest.raises(kind, match="group"):
                Producer(group)  # type: ignore[arg-type]
        await producer.close()

    run(main())


def test_nobody_there_is_told_within_the_time(tmp_path: Path) -> None:
    """Sends with a name server that is not there, and with one that accepts and never answers."""

    async def main() -> None:
        async with Producer("PG", name_server="127.0.0.1:1") as producer:
            with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
                await producer.send(Message("Orders", b"x"))
        async with broker_cluster(tmp_path) as cluster, Proxy(names_of(cluster)[0]) as proxy:
            proxy.stall()
            async with Producer("PG", name_server=proxy.address) as producer:
                with pytest.raises(CallTimeoutError, match="route"):
                    await producer.send(Message("Orders", b"x"), timeout_ms=200)

    run(main())


def test_a_batch_gives_a_result_for_each_message_and_is_split_where_it_must_be(tmp_path: Path) -> None:
    """Sends one batch in one request and one that needs three, and finds every message where its result says."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create(cluster, "Orders")
            async with producing(cluster, message_size_max=10_000) as producer:
                few = [Message("Orders", b"%d" % number, keys=str(number)) for number in range(10)]
                results = list(await producer.send_batch(few))
                assert len({result.queue for result in results}) == 1
                offsets = [result.queue_offset for result in results]
                assert offsets == list(range(offsets[0], offsets[0] + 10))
                many = [Message("Orders", b"%d" % number * 300) for number in range(10, 100)]
                results += await producer.send_batch(many)
                assert len({result.queue for result in results[10:]}) > 1
                records = await stored(cluster, "Orders")
                for message, result in zip([*few, *many], results, strict=True):
                    record = records[result.queue.broker_name, result.queue.queue_id][result.queue_offset]
                    assert record.body == message.body
                    assert record.properties["UNIQ_KEY"] == result.msg_id
                    assert int(result.offset_msg_id[16:], 16) == record.log_offset
                same_key = [Message("Orders", b"%d" % number, sharding_key="k") for number in range(3)]
                queues = await producer.queues("Orders")
                assert (await producer.send_batch(same_key))[0].queue == queues[java_hash("k") % 8]

    run(main())


def test_a_batch_that_fails_in_the_middle_tells_what_was_sent(tmp_path: Path) -> None:
    """Lets the broker refuse the second of three requests by the size of one message."""

    async def main() -> None:
        async with broker_cluster(tmp_path, max_message_size=4096) as cluster:
            await create(cluster, "Orders")
            async with producing(cluster, message_size_max=8_000) as producer:
                messages = [Message("Orders", b"a" * 3000), Message("Orders", b"b" * 7000), Message("Orders", b"c")]
                with pytest.raises(BatchSendError, match="2 of 3") as caught:
                    await producer.send_batch(messages)
                assert [result.queue_offset for result in caught.value.sent] == [0]
                assert list(caught.value.unsent) == messages[1:]
                cause = caught.value.__cause__
                assert isinstance(cause, SendError)
                assert cause.code == 13
                assert len(cause.tried) == 1

    run(main())


def test_one_way_messages_arrive_and_nothing_is_awaited(tmp_path: Path) -> None:
    """Sends a thousand, and looks for them in the store."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, "Metrics")
            async with producing(cluster) as producer:
                for number in range(1000):
                    await producer.send_oneway(Message("Metrics", b"%d" % number))
            count = 0
            while count < 1000:
                count = sum(map(len, (await stored(cluster, "Metrics")).values()))
            assert count == 1000

    run(main())


def test_large_bodies_travel_compressed_and_come_back_whole(tmp_path: Path) -> None:
    """Sends the same large body with every compression, and small ones without."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, "Orders", queues=1)
            body = b"0123456789" * 1000
            for kind in CompressionType:
                async with producing(cluster, f"PG-{kind.name}", compression=kind) as producer:
                    await producer.send(Message("Orders", body))
            async with producing(cluster, compress_over_bytes=20_000) as producer:
                await producer.send(Message("Orders", body))
            records = (await stored(cluster, "Orders", queues=1))["broker-a", 0]
            assert [len(record.body) < 1000 for record in records] == [True, True, True, False]
            assert [decompress_body(record.body, record.sys_flag) for record in records] == [body] * 4

    run(main())


def test_delays_reach_brokers_that_know_them_and_no_older_ones(tmp_path: Path) -> None:
    """Sends with a level and with a time to a broker of today, then makes it look like 4.9."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, producing(cluster) as producer:
            await create(cluster, "Orders")
            client = cluster.client()
            assert (await producer.send(Message("Orders", b"level", delay_level=3))).ok
            (record,) = await client.messages("SCHEDULE_TOPIC_XXXX", 2)
            assert record.properties["DELAY"] == "3"
            cluster_address = cluster.broker.address
            parts = (await producer._core.ready()).instance
            assert parts.versions[cluster_address] >= 413
            timed = [
                Message("Orders", b"later", delay=timedelta(seconds=5)),
                Message("Orders", b"then", deliver_at=datetime.now(UTC) + timedelta(hours=1)),
            ]
            outs = [producer._core.out(message) for message in timed]
            assert ["TIMER_DELAY_MS\x015000" in out.properties for out in outs] == [True, False]
            assert all(out.is_timed for out in outs)
            parts.versions[cluster_address] = 401
            for message in timed:
                with pytest.raises(UnsupportedError, match="V4_9_4"):
                    await producer.send(message)
                with pytest.raises(UnsupportedError, match="V4_9_4"):
                    await producer.send_oneway(message)
            assert (await producer.send(Message("Orders", b"level", delay_level=3))).ok

    run(main())


def test_a_namespace_keeps_producers_apart(tmp_path: Path) -> None:
    """Sends to the same name within and without a namespace."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            async with producing(cluster, namespace="shop") as producer:
                result = await producer.send(Message("Orders", b"inside"))
                assert result.queue.topic == "Orders"
                assert {queue.topic for queue in await producer.queues("Orders")} == {"Orders"}
                await producer.send(Message("Orders", b"again"), queue=result.queue)
                await producer.send_batch([Message("Orders", b"both")], queue=result.queue)
            records = await cluster.client().messages("shop%Orders", result.queue.queue_id)
            assert [record.body for record in records] == [b"inside", b"again", b"both"]
            assert records[0].properties["INSTANCE_ID"] == "shop"

    run(main())


class Recorder:
    """Hooks that keep what they see."""

    def __init__(self, refuse: str = "") -> None:
        self.refuse = refuse
        self.events: list[tuple[str, SendContext]] = []

    def check_send(self, context: SendContext) -> None:
        if context.message.topic == self.refuse:
            raise PermissionError(f"{self.refuse} is closed")

    def before_send(self, context: SendContext) -> None:
        context.notes = "mine"
        self.events.append(("before", context))

    def after_send(self, context: SendContext) -> None:
        assert context.notes == "mine"
        self.events.append(("after", context))
        raise RuntimeError("a look-on that fails")


def test_hooks_see_every_kind_of_send_and_may_refuse_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sends in all ways with hooks that raise afterwards, and to a topic that one of them forbids."""

    async def main() -> None:
        recorder = Recorder(refuse="Secret")
        async with broker_cluster(tmp_path) as cluster, producing(cluster, hooks=[recorder]) as producer:
            await create(cluster, "Orders")
            result = await producer.send(Message("Orders", b"a", sharding_key="k"))
            await producer.send(Message("Orders", b"a", delay_level=1))
            await producer.send_batch([Message("Orders", b"b"), Message("Orders", b"c")])
            await producer.send_oneway(Message("Orders", b"d"))
            with pytest.raises(SendError, match="nobody"):
                await producer.send(Message("Orders", b"x"), queue=MessageQueue("Orders", "nobody", 0))
            with pytest.raises(PermissionError, match="Secret is closed"):
                await producer.send(Message("Secret", b"e"))
            assert [name for name, _ in recorder.events] == ["before", "after"] * 5
            after = [context for name, context in recorder.events if name == "after"]
            assert [context.kind for context in after] == [
                SendKind.ORDERED,
                SendKind.DELAY,
                SendKind.BATCH,
                SendKind.NORMAL,
                SendKind.NORMAL,
            ]
            assert [context.mode for context in after] == [SendMode.ASYNC] * 3 + [SendMode.ONE_WAY, SendMode.ASYNC]
            assert after[0].result == result
            assert after[0].queue == result.queue
            assert after[0].msg_ids == (result.msg_id,)
            assert (after[0].group, after[0].is_success) == ("PG", True)
            assert len(after[2].results) == 2
            assert after[3].result is None
            assert isinstance(after[4].error, SendError)
            assert "Secret" not in cluster.broker.topics.table

    run(main())
    assert sum("after_send" in record.getMessage() for record in caplog.records) == 5


def test_signed_sends_are_accepted_and_batches_too(tmp_path: Path) -> None:
    """Sends with credentials and with a hook that sees the signed calls, in every way there is."""
    seen: list[tuple[int, bool]] = []

    class Calls:
        def before_call(self, peer: str, command: Command) -> None:
            seen.append((command.code, "b" in (command.ext or {})))

    async def main() -> None:
        credentials = Credentials("access", "secret-key")
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, "Orders", queues=1)
            async with producing(cluster, credentials=credentials, hooks=[Calls()]) as producer:
                first = await producer.send(Message("Orders", b"a"))
                await producer.send_batch([Message("Orders", b"b"), Message("Orders", b"c")])
                await producer.send_oneway(Message("Orders", b"d"))
                last = await producer.send(Message("Orders", b"e"))
            assert (first.queue_offset, last.queue_offset) == (0, 4)
            assert first.transaction_id == first.msg_id

    run(main())
    assert [code for code, is_send in seen if is_send] == [310, 320, 310, 310]


def test_at_the_limit_a_send_waits_for_room(tmp_path: Path) -> None:
    """Stalls the broker with two sends in flight; the others wait, and give up in their time or go in the end."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create(cluster, "Orders")
            between = {cluster.broker.address: proxy.address}
            async with producing(cluster, in_flight_max=2, broker_address_map=between) as producer:
                await producer.send(Message("Orders", b"0"))
                proxy.stall()
                message = Message("Orders", b"x")
                slow = [asyncio.create_task(producer.send(message, timeout_ms=20_000)) for _ in range(2)]
                room = (await producer._core.ready()).room
                while room.count < 2:
                    await asyncio.sleep(0)
                with pytest.raises(TooManyCallsError, match="2 sends are in flight"):
                    await producer.send(message, timeout_ms=50)
                waiting = [asyncio.create_task(producer.send(message, timeout_ms=20_000)) for _ in range(10)]
                cancelled = asyncio.create_task(producer.send(message, timeout_ms=20_000))
                await asyncio.sleep(0)
                cancelled.cancel()
                proxy.resume()
                results = await asyncio.gather(*slow, *waiting)
                assert all(result.ok for result in results)
                assert room.count == room.size == 0
            assert sum(map(len, (await stored(cluster, "Orders")).values())) == 13

    run(main())


def test_large_messages_wait_for_bytes_and_the_largest_goes_alone(tmp_path: Path) -> None:
    """Sends ten messages, each larger than the whole limit of bytes, at once."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, producing(cluster, in_flight_bytes_max=100) as producer:
            await create(cluster, "Orders")
            calls = [asyncio.create_task(producer.send(Message("Orders", b"x" * 2000))) for _ in range(10)]
            room = (await producer._core.ready()).room
            most = 0
            while not all(call.done() for call in calls):
                most = max(most, room.count)
                await asyncio.sleep(0)
            assert most == 1
            assert all(call.result().ok for call in calls)

    run(main())


def test_automatic_batches_keep_each_messages_own_result(tmp_path: Path) -> None:
    """Sends 500 messages of two topics at once, some of which cannot share requests; counts the requests."""
    codes: list[int] = []

    class Calls:
        def before_call(self, peer: str, command: Command) -> None:
            codes.append(command.code)

    async def main() -> None:
        async with (
            broker_cluster(tmp_path) as cluster,
            producing(cluster, auto_batch=True, auto_batch_bytes=8_000, hooks=[Calls()]) as producer,
        ):
            await create(cluster, "Orders")
            await create(cluster, "Other")
            special = {7: {"sharding_key": "k"}, 8: {"delay_level": 1}, 9: {"wait_stored": False}}
            messages = [
                Message("Other" if number % 5 == 0 else "Orders", b"%d" % number, **special.get(number, {}))  # type: ignore[arg-type]
                for number in range(500)
            ]
            results = await asyncio.gather(*map(producer.send, messages))
            records = {"Orders": await stored(cluster, "Orders"), "Other": await stored(cluster, "Other")}
            for number, (message, result) in enumerate(zip(messages, results, strict=True)):
                if number == 8:  # it waits elsewhere for its time
                    continue
                record = records[message.topic][result.queue.broker_name, result.queue.queue_id][
                    result.queue_offset
                ]
                assert record.body == message.body
                assert record.properties["UNIQ_KEY"] == result.msg_id
            assert codes.count(310) == 2
            assert 5 <= codes.count(320) <= 25
            held = asyncio.create_task(producer.send(messages[1]))
            await asyncio.sleep(0)
            await producer.flush()
            assert held.done() or (await held).ok

    run(main())


def test_an_automatic_batch_that_fails_fails_each_of_its_messages(tmp_path: Path) -> None:
    """Sends three messages to a broker whose answers never come."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create(cluster, "Orders")
            between = {cluster.broker.address: proxy.address}
            async with producing(
                cluster, auto_batch=True, timeout_ms=200, retries=1, broker_address_map=between
            ) as producer:
                proxy.stall()
                failed = await asyncio.gather(
                    *(producer.send(Message("Orders", b"x")) for _ in range(3)), return_exceptions=True
                )
                assert all(isinstance(error, SendError) for error in failed)
                assert len({error.msg_id for error in failed if isinstance(error, SendError)}) == 3
                assert all(len(error.tried) == 2 for error in failed if isinstance(error, SendError))

    run(main())


def test_a_producer_belongs_to_its_loop_and_closes_once(tmp_path: Path) -> None:
    """Uses one from another thread's loop, closes it with sends in flight, twice, and uses it afterwards."""

    async def main() -> None:
        threads = set(threading.enumerate())
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, "Orders")
            async with producing(cluster) as producer:
                assert "started" in repr(producer)
                with pytest.raises(ClientError, match="another event loop"):
                    await asyncio.to_thread(asyncio.run, producer.send(Message("Orders", b"x")))
                async with producing(cluster) as same_group:
                    assert (await same_group.send(Message("Orders", b"x"))).ok
                in_flight = [asyncio.create_task(producer.send(Message("Orders", b"x"))) for _ in range(100)]
                await asyncio.sleep(0)
                await producer.close()
                assert all(call.done() and call.result().ok for call in in_flight)
                await producer.close()
                with pytest.raises(ClientClosedError, match="closed"):
                    await producer.send(Message("Orders", b"x"))
                assert "closed" in repr(producer)
            while cluster.broker.clients.producer_group("PG"):
                await asyncio.sleep(0.001)
        assert {each for each in set(threading.enumerate()) - threads if each.name.startswith("rmq")} == set()

    run(main())


def test_two_producers_of_one_group_and_instance_name_are_told_apart(tmp_path: Path) -> None:
    """Starts the second one in the same client instance, then under another group."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, producing(cluster, instance_name="one"):
            with pytest.raises(ClientError, match="exists already"):
                await Producer("PG", name_server=names_of(cluster), instance_name="one").start()
            async with producing(cluster, "PG2", instance_name="one") as second:
                await create(cluster, "Orders")
                assert (await second.send(Message("Orders", b"x"))).ok

    run(main())
