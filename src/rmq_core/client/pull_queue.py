"""One queue of a pulling consumer: what was fetched, what was given out, and how far it is finished.

Progress  is the lowest offset that is not finished: of what was given out, of what waits, or the next to be
          fetched. So several readers may finish in any order, and what a filter left out is finished with the rest.
Jumps     A seek or reset throws away what was fetched and begins a new generation. What was given out before it may
          still be finished, and no longer counts; the answer to a pull from before it is dropped.
Turns     Queues that have something share what is given out at once, who was served longest ago coming first: a
          queue that is always full holds up none of the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol.message import MessageQueue


class Signal:
    """Wakes everyone who waits for it at that moment."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """How much is fetched ahead; one answer of each queue may go beyond."""

    count_max: int
    size_max_bytes: int
    queue_count_max: int
    queue_size_max_bytes: int
    span_max: int


class Cache:
    """What all queues of a consumer hold together."""

    def __init__(self, limits: CacheLimits) -> None:
        self._limits = limits
        self.count = self.size_bytes = 0
        self.room = Signal()
        self.arrival = Signal()

    def has_room(self, queue: PulledQueue) -> bool:
        """Whether more may be fetched of a queue."""
        limits = self._limits
        return (
            self.count < limits.count_max
            and self.size_bytes < limits.size_max_bytes
            and len(queue.waiting) < limits.queue_count_max
            and queue.size_bytes < limits.queue_size_max_bytes
            and queue.span < limits.span_max
        )

    def add(self, count: int, size_bytes: int) -> None:
        """Something was fetched, or (negative) given out or thrown away."""
        self.count += count
        self.size_bytes += size_bytes
        (self.arrival if count > 0 else self.room).fire()


class Taken:
    """Messages of one queue that were given out together, in order, until they are finished."""

    __slots__ = ("_generation", "_owner", "messages", "start")

    def __init__(self, owner: PulledQueue, generation: int, messages: Sequence[ReceivedMessage]) -> None:
        self._owner = owner
        self._generation = generation
        self.messages = messages
        self.start = messages[0].queue_offset
        """The first offset that is not finished."""

    @property
    def queue(self) -> MessageQueue:
        """Where they are from, as users name it."""
        return self._owner.queue

    @property
    def end(self) -> int:
        """The offset behind its last message."""
        return self.messages[-1].queue_offset + 1

    def advance(self, offset: int) -> None:
        """Everything below that offset is finished."""
        self.start = max(self.start, offset)
        if self.start >= self.end:
            self.finish()
        elif self._counts():
            self._owner.progressed()

    def finish(self) -> None:
        """All of it is finished."""
        if self._counts():
            self._owner.given.discard(self)
            self._owner.progressed()

    def put_back(self) -> None:
        """What is not finished will be given out again."""
        if self._counts():
            self._owner.given.discard(self)
            self._owner.restore([each for each in self.messages if each.queue_offset >= self.start])

    @property
    def is_wanted(self) -> bool:
        """Whether the rest of it should still be given out."""
        return self._counts() and not self._owner.is_paused and not self._owner.is_leaving

    def _counts(self) -> bool:
        return self in self._owner.given and self._generation == self._owner.generation


class PulledQueue:
    """The state of one queue while it is ours."""

    def __init__(
        self,
        queue: MessageQueue,
        wire: MessageQueue,
        cache: Cache,
        on_progress: Callable[[PulledQueue], None],
    ) -> None:
        """queue is as users name it, wire as brokers do."""
        self.queue = queue
        self.wire = wire
        self.waiting: deque[ReceivedMessage] = deque()
        self.size_bytes = 0
        self.given: set[Taken] = set()
        self.next_offset: int | None = None
        """Where the next pull begins; None until it is known where the group is."""
        self.generation = 0
        self.is_paused = False
        self.is_leaving = False
        """It is given up: nothing more is given out."""
        self.pulled_time_ms = 0
        self.turn = 0
        """Who has the lowest is served first."""
        self._cache = cache
        self._on_progress = on_progress

    def __repr__(self) -> str:
        return f"PulledQueue({self.queue}, next {self.next_offset}, {len(self.waiting)} waiting)"

    @property
    def progress(self) -> int | None:
        """The lowest offset that is not finished."""
        lowest = [taken.start for taken in self.given]
        if self.waiting:
            lowest.append(self.waiting[0].queue_offset)
        elif self.next_offset is not None:
            lowest.append(self.next_offset)
        return min(lowest, default=None)

    @property
    def position(self) -> int | None:
        """The offset of what is given out next."""
        return self.waiting[0].queue_offset if self.waiting else self.next_offset

    @property
    def span(self) -> int:
        """How far apart, in offsets, the messages are that wait."""
        return self.waiting[-1].queue_offset - self.waiting[0].queue_offset if self.waiting else 0

    @property
    def is_ready(self) -> bool:
        """Whether there is something that may be given out."""
        return bool(self.waiting) and not self.is_paused and not self.is_leaving

    def progressed(self) -> None:
        """Something was finished, or left out by a filter."""
        self._on_progress(self)

    def append(self, messages: Sequence[ReceivedMessage], *, next_offset: int) -> None:
        """Take the answer to a pull."""
        self.next_offset = next_offset
        if messages:
            self.waiting.extend(messages)
            self._count(messages)
        self.progressed()

    def take(self, count_max: int) -> Taken | None:
        """Give out what waits, so many at most."""
        if not self.is_ready:
            return None
        waiting = self.waiting
        messages = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self._count(messages, sign=-1)
        taken = Taken(self, self.generation, messages)
        self.given.add(taken)
        return taken

    def restore(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let messages wait again, in the order of the queue."""
        if self.is_leaving:
            return
        self.waiting = deque(sorted((*messages, *self.waiting), key=lambda message: message.queue_offset))
        self._count(messages)

    def jump(self, offset: int | None) -> None:
        """Forget everything and go on at that offset; None: where the group is."""
        self.generation += 1
        self.given.clear()
        dropped, self.waiting = self.waiting, deque()
        self._count(dropped, sign=-1)
        self.next_offset = offset
        if offset is not None:
            self.progressed()

    def pause(self) -> None:
        """Give out nothing, and hold no room in the cache meanwhile: what waits is fetched again afterwards."""
        self.is_paused = True
        self.next_offset = self.position
        dropped, self.waiting = self.waiting, deque()
        self._count(dropped, sign=-1)

    def discard(self) -> None:
        """The queue is another member's: what was fetched is thrown away, and nothing counts any more."""
        self.is_leaving = True
        self.jump(None)

    def _count(self, messages: Sequence[ReceivedMessage] | deque[ReceivedMessage], *, sign: int = 1) -> None:
        size = sum(message.size for message in messages)
        self.size_bytes += sign * size
        self._cache.add(sign * len(messages), sign * size)


