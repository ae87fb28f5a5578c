"""Which queue a message goes to, where it must not be any: by a key's hash, at random, or by the user's own rule.

Hashes are Java's, so that producers of both kinds put the same key into the same queue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from rmq_core.protocol.message import Message, MessageQueue

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses one of a topic's queues, which come sorted by broker and number."""

_INT_MIN: Final = -(1 << 31)


def java_hash(value: str | int) -> int:
    """What hashCode() of Java's String, Integer or Long gives."""
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value} is too large to be hashed as Java does it; give text")
        if _INT_MIN <= value <= -_INT_MIN - 1:
            return value
        bits = value & 0xFFFFFFFFFFFFFFFF
        return _signed((bits ^ bits >> 32) & 0xFFFFFFFF)
    code = 0
    units = value.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return _signed(code)


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits


def sharded_index(key: str | int, count: int) -> int:
    """The number of the queue, of so many, that a key belongs to."""
    return abs(java_hash(key)) % count


def by_hash(key: str | int) -> Selector:
    """A selector that gives the same queue for the same key, as Java's SelectMessageQueueByHash does."""
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TypeError(f"a key to select by is str or int, not {type(key).__name__}")
    java_hash(key)
    return lambda queues, _: queues[sharded_index(key, len(queues))]


def at_random(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
    """A selector that gives any queue."""
    return random.choice(queues)
