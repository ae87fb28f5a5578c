"""Queues of topics with `queue.type=BatchCQ`: one unit of 46 bytes for a record that holds several messages.

They are read as Apache's broker left them. Units stand densely; the queue offset of a unit's first message is in
the unit, so a queue offset is found by bisection.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from rmq_core.protocol.record import StoredRecord
from rmq_core.store.disk import Disk
from rmq_core.store.queue_files import QueueFiles

_UNIT: Final = struct.Struct(">qiqqqhii")
UNIT_SIZE: Final = _UNIT.size


class BatchUnit(NamedTuple):
    """Where a record with several messages stands."""

    log_offset: int
    size: int
    tags_code: int
    store_time_ms: int
    base_offset: int
    message_count: int
    compacted_offset: int
    reserved: int

    @property
    def is_valid(self) -> bool:
        return self.log_offset >= 0 and self.size > 0 and self.base_offset >= 0 and self.message_count > 0


def holds_messages(record: StoredRecord) -> bool:
    """Whether a record whose flag says so holds several messages: one damaged bit must not make a batch queue."""
    return all(name in record.property_bytes for name in (b"INNER_NUM\x01", b"INNER_BASE\x01"))


class BatchQueue:
    """One queue of one BatchCQ topic."""

    __slots__ = ("_first_unit", "_last_log_offset", "files", "queue_id", "topic")

    def __init__(
        self, disk: Disk, folder: str, topic: str, queue_id: int, file_size: int, lock: threading.Lock
    ) -> None:
        self.files = QueueFiles(disk, folder, file_size, lock)
        self.topic = topic
        self.queue_id = queue_id
        self._first_unit = 0
        self._last_log_offset = -1

    def load(self) -> None:
        """Find files and end. Raises StoreError where the files are damaged."""
        limit = self.files.load()
        low, high = self.files.first // UNIT_SIZE, limit // UNIT_SIZE
        self._first_unit = low
        while low < high:
            middle = (low + high) // 2
            data = self.files.read_file(middle * UNIT_SIZE, UNIT_SIZE)
            if len(data) == UNIT_SIZE and BatchUnit._make(_UNIT.unpack(data)).is_valid:
                low = middle + 1
            else:
                high = middle
        self.files.set_end(low * UNIT_SIZE)
        self._opened()

    def _opened(self) -> None:
        last = self.unit(self.files.end // UNIT_SIZE - 1)
        self._last_log_offset = -1 if last is None else last.log_offset

    def unit(self, number: int) -> BatchUnit | None:
        """A unit by its place."""
        if not self._first_unit <= number < self.files.end // UNIT_SIZE:
            return None
        data = self.files.read(number * UNIT_SIZE, UNIT_SIZE)
        return BatchUnit._make(_UNIT.unpack(data)) if len(data) == UNIT_SIZE else None

    def units(self, queue_offset: int = 0) -> Iterator[BatchUnit]:
        """Units from the one that holds a queue offset on."""
        number = self.place(queue_offset)
        while (unit := self.unit(number)) is not None:
            yield unit
            number += 1

    def place(self, queue_offset: int) -> int:
        """The place of the unit that holds a queue offset, or of the first behind it."""
        low, high = self._first_unit, self.files.end // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit.base_offset + unit.message_count <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return low

    @property
    def min_offset(self) -> int:
        first = self.unit(self._first_unit)
        return 0 if first is None else first.base_offset

    @property
    def max_offset(self) -> int:
        last = self.unit(self.files.end // UNIT_SIZE - 1)
        return 0 if last is None else last.base_offset + last.message_count

    def truncate(self, log_offset: int) -> None:
        """Forget the units of records at and behind a log offset."""
        low, high = self._first_unit, self.files.end // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit.log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        self.files.truncate(low * UNIT_SIZE)
        self._opened()

    def raise_min_offset(self, log_start: int) -> None:
        """Leave out the units of records before log_start."""
        while (unit := self.unit(self._first_unit)) is not None and unit.log_offset < log_start:
            self._first_unit += 1

    def add(
        self, log_offset: int, size: int, tags_code: int, store_time_ms: int, base_offset: int, count: int
    ) -> None:
        """Enter a record found in the log behind the last unit; under the lock."""
        if log_offset > self._last_log_offset:
            self._last_log_offset = log_offset
            self.files.append(_UNIT.pack(log_offset, size, tags_code, store_time_ms, base_offset, count, -1, 0))
