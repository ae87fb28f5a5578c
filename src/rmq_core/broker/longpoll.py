"""Pulls that wait for a message: answered when one arrives that they want, or when their time is over.

Wakes     Arrivals are announced at the end of a pass, so what waited is answered in the same pass.
Closed    What a connection waits for goes with it, at once.
Bound     So many pulls may wait; one more is answered at once, as if its time were over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rmq_core.clock import Clock
from rmq_core.net.connection import Connection
from rmq_core.protocol.filter import tags_code
from rmq_core.protocol.message import find_property
from rmq_core.store.dispatcher import Appended

log = logging.getLogger(__name__)

SWEEP_MS: Final = 500

QueueKey = tuple[str, int]
"""(topic, queue id)"""
Wanted = Callable[[int, bytes], bool]
"""Judges a message by the hash of its tag and its properties."""


@dataclass(slots=True, eq=False)
class Held:
    """One pull that waits."""

    key: QueueKey
    connection: Connection
    offset: int
    deadline_ms: float
    wanted: Wanted | None
    resume: Callable[[], None]


class LongPolls:
    """All pulls that wait, by queue."""

    def __init__(self, clock: Clock, *, count_max: int) -> None:
        self._clock = clock
        self._count_max = count_max
        # As keys of a dictionary they keep their order, and each can be taken out by itself.
        self._held: dict[QueueKey, dict[Held, None]] = {}
        self._held_for: dict[Connection, set[Held]] = {}
        self.count = 0

    def hold(
        self,
        key: QueueKey,
        connection: Connection,
        offset: int,
        timeout_ms: float,
        wanted: Wanted | None,
        resume: Callable[[], None],
    ) -> bool:
        """Call resume() once when a wanted message arrives at or behind offset, or when time is over.

        False where too many wait already.
        """
        if self.count >= self._count_max:
            return False
        held = Held(key, connection, offset, self._clock.monotonic_ms() + timeout_ms, wanted, resume)
        self._held.setdefault(key, {})[held] = None
        self._held_for.setdefault(connection, set()).add(held)
        self.count += 1
        return True

    def arrived(self, appended: list[Appended]) -> None:
        """Wake those who wait for one of these messages."""
        if not self.count:
            return
        by_queue: dict[QueueKey, list[Appended]] = {}
        for each in appended:
            key = (each[0].topic, each[0].queue_id)
            if key in self._held:
                by_queue.setdefault(key, []).append(each)
        for key, messages in by_queue.items():
            self._wake(key, lambda held, messages=messages: _is_wanted(held, messages))  # type: ignore[misc]

    def announce(self, topic: str, queue_id: int) -> None:
        """Wake everybody who waits at a queue: something about it has changed."""
        self._wake((topic, queue_id), lambda held: True)

    def _wake(self, key: QueueKey, is_due: Callable[[Held], bool]) -> None:
        waiting = self._held.pop(key, None)
        if waiting is None:
            return
        due = [held for held in waiting if is_due(held)]
        for held in due:
            del waiting[held]
            self._forget_for(held.connection, held)
        if waiting:
            self._held[key] = waiting
        self.count -= len(due)
        for held in due:
            if held.connection.is_open:
                self._resume(held)

    def _resume(self, held: Held) -> None:
        try:
            held.resume()
        except Exception:  # one pull must not take the pass from all the others
            log.exception("closing %s: a pull that waited cannot be answered", held.connection.peer)
            held.connection.abort()

    def _forget_for(self, connection: Connection, held: Held) -> None:
        of_connection = self._held_for[connection]
        of_connection.discard(held)
        if not of_connection:
            del self._held_for[connection]

    def connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that is gone."""
        for held in self._held_for.pop(connection, ()):
            waiting = self._held[held.key]
            del waiting[held]
            if not waiting:
                del self._held[held.key]
            self.count -= 1

    def sweep(self) -> None:
        """Wake those whose time is over."""
        now_ms = self._clock.monotonic_ms()
        for key in list(self._held):
            self._wake(key, lambda held: held.deadline_ms <= now_ms)


def _is_wanted(held: Held, messages: list[Appended]) -> bool:
    wanted = held.wanted
    for _, queue_offset, _, _, properties, _, _ in messages:
        if queue_offset < held.offset:
            continue
        if wanted is None:
            return True
        tag = find_property(properties, b"TAGS")
        if wanted(tags_code(tag.decode("utf-8", "replace")) if tag else 0, properties):
            return True
    return False
