"""Lite pull consumers when things move: members, queues, offsets, permissions, brokers and connections."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.lite_pull import LitePullConsumer
from rmq_core.client.pull_options import Assignment
from rmq_core.client.received import ReceivedMessage
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.message import MessageQueue
from support.brokers import Cluster, broker_cluster, run
from support.producing import create
from support.proxy import Proxy
from support.pulling import GROUP, TOPIC, bodies, lite, numbered, queue, read, stored_progress
from support.pushing import fill, until


def next_offset(consumer: LitePullConsumer, number: int = 0) -> int | None:
    return consumer._role.loop(queue(number)).state.next_offset


async def refresh_until(condition: Callable[[], object], *consumers: LitePullConsumer) -> None:
    """What happens every thirty seconds, at once and again and again."""
    for _ in range(3_000):
        if condition():
            return
        for consumer in consumers:
            await consumer._role.instance.refresh_routes()
        await asyncio.sleep(0.01)
    raise AssertionError("the routes did not bring it about")


async def set_permission(cluster: Cluster, permission: int) -> None:
    await cluster.client().call(
        r.UpdateAndCreateTopic(
            topic=TOPIC,
            default_topic="TBW102",
            read_queue_nums=1,
            write_queue_nums=1,
            perm=permission,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
    )


def test_members_come_and_go_and_no_message_is_lost(tmp_path: Path) -> None:
    """One to four members over two brokers while 20,000 messages flow; each message is finished by somebody.

    What a member finished that left does not come again. What one finished that lost a queue to a new member may:
    the new one can ask for progress before that is stored.
    """

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create(cluster, TOPIC, queues=4)
            seen: Counter[tuple[MessageQueue, int]] = Counter()
            owners: dict[str, set[MessageQueue]] = {}
            left_behind: set[tuple[MessageQueue, int]] = set()
            total = 20_000

            async def feed() -> None:
                for start in range(0, total, 1_000):
                    piece = start // 1_000
                    await fill(cluster, TOPIC, numbered(1_000), queue_id=piece % 4, broker=piece // 4 % 2)
                    await asyncio.sleep(0.02)

            async def member(name: str, stopping: asyncio.Event) -> None:
                mine: set[tuple[MessageQueue, int]] = set()

                def changed(change: Assignment) -> None:
                    owners[name] = set(change.queues)

                async with lite(cluster, on_assignment=changed) as consumer:
                    await consumer.subscribe(TOPIC)
                    while not stopping.is_set():
                        for message in await consumer.poll(timeout_ms=50, count_max=100):
                            place = message.queue, message.queue_offset
                            assert place not in left_behind
                            seen[place] += 1
                            mine.add(place)
                    await consumer.commit()
                    held = owners[name]
                left_behind.update(place for place in mine if place[0] in held)
                owners.pop(name, None)

            feeding = asyncio.create_task(feed())
            running = []
            for number in range(4):
                stopping = asyncio.Event()
                running.append((stopping, asyncio.create_task(member(f"member-{number}", stopping))))
                await until(lambda: len(owners) == number + 1 and all(owners.values()))  # noqa: B023
            await until(lambda: sum(map(len, owners.values())) == 8)
            everything = [each for own in owners.values() for each in own]
            assert len(set(everything)) == 8
            for stopping, task in running[:3]:
                stopping.set()
                await task
            await feeding
            await until(lambda: len(seen) == total, timeout_s=60)
            running[3][0].set()
            await running[3][1]
            for broker in range(2):
                ends = [await stored_progress(cluster, number, broker=broker) for number in range(4)]
                assert ends == [cluster.apps[broker].broker.store.max_offset(TOPIC, number) for number in range(4)]

    run(main())


def test_a_queue_that_moves_goes_on_where_it_was_finished(tmp_path: Path) -> None:
    """The first member holds finished, then unfinished messages of both queues when the second one comes."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            for number in range(2):
                await fill(cluster, TOPIC, numbered(30, f"{number}-"), queue_id=number)
            changes: list[Assignment] = []
            async with lite(cluster, on_assignment=changes.append) as one:
                await one.subscribe(TOPIC)
                finished = Counter(message.queue for message in await read(one, 20))
                await one.commit()
                assert len(await one.poll(count_max=10)) == 10
                async with lite(cluster) as two:
                    await two.subscribe(TOPIC)
                    await until(lambda: len(changes) == 2)
                    (moved,) = changes[1].taken
                    assert await two.assigned() == [moved]
                    assert (await read(two, 1))[0].queue_offset == finished[moved]
                    await one.poll(timeout_ms=0)
                    assert await one.assigned() == sorted(changes[1].queues)
                await until(lambda: len(changes) == 3)
                assert changes[2].given == {moved}

    run(main())


