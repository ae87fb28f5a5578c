"""Tells the members of a group that one came or left, so that they divide the queues anew.

At once   The first change of a group is told right behind the answer of the heartbeat that made it. Changes that
          follow are told together, a while after that: members that join by the thousand would otherwise cause
          millions of frames.
Paced     Each member that is told asks for all others at once. A large group is therefore told piece by piece, so
          that these answers leave room for everything else; its next round begins after that.
Crash     Nothing is lost: members also ask by themselves each 20 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from rmq_core.clock import Clock
from rmq_core.net.connection import Connection
from rmq_core.protocol.command import ONEWAY_FLAG, Command, encode_command
from rmq_core.protocol.requests import NotifyConsumerIdsChanged

INTERVAL_MS: Final = 200
"""Between the end of a round and the beginning of the next."""
STEP: Final = 20
STEP_MS: Final = 10
"""So many members are told in so long a time."""


class Notices:
    """The rounds of all groups."""

    def __init__(self, clock: Clock, members: Callable[[str], Sequence[Connection]]) -> None:
        """members() gives the connections of a group at the time of a round."""
        self._clock = clock
        self._members = members
        self._due: set[str] = set()
        """Groups whose next round is set."""
        self._telling: dict[str, float | None] = {}
        """Groups that are being told; with a delay where something has changed meanwhile."""
        self._last_ms: dict[str, float] = {}

    def changed(self, group: str, *, delay_ms: float = 0) -> None:
        """A member of a group came or left; delay_ms gathers changes from the first one on."""
        if group in self._due:
            return
        if group in self._telling:
            self._telling[group] = delay_ms
            return
        self._due.add(group)
        next_ms = self._last_ms.get(group, -INTERVAL_MS) + INTERVAL_MS
        wait_ms = max(next_ms - self._clock.monotonic_ms(), delay_ms)
        if wait_ms <= 0:
            # Not now: the answer to the heartbeat that is being served comes first.
            asyncio.get_running_loop().call_soon(self._start, group)
        else:
            self._clock.call_later(wait_ms, self._start, group)

    def _start(self, group: str) -> None:
        self._due.discard(group)
        self._telling[group] = None
        request = NotifyConsumerIdsChanged(group)
        frame = encode_command(Command(request.code, flag=ONEWAY_FLAG, ext=request.to_ext()))
        self._tell(group, list(self._members(group)), frame)

    def _tell(self, group: str, left: list[Connection], frame: bytes) -> None:
        for connection in left[:STEP]:
            connection.send(frame)
        if len(left) > STEP:
            self._clock.call_later(STEP_MS, self._tell, group, left[STEP:], frame)
            return
        self._last_ms[group] = self._clock.monotonic_ms()
        delay_ms = self._telling.pop(group)
        if delay_ms is not None:
            self.changed(group, delay_ms=delay_ms)

    def forget_old(self) -> None:
        """Forget when groups were told last, once that means nothing any more."""
        limit_ms = self._clock.monotonic_ms() - INTERVAL_MS
        self._last_ms = {group: last_ms for group, last_ms in self._last_ms.items() if last_ms > limit_ms}
