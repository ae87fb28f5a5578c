"""The pull schedule: tasks that are called for queues, as long as they are ours."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.blocking.pull_consumer import PullConsumer as BlockingPullConsumer
from rmq_core.client.blocking.pull_consumer import PullSchedule as BlockingPullSchedule
from rmq_core.client.pull_consumer import PullConsumer
from rmq_core.client.pull_schedule import PullContext, PullSchedule
from rmq_core.client.pulls import PullStatus
from rmq_core.errors import ClientClosedError, NoRouteError
from rmq_core.protocol.message import MessageQueue
from support.brokers import Cluster, broker_cluster, run
from support.producing import create, names_of
from support.pulling import GROUP, TOPIC, members_of, numbered, queue, stored_progress
from support.pushing import fill, until
from support.threaded import threaded_cluster
from support.threaded import until as until_here


def schedule_of(cluster: Cluster, group: str = GROUP, **arguments: Any) -> PullSchedule:
    return PullSchedule(group, **{"name_server": names_of(cluster), **arguments})


class Reader:
    """The task of the handbook: pull from the progress, count, tell the progress."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[MessageQueue, int]] = Counter()
        self.queues: set[MessageQueue] = set()

    async def __call__(self, source: MessageQueue, context: PullContext[PullConsumer]) -> None:
        self.queues.add(source)
        context.next_delay_ms = 1
        result = await context.consumer.pull(source, await context.consumer.progress(source) or 0)
        if result.status is PullStatus.FOUND:
            self.seen.update((message.queue, message.queue_offset) for message in result.messages)
        await context.consumer.update_offset(source, result.next_offset)


def test_each_queue_is_called_for_until_it_goes_to_another_member(tmp_path: Path) -> None:
    """Two schedules of a group share the queues; one closes, and the other has all of them again. None is lost."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=4)
            for number in range(4):
                await fill(cluster, TOPIC, numbered(200), queue_id=number)
            first, second = Reader(), Reader()
            async with schedule_of(cluster) as one:
                await one.register(TOPIC, first)
                await until(lambda: len(first.queues) == 4)
                async with schedule_of(cluster) as two:
                    await two.register(TOPIC, second)
                    await until(lambda: len(second.queues) == 2 and len(one._calls) == 2)
                    first.queues.clear()
                    await until(lambda: len(first.queues) == 2)
                    assert first.queues.isdisjoint(second.queues)
                    for number in range(4):
                        await fill(cluster, TOPIC, numbered(100), queue_id=number)
                    await until(lambda: len(first.seen + second.seen) == 1_200)
                assert await members_of(cluster) == 1
                first.queues.clear()
                await until(lambda: len(first.queues) == 4)
            assert [await stored_progress(cluster, number) for number in range(4)] == [300] * 4

    run(main())


def test_a_task_that_raises_is_called_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine and a plain function, each raising at every call."""
    calls: Counter[str] = Counter()

    async def failing(source: MessageQueue, context: PullContext[PullConsumer]) -> None:
        calls["coroutine"] += 1
        context.next_delay_ms = 1
        raise RuntimeError("not now")

    def plain(source: MessageQueue, context: PullContext[PullConsumer]) -> None:
        calls["plain"] += 1
        context.next_delay_ms = 0
        raise RuntimeError("never")

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=1)
            await create(cluster, "Bills", queues=1)
            async with schedule_of(cluster) as schedule:
                await schedule.register(TOPIC, failing)
                await schedule.register("Bills", plain)
                await until(lambda: min(calls["coroutine"], calls["plain"]) >= 3)

    run(main())
    assert "not now" in caplog.text
    assert "never" in caplog.text


def test_the_pause_between_calls_is_the_tasks_to_choose(tmp_path: Path) -> None:
    """A pause of an hour is waited for: no second call, and close() does not wait for it."""
    calls: Counter[MessageQueue] = Counter()

    async def once(source: MessageQueue, context: PullContext[PullConsumer]) -> None:
        calls[source] += 1
        assert context.next_delay_ms == 200
        with pytest.raises(ValueError, match="next_delay_ms"):
            context.next_delay_ms = -1
        context.next_delay_ms = 3_600_000 if source == queue(0) else 1

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            async with schedule_of(cluster) as schedule:
                await schedule.register(TOPIC, once)
                await until(lambda: calls[queue(1)] >= 20)
                assert calls[queue(0)] == 1

    run(main())


def test_only_so_many_tasks_run_at_once(tmp_path: Path) -> None:
    """Eight queues, two places."""
    running, highest, calls = 0, 0, 0

    async def task(source: MessageQueue, context: PullContext[PullConsumer]) -> None:
        nonlocal running, highest, calls
        running += 1
        calls += 1
        highest = max(highest, running)
        context.next_delay_ms = 0
        await asyncio.sleep(0.001)
        running -= 1

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=8)
            async with schedule_of(cluster, concurrency=2) as schedule:
                await schedule.register(TOPIC, task)
                await until(lambda: calls >= 50)

    run(main())
    assert highest == 2


