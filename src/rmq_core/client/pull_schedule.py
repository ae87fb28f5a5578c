"""Calls a function again and again for each queue that is ours: what has to be done with it, and when next.

Calls   One at a time per queue, with a pause in between: what the context says, or 200 ms. What a call raises is
        logged, and the next one comes all the same. Plain functions run on the loop and must not block it.
Queues  Come and go as members of the group do. A queue that goes is not called for again; a call that runs has a
        second to end, then it is cancelled, and the progress is stored.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Final, Generic, Self, TypeAlias, TypeVar, Unpack, cast

from rmq_core.client.arguments import whole_number
from rmq_core.client.consumer_options import consumer_options
from rmq_core.client.options import shows
from rmq_core.client.pull_consumer import PullConsumer
from rmq_core.client.pull_options import Assignment, PullArguments, ScheduleArguments, ScheduleOptions
from rmq_core.errors import ClientClosedError
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)

DELAY_MS: Final = 200
LAST_CALL_MS: Final = 1_000

C = TypeVar("C")


class PullContext(Generic[C]):
    """What a call gets beside its queue."""

    __slots__ = ("_next_delay_ms", "consumer")

    def __init__(self, consumer: C) -> None:
        self.consumer = consumer
        """The consumer to pull with, and to tell the progress."""
        self._next_delay_ms = DELAY_MS

    @property
    def next_delay_ms(self) -> int:
        """How long to wait after this call before the next one for the same queue; may be set."""
        return self._next_delay_ms

    @next_delay_ms.setter
    def next_delay_ms(self, delay_ms: int) -> None:
        self._next_delay_ms = whole_number("next_delay_ms", delay_ms, low=0)


PullTask: TypeAlias = Callable[[MessageQueue, PullContext[PullConsumer]], Awaitable[None] | None]


class PullSchedule:
    """A pull consumer that is called for."""

    @shows(ScheduleArguments, ScheduleOptions)
    def __init__(self, group: str, **arguments: Unpack[ScheduleArguments]) -> None:
        own, _ = consumer_options(ScheduleOptions, arguments)
        arguments.pop("concurrency", None)
        self.consumer = PullConsumer(group, **cast(PullArguments, {**arguments, "on_assignment": self._changed}))
        """What calls pull with."""
        self._group = group
        self._tasks: dict[str, PullTask] = {}
        self._calls: dict[MessageQueue, _Calls] = {}
        self.concurrency = own.concurrency
        """How many tasks run at once."""
        self._places = asyncio.Semaphore(own.concurrency)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<PullSchedule {self._group!r}, {len(self._calls)} queues>"

    async def start(self) -> Self:
        """Begin; the first use does the same. Idempotent."""
        await self.consumer.start()
        return self

    async def register(self, topic: str, task: PullTask) -> None:
        """Call task(queue, context) for every queue of the topic that is ours. One task per topic.

        Raises NoRouteError where the topic does not exist.
        """
        if not callable(task):
            raise TypeError("task must be a function")
        name = self.consumer._bare_topic(topic)
        if name in self._tasks:
            raise ValueError(f"topic {topic} has a task already")
        self._tasks[name] = task
        try:
            await self.consumer.register(topic)
        except BaseException:
            del self._tasks[name]
            raise

    async def _changed(self, change: Assignment) -> None:
        taken = [self._calls.pop(queue) for queue in change.taken if queue in self._calls]
        await _end(taken, LAST_CALL_MS)
        if self._is_closed:
            return
        for queue in sorted(change.given):
            self._calls[queue] = _Calls(queue, self._tasks[change.topic], self.consumer, self._places)

    async def close(self, timeout_ms: int = 10_000) -> None:
        """Let the calls that run end, store progress, and leave the group. Idempotent."""
        self._is_closed = True
        calls = list(self._calls.values())
        self._calls.clear()
        await _end(calls, timeout_ms)
        await self.consumer.close(timeout_ms)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Calls:
    """The calls for one queue, until they are ended."""

    def __init__(
        self, queue: MessageQueue, task: PullTask, consumer: PullConsumer, places: asyncio.Semaphore
    ) -> None:
        self._queue = queue
        self._places = places
        self._task = task
        self._consumer = consumer
        self._ended = asyncio.Event()
        self.running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._ended.is_set():
            context = PullContext(self._consumer)
            try:
                async with self._places:
                    if self._ended.is_set():
                        return
                    result = self._task(self._queue, context)
                    if inspect.isawaitable(result):
                        await result
            except ClientClosedError:
                return
            except Exception:  # the user's; the next call comes all the same
                logger.exception("the task for %s failed", self._queue)
            try:
                async with asyncio.timeout(context.next_delay_ms / 1000):
                    await self._ended.wait()
            except TimeoutError:
                continue

    def end(self) -> None:
        """No call after the one that runs."""
        self._ended.set()


async def _end(calls: Iterable[_Calls], timeout_ms: float) -> None:
    """End calls; those that run longer than that are cancelled."""
    running = []
    for each in calls:
        each.end()
        if each.running is not asyncio.current_task():  # a task may close its own schedule
            running.append(each.running)
    if running:
        _, late = await asyncio.wait(running, timeout=timeout_ms / 1000)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
