"""The event loop of the blocking forms: one daemon thread of the process, there as long as a client is open.

Hand-over   post() appends to a deque and wakes the loop once per drain, however many threads post. call() waits for
            a coroutine; on one of our own loop threads it raises at once, where waiting would stop everything.
Users       Open clients, and calls under way. When the last one lets go the loop ends; the next enter() starts
            another one.
Fork        A child has no such thread and must not touch the parent's loop: enter() gives it a new one, and who
            kept something of the old one finds out by belongs_here().
End         atexit stops the loop within two seconds; what user code runs elsewhere is not waited for.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from rmq_core.errors import ClientClosedError, ClientError

T = TypeVar("T")
_STOP_S: Final = 2.0
_LAST_S: Final = 1.5
_marked = threading.local()


def forbid_blocking_here() -> None:
    """Mark the calling thread as one that must never wait for the loop: it serves user code of a client."""
    _marked.is_client_thread = True


def is_client_thread() -> bool:
    """Whether the calling thread serves a client's loop or its user code."""
    return getattr(_marked, "is_client_thread", False)


def check_may_block(what: str) -> None:
    """Raise ClientError on a thread where waiting for the loop would dead-lock."""
    if is_client_thread():
        raise ClientError(f"{what} would wait for the thread it runs on; use rmq_core.aio there")


class LoopThread:
    """An event loop in a daemon thread. Who makes it is its first user."""

    def __init__(self, name: str = "rmq-client-io") -> None:
        self._pid = os.getpid()
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False
        self._counting = threading.Lock()
        self._users = 1
        self._is_ending = False
        self._ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        forbid_blocking_here()
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            self.loop = runner.get_loop()
            self.loop.call_soon(self._ready.set)
            with contextlib.suppress(asyncio.CancelledError):
                runner.run(_forever())
            self._is_ending = True
            runner.run(self._drain_last())

    def belongs_here(self) -> bool:
        """Whether this process started it: a forked child did not."""
        return self._pid == os.getpid()

    @property
    def is_alive(self) -> bool:
        """Whether it runs in this process."""
        return self.belongs_here() and self._thread.is_alive()

    def hold(self) -> bool:
        """Be one more user; False where it has ended or belongs to another process."""
        if not self.is_alive:
            return False
        with self._counting:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def let_go(self) -> None:
        """Be no user any more. The last one ends the loop, and waits for that unless it runs there."""
        if not self.belongs_here():
            return
        with self._counting:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self.stop()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run a function on the loop soon, in the order of posting. For any thread.

        Raises ClientClosedError where the loop has ended.
        """
        self._posted.append((function, arguments))
        # Looked at after the append: what is there when the loop ends is still run.
        if self._is_ending:
            raise ClientClosedError("the clients' loop has ended")
        if not self._is_woken:
            # Two threads may both see False and wake twice; nobody sees True while nothing will come.
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # it ended just now
                raise ClientClosedError("the clients' loop has ended") from None

    async def _drain_last(self) -> None:
        """Run what was posted before the end, and let what was cancelled close its sockets."""
        self._drain()
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest, timeout=_LAST_S)

    def _drain(self) -> None:
        self._is_woken = False
        posted = self._posted
        # Only what was there at the start: who posts without end must not starve the sockets.
        for _ in range(len(posted)):
            function, arguments = posted.popleft()
            try:
                function(*arguments)
            except Exception as error:
                self.loop.call_exception_handler(
                    {"message": f"{function!r} failed on the client loop", "exception": error}
                )

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop, which does not end before it. Raises ClientClosedError where it has."""
        self._hold_for(work)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        future.add_done_callback(lambda _: self.let_go())
        return future

    def _hold_for(self, work: Coroutine[Any, Any, object]) -> None:
        if not self.hold():
            work.close()
            raise ClientClosedError("the clients' loop has ended")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for what it gives. Raises ClientClosedError where that has ended."""
        try:
            check_may_block("this call")
        except ClientError:
            work.close()
            raise
        self._hold_for(work)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            try:
                return future.result()
            except BaseException:  # KeyboardInterrupt above all: the work must not go on unseen
                future.cancel()
                raise
        finally:
            self.let_go()

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """End the loop; what runs on it is cancelled. Wait so long at most, and not on the loop itself."""
        if not self.belongs_here():
            return
        with self._counting:
            self._users = 0
        with contextlib.suppress(RuntimeError):  # it ended by itself meanwhile
            self.loop.call_soon_threadsafe(_cancel_all, self.loop)
        self.wait_end(timeout_s)

    def wait_end(self, timeout_s: float = _STOP_S) -> None:
        """Return once it has ended, if nobody uses it any more; at once on the loop itself."""
        if self._users == 0 and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_starting = threading.Lock()
_current: LoopThread | None = None


def enter() -> LoopThread:
    """The loop thread of this process, with one user more; started if need be.

    Raises ClientError where no thread can be had: there are too many, or the interpreter is ending.
    """
    global _current  # noqa: PLW0603
    with _starting:
        if _current is None or not _current.hold():
            try:
                _current = LoopThread()
            except RuntimeError as error:
                raise ClientError(f"there is no thread for the clients' loop: {error}") from error
        return _current


def _forget() -> None:
    global _current, _starting
    _current, _starting = None, threading.Lock()


def _stop_at_exit() -> None:
    if _current is not None and _current.is_alive:
        _current.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_stop_at_exit)
