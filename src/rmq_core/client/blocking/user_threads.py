"""Threads that call functions of the user's for a coroutine on the loop, which waits for what they give.

They are daemons, come as they are needed, and end with close(). A function that is a coroutine function gets a loop
of its own there. What a call that nobody waits for any more gives is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

A = TypeVar("A", bound=Mapping[str, Any])
_Call = Callable[[], None]


class UserThreads:
    """So many threads at most."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._changing = threading.Lock()
        self._busy = 0
        self._is_closed = False

    def is_here(self) -> bool:
        """Whether the calling thread is one of them."""
        return threading.current_thread() in self._threads

    def wrap(self, function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """A coroutine function that calls it on a thread. What cannot be called stays as it is."""
        if not callable(function):
            return function

        async def call(*arguments: object) -> None:
            await self.call(function, *arguments)

        return call

    def in_place(self, arguments: A, name: str) -> A:
        """The keyword arguments with the function of that name, where it is one, called on a thread."""
        return cast(A, {key: self.wrap(value) if key == name else value for key, value in arguments.items()})

    async def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call it on a thread. Raises what it raises; CancelledError where the threads were closed."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()

        def run() -> None:
            value: object = None
            error: BaseException | None = None
            try:
                value = function(*arguments)
                if inspect.isawaitable(value):
                    value = asyncio.run(_wait_for(value))
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has ended, and who waited with it
                loop.call_soon_threadsafe(_settle, result, value, error)

        with self._changing:
            if self._is_closed:
                raise asyncio.CancelledError
            self._busy += 1
            if self._busy > len(self._threads) and len(self._threads) < self._size:
                self._start_one()
            self._calls.put(run)
        return await result

    def _start_one(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._changing:
                self._busy -= 1

    def close(self, timeout_s: float = 1.0) -> None:
        """End the threads after what they do now; wait for them so long at most. Idempotent."""
        with self._changing:
            if not self._is_closed:
                self._is_closed = True
                for _ in self._threads:
                    self._calls.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))


async def _wait_for(value: Awaitable[object]) -> object:
    return await value


def _settle(result: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if result.done():
        return
    if error is None:
        result.set_result(value)
    elif isinstance(error, Exception):
        result.set_exception(error)
    else:  # SystemExit and the like must not end the loop that all clients share
        result.set_exception(RuntimeError(f"the call-back ended its thread: {error!r}"))
