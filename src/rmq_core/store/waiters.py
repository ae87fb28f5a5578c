"""Who waits until the log is durable, in the order in which they came. Used by the owner's thread alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rmq_core.clock import Clock
from rmq_core.store.puts import PutStatus


class Waiters:
    """Call-backs, each with the end of what it waits for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[int, float, float, Callable[[PutStatus], None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, end: int, timeout_ms: float, callback: Callable[[PutStatus], None]) -> None:
        """Somebody waits from now on, at most so long."""
        now_ms = self._clock.monotonic_ms()
        self._waiting.append((end, now_ms, now_ms + timeout_ms, callback))

    def answer(self, flushed: int, *, has_failed: bool) -> None:
        """Tell the first of them, and all behind it that can be told: ends and deadlines never go back."""
        waiting, now_ms = self._waiting, self._clock.monotonic_ms()
        while waiting:
            end, _, deadline_ms, callback = waiting[0]
            if end <= flushed:
                status = PutStatus.PUT_OK
            elif has_failed:
                status = PutStatus.UNKNOWN_ERROR
            elif now_ms >= deadline_ms:
                status = PutStatus.FLUSH_DISK_TIMEOUT
            else:
                return
            waiting.popleft()
            callback(status)

    @property
    def longest_ms(self) -> float:
        """How long the first of them has waited."""
        return self._clock.monotonic_ms() - self._waiting[0][1] if self._waiting else 0.0