def test_the_call_back_may_seek_and_commit(tmp_path: Path) -> None:
    """Seeks in each queue it is given before a pull goes out; commits what it has when one is taken."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            for number in range(2):
                await fill(cluster, TOPIC, numbered(20), queue_id=number)
            taken: list[MessageQueue] = []

            async def on_change(change: Assignment) -> None:
                for given in change.given:
                    await consumer.seek(given, 15)
                if change.taken:
                    await consumer.commit()
                    taken.extend(change.taken)

            consumer = lite(cluster, on_assignment=on_change, auto_commit=False)
            async with consumer:
                await consumer.subscribe(TOPIC)
                found = [(each.queue.queue_id, each.queue_offset) for each in await read(consumer, 10)]
                assert sorted(found) == [(number, offset) for number in range(2) for offset in range(15, 20)]
                async with lite(cluster) as other:
                    await other.subscribe(TOPIC)
                    await until(lambda: taken)
                    assert await stored_progress(cluster, taken[0].queue_id) == 20

    run(main())


def test_a_call_back_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Raises whenever queues come."""

    def fail(change: Assignment) -> None:
        raise RuntimeError("not today")

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(3))
            async with lite(cluster, on_assignment=fail) as consumer:
                await consumer.subscribe(TOPIC)
                assert bodies(await read(consumer, 3)) == numbered(3)

    run(main())
    assert "not today" in caplog.text


def test_new_queues_of_a_topic_are_read_and_watched(tmp_path: Path) -> None:
    """The topic grows from one queue to three: a subscriber reads them, one who assigns is told."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            told: list[tuple[str, list[MessageQueue]]] = []
            async with lite(cluster) as consumer, lite(cluster, "other") as watcher:
                await consumer.subscribe(TOPIC)
                assert await watcher.watch_queues(TOPIC, lambda *change: told.append(change)) == [queue()]
                await create(cluster, TOPIC, queues=3)
                await refresh_until(lambda: told, watcher, consumer)
                assert told == [(TOPIC, [queue(0), queue(1), queue(2)])]
                await fill(cluster, TOPIC, numbered(5), queue_id=2)
                assert bodies(await read(consumer, 5)) == numbered(5)

    run(main())


@pytest.mark.parametrize("is_by_broker", [True, False])
def test_a_reset_by_an_administrator_moves_the_group_while_it_reads(tmp_path: Path, is_by_broker: bool) -> None:
    """Both kinds of brokers: those that keep the reset for the next pull, and those that tell the members."""

    async def main() -> None:
        async with broker_cluster(tmp_path, use_server_side_reset_offset=is_by_broker) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(100))
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)
                await read(consumer, 60)
                await consumer.commit()
                assert (await consumer.poll(count_max=20))[0].queue_offset == 60
                await until(lambda: next_offset(consumer) == 100)
                await cluster.client().call(r.InvokeBrokerToResetOffset(TOPIC, GROUP, 0, is_force=True))
                await until(lambda: consumer._role.loop(queue()).state.generation == 1)
                await until_stored(cluster, 0)
                # Nothing of what waited or was given out before the reset counts.
                assert bodies(await read(consumer, 100)) == numbered(100)
                await consumer.commit()
                assert await stored_progress(cluster) == 100

    run(main())


async def until_stored(cluster: Cluster, offset: int) -> None:
    for _ in range(3_000):
        if await stored_progress(cluster) == offset:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{offset} was not stored")


def test_an_answer_from_before_a_seek_is_dropped(tmp_path: Path) -> None:
    """The connection stalls with a pull on it; what comes after the seek begins at the new place."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(100))
            mapping = {cluster.broker.address: proxy.address}
            async with lite(cluster, broker_address_map=mapping, cache_count_max=32) as consumer:
                await consumer.assign([queue()])
                await until(lambda: next_offset(consumer) == 32)
                proxy.stall()
                assert len(await read(consumer, 32)) == 32
                seeking = asyncio.create_task(consumer._role.loop(queue()).seek(5))
                await until(lambda: next_offset(consumer) == 5)
                proxy.resume()
                await seeking
                assert bodies(await read(consumer, 50)) == numbered(100)[5:55]

    run(main())


