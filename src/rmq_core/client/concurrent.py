"""Consumption where order does not matter: every worker may have messages of every queue.

Failed    Sent back to the broker, which delivers them again later; progress passes them once that is done. Where it
          cannot be done they stay here and their listener gets them again after five seconds. A broadcast consumer
          has no retry: what fails is logged and counts as consumed.
Time-out  A listener that holds a message for longer than consume_timeout_ms loses it: it goes back to the broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rmq_core.client.consume_stats import ConsumeStats
from rmq_core.client.flow import Flow
from rmq_core.client.instance import ClientInstance
from rmq_core.client.listeners import PIECE_COUNT_MAX, Failure, Listener, Piece, Report
from rmq_core.client.offset_store import OffsetStore
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_back import SendBack, tried_again
from rmq_core.client.workers import Crew

logger = logging.getLogger(__name__)

RETRY_HERE_MS: Final = 5_000
TIMED_OUT_LEVEL: Final = 3
SENDS_IN_FLIGHT_MAX: Final = 64
_TIMEOUT_CHECK_MS: Final = 60_000


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What both kinds of consumption work with."""

    instance: ClientInstance
    group: str
    """As the wire names it."""
    namespace: str
    broadcasting: bool
    offsets: OffsetStore
    flow: Flow
    stats: ConsumeStats
    crew: Crew
    listener_of: Callable[[str], Listener | None]
    """The listener of a topic as users name it."""
    post: Callable[[Report], None]
    """Brings a report from any thread to finished()."""
    send_back: SendBack
    consume_timeout_ms: int
    suspend_ms: int = 1_000
    sending: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SENDS_IN_FLIGHT_MAX))


class Consumption(ABC):
    """What ordered and unordered consumption share. Lives on the consumer's loop."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._quiet: dict[ProcessQueue, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def put(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Consume what was fetched."""

    @abstractmethod
    def finished(self, report: Report) -> None:
        """A worker has something to tell."""

    async def halted(self, queue: ProcessQueue, timeout_ms: float | None) -> bool:
        """Begin no more calls for a queue and wait for those that run. False where they took longer."""
        queue.is_halted = True
        self._around.crew.withdraw(queue)
        if queue.running == 0:
            return True
        quiet = self._quiet.get(queue)
        if quiet is None:
            quiet = self._quiet[queue] = asyncio.get_running_loop().create_future()
        await asyncio.wait([quiet], timeout=None if timeout_ms is None else max(timeout_ms, 0) / 1000)
        return queue.running == 0

    def cancel(self) -> None:
        """Give up what is being sent back."""
        for task in self._tasks:
            task.cancel()

    def _count(self, report: Report, *, returned: int) -> None:
        """Note how many messages left the workers' hands, and what became of them."""
        queue = report.piece.queue
        queue.running -= returned
        if queue.running == 0 and (quiet := self._quiet.pop(queue, None)) is not None and not quiet.done():
            quiet.set_result(None)
        totals = self._around.stats.of(queue.shown_queue.topic)
        totals.consumed += len(report.done)
        totals.failed += sum(len(failure.messages) for failure in report.failures)
        totals.busy_ms += report.busy_s * 1000
        queue.last_consume_time_ms = self._around.instance.clock.now_ms()

    def _done(self, queue: ProcessQueue, offsets: Sequence[int]) -> None:
        """Progress passes these."""
        if offsets and not queue.is_dropped:
            self._around.flow.freed(queue, queue.finish(offsets))
            self._around.offsets.update(queue.queue, queue.progress(), increase_only=True)

    def _spawn(self, work: asyncio.Task[None]) -> None:
        self._tasks.add(work)
        work.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: what failed could not be handled", self._around.group, exc_info=error)


