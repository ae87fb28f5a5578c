"""The pull consumer: single pulls, progress as the application tells it, and who owns what."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.blocking.pull_consumer import PullConsumer as BlockingPullConsumer
from rmq_core.client.pull_consumer import PullConsumer
from rmq_core.client.pull_options import Assignment
from rmq_core.client.pulls import PullStatus
from rmq_core.errors import BrokerError, ClientClosedError, ClientError, ConnectError, NoRouteError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumerRunningInfo
from support.brokers import broker_cluster, run
from support.producing import create
from support.proxy import Proxy
from support.pulling import GROUP, TOPIC, bodies, members_of, numbered, puller, queue, stored_progress
from support.pushing import SHORT_LEVELS, fill, until


def test_the_loop_of_the_handbook_reads_a_topic(tmp_path: Path) -> None:
    """Every queue from its stored progress to where there is nothing new, telling the progress after each pull."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create(cluster, TOPIC, queues=2)
            for broker in range(2):
                await fill(cluster, TOPIC, numbered(100), broker=broker)
            for expected in (200, 0):
                found = []
                async with puller(cluster) as consumer:
                    for each in await consumer.queues(TOPIC):
                        offset = await consumer.progress(each) or 0
                        while (result := await consumer.pull(each, offset)).status is not PullStatus.NO_NEW_MESSAGE:
                            found += result.messages
                            offset = result.next_offset
                            await consumer.update_offset(each, offset)
                        assert result.next_offset == result.max_offset
                        assert await consumer.progress(each) in (offset, None)
                assert len(found) == expected
            assert [await stored_progress(cluster, 0, broker=broker) for broker in range(2)] == [100, 100]

    run(main())


def test_each_status_says_where_to_go_on(tmp_path: Path) -> None:
    """Found, nothing new, nothing that matches, and offsets that do not exist."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(10), tags="Aa")
            async with puller(cluster) as consumer:
                found = await consumer.pull(queue(), 4, count_max=3)
                assert (found.status, bodies(found.messages)) == (PullStatus.FOUND, numbered(10)[4:7])
                assert (found.next_offset, found.min_offset, found.max_offset) == (7, 0, 10)
                assert found.messages[0].max_offset == 10
                end = await consumer.pull(queue(), 10)
                assert (end.status, end.messages, end.next_offset) == (PullStatus.NO_NEW_MESSAGE, [], 10)
                for tags in ("other", "BB"):  # BB has the hash of Aa: the broker lets it through
                    other = await consumer.pull(queue(), 0, tags=tags)
                    assert (other.status, other.messages, other.next_offset) == (
                        PullStatus.NO_MATCHED_MESSAGE,
                        [],
                        10,
                    )
                beyond = await consumer.pull(queue(), 99)
                assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)
                with pytest.raises(BrokerError):
                    await consumer.pull(queue(7), 0)
                with pytest.raises(NoRouteError):
                    await consumer.pull(queue(broker="broker-z"), 0)

    run(main())


def test_a_blocking_pull_waits_for_a_message(tmp_path: Path) -> None:
    """The broker holds it until one comes; where none comes it is answered when its time is over."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            async with puller(cluster) as consumer:
                waiting = asyncio.create_task(consumer.pull_blocking(queue(), 0))
                await until(lambda: cluster.broker.long_polls.count)
                await fill(cluster, TOPIC, [b"came"])
                assert bodies((await waiting).messages) == [b"came"]
            async with puller(cluster, "hasty", suspend_ms=1) as consumer:
                assert (await consumer.pull_blocking(queue(), 1)).status is PullStatus.NO_NEW_MESSAGE

    run(main())


