"""What becomes of messages that listeners did not consume, and of groups that administrators move."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.listen_results import ConsumeResult, RetryLater, SuspendQueue
from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo, GetConsumerStatusBody
from rmq_core.protocol.bodies import ConsumeResult as DirectResult
from rmq_core.protocol.message import MessageQueue
from support.brokers import broker_cluster, run
from support.pushing import SHORT_LEVELS, committed, create_topic, fill, push_consumer, until


def _fails(how: str) -> Any:
    def plain(message: ReceivedMessage) -> Any:
        if message.reconsume_times:
            return None
        match how:
            case "raises":
                raise ValueError("a defect of the listener")
            case "exits":
                raise SystemExit
            case "later":
                raise RetryLater
            case "level":
                raise RetryLater(delay_level=1)
            case "suspends":  # without order there is nothing to suspend
                raise SuspendQueue
            case "result":
                return ConsumeResult.RETRY_LATER
            case _:
                return "done"  # neither nothing nor a ConsumeResult

    async def coroutine(message: ReceivedMessage) -> Any:
        return plain(message)

    async def cancelled(message: ReceivedMessage) -> Any:
        if not message.reconsume_times:
            raise asyncio.CancelledError

    def awaited(message: ReceivedMessage) -> Any:
        return coroutine(message)

    return {"plain": plain, "coroutine": coroutine, "cancelled": cancelled, "awaited": awaited}


@pytest.mark.parametrize("how", ["raises", "exits", "later", "level", "suspends", "result", "wrong"])
def test_what_was_not_consumed_comes_again(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """Fails the first time in every way that listeners have, plain and as coroutines."""

    async def main() -> None:
        async with broker_cluster(tmp_path, message_delay_level=SHORT_LEVELS) as cluster:
            listeners = {kind: each for kind, each in _fails(how).items() if how != "exits" or kind == "plain"}
            times: list[tuple[str, int]] = []
            for kind in listeners:
                await create_topic(cluster, f"Orders-{kind}", 1)
                await fill(cluster, f"Orders-{kind}", [b"1"])

            class Watch:
                def after_consume(self, context: Any) -> None:
                    times.append((context.messages[0].topic, context.messages[0].reconsume_times))

            consumer = push_consumer(cluster, "G", hooks=[Watch()])
            for kind, listener in listeners.items():
                consumer.subscribe(f"Orders-{kind}", listener)
            async with consumer:
                await until(lambda: len(times) >= 2 * len(listeners))
            wanted = [(f"Orders-{kind}", count) for kind in listeners for count in (0, 1)]
            assert sorted(times) == sorted(wanted)
            for kind in listeners:
                assert await committed(cluster, "G", f"Orders-{kind}") == 1

    run(main())
    if how in ("raises", "exits", "wrong"):
        assert any("it will get the message again" in each.getMessage() for each in caplog.records)


def test_what_fails_too_often_lies_among_the_dead_letters(tmp_path: Path) -> None:
    """Two tries after the first one; and one that goes there at once. Both keep where they came from."""

    async def main() -> None:
        async with broker_cluster(tmp_path, message_delay_level=SHORT_LEVELS) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"stubborn", b"hopeless"])
            tries: dict[bytes, list[ReceivedMessage]] = {b"stubborn": [], b"hopeless": []}
            consumer = push_consumer(cluster, "G", reconsume_times_max=2)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                tries[message.body].append(message)
                raise RetryLater(delay_level=-1 if message.body == b"hopeless" else None)

            async with consumer:
                await until(lambda: cluster.broker.store.max_offset("%DLQ%G", 0) == 2)
            assert [each.reconsume_times for each in tries[b"stubborn"]] == [0, 1, 2]
            assert len(tries[b"hopeless"]) == 1
            first = tries[b"stubborn"][0]
            for message in tries[b"stubborn"][1:]:
                assert message.topic == "Orders"
                assert message.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
            dead = {each.body: each for each in await cluster.client().messages("%DLQ%G")}
            assert dead[b"stubborn"].properties["RETRY_TOPIC"] == "Orders"
            assert dead[b"hopeless"].properties["RETRY_TOPIC"] == "Orders"

    run(main())


def test_of_a_batch_only_the_named_messages_come_again(tmp_path: Path) -> None:
    """Every third of each list fails once; naming a message of somebody else brings the whole list again."""

    async def main() -> None:
        async with broker_cluster(tmp_path, message_delay_level=SHORT_LEVELS) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(30)])
            got: list[tuple[int, int]] = []
            strangers: list[ReceivedMessage] = []
            consumer = push_consumer(cluster, "G", batch_size_max=30, concurrency=1)

            @consumer.subscribe("Orders")
            def handle(messages: list[ReceivedMessage]) -> None:
                got.extend((int(each.body), each.reconsume_times) for each in messages)
                failed = [each for each in messages if int(each.body) % 3 == 0 and not each.reconsume_times]
                if failed:
                    strangers.append(failed[0])
                    raise RetryLater(messages=failed)

            async with consumer:
                await until(lambda: len(got) >= 40)
            assert sorted(got) == sorted(
                [(each, 0) for each in range(30)] + [(each, 1) for each in range(0, 30, 3)]
            )

            await fill(cluster, "Orders", [b"1", b"2"])
            again: list[int] = []
            other = push_consumer(cluster, "G", batch_size_max=30)

            @other.subscribe("Orders")
            def wrong(messages: list[ReceivedMessage]) -> None:
                again.extend(each.reconsume_times for each in messages)
                if not messages[0].reconsume_times:
                    raise RetryLater(messages=strangers[:1])

            async with other:
                await until(lambda: sorted(again) == [0, 0, 1, 1])

    run(main())


def test_a_listener_that_holds_a_message_too_long_loses_it_to_a_later_try(tmp_path: Path) -> None:
    """The first call blocks; the message must come again, and what the call returns in the end counts nothing."""

    async def main() -> None:
        async with broker_cluster(tmp_path, message_delay_level=SHORT_LEVELS) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"1"])
            tries: list[int] = []
            go = threading.Event()
            consumer = push_consumer(cluster, "G", consume_timeout_ms=100)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                tries.append(message.reconsume_times)
                if not message.reconsume_times:
                    go.wait()
                    raise ValueError("too late to count")

            async with consumer:
                await until(lambda: consumer.positions("Orders").get(MessageQueue("Orders", "broker-a", 0)) == 1)
                await until(lambda: tries == [0, 1])
                go.set()
                await until(lambda: not consumer._crew.running())
                await asyncio.sleep(0)
            assert cluster.broker.store.max_offset("%RETRY%G", 0) == 1

    run(main())


def test_a_message_that_its_broker_does_not_take_back_is_sent_to_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker refuses to take messages back and to store copies of them; the second one stores them."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, message_delay_level=SHORT_LEVELS) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"x" * 5_000])
            tries: list[ReceivedMessage] = []
            consumer = push_consumer(cluster, "G")

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                tries.append(message)
                if not message.reconsume_times:
                    refuse()
                    raise RetryLater

            def refuse() -> None:
                monkeypatch.setattr(cluster.broker, "settings", replaced)

            replaced = dataclasses.replace(cluster.broker.settings, broker_permission=4)
            consumer.suspend()
            async with consumer:
                await until(lambda: sum(queue.topic.startswith("%RETRY%") for queue in consumer.queues) == 2)
                consumer.resume()
                await until(lambda: len(tries) == 2)
            again = tries[1]
            assert again.queue.broker_name == "broker-b"
            assert (again.topic, again.body, again.reconsume_times) == ("Orders", b"x" * 5_000, 1)
            assert again.properties["ORIGIN_MESSAGE_ID"] == tries[0].offset_msg_id

    run(main())


def test_a_message_that_no_broker_takes_back_is_consumed_here_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sending back fails always; progress must not pass the message until its listener has consumed it."""
    monkeypatch.setattr("rmq_core.client.concurrent.RETRY_HERE_MS", 50)

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"0", b"1", b"2"])
            tries: list[tuple[bytes, int]] = []
            held: list[int] = []
            consumer = push_consumer(cluster, "G")
            queue = MessageQueue("Orders", "broker-a", 0)

            @consumer.subscribe("Orders")
            def handle(message: ReceivedMessage) -> None:
                tries.append((message.body, message.reconsume_times))
                if message.body == b"1" and message.reconsume_times < 2:
                    held.append(consumer._queues.table[queue].progress())
                    raise RetryLater

            consumer.suspend()
            async with consumer:
                consumer._around.send_back._group = "no such group?"  # which no broker makes
                consumer._around.send_back._retry_topic = "%RETRY%no such group?"
                consumer.resume()
                await until(lambda: consumer.positions("Orders").get(queue) == 3)
            assert sorted(tries) == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]
            assert max(held) <= 1
            assert await committed(cluster, "G", "Orders") == 3

    run(main())