def take_in_turn(queues: Iterable[PulledQueue], count_max: int) -> list[Taken]:
    """Give out what waits, so many at most, in equal shares."""
    queues = list(queues)
    ready = sorted((queue for queue in queues if queue.is_ready), key=lambda queue: queue.turn)
    shares = fair_shares([len(queue.waiting) for queue in ready], count_max)
    served = [(queue, share) for queue, share in zip(ready, shares, strict=True) if share]
    last_turn = max((queue.turn for queue in queues), default=0)
    # Who got less of what could not be divided comes first next time.
    for turn, (queue, _) in enumerate(sorted(served, key=lambda each: each[1]), last_turn + 1):
        queue.turn = turn
    return [taken for queue, share in served if (taken := queue.take(share)) is not None]


def fair_shares(wanted: Sequence[int], total: int) -> list[int]:
    """Divide total: nobody gets more than it wants, and what it leaves goes to the others, the first ones first."""
    shares = [0] * len(wanted)
    hungry = [index for index, count in enumerate(wanted) if count]
    while total and hungry:
        portion = max(total // len(hungry), 1)
        for index in hungry:
            part = min(portion, wanted[index] - shares[index], total)
            shares[index] += part
            total -= part
        hungry = [index for index in hungry if shares[index] < wanted[index]]
    return shares