def test_places_of_a_queue_are_told(tmp_path: Path) -> None:
    """Ends, times, and what an empty queue says."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            await fill(cluster, TOPIC, numbered(10))
            now = datetime.now(UTC)
            async with puller(cluster) as consumer:
                assert await consumer.queues(TOPIC) == [queue(0), queue(1)]
                assert (await consumer.min_offset(queue()), await consumer.max_offset(queue())) == (0, 10)
                assert (await consumer.min_offset(queue(1)), await consumer.max_offset(queue(1))) == (0, 0)
                assert await consumer.offset_for_time(queue(), now - timedelta(hours=1)) == 0
                assert await consumer.offset_for_time(queue(), now + timedelta(hours=1)) == 10
                oldest = await consumer.oldest_stored_at(queue())
                assert oldest is not None
                assert abs(oldest - now) < timedelta(minutes=5)
                assert await consumer.oldest_stored_at(queue(1)) is None
                with pytest.raises(NoRouteError):
                    await consumer.queues("Nowhere")

    run(main())


def test_progress_is_stored_at_once_later_or_at_the_end(tmp_path: Path) -> None:
    """commit() of a group that nobody knows yet, update_offset() by the timer's work, and by close()."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=3)
            async with puller(cluster) as consumer:
                assert await consumer.committed(queue()) is None
                await consumer.queues(TOPIC)
                await consumer.commit(queue(), 5)
                assert await stored_progress(cluster) == await consumer.committed(queue()) == 5
                await consumer.update_offset(queue(1), 6)
                assert await consumer.committed(queue(1)) is None
                assert await consumer.progress(queue(1)) == 6
                await consumer._member.persist_offsets()
                while await consumer.committed(queue(1)) != 6:
                    await asyncio.sleep(0.01)
                await consumer.update_offset(queue(2), 7)
                await consumer.update_offset(queue(1), 4)
            assert [await stored_progress(cluster, number) for number in range(3)] == [5, 4, 7]

    run(main())


def test_registered_topics_are_divided_between_the_members(tmp_path: Path) -> None:
    """The second member takes half of the queues, with the first one's progress; it leaves, and they come back."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=4)
            changes: list[Assignment] = []
            async with puller(cluster, topics=[TOPIC], on_assignment=changes.append) as one:
                assert len(await one.owned_queues(TOPIC)) == 4
                for each in await one.owned_queues(TOPIC):
                    await one.update_offset(each, 7)
                async with puller(cluster) as two:
                    await two.register(TOPIC)
                    await until(lambda: len(changes) == 2)
                    taken = sorted(changes[1].taken)
                    assert await two.owned_queues(TOPIC) == taken
                    assert sorted({*taken, *await one.owned_queues(TOPIC)}) == [
                        queue(number) for number in range(4)
                    ]
                    while [await two.committed(each) for each in taken] != [7, 7]:
                        await asyncio.sleep(0.01)
                    assert await members_of(cluster) == 2
                    info_of = r.GetConsumerRunningInfo(GROUP, two._member.instance.client_id, False)
                    info = ConsumerRunningInfo.decode((await cluster.client().call(info_of)).body)
                    assert sorted(info.mq_table) == taken
                await until(lambda: len(changes) == 3)
                assert changes[2].given == set(taken)

    run(main())


def test_what_is_sent_back_comes_again_on_the_groups_retry_topic(tmp_path: Path) -> None:
    """With a delay and then, once more failed, among the dead letters."""

    async def main() -> None:
        async with broker_cluster(tmp_path, message_delay_level=SHORT_LEVELS) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, [b"hard"])
            async with puller(cluster) as consumer:
                (message,) = (await consumer.pull(queue(), 0)).messages
                await consumer.send_back(message, delay_level=1)
                retry = f"%RETRY%{GROUP}"
                await until(lambda: cluster.broker.store.max_offset(retry, 0))
                (again,) = (await consumer.pull(queue(topic=retry), 0)).messages
                assert (again.body, again.topic, again.reconsume_times) == (b"hard", TOPIC, 1)
                assert again.queue.topic == retry
                await consumer.send_back(again, delay_level=-1)
                await until(lambda: cluster.broker.store.max_offset(f"%DLQ%{GROUP}", 0))
                with pytest.raises(TypeError, match="message must be a ReceivedMessage"):
                    await consumer.send_back(b"hard")  # type: ignore[arg-type]

    run(main())


def test_a_broker_that_is_away_is_said_and_forgiven(tmp_path: Path) -> None:
    """A pull over a connection that breaks raises; the next one connects again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(2))
            async with puller(cluster, broker_address_map={cluster.broker.address: proxy.address}) as consumer:
                waiting = asyncio.create_task(consumer.pull_blocking(queue(), 2))
                await until(lambda: cluster.broker.long_polls.count)
                proxy.cut()
                with pytest.raises(ConnectError):
                    await waiting
                assert len((await consumer.pull(queue(), 0)).messages) == 2

    run(main())


