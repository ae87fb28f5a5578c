"""SIGINT and SIGTERM while a consumer runs; what was there before is put back in the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def on_interrupt(
    interrupted: Callable[[], object], loop: asyncio.AbstractEventLoop | None = None
) -> Iterator[None]:
    """Call a function at each of these signals, on a loop where one is given.

    On any thread but the main one, which gets all signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if loop is None:
            interrupted()
        else:
            loop.call_soon_threadsafe(interrupted)

    before: dict[signal.Signals, Any] = {each: signal.signal(each, handle) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
