"""The lite pull consumer: what it reads, what counts as done, and where it goes on."""

from __future__ import annotations

import asyncio
import inspect
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.blocking.lite_pull import LitePullConsumer as BlockingLitePullConsumer
from rmq_core.client.lite_pull import LitePullConsumer
from rmq_core.client.pull_options import Assignment
from rmq_core.errors import BrokerError, ClientClosedError, ClientError, NoRouteError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumerRunningInfo, GetConsumerStatusBody
from support.brokers import broker_cluster, run
from support.producing import create
from support.pulling import GROUP, TOPIC, bodies, lite, members_of, numbered, queue, read, stored_progress
from support.pushing import fill, until


def test_a_topic_is_read_to_its_end_and_gone_on_with_after_a_restart(tmp_path: Path) -> None:
    """Two brokers: every queue in its order. A second consumer of the group gets only what was sent in between."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, names=2) as cluster:
            await create(cluster, TOPIC, queues=2)
            for number, broker in ((0, 0), (1, 0), (0, 1), (1, 1)):
                await fill(cluster, TOPIC, numbered(100, f"{broker}{number}-"), queue_id=number, broker=broker)
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)
                messages = await read(consumer, 400)
                for name in ("broker-a", "broker-b"):
                    for number in range(2):
                        own = [each for each in messages if each.queue == queue(number, broker=name)]
                        assert [each.queue_offset for each in own] == list(range(100))
                        assert bodies(own) == numbered(100, f"{int(name == 'broker-b')}{number}-")
                assert await consumer.poll(timeout_ms=0) == []
            assert [await stored_progress(cluster, number) for number in range(2)] == [100, 100]
            await fill(cluster, TOPIC, [b"new"], queue_id=1)
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)
                assert bodies(await read(consumer, 1)) == [b"new"]
                assert await consumer.poll(timeout_ms=50) == []

    run(main())


def test_an_exception_in_the_loop_leaves_its_message_undone(tmp_path: Path) -> None:
    """Fails at the third message: the same consumer gives it again, and after close() the group is there."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(10))
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)

                async def fail_at_the_third() -> None:
                    async for message in consumer:
                        if message.queue_offset == 2:
                            raise RuntimeError("unlucky")

                for _ in range(2):
                    with pytest.raises(RuntimeError, match="unlucky"):
                        await fail_at_the_third()
            assert await stored_progress(cluster) == 2
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)
                async for message in consumer:
                    if message.queue_offset == 9:
                        await consumer.commit()
                        break
            assert await stored_progress(cluster) == 10

    run(main())


def test_what_poll_gave_is_done_when_it_is_called_again(tmp_path: Path) -> None:
    """Polls twice and closes: the first piece is stored, the second comes again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(10))
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)
                assert len(await read(consumer, 4)) == 4
                again = await consumer.poll(count_max=3)
                assert [each.queue_offset for each in again] == [4, 5, 6]
                assert await consumer.position(queue()) == 7
            assert await stored_progress(cluster) == 4

    run(main())


def test_progress_is_stored_when_commit_says_so_and_not_before(tmp_path: Path) -> None:
    """Without auto_commit: after poll() and close() nothing is stored, after commit() all, or what it names."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(10))
            async with lite(cluster, auto_commit=False) as consumer:
                await consumer.subscribe(TOPIC)
                await read(consumer, 10)
                await consumer.poll(timeout_ms=0)
                assert await consumer.committed(queue()) in (None, 0)
            assert await stored_progress(cluster) is None
            async with lite(cluster, auto_commit=False) as consumer:
                await consumer.subscribe(TOPIC)
                await read(consumer, 6)
                await consumer.commit()
                assert await stored_progress(cluster) == await consumer.committed(queue()) == 6
                await consumer.commit({queue(): 3})
                assert await stored_progress(cluster) == 3
                with pytest.raises(ClientError, match="not assigned"):
                    await consumer.commit({queue(7): 3})
                with pytest.raises(ValueError, match="the offset of"):
                    await consumer.commit({queue(): -1})
            assert await stored_progress(cluster) == 3

    run(main())


