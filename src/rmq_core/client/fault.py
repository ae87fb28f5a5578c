"""Brokers to avoid: those that answered slowly, and those that failed.

How long a broker is left alone follows from its last latency, by two tables; a failure counts as a latency of 30 s.
An unreachable one is probed where the detector runs, and is back as soon as it answers.

All of it may be called from any thread: single dictionary operations only.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rmq_core.clock import Clock
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)

LATENCIES_MS: Final = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
AVOIDED_MS: Final = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_LATENCY_MS: Final = 30_000
DETECT_INTERVAL_MS: Final = 2_000
DETECT_TIMEOUT_MS: Final = 200


@dataclass(frozen=True, slots=True)
class FaultItem:
    """What is known of one broker."""

    broker_name: str
    latency_ms: float
    available_at_ms: float
    is_reachable: bool


def avoided_ms(latency_ms: float) -> int:
    """How long a broker with that latency is left alone."""
    for limit, duration in zip(reversed(LATENCIES_MS), reversed(AVOIDED_MS), strict=True):
        if latency_ms >= limit:
            return duration
    return 0


class FaultTable:
    """Latencies and failures of brokers, by name."""

    def __init__(self, clock: Clock, *, detects: bool = False) -> None:
        self._clock = clock
        self._detects = detects
        self._items: dict[str, FaultItem] = {}
        self._turns = itertools.count()

    def items(self) -> list[FaultItem]:
        """What is known of every broker."""
        return list(self._items.values())

    def answered(self, broker_name: str, latency_ms: float) -> None:
        """The broker answered a send, well or not so well."""
        self._put(broker_name, latency_ms, latency_ms, is_reachable=True)

    def failed(self, broker_name: str, latency_ms: float, *, is_reachable: bool) -> None:
        """A send failed there."""
        self._put(broker_name, latency_ms, FAILURE_LATENCY_MS, is_reachable=is_reachable or not self._detects)

    def _put(self, broker_name: str, latency_ms: float, counted_ms: float, *, is_reachable: bool) -> None:
        until_ms = self._clock.monotonic_ms() + avoided_ms(counted_ms)
        self._items[broker_name] = FaultItem(broker_name, latency_ms, until_ms, is_reachable)

    def is_available(self, broker_name: str) -> bool:
        """Whether there is nothing against the broker now."""
        item = self._items.get(broker_name)
        return item is None or (item.is_reachable and self._clock.monotonic_ms() >= item.available_at_ms)

    def reached(self, broker_name: str) -> None:
        """A probe was answered: the broker is back."""
        item = self._items.get(broker_name)
        if item is not None and not item.is_reachable:
            now_ms = self._clock.monotonic_ms()
            self._items[broker_name] = FaultItem(broker_name, item.latency_ms, now_ms, True)

    def forget(self, broker_name: str) -> None:
        """No route names it any more."""
        self._items.pop(broker_name, None)

    def least_bad(self) -> str | None:
        """One of the better half of the brokers that something is known of, in turn; None where there are none."""
        items = sorted(
            self._items.values(),
            key=lambda item: (not self.is_available(item.broker_name), item.latency_ms, item.available_at_ms),
        )
        return items[next(self._turns) % max(len(items) // 2, 1)].broker_name if items else None

    def choose(self, queues: Sequence[MessageQueue], number: int, last_broker: str | None) -> MessageQueue:
        """The next queue of an available broker, not the last one tried if another is; else of the least bad."""
        count = len(queues)
        turn = [queues[(number + step) % count] for step in range(count)]
        available = [queue for queue in turn if self.is_available(queue.broker_name)]
        for queue in available:
            if queue.broker_name != last_broker:
                return queue
        if available:
            return available[0]
        best = self.least_bad()
        for queue in turn:
            if queue.broker_name == best:
                return queue
        if best is not None:
            self.forget(best)  # it has no queue of this topic to write to
        return turn[0]

    async def detect(self, probe: Callable[[str], Awaitable[bool]]) -> None:
        """Probe what cannot be reached, every two seconds, until cancelled."""
        while True:
            await self._clock.sleep(DETECT_INTERVAL_MS)
            for item in self.items():
                if not item.is_reachable and await probe(item.broker_name):
                    logger.info("broker %s answers again", item.broker_name)
                    self.reached(item.broker_name)
