"""Waiting for something that other threads or processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], *, what: str = "", timeout_s: float = 30) -> None:
    """Return once the condition holds. Raises AssertionError when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what or f"{condition} does not hold after {timeout_s} s"
        time.sleep(0.01)
