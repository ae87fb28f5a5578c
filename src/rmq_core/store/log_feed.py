"""The log of another broker, copied byte by byte: what a replica stores.

Pieces    They come in the order of the log and may be cut anywhere, inside a record too.
Entering  A record is entered in its queues when it is whole and confirmed, by the function that recovery uses.
Damage    A region of the copy that holds no record is passed over as soon as a good record follows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rmq_core.errors import StoreError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import decode_record
from rmq_core.store.commit_log import CommitLog
from rmq_core.store.groups import HIDDEN
from rmq_core.store.key_index import KeyIndex
from rmq_core.store.queues import Queues
from rmq_core.store.walk import LogWalk, Stretch

if TYPE_CHECKING:
    from rmq_core.store.dispatcher import Appended, Dispatcher

log = logging.getLogger(__name__)


class LogFeed:
    """Where the copy of a log has been entered in queues, and what comes next."""

    def __init__(
        self, log_: CommitLog, dispatcher: Dispatcher, queues: Queues, index: KeyIndex | None, *, start: int
    ) -> None:
        """start: everything before is in the queues."""
        self._log = log_
        self._dispatcher = dispatcher
        self._queues = queues
        self._index = index
        self.entered = start
        """Records before are in their queues."""

    def follow(self, confirmed: int, *, wants_arrivals: bool) -> list[Appended]:
        """Enter the whole records before an offset of the log; returns them if somebody wants to know."""
        arrivals: list[Appended] = []
        if confirmed <= self.entered:
            return arrivals
        walk = LogWalk(self._log.segments, self.entered, confirmed, verify_crc=False)
        for step in walk:
            if not isinstance(step, Stretch):
                log.error("nothing can be read between %d and %d of the log: %s", step.start, step.end, step.reason)
                continue
            columns = self._dispatcher.enter_log(step)
            self._log.last_store_time_ms = max(self._log.last_store_time_ms, int(columns.store_times_ms.max()))
            if self._index is not None:
                self._index.collect_log(step.base + int(step.positions[0]), step.end)
            if wants_arrivals:
                arrivals += self._arrivals(step)
        self.entered = max(self.entered, walk.end)
        return arrivals

    def _arrivals(self, stretch: Stretch) -> list[Appended]:
        arrivals: list[Appended] = []
        for position in stretch.positions.tolist():
            record = decode_record(stretch.buffer, position)
            if record.sys_flag & flags.TRANSACTION_MASK not in HIDDEN:
                queue = self._queues.get(record.topic, record.queue_id)
                arrivals.append(
                    (
                        queue,
                        record.queue_offset,
                        record.log_offset,
                        record.size,
                        record.property_bytes,
                        record.store_time_ms,
                        record.sys_flag,
                    )
                )
        return arrivals


def check_place(log_: CommitLog, log_offset: int) -> None:
    """Raises StoreError where the bytes of another log cannot stand at an offset of this one."""
    if log_offset == log_.end or (not log_.segments.starts and log_offset % log_.segments.size == 0):
        return
    raise StoreError(f"the log ends at {log_.end}, and the copy goes on at {log_offset}")
