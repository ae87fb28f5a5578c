"""Calls what users wrote for their messages, and says what became of each.

Piece     Up to 32 messages of one queue that share a listener. A worker takes them one by one, or in batches, from
          the front; an idle worker takes the back half. Both ends of a deque may be taken from at once.
Report    What a piece has come to, told once at its end, and twice a second where it takes longer.
Verdict   None and ConsumeResult.SUCCESS consume. Everything else, exceptions of every kind included, is a failure:
          logged and tried again, so that nothing is acknowledged by accident.
Ordered   A piece ends at its first failure; nothing behind it may come before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rmq_core.client.hooks import Hooks
from rmq_core.client.listen_results import ConsumeResult, RetryLater, SuspendQueue
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)

PIECE_COUNT_MAX: Final = 32
REPORT_AFTER_S: Final = 0.5

Handler = Callable[[Any], Any]
"""Gets a message, or a list of them where batches were asked for; plain or a coroutine function."""


@dataclass(slots=True)
class ConsumeContext:
    """What consume hooks get, before and after."""

    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    is_success: bool = False
    status: str = ""
    """Afterwards: success, failed, exception or time-out."""
    error: BaseException | None = None
    elapsed_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Some of the messages of one call are to come again."""

    messages: tuple[ReceivedMessage, ...]
    delay_level: int | None = None
    suspend_ms: int | None = None
    error: BaseException | None = None
    """What the listener raised without meaning to."""
    is_wrong_result: bool = False
    """Whether it returned what means nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of some messages of a piece."""

    piece: Piece
    done: list[int]
    """Queue offsets."""
    failures: list[Failure]
    count: int
    """How many messages are no longer in a worker's hands: those, and what was not begun."""
    busy_s: float
    is_last: bool
    """Whether the piece is in no worker's hands any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A user's function, and how it is to be called."""

    function: Handler
    group: str
    hooks: Hooks
    batch_size_max: int = 1
    """Above 1 it always gets a list."""
    is_ordered: bool = False
    timeout_ms: int = 900_000
    finish_awaitable: Callable[[Awaitable[Any]], Any] | None = None
    """Waits, on a worker thread, for what a plain function gave back to be awaited."""
    is_coroutine: bool = field(init=False)
    is_hooked: bool = field(init=False)

    def __post_init__(self) -> None:
        function = self.function
        called = getattr(function, "__call__", None)  # noqa: B004 - of objects with `async def __call__`
        is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        object.__setattr__(self, "is_coroutine", is_coroutine)
        object.__setattr__(self, "is_hooked", self.hooks.has("before_consume", "after_consume"))

    def call(self, taken: Any) -> Any:
        """Call a plain function; an awaitable that it returns is awaited."""
        result = self.function(taken)
        if result is not None and inspect.isawaitable(result):
            assert self.finish_awaitable is not None
            result = self.finish_awaitable(result)
        return result

    def call_hooked(self, queue: MessageQueue, taken: Any) -> Any:
        """The same between the users' hooks."""
        context, started = self._before(queue, taken)
        try:
            result = self.call(taken)
        except BaseException as error:
            self._after(context, started, error=error)
            raise
        self._after(context, started, result=result)
        return result

    async def call_hooked_coroutine(self, queue: MessageQueue, taken: Any) -> Any:
        """The same for a coroutine function."""
        context, started = self._before(queue, taken)
        try:
            result = await self.function(taken)
        except BaseException as error:
            self._after(context, started, error=error)
            raise
        self._after(context, started, result=result)
        return result

    def _before(self, queue: MessageQueue, taken: Any) -> tuple[ConsumeContext, float]:
        messages = tuple(taken) if self.batch_size_max > 1 else (taken,)
        context = ConsumeContext(self.group, queue, messages)
        self.hooks.tell("before_consume", context)
        return context, time.monotonic()

    def _after(
        self, context: ConsumeContext, started: float, *, result: Any = None, error: BaseException | None = None
    ) -> None:
        context.elapsed_ms = (time.monotonic() - started) * 1000
        context.is_success = error is None and (result is None or result == ConsumeResult.SUCCESS)
        context.error = error
        if isinstance(error, RetryLater | SuspendQueue) or (error is None and not context.is_success):
            context.status = "failed"
        elif error is not None:
            context.status = "exception"
        else:
            context.status = "time-out" if context.elapsed_ms >= self.timeout_ms else "success"
        self.hooks.tell("after_consume", context)

    def judge(self, result: Any, taken: tuple[ReceivedMessage, ...]) -> Failure | None:
        """What a returned value means."""
        if result is None or result == ConsumeResult.SUCCESS:
            return None
        is_wrong = not isinstance(result, ConsumeResult)
        if is_wrong:
            logger.error(
                "%s: the listener %r returned %.100r for %r; it will get the message again. "
                "Return nothing or a ConsumeResult",
                self.group, self.function, result, taken[0],
            )  # fmt: skip
        return Failure(taken, is_wrong_result=is_wrong)

    def judge_error(self, error: BaseException, taken: tuple[ReceivedMessage, ...]) -> Failure | None:
        """What a raised exception means."""
        if isinstance(error, RetryLater):
            failed = self._named(error, taken)
            return Failure(failed, error.delay_level) if failed else None
        if isinstance(error, SuspendQueue):
            return Failure(taken, suspend_ms=error.delay_ms)
        logger.error(
            "%s: the listener %r failed for %r; it will get the message again",
            self.group, self.function, taken[0], exc_info=error,
        )  # fmt: skip
        return Failure(taken, error=error)

    def _named(self, error: RetryLater, taken: tuple[ReceivedMessage, ...]) -> tuple[ReceivedMessage, ...]:
        if error.messages is None:
            return taken
        wanted = {id(each) for each in error.messages}
        failed = tuple(each for each in taken if id(each) in wanted)
        if len(failed) < len(wanted):
            logger.error(
                "%s: RetryLater names messages that the listener %r was not given; all of its batch come again",
                self.group, self.function,
            )  # fmt: skip
            return taken
        if self.is_ordered and failed:  # what stands behind the first one must not come before it
            return taken[taken.index(failed[0]) :]
        return failed


