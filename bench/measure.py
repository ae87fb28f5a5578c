"""A ratio of two figures that were measured in turn, so that a noisy machine treats both alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours against a baseline; more is better in both."""

    name: str
    ours: float
    baseline: float
    unit: str
    goal: float | None = None

    @property
    def value(self) -> float:
        return self.ours / self.baseline

    def line(self, width: int) -> str:
        goal = "" if self.goal is None else f"  goal {self.goal:.2f}"
        figures = f"{self.ours:12,.0f} against {self.baseline:12,.0f} {self.unit}"
        return f"{self.name:<{width}}  {self.value:5.2f}{goal}  ({figures})"

    def as_dict(self) -> dict[str, object]:
        return {"name": self.name, "ratio": round(self.value, 3), "ours": self.ours, "baseline": self.baseline}


def in_turn(ours: Callable[[], float], baseline: Callable[[], float], *, rounds: int = 5) -> tuple[float, float]:
    """The medians of several rounds, each measuring both."""
    pairs = []
    for number in range(rounds):
        # Whoever comes second may find a warmer or a tired machine: they change places.
        if number % 2:
            second = baseline()
            pairs.append((ours(), second))
        else:
            pairs.append((ours(), baseline()))
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)
