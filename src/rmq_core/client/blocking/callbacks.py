"""Futures of sends, and the thread that their call-backs run on: never the loop's, which all clients share.

A result wakes those who wait for it at once, so a call-back may itself send and wait.
"""

from __future__ import annotations

import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from rmq_core.client.send_results import SendResult

logger = logging.getLogger(__name__)

_Call = tuple[Callable[..., object], tuple[Any, ...]]


class CallbackThread:
    """Calls one thing after the other. Its thread starts with the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call it there, or here once close() has been called. What it raises is logged."""
        with self._starting:
            is_closed = self._is_closed
            if not is_closed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                self._calls.put((function, arguments))
        if is_closed:
            _call(function, arguments)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _call(*call)

    def close(self, *, wait: bool = True) -> None:
        """End the thread after what was asked for so far. Idempotent; from a call-back it does not wait."""
        with self._starting:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put(None)
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except Exception:
        logger.exception("the call-back %r failed", function)


class SendFuture(concurrent.futures.Future[SendResult]):
    """What send_async() gives. It cannot be cancelled: the message is on its way."""

    def __init__(self, callbacks: CallbackThread) -> None:
        super().__init__()
        self._callbacks = callbacks

    def cancel(self) -> bool:
        """No: the message is on its way."""
        return False

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[SendResult]], object]) -> None:
        """Call fn with this future on the thread for call-backs once there is a result, also where there is one."""
        super().add_done_callback(lambda future: self._callbacks.call(fn, future))