# What administrators do


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("is_server_side", [False, True])
def test_a_running_group_follows_a_reset(tmp_path: Path, ordered: bool, is_server_side: bool) -> None:
    """Back to the start and ahead to the end, while the listener is busy."""

    async def main() -> None:
        async with broker_cluster(tmp_path, use_server_side_reset_offset=is_server_side) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"%d" % each for each in range(50)])
            got: list[int] = []
            consumer = push_consumer(cluster, "G", ordered=ordered)
            consumer.subscribe("Orders", lambda message: got.append(int(message.body)))
            async with consumer:
                await until(lambda: len(got) == 50)
                await until(lambda: consumer.positions("Orders").get(MessageQueue("Orders", "broker-a", 0)) == 50)
                await consumer.persist_offsets()  # a broker moves only groups that it knows
                await until(lambda: cluster.broker.offsets.query("G", "Orders", 0) == 50)
                await cluster.client().call(
                    r.InvokeBrokerToResetOffset("Orders", "G", timestamp=0, is_force=True, queue_id=-1, offset=20)
                    if is_server_side
                    else r.InvokeBrokerToResetOffset("Orders", "G", timestamp=0, is_force=True)
                )
                start = 20 if is_server_side else 0
                # A pull that waits for news hears of it with the next message.
                await fill(cluster, "Orders", [b"50"])
                await until(lambda: set(got[50:]) >= set(range(start, 51)))
            assert await committed(cluster, "G", "Orders") == 51

    run(main())


