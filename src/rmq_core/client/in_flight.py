"""Limits of what is in flight, by count and by bytes. At a limit a send waits for room; a message larger than the
whole limit goes alone.

Room is for coroutines of one loop; Gate is for threads, with leave() called by the loop as well.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from rmq_core.errors import TooManyCallsError


class Room:
    """For coroutines of one loop: first come, first served."""

    __slots__ = ("_count_max", "_empty", "_size_max", "_waiting", "count", "size")

    def __init__(self, *, count_max: int, size_max: int) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._empty: list[asyncio.Future[None]] = []
        self.count = 0
        self.size = 0

    def try_enter(self, size: int) -> bool:
        """Take room if there is some and nobody waits for it."""
        if self._waiting or not self._fits(size):
            return False
        self.count += 1
        self.size += size
        return True

    def _fits(self, size: int) -> bool:
        return not self.count or (self.count < self._count_max and self.size + size <= self._size_max)

    async def enter(self, size: int, *, timeout_ms: float) -> None:
        """Wait for room. Raises TooManyCallsError where none comes in time."""
        if self.try_enter(size):
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((room, size))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await room
        except BaseException as error:
            if room.done() and not room.cancelled():  # it came at the same moment
                self.leave(size)
            else:
                room.cancel()
                self._admit()
            if isinstance(error, TimeoutError):
                raise TooManyCallsError(
                    f"{self.count} sends are in flight; none ended in {timeout_ms:.0f} ms"
                ) from None
            raise

    def leave(self, size: int) -> None:
        """Give room back."""
        self.count -= 1
        self.size -= size
        if self._waiting:
            self._admit()
        if not self.count:
            for waiter in self._empty:
                if not waiter.done():
                    waiter.set_result(None)
            self._empty.clear()

    def _admit(self) -> None:
        while self._waiting:
            room, size = self._waiting[0]
            if room.done():
                self._waiting.popleft()
                continue
            if not self._fits(size):
                return
            self._waiting.popleft()
            self.count += 1
            self.size += size
            room.set_result(None)

    async def wait_empty(self) -> None:
        """Wait until nothing is in flight."""
        while self.count:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._empty.append(waiter)
            await waiter


class Gate:
    """For threads."""

    __slots__ = (
        "_count_max",
        "_empty",
        "_lock",
        "_room",
        "_size_max",
        "_waiting",
        "_waiting_empty",
        "count",
        "size",
    )

    def __init__(self, *, count_max: int, size_max: int) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._empty = threading.Condition(self._lock)
        self._waiting = self._waiting_empty = 0
        self.count = 0
        self.size = 0

    def enter(self, size: int, *, timeout_ms: float) -> float:
        """Wait for room; gives what is left of the time. Raises TooManyCallsError where none comes in time."""
        with self._lock:
            if self._waiting or not self._fits(size):
                deadline = time.monotonic() + timeout_ms / 1000
                self._wait(size, deadline, timeout_ms)
                timeout_ms = max((deadline - time.monotonic()) * 1000, 1)
            self.count += 1
            self.size += size
            return timeout_ms

    def _fits(self, size: int) -> bool:
        return not self.count or (self.count < self._count_max and self.size + size <= self._size_max)

    def _wait(self, size: int, deadline: float, timeout_ms: float) -> None:
        self._waiting += 1
        try:
            while not self._fits(size):
                if not self._room.wait(deadline - time.monotonic()):
                    raise TooManyCallsError(f"{self.count} sends are in flight; none ended in {timeout_ms:.0f} ms")
        finally:
            self._waiting -= 1
            self._room.notify()  # the next one may fit as well

    def leave(self, size: int) -> None:
        """Give room back. Never waits for long."""
        with self._lock:
            self.count -= 1
            self.size -= size
            if self._waiting:
                self._room.notify()
            if self._waiting_empty and not self.count:
                self._empty.notify_all()

    def wait_empty(self, timeout_ms: float | None = None) -> bool:
        """Wait until nothing is in flight; False where that takes too long."""
        with self._lock:
            self._waiting_empty += 1
            try:
                return self._empty.wait_for(
                    lambda: not self.count, None if timeout_ms is None else timeout_ms / 1000
                )
            finally:
                self._waiting_empty -= 1
