"""Brings a directory back to a consistent state after a stop or a crash.

Clean stop      Queues and index are complete. The newest file of the log is checked, and each queue is compared
                with it; where one lacks something, everything is built again from the log.
Crash           Queue entries of messages older than the checkpoint are durable. The walk starts in the newest file
                that begins before it: queues forget what they have from there on and get it again from the log.
Damage          A region that cannot be read is passed over where good and durable messages follow it. A hole that a
                power cut left in what had not been flushed ends the log: nobody was promised what is behind it.
The end         Behind the last good record everything becomes zero: nothing there can be taken for a record.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, field, replace

import numpy as np

from rmq_core.columnar import DispatchColumns, dispatch_columns
from rmq_core.columnar.parts import byte_array, measure
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import RECORD_SIZE_MIN, check_record, decode_record
from rmq_core.store.batch_queue import holds_messages
from rmq_core.store.checkpoint import Checkpoint
from rmq_core.store.commit_log import CommitLog
from rmq_core.store.consume_queue import ENTRY_SIZE, ConsumeQueue
from rmq_core.store.dispatcher import Dispatcher
from rmq_core.store.queues import Queues
from rmq_core.store.walk import Damage, LogWalk, Stretch

log = logging.getLogger(__name__)

SECTOR = 512
WRITE_OUT_FROM = 500_000
"""So many queue entries may be in memory while a walk goes on."""


@dataclass(slots=True)
class Recovered:
    """What a start found."""

    start: int = 0
    """Where the walk began."""
    end: int = 0
    """Where the log goes on."""
    records: int = 0
    damages: list[Damage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    last_store_time_ms: int = 0
    is_rebuilt: bool = False
    """All queues were built again from the oldest message on."""


class Recovery:
    """One start."""

    def __init__(
        self, log_: CommitLog, queues: Queues, checkpoint: Checkpoint, dispatcher: Dispatcher, *, verify_crc: bool
    ) -> None:
        self._log = log_
        self._queues = queues
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._verify_crc = verify_crc

    def run(self, *, is_clean: bool, problems: list[str]) -> Recovered:
        """Recover after a clean stop or a crash; `problems` are those that loading the queues found."""
        for problem in problems:
            log.warning("%s: the queues are built again from the log", problem)
        starts = self._log.segments.starts
        if not starts:
            self._queues.truncate(0)
            return Recovered(problems=problems)
        problems += [
            f"{queue} lacks its start" for queue in self._queues.table.values() if self._lacks_start(queue)
        ]
        if is_clean and not problems:
            found = self._check_clean()
            if found is not None:
                return self._finish(found)
            log.warning("the queues do not fit the log although the last stop was clean: they are built again")
        is_rebuilt = bool(problems) or is_clean
        if is_rebuilt:
            self._checkpoint.forget_queues()
        start = starts[0] if is_rebuilt else self.first_file(is_clean=False)
        found = self._rebuild(start, is_clean=is_clean)
        if self._checkpoint.recovery_time_ms > found.last_store_time_ms and start > starts[0]:
            log.warning("the checkpoint is newer than the log: all queues are built again")
            self._checkpoint.forget_queues()
            start, is_rebuilt = starts[0], True
            found = self._rebuild(start, is_clean=is_clean)
        if self._dispatcher.new_batch_topics:
            log.warning("batch consume queues were gone: all queues are built again")
            self._checkpoint.forget_queues()
            for topic in self._dispatcher.new_batch_topics:
                self._queues.remove_topic(topic)  # the entries of single messages, that belong there too
            start, is_rebuilt = starts[0], True
            found = self._rebuild(start, is_clean=is_clean)
        found.problems, found.is_rebuilt = problems, is_rebuilt or start == starts[0]
        return self._finish(found)

    def _lacks_start(self, queue: ConsumeQueue) -> bool:
        """Whether a file may be missing: the first one there holds nothing that is older than the log."""
        first = queue.entry(queue.files.first // ENTRY_SIZE)
        return queue.files.first > 0 and first is not None and first.log_offset > self._log.start

    # Where to start

    def _first_store_time(self, start: int) -> int | None:
        view = self._log.segments.file_view(start)
        if view is None or not check_record(view[0], 0, verify_body_crc=self._verify_crc).is_valid:
            return None
        size = struct.unpack_from(">i", view[0], 0)[0]
        if size < RECORD_SIZE_MIN:
            return None
        (sys_flag,) = struct.unpack_from(">i", view[0], 36)
        stored_ms = struct.unpack_from(">q", view[0], 68 if sys_flag & flags.BORN_HOST_V6 else 56)[0]
        return int(stored_ms) or None

    def first_file(self, *, is_clean: bool) -> int:
        """Where a walk starts: in the newest file with a message, after a crash one older than the checkpoint."""
        limit_ms = self._checkpoint.recovery_time_ms
        for start in reversed(self._log.segments.starts):
            stored_ms = self._first_store_time(start)
            if stored_ms is not None and (is_clean or stored_ms <= limit_ms):
                return start
        return self._log.segments.first

    # Walks

    def _check_clean(self) -> Recovered | None:
        """Compare the newest messages with the queues; None where they do not agree."""
        start = self.first_file(is_clean=True)
        found = Recovered(start=start)
        walk = LogWalk(self._log.segments, start, verify_crc=self._verify_crc)
        ends: dict[tuple[bytes, int], int] = {}
        for step in walk:
            if isinstance(step, Damage):
                found.damages.append(step)
                continue
            columns = dispatch_columns(step.buffer, step.positions)
            self._count(found, columns)
            if not self._has_batch_queues(step, columns):
                return None
            _note_ends(columns, ends)
        found.end = walk.end
        for (topic, queue_id), end in ends.items():
            key = (topic.decode("utf-8", "replace"), queue_id)
            queue = self._queues.table.get(key) or self._queues.batch.get(key)
            if queue is None or (queue.max_offset != end and key in self._queues.table):
                return None
        self._queues.truncate(found.end)
        return found

    def _has_batch_queues(self, stretch: Stretch, columns: DispatchColumns) -> bool:
        """Whether there is a queue for each record that holds several messages."""
        for row in np.flatnonzero(columns.sys_flags & flags.INNER_BATCH).tolist():
            topic = columns.topics[columns.topic_ids[row]].decode("utf-8", "replace")
            if (topic, int(columns.queue_ids[row])) not in self._queues.batch:
                record = decode_record(stretch.buffer, int(stretch.positions[row]))
                if holds_messages(record):
                    return False
        return True

    def _rebuild(self, start: int, *, is_clean: bool) -> Recovered:
        found = Recovered(start=start)
        self._queues.truncate(start)
        self._queues.clear_behind()
        self._dispatcher.missing = 0
        unwritten = 0
        walk = LogWalk(self._log.segments, start, verify_crc=self._verify_crc)
        for step in walk:
            if isinstance(step, Damage):
                if not is_clean and self._is_torn(step):
                    log.warning("the log ends at %d: what follows was not flushed before the crash", step.start)
                    break
                found.damages.append(step)
                self._dispatcher.missing += (step.end - step.start) // RECORD_SIZE_MIN + 1
                log.error("nothing can be read between %d and %d of the log: %s", step.start, step.end, step.reason)
                continue
            whole = step if is_clean else self._whole(step)
            if len(whole.positions):
                self._count(found, self._dispatcher.enter_log(whole))
                unwritten += len(whole.positions)
            if unwritten >= WRITE_OUT_FROM:
                unwritten = 0
                self._queues.write_out()
            if len(whole.positions) < len(step.positions):
                found.end = step.base + int(step.positions[len(whole.positions)])
                log.warning(
                    "the log ends at %d: the end of that record was not flushed before the crash", found.end
                )
                return found
        found.end = walk.end
        return found

    def _whole(self, stretch: Stretch) -> Stretch:
        """The records before the first whose end never reached the disk: the CRC covers only the body."""
        parts = measure(byte_array(stretch.buffer), stretch.positions)
        data = byte_array(stretch.buffer)
        ends = parts.property_starts + parts.property_sizes
        ends[parts.property_sizes <= 0] -= 2  # then the topic is the last that says anything
        is_torn_ = data[ends - 1] == 0
        for row in np.flatnonzero(parts.property_sizes > SECTOR).tolist():
            start, end = int(parts.property_starts[row]), int(ends[row])
            is_torn_[row] |= is_torn(bytes(stretch.buffer[start:end]), stretch.base + start)
        rows = np.flatnonzero(is_torn_)
        if len(rows):
            columns = dispatch_columns(stretch.buffer, stretch.positions[rows])
            rows = rows[columns.store_times_ms >= self._checkpoint.log_time_ms]
        count = int(rows[0]) if len(rows) else len(stretch.positions)
        return replace(stretch, positions=stretch.positions[:count], sizes=stretch.sizes[:count])

    @staticmethod
    def _count(found: Recovered, columns: DispatchColumns) -> None:
        found.records += len(columns.log_offsets)
        found.last_store_time_ms = max(found.last_store_time_ms, int(columns.store_times_ms.max()))

    def _is_torn(self, damage: Damage) -> bool:
        """Whether a hole comes from writes that never reached the disk, and not from damage done later."""
        record = self._log.segments.view(damage.end, RECORD_SIZE_MIN)
        if record is not None:
            (sys_flag,) = struct.unpack_from(">i", record, 36)
            stored_ms = struct.unpack_from(">q", record, 68 if sys_flag & flags.BORN_HOST_V6 else 56)[0]
            if stored_ms < self._checkpoint.log_time_ms:
                return False
        return is_torn(self._log.segments.read(damage.start, damage.end - damage.start), damage.start)

    def _finish(self, found: Recovered) -> Recovered:
        self._log.segments.clear(found.end)
        # What a killed process wrote may be in the page cache alone, and from now on it counts as flushed.
        self._log.segments.sync(found.start, found.end)
        self._dispatcher.missing = 0
        self._queues.write_out()
        self.adopt(found)
        return found

    def adopt(self, found: Recovered) -> None:
        """Go on where a recovery, in this process or another one, has brought the directory."""
        self._log.open(found.end)
        self._log.last_store_time_ms = self._log.written_time_ms = found.last_store_time_ms
        self._dispatcher.last_store_time_ms = found.last_store_time_ms
        self._queues.raise_min_offsets(self._log.start)
        for queue in self._queues.table.values():
            queue.next_offset = queue.max_offset


def is_torn(data: bytes, log_offset: int) -> bool:
    """Whether a sector of these bytes of the log was never written.

    Only what reaches the end of its sector counts: a log grows, and nothing stands behind what is missing in a
    sector. Two zeros are what a record begins with anyway.
    """
    first = -log_offset % SECTOR
    sectors = [data[:first], *(data[at : at + SECTOR] for at in range(first, len(data) - SECTOR + 1, SECTOR))]
    return any(len(sector) > 2 and sector.count(0) == len(sector) for sector in sectors)


def _note_ends(columns: DispatchColumns, ends: dict[tuple[bytes, int], int]) -> None:
    """Remember behind which queue offset each queue ends."""
    kinds = columns.sys_flags & flags.TRANSACTION_MASK
    is_shown = (kinds != flags.TRANSACTION_PREPARED) & (kinds != flags.TRANSACTION_ROLLBACK)
    rows = np.flatnonzero(is_shown & ((columns.sys_flags & flags.INNER_BATCH) == 0))
    if not len(rows):
        return
    keys = columns.topic_ids[rows].astype(np.int64) << 32 | columns.queue_ids[rows]
    # The last row of each key: unique() finds the first, so look from behind.
    _, first = np.unique(keys[::-1], return_index=True)
    for row in rows[::-1][first].tolist():
        key = (columns.topics[columns.topic_ids[row]], int(columns.queue_ids[row]))
        ends[key] = int(columns.queue_offsets[row]) + 1