def test_tags_choose_and_what_they_leave_out_is_progress_too(tmp_path: Path) -> None:
    """Aa and BB have one hash: brokers let both through. In the end the group is behind the last, unwanted one."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            for tags in ("Aa", "BB", "other", "paid", "BB", "other"):
                await fill(cluster, TOPIC, numbered(40, tags), tags=tags)
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC, tags="Aa || paid")
                messages = await read(consumer, 80)
                assert bodies(messages) == numbered(40, "Aa") + numbered(40, "paid")
                assert await consumer.poll(timeout_ms=50) == []
                await consumer.commit()
                assert await stored_progress(cluster) == 240

    run(main())


def test_sql_is_refused_at_once_where_the_broker_cannot(tmp_path: Path) -> None:
    """A broker with the filter switched off; it is asked before the group subscribes."""

    async def main() -> None:
        async with broker_cluster(tmp_path, enable_property_filter=False) as cluster:
            await create(cluster, TOPIC)
            async with lite(cluster) as consumer:
                with pytest.raises(BrokerError, match="does not support"):
                    await consumer.subscribe(TOPIC, sql="amount > 5")
                with pytest.raises(ClientError, match="nothing to read"):
                    await consumer.poll(timeout_ms=0)

    run(main())


def test_sql_chooses_by_properties(tmp_path: Path) -> None:
    """Ten amounts, five of which are asked for."""

    async def main() -> None:
        async with broker_cluster(tmp_path, enable_property_filter=True) as cluster:
            await create(cluster, TOPIC, queues=1)
            for amount in range(10):
                await cluster.client().send(TOPIC, b"%d" % amount, properties={"amount": str(amount)})
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC, sql="amount >= 5")
                assert bodies(await read(consumer, 5)) == [b"5", b"6", b"7", b"8", b"9"]

    run(main())


@pytest.mark.parametrize("start", ["earliest", "latest", "time"])
def test_a_new_group_starts_where_it_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    """Messages before and after a moment; the group's second consumer goes on whatever it is told."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            if (
                start == "latest"
            ):  # brokers begin young topics, which they still have in memory, at the first message
                monkeypatch.setattr(cluster.broker.store, "in_memory", lambda log_offset: False)
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, [b"old"])
            stored_ms = (await cluster.client().messages(TOPIC, group="other"))[-1].store_time_ms
            await until(lambda: time.time_ns() // 1_000_000 > stored_ms)
            await fill(cluster, TOPIC, [b"new"])
            moment = datetime.fromtimestamp((stored_ms + 1) / 1000, UTC)
            start_from: Any = moment if start == "time" else start
            async with lite(cluster, start_from=start_from) as consumer:
                await consumer.subscribe(TOPIC)
                await until(lambda: consumer._role.loop(queue()).state.next_offset is not None)
                await fill(cluster, TOPIC, [b"last"])
                wanted = {"earliest": [b"old", b"new"], "time": [b"new"], "latest": []}[start]
                assert bodies(await read(consumer, len(wanted) + 1)) == [*wanted, b"last"]
                await consumer.commit()
            await fill(cluster, TOPIC, [b"more"])
            async with lite(cluster, start_from="earliest") as consumer:
                await consumer.subscribe(TOPIC)
                assert bodies(await read(consumer, 1)) == [b"more"]

    run(main())


def test_a_group_that_starts_at_the_end_keeps_its_place_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes while the first consumer runs; what comes while nobody runs is the second one's."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            monkeypatch.setattr(cluster.broker.store, "in_memory", lambda log_offset: False)
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(5))
            async with lite(cluster, start_from="latest") as consumer:
                await consumer.subscribe(TOPIC)
                await until(lambda: consumer._role.loop(queue()).state.next_offset is not None)
            await fill(cluster, TOPIC, [b"meanwhile"])
            async with lite(cluster, start_from="latest") as consumer:
                await consumer.subscribe(TOPIC)
                assert bodies(await read(consumer, 1)) == [b"meanwhile"]

    run(main())