def test_within_a_namespace_queues_are_bare(tmp_path: Path) -> None:
    """On the wire topic and group carry it."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, "shop%Orders", queues=1)
            await fill(cluster, "shop%Orders", [b"inside"])
            async with puller(cluster, namespace="shop") as consumer:
                assert await consumer.queues(TOPIC) == [queue()]
                (message,) = (await consumer.pull(queue(), 0)).messages
                assert (message.topic, message.queue) == (TOPIC, queue())
                await consumer.commit(queue(), 1)
            assert await stored_progress(cluster, group="shop%audit", topic="shop%Orders") == 1

    run(main())


def test_closing_leaves_the_group(tmp_path: Path) -> None:
    """Twice, at once; afterwards nothing can be asked, and a start that failed leaves nothing behind."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            with pytest.raises(NoRouteError):
                await puller(cluster, topics=["Nowhere"], instance_name="shared").start()
            consumer = puller(cluster, topics=[TOPIC], instance_name="shared")
            await consumer.start()
            assert await members_of(cluster) == 1
            with pytest.raises(ClientError, match="exists already"):
                await puller(cluster, instance_name="shared").start()
            assert await consumer.owned_queues(TOPIC) == [queue()]
            await asyncio.gather(consumer.close(), consumer.close())
            assert await members_of(cluster) == 0
            assert "closed" in repr(consumer)
            with pytest.raises(ClientClosedError):
                await consumer.pull(queue(), 0)

    run(main())


def test_wrong_arguments_raise_before_anything_is_sent() -> None:
    """One after the other, without any broker."""
    for arguments, problem in (
        ({"group": "a b"}, "group"),
        ({"topics": "Orders"}, "topics must be a list"),
        ({"topics": ["a b"]}, "topic name"),
        ({"suspend_ms": 0}, "suspend_ms"),
        ({"reconsume_times_max": -1}, "reconsume_times_max"),
        ({"broadcasting": True}, "instance_name"),
        ({"on_assignment": 1}, "on_assignment"),
    ):
        for form in (PullConsumer, BlockingPullConsumer):
            with pytest.raises((ValueError, TypeError), match=problem):
                form(**{"group": GROUP, "name_server": "127.0.0.1:1", **arguments})  # type: ignore[arg-type]

    async def main() -> None:
        consumer = PullConsumer(GROUP, name_server="127.0.0.1:1")
        text: Any = "Orders"
        half: Any = 1.5
        wrong: list[tuple[Any, str]] = [
            (lambda: consumer.pull(queue(), -1), "offset"),
            (lambda: consumer.pull(queue(), 0, count_max=0), "count_max"),
            (lambda: consumer.pull(queue(), 0, sql="a >"), "sql"),
            (lambda: consumer.pull(text, 0), "queue must be MessageQueue"),
            (lambda: consumer.update_offset(queue(), -5), "offset"),
            (lambda: consumer.commit(queue(), half), "offset"),
            (lambda: consumer.offset_for_time(queue(), datetime(2026, 1, 1)), "time zone"),
        ]
        for call, problem in wrong:
            with pytest.raises((ValueError, TypeError), match=problem):
                await call()

    run(main())


def test_both_forms_have_the_same_calls() -> None:
    """Compares the parameters of every public method."""

    def public(kind: type) -> dict[str, inspect.Signature]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(each) for name, each in methods if not name.startswith("_")}

    ours, theirs = public(PullConsumer), public(BlockingPullConsumer)
    assert set(ours) == set(theirs)
    assert {name for name in ours if ours[name] != theirs[name]} == set()
    assert inspect.signature(PullConsumer) == inspect.signature(BlockingPullConsumer)
