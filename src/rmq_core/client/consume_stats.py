"""How fast a consumer pulls and consumes, by topic: rates over the last minute, as administrators see them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Final

from rmq_core.clock import Clock
from rmq_core.protocol.bodies import ConsumeStatus

SAMPLE_MS: Final = 10_000
_SAMPLES: Final = 6


@dataclass(slots=True)
class Totals:
    """What was counted since the start."""

    pulls: int = 0
    pull_ms: float = 0.0
    pulled: int = 0
    consumed: int = 0
    failed: int = 0
    busy_ms: float = 0.0

    def copy(self) -> Totals:
        return Totals(*(getattr(self, each.name) for each in fields(self)))


class ConsumeStats:
    """The counters of one consumer. Lives on its loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[str, Totals] = {}
        self._samples: dict[str, deque[tuple[float, Totals]]] = {}

    def of(self, topic: str) -> Totals:
        """The counters of a topic, to add to."""
        totals = self._totals.get(topic)
        if totals is None:
            totals = self._totals[topic] = Totals()
            self._samples[topic] = deque([(self._clock.monotonic_ms(), Totals())], maxlen=_SAMPLES)
        return totals

    def sample(self) -> None:
        """Remember where the counters stand; to be called every SAMPLE_MS."""
        now_ms = self._clock.monotonic_ms()
        for topic, totals in self._totals.items():
            self._samples[topic].append((now_ms, totals.copy()))

    def status(self) -> dict[str, ConsumeStatus]:
        """The rates by topic."""
        return {topic: self._status(topic, totals) for topic, totals in self._totals.items()}

    def _status(self, topic: str, now: Totals) -> ConsumeStatus:
        since_ms, then = self._samples[topic][0]
        seconds = max(self._clock.monotonic_ms() - since_ms, 1.0) / 1000
        pulls = now.pulls - then.pulls
        calls = now.consumed - then.consumed + now.failed - then.failed
        return ConsumeStatus(
            pull_rt=(now.pull_ms - then.pull_ms) / pulls if pulls else 0.0,
            pull_tps=(now.pulled - then.pulled) / seconds,
            consume_rt=(now.busy_ms - then.busy_ms) / calls if calls else 0.0,
            consume_ok_tps=(now.consumed - then.consumed) / seconds,
            consume_failed_tps=(now.failed - then.failed) / seconds,
            consume_failed_msgs=now.failed - then.failed,
        )
