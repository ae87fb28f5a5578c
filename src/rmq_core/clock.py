"""Time, handed in from outside so that tests can move it.

SystemClock is the machine's. ManualClock stands still until a test calls advance(); its timers then fire in
their order, each at its own time, and what they set in motion runs before the next.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What the core asks of time. Timers and sleep belong to the running event loop."""

    def now_ms(self) -> int:
        """Milliseconds since 1970: for everything that is stored or sent."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back: for deadlines and expiry."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[..., object], *args: Any) -> Timer: ...

    async def sleep(self, delay_ms: float) -> None: ...


class SystemClock:
    """The machine's clock and the running loop's timers."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000

    def call_later(self, delay_ms: float, callback: Callable[..., object], *args: Any) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback, *args)

    async def sleep(self, delay_ms: float) -> None:
        await asyncio.sleep(delay_ms / 1000)


class _ManualTimer:
    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock that tests move."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = self._now_ms = now_ms
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        return self._now_ms - self._start_ms

    def call_later(self, delay_ms: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = _ManualTimer(callback, args)
        heapq.heappush(self._timers, (self._now_ms + max(delay_ms, 0), next(self._order), timer))
        return timer

    async def sleep(self, delay_ms: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_ms, woken.set_result, None)
        try:
            await woken
        finally:
            timer.cancel()

    async def advance(self, by_ms: float) -> None:
        """Move time and return when everything that became due has run and the loop is idle."""
        end_ms = self._now_ms + by_ms
        await self.settle()
        while self._timers and self._timers[0][0] <= end_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, int(due_ms))
            if timer.callback is not None:
                timer.callback(*timer.args)
                await self.settle()
        self._now_ms = int(end_ms)

    async def settle(self) -> None:
        """Let the loop run until work that is ready, on loopback sockets too, has been done."""
        # A frame over loopback is readable in the next pass; a request, its answer and what they cause
        # take a handful of passes, and thirty are microseconds.
        for _ in range(30):
            await asyncio.sleep(0)
