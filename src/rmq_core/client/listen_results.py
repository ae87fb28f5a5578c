"""How a listener says what became of its messages: by returning, or by raising one of these.

None, or ConsumeResult.SUCCESS, consumes. RETRY_LATER and any exception mean: again later. What is neither None nor
a ConsumeResult is a mistake, and mistakes are retried too: nothing is acknowledged by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq_core.client.received import ReceivedMessage

DEAD_LETTER_LEVEL: Final = -1
"""The delay level that puts a message among the dead letters at once."""
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000


class ConsumeResult(StrEnum):
    """What a listener may return instead of nothing."""

    SUCCESS = "success"
    RETRY_LATER = "retry later"
    SUSPEND_QUEUE = "suspend queue"
    """For ordered listeners: the same messages again, before any other of their queue."""


class RetryLater(Exception):  # noqa: N818 - it is no error but an answer
    """Raised by a listener: deliver again later.

    delay_level   of the broker's table of delays; absent or 0: the broker chooses, longer from time to time;
                  -1: never again, to the dead letters at once
    messages      those of the batch that failed; the others are consumed. Absent: all of them
    """

    def __init__(self, delay_level: int | None = None, messages: Sequence[ReceivedMessage] | None = None) -> None:
        if delay_level is not None and (not isinstance(delay_level, int) or isinstance(delay_level, bool)):
            raise TypeError(f"delay_level must be int, not {type(delay_level).__name__}")
        if delay_level is not None and delay_level < DEAD_LETTER_LEVEL:
            raise ValueError(f"delay_level must be -1, 0 or a level of the broker's table, not {delay_level}")
        if messages is not None and not isinstance(messages, Sequence):
            raise TypeError(f"messages must be a list of messages, not {type(messages).__name__}")
        super().__init__(f"delay level {delay_level or 'of the broker'}")
        self.delay_level = delay_level
        self.messages = None if messages is None else tuple(messages)


class SuspendQueue(Exception):  # noqa: N818 - it is no error but an answer
    """Raised by an ordered listener: the same messages again after a pause, before any other of their queue.

    The pause lies between 10 ms and 30 s. Where order does not matter it means RetryLater().
    """

    def __init__(self, delay_ms: int = 1_000) -> None:
        if not isinstance(delay_ms, int) or isinstance(delay_ms, bool):
            raise TypeError(f"delay_ms must be int, not {type(delay_ms).__name__}")
        if delay_ms < 0:
            raise ValueError(f"delay_ms must not be negative, and {delay_ms} is")
        super().__init__(f"{delay_ms} ms")
        self.delay_ms = min(max(delay_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