def test_who_broadcasts_is_called_for_every_queue(tmp_path: Path) -> None:
    """Two members of a group, each with all queues."""

    async def main() -> None:
        async with broker_cluster(tmp_path / "broker") as cluster:
            await create(cluster, TOPIC, queues=3)
            readers = [Reader(), Reader()]
            schedules = [
                schedule_of(cluster, broadcasting=True, instance_name=name, offset_dir=tmp_path / "offsets")
                for name in ("one", "two")
            ]
            for schedule, reader in zip(schedules, readers, strict=True):
                await schedule.register(TOPIC, reader)
            await until(lambda: all(len(reader.queues) == 3 for reader in readers))
            for schedule in schedules:
                await schedule.close()

    run(main())


def test_a_schedule_may_be_closed_by_its_task_and_twice(tmp_path: Path) -> None:
    """The task closes while it runs; then it is closed again, and nothing of it is left."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await create(cluster, TOPIC, queues=2)
            before = asyncio.all_tasks()
            schedule = schedule_of(cluster)

            async def task(source: MessageQueue, context: PullContext[PullConsumer]) -> None:
                if source == queue(0):
                    await schedule.close()

            await schedule.register(TOPIC, task)
            await until(lambda: "closed" in repr(schedule.consumer))
            await schedule.close()
            assert await members_of(cluster) == 0
            await until(
                lambda: not [each for each in asyncio.all_tasks() - before if "rmq_core/client" in repr(each)]
            )
            with pytest.raises(ClientClosedError):
                await schedule.register("Bills", task)

    run(main())


def test_wrong_registrations_are_refused(tmp_path: Path) -> None:
    """No function, a topic twice, a topic that does not exist, which may be registered when it does."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, schedule_of(cluster) as schedule:
            await create(cluster, TOPIC, queues=1)
            reader = Reader()
            with pytest.raises(TypeError, match="task must be a function"):
                await schedule.register(TOPIC, None)  # type: ignore[arg-type]
            await schedule.register(TOPIC, reader)
            with pytest.raises(ValueError, match="has a task already"):
                await schedule.register(TOPIC, reader)
            with pytest.raises(NoRouteError):
                await schedule.register("Bills", reader)
            await create(cluster, "Bills", queues=1)
            await schedule.register("Bills", reader)
            await until(lambda: len(reader.queues) == 2)

    run(main())
    with pytest.raises(ValueError, match="concurrency"):
        PullSchedule(GROUP, concurrency=0)


def test_blocking_tasks_run_on_threads_of_their_own(tmp_path: Path) -> None:
    """Tasks that block, pull and tell the progress; one raises, one closes the schedule. No thread is left."""
    with threaded_cluster(tmp_path) as running:
        running.create_topic(TOPIC, queues=2)
        for number in range(2):
            running.send(TOPIC, numbered(100), queue_id=number)
        seen: Counter[bytes] = Counter()
        threads: set[str] = set()
        failures = [RuntimeError("the first call fails")]

        def task(source: MessageQueue, context: PullContext[BlockingPullConsumer]) -> None:
            threads.add(threading.current_thread().name)
            context.next_delay_ms = 1
            if failures:
                raise failures.pop()
            result = context.consumer.pull(source, context.consumer.progress(source) or 0, count_max=10)
            seen.update(message.body for message in result.messages)
            context.consumer.commit(source, result.next_offset)
            if sum(seen.values()) == 200:
                schedule.close()

        schedule = BlockingPullSchedule(GROUP, name_server=running.name_server, concurrency=2)
        schedule.register(TOPIC, task)
        until_here(lambda: "closed" in repr(schedule), "the task closes it")
        schedule.close()
        assert set(seen.values()) == {2}
        assert threads <= {f"rmq-tasks-{GROUP}-1", f"rmq-tasks-{GROUP}-2"}
        until_here(lambda: client_threads() == set(), "the threads are gone")
        assert running.do(stored_progress(running.cluster, 0)) == 100
        with pytest.raises(ClientClosedError):
            schedule.register("Bills", task)


def client_threads() -> set[str]:
    """Threads of clients other than the loop that all of them share."""
    return {each.name for each in threading.enumerate() if each.name.startswith("rmq-")} - {"rmq-client-io"}


def test_both_forms_have_the_same_calls() -> None:
    """Compares the parameters of every public method, tasks aside."""

    def public(kind: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(each).parameters) for name, each in methods if not name.startswith("_")
        }

    assert public(PullSchedule) == public(BlockingPullSchedule)
    assert inspect.signature(PullSchedule) == inspect.signature(BlockingPullSchedule)
