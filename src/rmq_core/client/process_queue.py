"""What a consumer has fetched of one queue and not finished.

Owner     The consumer's loop changes it. Workers only read is_halted and may_consume(), which are single values, so
          that no lock is needed.
Progress  The oldest message that is not finished holds it back. Where there is none, it is where the next pull
          begins: everything before that was finished, or was not wanted.
Dropped   The queue is another member's, or begins anew elsewhere: what listeners still report of it counts nothing.
Halted    No listener is called with a message of it any more; those being called report, and that counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from rmq_core.client.received import ReceivedMessage
from rmq_core.clock import Clock
from rmq_core.protocol.bodies import ProcessQueueInfo
from rmq_core.protocol.message import MessageQueue, is_retry_topic

LOCK_VALID_MS: Final = 30_000
"""How long after its last renewal a broker's lock counts for us; the broker itself waits twice as long."""
PULL_EXPIRY_MS: Final = 120_000
"""A queue whose pull loop was silent for so long is begun anew."""
_MIB: Final = 1 << 20


class ProcessQueue:
    """One queue of ours."""

    __slots__ = (
        "_clock",
        "is_dropped",
        "is_halted",
        "is_locked",
        "is_retry",
        "is_waiting",
        "last_consume_time_ms",
        "last_pull_time_ms",
        "lock_ms",
        "lock_time_ms",
        "messages",
        "next_offset",
        "pulling",
        "queue",
        "release_attempts",
        "running",
        "shown_queue",
        "size_bytes",
        "taken",
        "touched_ms",
        "untaken",
    )

    def __init__(self, queue: MessageQueue, shown_queue: MessageQueue, next_offset: int, clock: Clock) -> None:
        """queue is named as on the wire, shown_queue as users see it."""
        self._clock = clock
        self.queue = queue
        self.shown_queue = shown_queue
        self.is_retry = is_retry_topic(queue.topic)
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.messages: dict[int, ReceivedMessage] = {}
        """Not finished, by offset, the oldest first."""
        self.size_bytes = 0
        self.running = 0
        """Pieces of it that workers have."""
        self.is_dropped = self.is_halted = False
        self.is_waiting = False
        """Whether its pull loop waits for room, for its lock or for the end of a pause."""
        self.pulling: asyncio.Task[None] | None = None
        self.touched_ms = clock.monotonic_ms()
        self.last_pull_time_ms = self.last_consume_time_ms = clock.now_ms()
        # Of ordered consumption:
        self.untaken: deque[ReceivedMessage] = deque()
        """Fetched, and in no worker's hands."""
        self.taken: tuple[ReceivedMessage, ...] = ()
        """In a worker's hands."""
        self.is_locked = False
        self.lock_ms = 0.0
        self.lock_time_ms = 0
        self.release_attempts = 0

    def __repr__(self) -> str:
        state = "dropped" if self.is_dropped else f"next {self.next_offset}"
        return f"ProcessQueue({self.queue}, {len(self.messages)} messages, {state})"

    def put(self, messages: Sequence[ReceivedMessage]) -> int:
        """Take in what was fetched, in the order of offsets. Returns its bytes."""
        size = 0
        cached = self.messages
        for message in messages:
            cached[message.queue_offset] = message
            size += message.size
        self.size_bytes += size
        return size

    def finish(self, offsets: Iterable[int]) -> int:
        """These are done with; those that are not here any more are passed over. Returns the bytes set free."""
        size = 0
        cached = self.messages
        for offset in offsets:
            message = cached.pop(offset, None)
            if message is not None:
                size += message.size
        self.size_bytes -= size
        return size

    def clear(self) -> int:
        """Forget all messages. Returns the bytes set free."""
        size, self.size_bytes = self.size_bytes, 0
        self.messages.clear()
        self.untaken.clear()
        return size

    def progress(self) -> int:
        """Everything before this offset is done with."""
        for offset in self.messages:
            return offset
        return self.next_offset

    @property
    def span(self) -> int:
        """How far apart the oldest and the newest unfinished message are."""
        if not self.messages:
            return 0
        return next(reversed(self.messages)) - next(iter(self.messages))

    def touch(self) -> None:
        """The pull loop is alive."""
        self.touched_ms = self._clock.monotonic_ms()
        self.last_pull_time_ms = self._clock.now_ms()

    def is_stalled(self) -> bool:
        """Whether the pull loop has ended by itself, or hangs."""
        if self.pulling is not None and self.pulling.done():
            return True
        return not self.is_waiting and self._clock.monotonic_ms() - self.touched_ms > PULL_EXPIRY_MS

    # Ordered consumption

    def lock(self) -> None:
        """The broker has granted or renewed our lock."""
        self.is_locked = True
        self.lock_ms = self._clock.monotonic_ms()
        self.lock_time_ms = self._clock.now_ms()

    def may_consume(self) -> bool:
        """Whether the broker's lock is ours beyond doubt. For workers too."""
        return self.is_locked and self._clock.monotonic_ms() - self.lock_ms < LOCK_VALID_MS

    def take(self, count_max: int) -> tuple[ReceivedMessage, ...]:
        """Up to so many messages for a worker; they stay unfinished until finish() or put_back()."""
        untaken = self.untaken
        self.taken = tuple(untaken.popleft() for _ in range(min(count_max, len(untaken))))
        return self.taken

    def put_back(self) -> None:
        """What was taken and is not finished comes first again."""
        self.untaken.extendleft(reversed([each for each in self.taken if each.queue_offset in self.messages]))
        self.taken = ()

    def info(self, committed: int | None) -> ProcessQueueInfo:
        """What administrators see of it."""
        offsets = self.messages
        taken = self.taken
        return ProcessQueueInfo(
            commit_offset=-1 if committed is None else committed,
            cached_msg_min_offset=next(iter(offsets)) if offsets else 0,
            cached_msg_max_offset=next(reversed(offsets)) if offsets else 0,
            cached_msg_count=len(offsets),
            cached_msg_size_in_mib=self.size_bytes // _MIB,
            transaction_msg_min_offset=taken[0].queue_offset if taken else 0,
            transaction_msg_max_offset=taken[-1].queue_offset if taken else 0,
            transaction_msg_count=len(taken),
            locked=self.is_locked,
            try_unlock_times=self.release_attempts,
            last_lock_timestamp=self.lock_time_ms,
            dropped=self.is_dropped,
            last_pull_timestamp=self.last_pull_time_ms,
            last_consume_timestamp=self.last_consume_time_ms,
        )
