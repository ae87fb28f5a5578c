"""The push consumer for programs without an event loop.

Listeners  Plain functions run in threads, coroutine functions on a loop thread of their own: neither ever holds up
           the thread that talks to brokers. Both may use other clients; close() from inside one asks and returns.
Fork       A child cannot be a member with its parent's identity: a consumer that was started raises ForkedError.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar, Unpack, overload

from rmq_core.client import loop_thread, push_consumer
from rmq_core.client.arguments import whole_number
from rmq_core.client.blocking.base import BlockingClient
from rmq_core.client.listeners import Handler
from rmq_core.client.loop_thread import LoopThread
from rmq_core.client.options import shows
from rmq_core.client.push_options import PushArguments, PushOptions, checked_concurrency
from rmq_core.client.signals import on_interrupt
from rmq_core.client.workers import TaskWorkers, ThreadWorkers
from rmq_core.errors import ClientClosedError, ForkedError
from rmq_core.protocol.message import MessageQueue

H = TypeVar("H", bound=Handler)
_POLL_S: Final = 0.5
"""Waiting without end cannot be interrupted on every system."""
_LISTENERS_STOP_S: Final = 0.5


class _Inner(push_consumer.PushConsumer):
    """Coroutine listeners run beside the client's own loop."""

    _listener_thread: LoopThread | None = None

    def _listener_loop(self) -> asyncio.AbstractEventLoop:
        if self._listener_thread is None:
            self._listener_thread = LoopThread("rmq-coroutine-listeners")
        return self._listener_thread.loop

    def _end_listener_loop(self) -> None:
        if self._listener_thread is not None:
            self._listener_thread.stop(_LISTENERS_STOP_S)


class PushConsumer(BlockingClient[push_consumer.PushConsumer]):
    """A consumer that calls your functions with the messages of the topics they subscribe to.

    Members of a group share the work; subscribe all of them to the same.
    """

    begins_anew_after_fork: ClassVar[bool] = False

    @shows(PushArguments, PushOptions)
    def __init__(self, group: str, **arguments: Unpack[PushArguments]) -> None:
        self._consumer = _Inner(group, **arguments)
        self._ended = threading.Event()
        super().__init__(lambda: self._consumer)

    def __repr__(self) -> str:
        return repr(self._consumer).replace(_Inner.__name__, type(self).__name__, 1)

    @overload
    def subscribe(
        self, topic: str, handler: None = None, *, tags: str | None = None, sql: str | None = None
    ) -> Callable[[H], H]: ...

    @overload
    def subscribe(
        self, topic: str, handler: Handler, *, tags: str | None = None, sql: str | None = None
    ) -> None: ...

    def subscribe(
        self, topic: str, handler: Handler | None = None, *, tags: str | None = None, sql: str | None = None
    ) -> Callable[[H], H] | None:
        """Have a function called with a topic's messages: those with one of the tags, or those that sql is true of.

        Without handler it is a decorator. A topic has one handler; a later one takes its place. May be called at
        any time. Raises TypeError and ValueError.
        """
        wanted = self._consumer.checked_subscription(topic, tags=tags, sql=sql)

        def decorate(function: H) -> H:
            if not callable(function):
                raise TypeError(f"handler must be a function, not {type(function).__name__}")
            self._there(lambda: self._consumer.listen(topic, function, wanted))
            return function

        if handler is None:
            return decorate
        decorate(handler)
        return None

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more. What was fetched of it and not begun stays for the group."""
        self._there(lambda: self._consumer.unsubscribe(topic))

    async def _open(self) -> push_consumer.PushConsumer:
        consumer = await super()._open()
        self._waiter = asyncio.get_running_loop().create_task(self._tell_end())
        return consumer

    async def _tell_end(self) -> None:
        await self._consumer.closed()
        self._ended.set()
        assert self._thread is not None
        self._thread.let_go()

    def close(self, timeout_ms: int = 10_000) -> None:
        """Fetch no more, wait up to timeout_ms for running listeners, store progress and leave. Idempotent.

        Called by a listener of this consumer it asks for all that and returns.
        """
        whole_number("timeout_ms", timeout_ms, low=0)
        self._is_closed = True
        if self._is_listener_here() or loop_thread.is_client_thread():
            if self._thread is not None:
                self._thread.submit(self._consumer.close(timeout_ms))
            return
        with self._opening:  # a start that is under way comes to its end first
            thread = self._thread
        if thread is None or not thread.is_alive:
            self._ended.set()  # never started, or started by the parent of this process
        else:
            with contextlib.suppress(ClientClosedError):  # a listener of ours has closed it, and the loop with it
                thread.call(self._consumer.close(timeout_ms))
            self._ended.wait(_POLL_S)
            thread.wait_end()

    def _is_listener_here(self) -> bool:
        return self._consumer in (ThreadWorkers.owner_here(), TaskWorkers.owner_here())

    def run(self) -> None:
        """Consume until SIGINT or SIGTERM, or until close(). A second signal does not wait for listeners."""
        closer: list[threading.Thread] = []

        def interrupted() -> None:
            # In a signal handler of the main thread: whatever it waits for must not be waited for here too.
            if closer:
                self._there(self._consumer.hurry)
            else:
                closer.append(threading.Thread(target=self.close, name="rmq-close", daemon=True))
                closer[0].start()

        with on_interrupt(interrupted):
            try:
                self.start()
            except ClientClosedError:
                if not closer:  # else the signal was faster
                    raise
            while not self._ended.wait(_POLL_S):
                pass
            for thread in closer:
                thread.join()

    def suspend(self) -> None:
        """Call no listener and fetch nothing until resume(); queues stay ours, running calls come to their end."""
        self._there(self._consumer.suspend)

    def resume(self) -> None:
        """Go on after suspend()."""
        self._there(self._consumer.resume)

    @property
    def is_suspended(self) -> bool:
        return self._consumer.is_suspended

    @property
    def concurrency(self) -> int:
        """How many listeners run at once. After a change running calls come to their end."""
        return self._consumer.concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        checked_concurrency(concurrency)
        self._there(lambda: setattr(self._consumer, "concurrency", concurrency))

    @property
    def group(self) -> str:
        """The consumer group as brokers name it."""
        return self._consumer.group

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are ours now, those of the retry topic included."""
        return self._consumer.queues

    def _there(self, work: Callable[[], Any]) -> None:
        """Do it on the loop thread; before the first start there is nobody else who could look."""
        if self._is_forked:
            raise ForkedError(f"this {type(self).__name__} belongs to the process that made it; make a new one")
        thread = self._thread
        if thread is None:
            work()
        elif thread.is_alive:
            done = threading.Event()

            def act() -> None:
                try:
                    work()
                finally:
                    done.set()

            thread.post(act)
            if not loop_thread.is_client_thread():
                done.wait(_POLL_S)
