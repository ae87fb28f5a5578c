"""The lite pull consumer, blocking: the same calls as rmq_core.client.lite_pull, from any number of threads.

Readers    Each thread is a reader of its own: what poll() gave to it is done when it polls again, and of its
           iterations a message is done when it asks for the next one.
User code  on_assignment and call-backs of watch_queues() run on a thread of their own, and may use the consumer.
Fork       A child must make its own consumer; this one raises ForkedError there.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import ClassVar, Final, Self, Unpack

from rmq_core.client.arguments import whole_number
from rmq_core.client.blocking.base import BlockingClient
from rmq_core.client.blocking.user_threads import UserThreads
from rmq_core.client.lite_pull import LitePullConsumer as AsyncLitePullConsumer
from rmq_core.client.lite_pull import messages_of
from rmq_core.client.lite_role import OnQueues
from rmq_core.client.options import shows
from rmq_core.client.pull_options import LiteArguments, LiteOptions
from rmq_core.client.pull_queue import Taken
from rmq_core.client.received import ReceivedMessage
from rmq_core.errors import ClientClosedError
from rmq_core.protocol.filter import ALL_TAGS
from rmq_core.protocol.message import MessageQueue

_WAIT_MS: Final = 1_000
"""How long an iteration waits at once; Ctrl-C is noticed in between on every system."""
_PIECE_MAX: Final = 64
"""Messages that an iteration takes at once: going to the loop for each of them would cost more than the message."""


class _Reader(threading.local):
    """What the calling thread holds."""

    def __init__(self) -> None:
        self.polled: list[Taken] = []
        self.iterations: weakref.WeakSet[_Messages] = weakref.WeakSet()


class LitePullConsumer(BlockingClient[AsyncLitePullConsumer]):
    """Reads topics as a member of a group, or the queues it is told to."""

    begins_anew_after_fork: ClassVar[bool] = False

    @shows(LiteArguments, LiteOptions)
    def __init__(self, group: str, **arguments: Unpack[LiteArguments]) -> None:
        self._user_threads = UserThreads(f"rmq-callbacks-{group}", 1)
        form = AsyncLitePullConsumer(group, **self._user_threads.in_place(arguments, "on_assignment"))
        super().__init__(lambda: form)
        self._group = group
        self._reader = _Reader()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._inner is not None else "not started"
        return f"<LitePullConsumer {self._group!r}, {state}>"

    def close(self, timeout_ms: int = 10_000) -> None:
        """Stop, store what is done with acknowledgement, and leave the group. Idempotent.

        What was given out last is not done: commit() before, if it is. After timeout_ms nothing is waited for.
        """
        self._close(lambda inner: inner.close(timeout_ms))
        self._user_threads.close()

    # What to read

    def subscribe(self, topic: str, *, tags: str = ALL_TAGS, sql: str | None = None) -> None:
        """Read a topic, as a member of the group. Its queues are divided anew before this returns.

        A topic that does not exist yet is read once it does. Raises BrokerError where a broker cannot filter by the
        SQL, and ClientError after assign().
        """
        self._call(lambda inner: inner.subscribe(topic, tags=tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer; what is done of it is stored."""
        self._call(lambda inner: inner.unsubscribe(topic))

    def assign(self, queues: Collection[MessageQueue], *, tags: str = ALL_TAGS, sql: str | None = None) -> None:
        """Read these queues and no others, whoever else does; progress is still the group's.

        Raises ClientError after subscribe(), and NoRouteError where a topic does not exist.
        """
        self._call(lambda inner: inner.assign(queues, tags=tags, sql=sql))

    def assigned(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._call(lambda inner: inner.assigned())

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Every readable queue of a topic. Raises NoRouteError where it does not exist."""
        return self._call(lambda inner: inner.fetch_queues(topic))

    def watch_queues(self, topic: str, call_back: OnQueues) -> list[MessageQueue]:
        """The same, and call_back(topic, queues) whenever they have changed: for those who assign by themselves."""
        wrapped = self._user_threads.wrap(call_back)
        if wrapped is None:
            raise TypeError("call_back must be a function")
        return self._call(lambda inner: inner.watch_queues(topic, wrapped))

    # Messages

    def poll(self, timeout_ms: int = 5_000, *, count_max: int = 500) -> list[ReceivedMessage]:
        """Messages that were fetched, or the first that come within the time; empty where none did.

        What the last poll() of this thread gave is done now.
        """
        whole_number("timeout_ms", timeout_ms, low=0)
        whole_number("count_max", count_max)
        finished, self._reader.polled = self._reader.polled, []
        self._reader.polled = self._take(finished, timeout_ms, count_max)
        return messages_of(self._reader.polled)

    def __iter__(self) -> _Messages:
        if self._is_closed:
            raise ClientClosedError(f"this LitePullConsumer of {self._group} was closed; make a new one")
        messages = _Messages(self)
        self._reader.iterations.add(messages)
        return messages

    def _take(self, finished: Iterable[Taken], timeout_ms: int, count_max: int) -> list[Taken]:
        taken: list[Taken] = []

        async def take(inner: AsyncLitePullConsumer) -> None:
            taken.extend(await inner._take(finished, timeout_ms, count_max))

        try:
            self._call(take)
        except BaseException:  # KeyboardInterrupt above all: what nobody got must be given out again
            self._post(_put_back, taken)
            raise
        return taken

    def _post(self, function: Callable[..., object], *arguments: object) -> None:
        if self._thread is not None and self._thread.is_alive:
            with contextlib.suppress(ClientClosedError):  # nobody is left who wants to know
                self._thread.post(function, *arguments)

    # Progress

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress, and return when the brokers have it: what this thread was given counts as done, or these
        offsets.

        Raises ClientError for a queue that is not assigned, and what went wrong where it is not stored.
        """
        done = [(each, each.end) for each in self._reader.polled]
        done += [each.done for each in self._reader.iterations if each.done is not None]
        self._call(lambda inner: inner._commit(done, offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored progress of a queue; None where it has none."""
        return self._call(lambda inner: inner.committed(queue))

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message that will be given out; None until it is known where the group is."""
        return self._call(lambda inner: inner.position(queue))

    # Places

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on there. Raises ValueError where the queue has no such offset, ClientError where it is not ours."""
        self._call(lambda inner: inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message."""
        self._call(lambda inner: inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on at the next message that will be sent."""
        self._call(lambda inner: inner.seek_to_end(queue))

    def offset_for_time(self, queue: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored then or later."""
        return self._call(lambda inner: inner.offset_for_time(queue, moment))

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        return self._call(lambda inner: inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._call(lambda inner: inner.max_offset(queue))

    def pause(self, *queues: MessageQueue) -> None:
        """Neither fetch nor give out messages of these queues. Raises ClientError where one is not assigned."""
        self._call(lambda inner: inner.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues."""
        self._call(lambda inner: inner.resume(*queues))


class _Messages:
    """One iteration. What it holds when it ends early will be given out again."""

    def __init__(self, consumer: LitePullConsumer) -> None:
        self._consumer = consumer
        self._pieces: list[Taken] = []
        """The last is the one that messages are given from; those before it wait, in reverse."""
        self._given = 0
        """Messages of the last piece that were given out."""

    @property
    def done(self) -> tuple[Taken, int] | None:
        """What would be done if the message given last were."""
        if not self._pieces or not self._given:
            return None
        piece = self._pieces[-1]
        return piece, piece.messages[self._given - 1].queue_offset + 1

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        finished = self._finish_last()
        self._drop_stale()
        while not self._pieces:
            try:
                self._pieces = self._consumer._take(finished, _WAIT_MS, _PIECE_MAX)[::-1]
            except ClientClosedError:
                raise StopIteration from None
            finished = []
        message = self._pieces[-1].messages[self._given]
        self._given += 1
        return message

    def _drop_stale(self) -> None:
        """A queue was moved elsewhere, paused or lost meanwhile."""
        while self._pieces and not self._pieces[-1].is_wanted:
            self._consumer._post(self._pieces.pop().put_back)
            self._given = 0

    def _finish_last(self) -> list[Taken]:
        done = self.done
        if done is None:
            return []
        piece, offset = done
        if self._given < len(piece.messages):
            self._consumer._post(piece.advance, offset)
            return []
        self._pieces.pop()
        self._given = 0
        if self._pieces:
            self._consumer._post(piece.finish)
            return []
        return [piece]

    def __del__(self) -> None:
        if self._pieces:
            self._consumer._post(_put_back, self._pieces)


def _put_back(pieces: list[Taken]) -> None:
    for piece in pieces:
        piece.put_back()