class ConcurrentConsumption(Consumption):
    """Unordered."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._leaving: set[ReceivedMessage] = set()
        """Being sent back."""
        self._all_sent: asyncio.Future[None] | None = None
        self._given_up: dict[Piece, tuple[ReceivedMessage, ...]] = {}

    def put(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        if not queue.is_retry:
            self._put_of(queue, queue.shown_queue.topic, messages)
            return
        by_topic: dict[str, list[ReceivedMessage]] = {}
        for message in messages:  # a group's retries of all its topics lie in one queue
            by_topic.setdefault(message.topic, []).append(message)
        for topic, same in by_topic.items():
            self._put_of(queue, topic, same)

    def _put_of(self, queue: ProcessQueue, topic: str, messages: Sequence[ReceivedMessage]) -> None:
        around = self._around
        listener = around.listener_of(topic)
        if listener is None:
            logger.error(
                "%s: %d messages of topic %s came, which nothing listens to; they will come again",
                around.group, len(messages), topic,
            )  # fmt: skip
            self._fail(queue, Failure(tuple(messages)))
            return
        size = max(PIECE_COUNT_MAX, listener.batch_size_max)
        queue.running += len(messages)
        for start in range(0, len(messages), size):
            around.crew.put(Piece(queue, messages[start : start + size], listener, around.post))

    def finished(self, report: Report) -> None:
        queue = report.piece.queue
        self._count(report, returned=report.count)
        if report.is_last:
            self._given_up.pop(report.piece, None)
        if queue.is_dropped:
            return  # another member has the queue, and will consume these once more
        self._done(queue, report.done)
        for failure in report.failures:
            self._fail(queue, failure)

    def _fail(self, queue: ProcessQueue, failure: Failure) -> None:
        messages = [
            each for each in failure.messages if each.queue_offset in queue.messages and each not in self._leaving
        ]
        if self._around.broadcasting:
            for message in messages:
                logger.warning("%s: %r failed; broadcasts are not tried again", self._around.group, message)
            self._done(queue, [each.queue_offset for each in messages])
            return
        for message in messages:
            self._send_back(queue, message, failure.delay_level)

    def _send_back(self, queue: ProcessQueue, message: ReceivedMessage, level: int | None) -> None:
        self._leaving.add(message)
        self._spawn(asyncio.get_running_loop().create_task(self._back(queue, message, level)))

    async def _back(self, queue: ProcessQueue, message: ReceivedMessage, level: int | None) -> None:
        around = self._around
        try:
            async with around.sending:
                is_sent = await around.send_back.send(message, level)
        finally:
            self._leaving.discard(message)
            if not self._leaving and self._all_sent is not None and not self._all_sent.done():
                self._all_sent.set_result(None)
        if is_sent:
            self._done(queue, [message.queue_offset])
            return
        await around.instance.clock.sleep(RETRY_HERE_MS)
        if message.queue_offset in queue.messages and not queue.is_halted:
            again = tried_again(message, around.namespace)
            queue.messages[message.queue_offset] = again
            self.put(queue, [again])

    async def sent(self, timeout_ms: float) -> None:
        """Wait until what failed was sent back, or could not be."""
        if self._leaving:
            self._all_sent = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_sent], timeout=max(timeout_ms, 0) / 1000)

    # Listeners that take too long

    async def watch_timeouts(self) -> None:
        """Take messages away from listeners that hold them too long; runs until it is cancelled."""
        clock, timeout_ms = self._around.instance.clock, self._around.consume_timeout_ms
        while True:
            await clock.sleep(min(timeout_ms, _TIMEOUT_CHECK_MS))
            self.give_up(timeout_ms)

    def give_up(self, timeout_ms: float) -> None:
        """The same once."""
        begun_before = time.monotonic() - timeout_ms / 1000
        for piece in self._around.crew.running():
            held = piece.current
            if not held or piece.started > begun_before or self._given_up.get(piece) is held:
                continue
            self._given_up[piece] = held
            logger.warning(
                "%s: the listener %r has held %r for more than %d ms; it is sent back",
                self._around.group, piece.listener.function, held[0], timeout_ms,
            )  # fmt: skip
            if not piece.queue.is_dropped:
                self._fail(piece.queue, Failure(held, TIMED_OUT_LEVEL))