def test_seeking_goes_there_and_nowhere_else(tmp_path: Path) -> None:
    """Forward, back, to both ends, to a time, out of range, and in a queue that is not ours."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            await fill(cluster, TOPIC, numbered(100))
            async with lite(cluster) as consumer:
                await consumer.assign([queue()])
                await read(consumer, 10)
                await consumer.seek(queue(), 50)
                assert (await read(consumer, 1))[0].queue_offset == 50
                await consumer.seek_to_begin(queue())
                assert bodies(await read(consumer, 100)) == numbered(100)
                await consumer.seek_to_end(queue())
                assert await consumer.position(queue()) == 100
                await fill(cluster, TOPIC, [b"next"])
                assert bodies(await read(consumer, 1)) == [b"next"]
                now = datetime.now(UTC)
                assert await consumer.offset_for_time(queue(), now - timedelta(hours=1)) == 0
                assert await consumer.offset_for_time(queue(), now + timedelta(hours=1)) == 101
                assert (await consumer.min_offset(queue()), await consumer.max_offset(queue())) == (0, 101)
                with pytest.raises(ValueError, match=r"offset must lie in \[0, 101\]"):
                    await consumer.seek(queue(), 102)
                with pytest.raises(ValueError, match="offset must be at least 0"):
                    await consumer.seek(queue(), -1)
                with pytest.raises(ClientError, match="not assigned"):
                    await consumer.seek(queue(1), 0)
                with pytest.raises(ValueError, match="moment has no time zone"):
                    await consumer.offset_for_time(queue(), datetime(2026, 1, 1))
                await consumer.seek(queue(), 30)
            assert await stored_progress(cluster) == 30

    run(main())


def test_many_seeks_at_once_end_at_the_last(tmp_path: Path) -> None:
    """Twenty tasks seek in one queue while it is pulled: what comes begins at one of the places, without a gap."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(200))
            async with lite(cluster, pull_batch_size=8) as consumer:
                await consumer.assign([queue()])
                for _ in range(5):
                    await asyncio.gather(*(consumer.seek(queue(), place * 5) for place in range(20)))
                    found = [each.queue_offset for each in await read(consumer, 60)]
                    assert found == list(range(found[0], found[0] + 60))
                    assert found[0] % 5 == 0

    run(main())


def test_a_paused_queue_gives_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    """Two queues; what was fetched of the paused one waits."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)
                await consumer.pause(queue(0))
                await fill(cluster, TOPIC, numbered(20), queue_id=0)
                await fill(cluster, TOPIC, numbered(20), queue_id=1)
                assert {each.queue for each in await read(consumer, 20)} == {queue(1)}
                assert await consumer.poll(timeout_ms=100) == []
                await consumer.resume(queue(0))
                assert bodies(await read(consumer, 20)) == numbered(20)
                with pytest.raises(ClientError, match="not assigned"):
                    await consumer.pause(queue(5))

    run(main())


def test_who_assigns_reads_what_it_named_whoever_else_is_there(tmp_path: Path) -> None:
    """Two consumers of a group with queues of their own; then one gives a queue up for another."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=3)
            for number in range(3):
                await fill(cluster, TOPIC, numbered(10, f"{number}-"), queue_id=number)
            async with lite(cluster) as one, lite(cluster) as two:
                assert await one.fetch_queues(TOPIC) == [queue(0), queue(1), queue(2)]
                await one.assign([queue(0)])
                await two.assign([queue(1), queue(2)])
                assert bodies(await read(one, 10)) == numbered(10, "0-")
                assert len(await read(two, 20)) == 20
                await one.poll(timeout_ms=0)
                await one.assign([queue(1)])
                assert await stored_progress(cluster, 0) == 10
                assert bodies(await read(one, 10)) == numbered(10, "1-")
                assert await one.assigned() == [queue(1)]
                await one.assign([])
                assert await one.poll(timeout_ms=0) == []
                with pytest.raises(ClientError, match="was assigned queues"):
                    await one.subscribe(TOPIC)
                with pytest.raises(NoRouteError):
                    await one.assign([queue(topic="Nowhere")])

    run(main())


