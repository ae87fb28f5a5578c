"""What all blocking forms share: they open at first use, close once, and know what a fork means to them.

The coroutine form that does the work lives on the loop thread. In a forked child nothing of it may be touched,
since sockets and epoll are shared with the parent: those that may simply begin anew do so at their next use, the
others raise ForkedError.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

from rmq_core.client import loop_thread
from rmq_core.client.loop_thread import LoopThread
from rmq_core.errors import ClientClosedError, ForkedError


class Openable(Protocol):
    """A coroutine form."""

    async def start(self) -> Any: ...

    async def close(self) -> None: ...


A = TypeVar("A", bound=Openable)
T = TypeVar("T")
_all: weakref.WeakSet[BlockingClient[Any]] = weakref.WeakSet()


class BlockingClient(Generic[A]):
    """A blocking form; safe to use from many threads."""

    begins_anew_after_fork: ClassVar[bool] = True

    def __init__(self, make: Callable[[], A]) -> None:
        """make builds the coroutine form; it is called on the loop thread, once per process."""
        self._make = make
        self._opening = threading.Lock()
        self._thread: LoopThread | None = None
        self._inner: A | None = None
        self._is_closed = self._is_forked = False
        _all.add(self)

    def _use(self) -> A:
        """The coroutine form, started."""
        inner = self._inner
        if inner is not None and not self._is_closed:
            return inner
        loop_thread.check_may_block(f"starting {type(self).__name__}")
        with self._opening:
            if self._is_forked and not self.begins_anew_after_fork:
                raise ForkedError(f"this {type(self).__name__} belongs to the process that made it; make a new one")
            if self._is_closed:
                raise ClientClosedError(f"this {type(self).__name__} was closed")
            if self._inner is None:
                # Kept before the start: listeners may call us before it has come to its end.
                thread = self._thread = loop_thread.enter()
                try:
                    self._inner = thread.call(self._open())
                except BaseException:
                    self._thread = None
                    thread.let_go()
                    raise
            return self._inner

    async def _open(self) -> A:
        inner = self._make()
        await inner.start()
        return inner

    def _call(self, work: Callable[[A], Coroutine[Any, Any, T]]) -> T:
        """Run a method of the coroutine form and wait for it."""
        loop_thread.check_may_block(type(self).__name__)
        inner = self._use()
        assert self._thread is not None
        return self._thread.call(work(inner))

    def start(self) -> Self:
        """Connect and begin. The first use does the same. Idempotent."""
        self._use()
        return self

    def close(self) -> None:
        """Stop and leave. From inside a listener or call-back it asks for the stop and returns. Idempotent."""
        self._close(lambda inner: inner.close())

    def _close(self, work: Callable[[A], Coroutine[Any, Any, None]]) -> None:
        if loop_thread.is_client_thread():
            was_closed, self._is_closed = self._is_closed, True
            inner, thread = self._inner, self._thread
            if inner is not None and thread is not None and not was_closed:
                leave = thread.let_go
                thread.submit(work(inner)).add_done_callback(lambda _: leave())
            return
        with self._opening:
            was_closed, self._is_closed = self._is_closed, True
            inner, thread = self._inner, self._thread
            if inner is not None and thread is not None and thread.is_alive and not was_closed:
                try:
                    thread.call(work(inner))
                finally:
                    thread.let_go()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be sent to another process; make one there")

    def _forget(self) -> None:
        """In a forked child: what was opened belongs to the parent."""
        self._opening = threading.Lock()
        self._is_forked = self._is_forked or self._inner is not None
        self._inner = self._thread = None


def _forget_all() -> None:
    for client in list(_all):
        client._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