def test_administrators_see_a_consumer_from_inside(tmp_path: Path) -> None:
    """Asks the broker, which asks the consumer: positions, queues, rates, stacks."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 2)
            await fill(cluster, "Orders", [b"x"] * 10)
            got: list[bytes] = []
            consumer = push_consumer(cluster, "G", instance_name="me")
            consumer.subscribe("Orders", lambda message: got.append(message.body), tags="TagA")
            async with consumer:
                await until(lambda: len(got) == 10)
                await until(lambda: consumer.positions("Orders").get(MessageQueue("Orders", "broker-a", 0)) == 10)
                client_id = consumer._around.instance.client_id
                client = cluster.client()
                answer = await client.call(r.GetConsumerRunningInfo("G", client_id, jstack_enable=True))
                info = ConsumerRunningInfo.decode(answer.body)
                status = await client.call(r.InvokeBrokerToGetConsumerStatus("Orders", "G"))
            queue = info.mq_table[MessageQueue("Orders", "broker-a", 0)]
            assert (queue.commit_offset, queue.cached_msg_count, queue.dropped) == (10, 0, False)
            assert queue.last_pull_timestamp > 1_700_000_000_000
            assert info.properties["PROP_CONSUMEORDERLY"] == "false"
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert {each.topic: each.sub_string for each in info.subscription_set} == {
                "Orders": "TagA",
                "%RETRY%G": "*",
            }
            assert info.status_table["Orders"].consume_ok_tps > 0
            assert info.jstack is not None
            assert "rmq-listener-G" in info.jstack
            table = GetConsumerStatusBody.decode(status.body).consumer_table
            assert table is not None
            assert table[client_id][MessageQueue("Orders", "broker-a", 0)] == 10

    run(main())


@pytest.mark.parametrize("ordered", [False, True])
def test_one_message_is_consumed_directly_when_an_administrator_asks(tmp_path: Path, ordered: bool) -> None:
    """Every outcome that a listener has; progress must not move."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"first"])
            got: list[bytes] = []
            outcome: list[Any] = [None]
            consumer = push_consumer(cluster, "G", ordered=ordered)

            @consumer.subscribe("Orders")
            async def handle(message: ReceivedMessage) -> Any:
                got.append(message.body)
                if isinstance(outcome[0], Exception):
                    raise outcome[0]
                return outcome[0]

            async with consumer:
                await until(lambda: got == [b"first"])
                client = cluster.client()
                (record,) = await client.messages("Orders", group="Other")
                message_id = record.store_host.pack().hex().upper() + f"{record.log_offset:016X}"
                client_id = consumer._around.instance.client_id

                async def ask() -> ConsumeMessageDirectlyResult:
                    request = r.ConsumeMessageDirectly("G", client_id, message_id, "broker-a")
                    return ConsumeMessageDirectlyResult.decode((await client.call(request)).body)

                for outcome[0], wanted in (
                    (None, DirectResult.CR_SUCCESS),
                    (ConsumeResult.RETRY_LATER, DirectResult.CR_LATER),
                    (RetryLater(), DirectResult.CR_LATER),
                    ("nonsense", DirectResult.CR_RETURN_NULL),
                    (ValueError("a defect of the listener"), DirectResult.CR_THROW_EXCEPTION),
                ):
                    result = await ask()
                    assert (result.consume_result, result.order) == (wanted, ordered)
                assert result.remark is not None
                assert "a defect of the listener" in result.remark
            assert len(got) == 6
            assert await committed(cluster, "G", "Orders") == 1
            assert cluster.broker.store.max_offset("%RETRY%G", 0) == 0

    run(main())


def test_a_consumer_begins_again_where_its_queue_ends_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The group's progress is far beyond the end, as after a broker that lost its disk."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create_topic(cluster, "Orders", 1)
            await fill(cluster, "Orders", [b"old"] * 5)
            client = cluster.client()
            got: list[bytes] = []
            first = push_consumer(cluster, "G")
            first.subscribe("Orders", lambda message: got.append(message.body))
            async with first:
                await until(lambda: len(got) == 5)
            await client.call(r.UpdateConsumerOffset("G", "Orders", 0, 5_000))
            got.clear()
            consumer = push_consumer(cluster, "G")
            consumer.subscribe("Orders", lambda message: got.append(message.body))
            async with consumer:
                await until(lambda: consumer.positions("Orders").get(MessageQueue("Orders", "broker-a", 0), 6) <= 5)
                await fill(cluster, "Orders", [b"new"])
                await until(lambda: b"new" in got)
            assert await committed(cluster, "G", "Orders") == 6

    with caplog.at_level(logging.WARNING):
        run(main())
    assert any("before 5000" in each.getMessage() for each in caplog.records)