def test_a_topic_that_is_made_later_is_read_from_then_on(tmp_path: Path) -> None:
    """Subscribes first; the consumer finds the topic without being asked again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, lite(cluster) as consumer:
            await consumer.subscribe(TOPIC)
            assert await consumer.assigned() == []
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(3))
            assert bodies(await read(consumer, 3)) == numbered(3)
            with pytest.raises(ClientError, match="has subscribed"):
                await consumer.assign([queue()])
            await consumer.unsubscribe(TOPIC)
            assert await consumer.assigned() == []

    run(main())


def test_everyone_who_broadcasts_gets_everything_and_finds_its_place_again(tmp_path: Path) -> None:
    """Two members, each with its file; one restarts and goes on where it was, the broker knows of no progress."""

    async def main() -> None:
        async with broker_cluster(tmp_path / "broker") as cluster:
            await create(cluster, TOPIC, queues=2)
            await fill(cluster, TOPIC, numbered(20))
            arguments: dict[str, Any] = {"broadcasting": True, "offset_dir": tmp_path / "offsets"}
            async with (
                lite(cluster, instance_name="one", **arguments) as one,
                lite(cluster, instance_name="two", **arguments) as two,
            ):
                for each in (one, two):
                    await each.subscribe(TOPIC)
                    assert bodies(await read(each, 20)) == numbered(20)
                await one.commit()
                assert await one.committed(queue()) == 20
            assert (tmp_path / "offsets" / "one" / GROUP / "offsets.json").exists()
            await fill(cluster, TOPIC, [b"new"])
            async with lite(cluster, instance_name="one", **arguments) as one:
                await one.subscribe(TOPIC)
                assert bodies(await read(one, 1)) == [b"new"]
            assert await stored_progress(cluster) is None

    run(main())


def test_within_a_namespace_names_are_bare(tmp_path: Path) -> None:
    """On the wire topic and group carry it; a topic of the same bare name outside stays unread."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, "shop%Orders", queues=1)
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, "shop%Orders", [b"inside"])
            await fill(cluster, TOPIC, [b"outside"])
            changes: list[Assignment] = []
            async with lite(cluster, namespace="shop", on_assignment=changes.append) as consumer:
                await consumer.subscribe(TOPIC)
                (message,) = await read(consumer, 1)
                assert (message.body, message.topic, message.queue) == (b"inside", TOPIC, queue())
                await consumer.commit({queue(): 1})
            assert changes == [Assignment(TOPIC, frozenset({queue()}), frozenset({queue()}), frozenset())]
            assert await stored_progress(cluster, group="shop%audit", topic="shop%Orders") == 1

    run(main())


def test_the_cache_is_bounded_and_filled_again_as_it_empties(tmp_path: Path) -> None:
    """Limits by count and by bytes: fetching stops above them, by one answer at most, and all comes in the end."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            for number in range(2):
                await fill(cluster, TOPIC, numbered(600), queue_id=number)
            limits: list[dict[str, int]] = [
                {"cache_count_max": 50},
                {"queue_cache_count_max": 25},
                {"cache_size_max_bytes": 5_000},
                {"queue_cache_size_max_bytes": 2_500},
            ]
            for number, limit in enumerate(limits):
                async with lite(cluster, f"{GROUP}-{number}", pull_batch_size=10, **limit) as consumer:
                    await consumer.subscribe(TOPIC)
                    cache = consumer._role.cache
                    await until(lambda: cache.count >= 40)  # noqa: B023
                    highest = cache.count
                    for _ in range(120):
                        assert await read(consumer, 10)
                        highest = max(highest, cache.count)
                    assert highest <= 70
                    assert await consumer.poll(timeout_ms=0) == []
                    assert (cache.count, cache.size_bytes) == (0, 0)

    run(main())


def test_administrators_see_the_consumer(tmp_path: Path) -> None:
    """Its running information, and how far it is, by way of the broker."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(30))
            async with lite(cluster, pull_batch_size=5) as consumer:
                await consumer.subscribe(TOPIC)
                await read(consumer, 10)
                await until(lambda: len(consumer._role.loop(queue()).state.waiting) == 20)
                await consumer.poll(timeout_ms=0, count_max=1)
                client_id = consumer._role.instance.client_id
                answer = await cluster.client().call(r.GetConsumerRunningInfo(GROUP, client_id, False))
                info = ConsumerRunningInfo.decode(answer.body)
                assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
                assert [each.topic for each in info.subscription_set] == [TOPIC]
                seen = info.mq_table[queue()]
                assert (seen.commit_offset, seen.cached_msg_min_offset, seen.cached_msg_count) == (10, 11, 19)
                status = await cluster.client().call(r.InvokeBrokerToGetConsumerStatus(TOPIC, GROUP))
                table = GetConsumerStatusBody.decode(status.body).consumer_table
                assert table == {client_id: {queue(): 10}}
                message_id = (await consumer.poll(timeout_ms=0, count_max=1))[0].offset_msg_id
                directly = r.ConsumeMessageDirectly(GROUP, client_id, message_id, "broker-a")
                with pytest.raises(BrokerError, match="has no listener"):
                    await cluster.client().call(directly)

    run(main())


