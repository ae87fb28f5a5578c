"""How much a consumer fetches ahead of its listeners.

Limits   Per queue: messages, bytes, and for unordered consumption the span of offsets. Over all queues: bytes.
         Limits per topic, where given, are shared out evenly among the queues we own.
Waiting  A pull loop above a limit waits until something was finished, not for a timer; what is exactly at a limit
         may go on, as in Java.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from rmq_core.client.process_queue import ProcessQueue

logger = logging.getLogger(__name__)
_LOG_EVERY: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """The limits as users give them."""

    queue_count_max: int = 1_000
    queue_size_max_bytes: int = 100 << 20
    size_max_bytes: int = 256 << 20
    span_max: int | None = 2_000
    topic_count_max: int | None = None
    topic_size_max_bytes: int | None = None


class Flow:
    """The limits of one consumer, what counts against them, and who waits."""

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self._count_max = limits.queue_count_max
        self._size_max = limits.queue_size_max_bytes
        self._waiting: dict[ProcessQueue, asyncio.Future[None]] = {}
        self._times_limited = 0
        self.size_bytes = 0
        """Over all queues."""

    def share(self, queues_owned: int) -> None:
        """Divide the limits per topic among so many queues."""
        limits = self._limits
        if limits.topic_count_max is not None:
            self._count_max = max(1, limits.topic_count_max // max(queues_owned, 1))
        if limits.topic_size_max_bytes is not None:
            self._size_max = max(1, limits.topic_size_max_bytes // max(queues_owned, 1))
        self._wake_all()

    def excess(self, queue: ProcessQueue) -> str | None:
        """Which limit the queue is above."""
        limits = self._limits
        if len(queue.messages) > self._count_max:
            return f"{len(queue.messages)} messages of it wait, the limit is {self._count_max}"
        if queue.size_bytes > self._size_max:
            return f"{queue.size_bytes} bytes of it wait, the limit is {self._size_max}"
        if self.size_bytes > limits.size_max_bytes:
            return f"{self.size_bytes} bytes of all queues wait, the limit is {limits.size_max_bytes}"
        if limits.span_max is not None and queue.span > limits.span_max:
            return f"its unfinished messages span {queue.span} offsets, the limit is {limits.span_max}"
        return None

    async def room(self, queue: ProcessQueue) -> None:
        """Return once the queue is above no limit, or is dropped."""
        while not queue.is_dropped and (reason := self.excess(queue)) is not None:
            if self._times_limited % _LOG_EVERY == 0:
                logger.info("pulling of %s waits for its listener: %s", queue.queue, reason)
            self._times_limited += 1
            room = self._waiting[queue] = asyncio.get_running_loop().create_future()
            queue.is_waiting = True
            try:
                await room
            finally:
                queue.is_waiting = False
                self._waiting.pop(queue, None)

    def added(self, size_bytes: int) -> None:
        """So much was fetched."""
        self.size_bytes += size_bytes

    def freed(self, queue: ProcessQueue, size_bytes: int) -> None:
        """So much of a queue was finished or forgotten."""
        limit = self._limits.size_max_bytes
        was_above = self.size_bytes > limit
        self.size_bytes -= size_bytes
        if was_above and self.size_bytes <= limit:
            self._wake_all()
        elif queue in self._waiting and self.excess(queue) is None:
            _wake(self._waiting[queue])

    def _wake_all(self) -> None:
        for room in self._waiting.values():
            _wake(room)


def _wake(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