class Piece:
    """Work for a worker."""

    __slots__ = (
        "begun",
        "current",
        "deliver",
        "done",
        "ended",
        "failures",
        "listener",
        "messages",
        "queue",
        "started",
    )

    def __init__(
        self,
        queue: ProcessQueue,
        messages: Iterable[ReceivedMessage],
        listener: Listener,
        deliver: Callable[[Report], None],
    ) -> None:
        """deliver takes reports from any thread."""
        self.queue = queue
        self.messages = deque(messages)
        self.listener = listener
        self.deliver = deliver
        self.done: list[int] = []
        self.failures: list[Failure] = []
        self.ended = 0
        """Messages whose calls have ended since the last report."""
        self.current: tuple[ReceivedMessage, ...] = ()
        """What the listener is being called with."""
        self.started = self.begun = 0.0
        """When that call began, and when a worker took the piece: monotonic seconds."""

    def split(self) -> Piece | None:
        """The back half for another worker; the listener of the front may be slow."""
        half: list[ReceivedMessage] = []
        with contextlib.suppress(IndexError):  # the other worker was faster
            for _ in range((len(self.messages) + 1) // 2):
                half.append(self.messages.pop())  # noqa: PERF401 - what was popped must not be lost
        if not half:
            return None
        half.reverse()
        return Piece(self.queue, half, self.listener, self.deliver)

    def may_go_on(self) -> bool:
        """Whether the next message may be begun."""
        return not self.queue.is_halted and (not self.listener.is_ordered or self.queue.may_consume())

    def take(self) -> Any:
        """What the next call gets: a message or a list. Raises IndexError where there is none."""
        messages = self.messages
        if self.listener.batch_size_max == 1:
            message = messages.popleft()
            self.current = (message,)
            return message
        batch = [messages.popleft()]
        try:
            while len(batch) < self.listener.batch_size_max:
                batch.append(messages.popleft())
        except IndexError:
            pass
        self.current = tuple(batch)
        return batch

    def note(self, failure: Failure | None) -> bool:
        """What the call came to. Returns whether the piece may go on behind it."""
        self.ended += len(self.current)
        if failure is None:
            self.done += [each.queue_offset for each in self.current]
            return True
        failed = {id(each) for each in failure.messages}
        self.done += [each.queue_offset for each in self.current if id(each) not in failed]
        self.failures.append(failure)
        return not self.listener.is_ordered

    def report(self, *, is_last: bool, busy_s: float) -> None:
        """Tell what it has come to since it last told."""
        done, self.done = self.done, []
        failures, self.failures = self.failures, []
        count, self.ended = self.ended, 0
        self.current = ()
        if is_last:
            count += self._empty()
        self.deliver(Report(self, done, failures, count, busy_s, is_last))

    def _empty(self) -> int:
        count = 0
        try:
            while True:
                self.messages.popleft()
                count += 1
        except IndexError:
            return count

    def run(self, must_stop: Callable[[], bool]) -> bool:
        """Call a plain listener until the piece is empty. False where it must stop before."""
        listener = self.listener
        call = listener.call
        shown_queue = self.queue.shown_queue if listener.is_hooked else None
        self.started = reported = time.monotonic()
        while self.may_go_on():
            if must_stop():
                self.report(is_last=False, busy_s=time.monotonic() - reported)
                return False
            try:
                taken = self.take()
            except IndexError:
                break
            try:
                result = call(taken) if shown_queue is None else listener.call_hooked(shown_queue, taken)
                failure = None if result is None else listener.judge(result, self.current)
            except BaseException as error:  # SystemExit in a listener must not lose the message either
                failure = listener.judge_error(error, self.current)
            now = time.monotonic()
            if not self.note(failure):
                break
            if now - reported > REPORT_AFTER_S:
                self.report(is_last=False, busy_s=now - reported)
                reported = now
            self.started = now
        self.report(is_last=True, busy_s=time.monotonic() - reported)
        return True

    async def run_coroutine(self, must_stop: Callable[[], bool]) -> bool:
        """The same for a coroutine listener. Cancelled, it gives up and reports what was done."""
        listener = self.listener
        function = listener.function
        shown_queue = self.queue.shown_queue if listener.is_hooked else None
        self.started = reported = time.monotonic()
        try:
            while self.may_go_on():
                if must_stop():
                    self.report(is_last=False, busy_s=time.monotonic() - reported)
                    return False
                try:
                    taken = self.take()
                except IndexError:
                    break
                try:
                    result = await (
                        function(taken)
                        if shown_queue is None
                        else listener.call_hooked_coroutine(shown_queue, taken)
                    )
                    failure = None if result is None else listener.judge(result, self.current)
                except BaseException as error:
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                        raise
                    failure = listener.judge_error(error, self.current)
                now = time.monotonic()
                if not self.note(failure):
                    break
                if now - reported > REPORT_AFTER_S:
                    self.report(is_last=False, busy_s=now - reported)
                    reported = now
                self.started = now
        except asyncio.CancelledError:
            self.report(is_last=True, busy_s=time.monotonic() - reported)
            raise
        self.report(is_last=True, busy_s=time.monotonic() - reported)
        return True