def test_closing_leaves_the_group_and_nothing_behind(tmp_path: Path) -> None:
    """Closes twice, and while an iteration waits; tasks and connections are gone, and using it raises."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            connections = len(cluster.apps[0].broker.clients.consumer_groups())
            before = asyncio.all_tasks()
            consumer = lite(cluster)
            assert "not started" in repr(consumer)
            await consumer.subscribe(TOPIC)
            assert await members_of(cluster) == 1

            async def iterate() -> list[bytes]:
                return [message.body async for message in consumer]

            iteration = asyncio.create_task(iterate())
            await fill(cluster, TOPIC, numbered(2))
            await until(lambda: consumer._role.loop(queue()).state.progress == 2)
            await asyncio.gather(consumer.close(), consumer.close())
            assert await iteration == numbered(2)
            await consumer.close()
            assert await members_of(cluster) == 0
            assert len(cluster.apps[0].broker.clients.consumer_groups()) == connections
            assert [task for task in asyncio.all_tasks() - before if "rmq_core/client" in repr(task)] == []
            assert "closed" in repr(consumer)
            for use in (consumer.poll, consumer.assigned, consumer.start, lambda: consumer.subscribe(TOPIC)):
                with pytest.raises(ClientClosedError):
                    await use()
            with pytest.raises(ClientClosedError):
                aiter(consumer)
            assert await stored_progress(cluster) == 2

    run(main())


def test_one_group_once_per_client(tmp_path: Path) -> None:
    """Two consumers of one group under one instance name: the second is refused, the first works on."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(1))
            async with lite(cluster, instance_name="shared") as one:
                await one.subscribe(TOPIC)
                with pytest.raises(ClientError, match="exists already"):
                    await lite(cluster, instance_name="shared").start()
                assert len(await read(one, 1)) == 1

    run(main())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"group": ""}, "group name is empty"),
        ({"group": "a b"}, "group name"),
        ({"group": "DEFAULT_CONSUMER"}, "name of your own"),
        ({"start_from": "oldest"}, "start_from"),
        ({"start_from": datetime(2026, 1, 1)}, "start_from has no time zone"),
        ({"broadcasting": True}, "instance_name"),
        ({"allocate": "by_luck"}, "allocate"),
        ({"pull_batch_size": 0}, "pull_batch_size"),
        ({"cache_count_max": -1}, "cache_count_max"),
        ({"suspend_ms": -1}, "suspend_ms"),
        ({"name_server": "nowhere"}, "name_server"),
        ({"colour": "red"}, "colour"),
        ({"on_assignment": 3}, "on_assignment"),
        ({"pull_batch_size": "many"}, "pull_batch_size"),
    ],
)
@pytest.mark.parametrize("form", [LitePullConsumer, BlockingLitePullConsumer])
def test_wrong_arguments_raise_before_anything_is_sent(form: Any, arguments: dict[str, Any], problem: str) -> None:
    """One wrong argument after the other, without any broker."""
    with pytest.raises((ValueError, TypeError), match=problem):
        form(**{"group": GROUP, "name_server": "127.0.0.1:1", **arguments})


def test_wrong_arguments_of_calls_raise_too() -> None:
    """Topics, filters, queues and numbers; nothing is there to be connected to."""

    async def main() -> None:
        consumer = LitePullConsumer(GROUP, name_server="127.0.0.1:1")
        text: Any = "Orders"
        wrong: list[tuple[Any, str]] = [
            (lambda: consumer.subscribe("a b"), "topic"),
            (lambda: consumer.subscribe(TOPIC, tags=" || "), "tags"),
            (lambda: consumer.subscribe(TOPIC, sql="a >"), "sql"),
            (lambda: consumer.assign(text), "queues"),
            (lambda: consumer.assign([text]), "queues"),
            (lambda: consumer.poll(timeout_ms=-1), "timeout_ms"),
            (lambda: consumer.poll(count_max=0), "count_max"),
            (lambda: consumer.committed(text), "queue must be MessageQueue"),
            (lambda: consumer.fetch_queues("a b"), "topic"),
            (lambda: consumer.watch_queues(TOPIC, text), "call_back"),
        ]
        for call, problem in wrong:
            with pytest.raises((ValueError, TypeError), match=problem):
                await call()
        await consumer.close()

    run(main())


def test_both_forms_have_the_same_calls() -> None:
    """Compares the parameters of every public method."""

    def public(kind: type) -> dict[str, inspect.Signature]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(each) for name, each in methods if not name.startswith("_")}

    ours, theirs = public(LitePullConsumer), public(BlockingLitePullConsumer)
    assert set(ours) == set(theirs)
    assert {name for name in ours if ours[name] != theirs[name]} == set()
    assert inspect.signature(LitePullConsumer) == inspect.signature(BlockingLitePullConsumer)
