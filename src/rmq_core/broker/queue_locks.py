"""Which member of a group holds a queue, for orderly consumption.

Held      By one client of a group until it gives the queue back or has not asked again for a minute. Groups do not
          see each other's locks.
Crash     Locks are not kept: after a restart members ask again, within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rmq_core.clock import Clock
from rmq_core.protocol.message import MessageQueue

EXPIRE_MS: Final = 60_000


@dataclass(slots=True)
class _Lock:
    client_id: str
    last_ms: float


class QueueLocks:
    """The locks of all groups."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, dict[MessageQueue, _Lock]] = {}
        self._swept_ms = clock.monotonic_ms()

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Take or renew queues; those that the client holds now, in the order asked for."""
        now_ms = self._clock.monotonic_ms()
        self._sweep(now_ms)
        held = self._held.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or now_ms - lock.last_ms > EXPIRE_MS:
                held[queue] = _Lock(client_id, now_ms)
                granted.append(queue)
        if not held:
            del self._held[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give queues back; what another client holds stays as it is."""
        held = self._held.get(group)
        if held is None:
            return
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            del self._held[group]

    def is_held(self, group: str) -> bool:
        """Whether any member of a group holds a queue."""
        limit_ms = self._clock.monotonic_ms() - EXPIRE_MS
        return any(lock.last_ms >= limit_ms for lock in self._held.get(group, {}).values())

    def _sweep(self, now_ms: float) -> None:
        """Forget what expired: clients name queues as they like, and die without giving them back."""
        if now_ms - self._swept_ms <= EXPIRE_MS:
            return
        self._swept_ms = now_ms
        for group, held in list(self._held.items()):
            kept = {queue: lock for queue, lock in held.items() if now_ms - lock.last_ms <= EXPIRE_MS}
            if kept:
                self._held[group] = kept
            else:
                del self._held[group]