@pytest.mark.parametrize("start", [1_000, 0])
def test_an_offset_that_does_not_exist_is_left_for_one_that_does(tmp_path: Path, start: int) -> None:
    """The group's progress lies beyond the end, or before the beginning of what is left."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(50))
            if start == 0:
                cluster.broker.store.queues.table[TOPIC, 0].min_offset = 20
            await cluster.client().pull(TOPIC, group=GROUP)  # which makes the group
            async with lite(cluster) as consumer:
                await cluster.client().call(r.UpdateConsumerOffset(GROUP, TOPIC, 0, start))
                await consumer.subscribe(TOPIC)
                expected = 20 if start == 0 else 50
                await until(lambda: (next_offset(consumer) or 0) >= expected and next_offset(consumer) != start)
                await fill(cluster, TOPIC, [b"last"])
                messages = await read(consumer, 51 - expected)
                assert [each.queue_offset for each in messages] == list(range(expected, 51))
                await consumer.commit()
            assert await stored_progress(cluster) == 51

    run(main())


def test_a_topic_that_may_not_be_read_for_a_while_is_read_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Read permission is taken away under a consumer that waits, and given back."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            async with lite(cluster, suspend_ms=0) as consumer:
                await consumer.assign([queue()])
                await set_permission(cluster, 2)
                await until(lambda: "pulling message is forbidden" in caplog.text)
                await fill(cluster, TOPIC, numbered(3))
                assert await consumer.poll(timeout_ms=50) == []
                await set_permission(cluster, 6)
                assert bodies(await read(consumer, 3)) == numbered(3)

    run(main())


def test_a_broker_that_does_not_know_us_is_told_who_we_are(tmp_path: Path) -> None:
    """The broker answers one pull with each code that asks for a heartbeat: one comes, and reading goes on."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            async with lite(cluster, suspend_ms=0) as consumer:
                await consumer.subscribe(TOPIC)
                role = consumer._role
                beats, failures = 0, [24, 25, 26, 27, 28]
                pull, heartbeat = role._router.pull, role.instance.heartbeat

                async def failing(*arguments: Any, **more: Any) -> Any:
                    if failures:
                        raise BrokerError(failures.pop(), "who are you?")
                    return await pull(*arguments, **more)

                async def counting() -> None:
                    nonlocal beats
                    beats += 1
                    await heartbeat()

                role._router.pull = failing  # type: ignore[method-assign]
                role.instance.heartbeat = counting  # type: ignore[method-assign]
                await fill(cluster, TOPIC, numbered(3))
                assert bodies(await read(consumer, 3)) == numbered(3)
                assert (beats, failures) == (5, [])

    run(main())


def test_a_broker_that_comes_back_is_read_from_again(tmp_path: Path) -> None:
    """Two brokers, one stopped and started under the consumer: all messages come, and its progress is kept."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create(cluster, TOPIC, queues=1)
            async with lite(cluster) as consumer:
                await consumer.subscribe(TOPIC)
                for broker in range(2):
                    await fill(cluster, TOPIC, numbered(10, f"{broker}-"), broker=broker)
                assert len(await read(consumer, 20)) == 20
                await consumer.commit()
                app = cluster.apps[1]
                port = int(app.broker.address.rpartition(":")[2])
                await cluster.close_clients()
                await app.close(drain_ms=100)
                await fill(cluster, TOPIC, [b"meanwhile"], broker=0)
                assert bodies(await read(consumer, 1)) == [b"meanwhile"]
                server = dataclasses.replace(app.server_settings, listen_port=port)
                again = type(app)(app.settings, app.store_settings, server, memory_size=24 << 30)
                await again.start()
                cluster.apps[1] = again
                await fill(cluster, TOPIC, numbered(10, "again-"), broker=1)
                await refresh_until(lambda: len(consumer._role.owned()) == 2, consumer)
                assert bodies(await read(consumer, 10)) == numbered(10, "again-")
                await consumer.commit()
                assert await stored_progress(cluster, broker=1) == 20

    run(main())


def test_connections_that_break_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Cuts the connection ten times while 2,000 messages are read; each comes once, in order."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(2_000))
            mapping = {cluster.broker.address: proxy.address}
            async with lite(cluster, broker_address_map=mapping, cache_count_max=64) as consumer:
                await consumer.subscribe(TOPIC)
                found: list[ReceivedMessage] = []
                for _ in range(10):
                    found += await read(consumer, 200)
                    proxy.cut()
                assert bodies(found) == numbered(2_000)

    run(main())


def test_a_consumer_closes_in_time_while_the_broker_is_silent(tmp_path: Path) -> None:
    """Progress cannot be stored, and close() returns all the same when its time is over."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, Proxy(cluster.broker.address) as proxy:
            await create(cluster, TOPIC, queues=1)
            await fill(cluster, TOPIC, numbered(10))
            consumer = lite(cluster, broker_address_map={cluster.broker.address: proxy.address})
            await consumer.subscribe(TOPIC)
            await read(consumer, 10)
            await consumer.poll(timeout_ms=0)
            proxy.stall()
            await asyncio.wait_for(consumer.close(timeout_ms=100), 5)
            proxy.resume()

    run(main())


def test_a_strategy_that_gives_nonsense_is_told_and_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises, gives a number, a queue of another topic beside ours, and at last what it should."""
    asked: list[int] = []

    def strategy(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> Any:
        asked.append(len(asked))
        match len(asked):
            case 1:
                raise RuntimeError("no idea")
            case 2:
                return 42
            case 3:
                return [*queues[:1], MessageQueue("Elsewhere", "broker-a", 0), "Orders"]
            case _:
                return queues

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            for number in range(2):
                await fill(cluster, TOPIC, numbered(3), queue_id=number)
            changes: list[Assignment] = []
            async with lite(cluster, allocate=strategy, on_assignment=changes.append) as consumer:
                await consumer.subscribe(TOPIC)
                while len(changes) < 2:
                    await consumer._role.rebalance()
                assert [each.queues for each in changes] == [{queue(0)}, {queue(0), queue(1)}]
                assert len(await read(consumer, 6)) == 6

    run(main())
    for told in ("no idea", "'int' object is not iterable", "no queue of Orders"):
        assert told in caplog.text
