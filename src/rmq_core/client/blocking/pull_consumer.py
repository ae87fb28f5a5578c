"""Pull consumer and pull schedule, blocking: the same calls as rmq_core.client.pull_consumer and .pull_schedule.

User code  on_assignment runs on a thread of its own, tasks of a schedule on `concurrency` threads; both may use the
           consumer. A schedule that is closed by one of its tasks closes when that task has ended.
Fork       A child must make its own; these raise ForkedError there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, TypeAlias, Unpack

from rmq_core.client.blocking.base import BlockingClient
from rmq_core.client.blocking.user_threads import UserThreads
from rmq_core.client.options import shows
from rmq_core.client.pull_consumer import PullConsumer as AsyncPullConsumer
from rmq_core.client.pull_consumer import PullResult
from rmq_core.client.pull_options import PullArguments, PullOptions, ScheduleArguments, ScheduleOptions
from rmq_core.client.pull_schedule import PullContext
from rmq_core.client.pull_schedule import PullSchedule as AsyncPullSchedule
from rmq_core.client.pulls import PLAIN_TIMEOUT_MS
from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol.filter import ALL_TAGS
from rmq_core.protocol.message import MessageQueue


class PullConsumer(BlockingClient[AsyncPullConsumer]):
    """Asks for messages queue by queue."""

    begins_anew_after_fork: ClassVar[bool] = False

    @shows(PullArguments, PullOptions)
    def __init__(self, group: str, **arguments: Unpack[PullArguments]) -> None:
        self._user_threads = UserThreads(f"rmq-callbacks-{group}", 1)
        form = AsyncPullConsumer(group, **self._user_threads.in_place(arguments, "on_assignment"))
        super().__init__(lambda: form)
        self._group = group

    @classmethod
    def _sharing(cls, form: AsyncPullConsumer, group: str) -> PullConsumer:
        """Another way to call the same coroutine form."""
        consumer = cls.__new__(cls)
        BlockingClient.__init__(consumer, lambda: form)
        consumer._user_threads = UserThreads(f"rmq-callbacks-{group}", 1)
        consumer._group = group
        return consumer

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._inner is not None else "not started"
        return f"<PullConsumer {self._group!r}, {state}>"

    def close(self, timeout_ms: int = 10_000) -> None:
        """Store progress with acknowledgement, and leave the group. Idempotent."""
        self._close(lambda inner: inner.close(timeout_ms))
        self._user_threads.close()

    # Queues

    def queues(self, topic: str) -> list[MessageQueue]:
        """Every readable queue of a topic. Raises NoRouteError where it does not exist."""
        return self._call(lambda inner: inner.queues(topic))

    def register(self, topic: str) -> None:
        """Have the group's members divide the queues of a topic, from now on."""
        self._call(lambda inner: inner.register(topic))

    def owned_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that are ours; registers the topic."""
        return self._call(lambda inner: inner.owned_queues(topic))

    # Messages

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str = ALL_TAGS,
        sql: str | None = None,
        count_max: int = 32,
        timeout_ms: int = PLAIN_TIMEOUT_MS,
    ) -> PullResult:
        """What there is now. Raises BrokerError, ConnectError, CallTimeoutError."""
        return self._call(
            lambda inner: inner.pull(queue, offset, tags=tags, sql=sql, count_max=count_max, timeout_ms=timeout_ms)
        )

    def pull_blocking(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str = ALL_TAGS,
        sql: str | None = None,
        count_max: int = 32,
    ) -> PullResult:
        """The same; where there is nothing the broker waits for a message, suspend_ms at most."""
        return self._call(lambda inner: inner.pull_blocking(queue, offset, tags=tags, sql=sql, count_max=count_max))

    def send_back(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Have a message delivered to the group again, on its retry topic %RETRY%group.

        delay_level 0 leaves the delay to the broker, -1 puts it among the dead letters. Raises ClientError where no
        broker takes it.
        """
        self._call(lambda inner: inner.send_back(message, delay_level=delay_level))

    # Progress

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """The group's progress: the next offset it will read. Stored within five seconds, and at close()."""
        self._call(lambda inner: inner.update_offset(queue, offset))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """The same, stored when this returns. Raises what went wrong."""
        self._call(lambda inner: inner.commit(queue, offset))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored progress; None where it has none."""
        return self._call(lambda inner: inner.committed(queue))

    def progress(self, queue: MessageQueue) -> int | None:
        """What update_offset() and commit() said last, else the stored progress."""
        return self._call(lambda inner: inner.progress(queue))

    # Places

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        return self._call(lambda inner: inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._call(lambda inner: inner.max_offset(queue))

    def offset_for_time(self, queue: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored then or later."""
        return self._call(lambda inner: inner.offset_for_time(queue, moment))

    def oldest_stored_at(self, queue: MessageQueue) -> datetime | None:
        """When the oldest message was stored; None where there is none."""
        return self._call(lambda inner: inner.oldest_stored_at(queue))


PullTask: TypeAlias = Callable[[MessageQueue, PullContext[PullConsumer]], Any]


class PullSchedule(BlockingClient[AsyncPullSchedule]):
    """A pull consumer that is called for."""

    begins_anew_after_fork: ClassVar[bool] = False

    @shows(ScheduleArguments, ScheduleOptions)
    def __init__(self, group: str, **arguments: Unpack[ScheduleArguments]) -> None:
        form = AsyncPullSchedule(group, **arguments)
        super().__init__(lambda: form)
        self._group = group
        self._user_threads = UserThreads(f"rmq-tasks-{group}", form.concurrency)
        self.consumer = PullConsumer._sharing(form.consumer, group)
        """What tasks pull with."""

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._inner is not None else "not started"
        return f"<PullSchedule {self._group!r}, {state}>"

    def register(self, topic: str, task: PullTask) -> None:
        """Call task(queue, context) on a thread for every queue of the topic that is ours. One task per topic.

        Raises NoRouteError where the topic does not exist.
        """
        if not callable(task):
            raise TypeError("task must be a function")

        async def call(queue: MessageQueue, context: PullContext[AsyncPullConsumer]) -> None:
            own = PullContext(self.consumer)
            try:
                await self._user_threads.call(task, queue, own)
            finally:
                context.next_delay_ms = own.next_delay_ms

        self._call(lambda inner: inner.register(topic, call))

    def close(self, timeout_ms: int = 10_000) -> None:
        """Let the tasks that run end, store progress, and leave the group. Idempotent."""
        if self._user_threads.is_here():
            # The task that calls this would be waited for: somebody else waits.
            threading.Thread(
                target=self.close, args=(timeout_ms,), name=f"rmq-close-{self._group}", daemon=True
            ).start()
            return
        self._close(lambda inner: inner.close(timeout_ms))
        self._user_threads.close()
