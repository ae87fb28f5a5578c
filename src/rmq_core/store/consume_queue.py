"""The entries of one topic and queue: where its messages stand in the log. Twenty bytes each, at queue_offset * 20.

Entry     Log offset, record size, tags code. The tags code is Java's hash of the tag, the time of delivery for
          delayed messages, or the address of an ext unit (queue_ext.py).
Blank     An entry with the largest size stands for a message that is not there: before the first of a queue whose
          log was cut, or for a record that was lost. Readers pass over it.
End       The first entry without a size. Found by bisection: everything behind the end is zero.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from rmq_core.store.disk import Disk
from rmq_core.store.queue_files import QueueFiles

ENTRY: Final = struct.Struct(">qiq")
ENTRY_SIZE: Final = ENTRY.size
BLANK_RECORD_SIZE: Final = 0x7FFFFFFF
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_RECORD_SIZE, 0)

_PAGE: Final = 4080
"""A whole number of entries, most of a page of the disk."""


class Entry(NamedTuple):
    """Where a message stands in the log."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def is_blank(self) -> bool:
        return self.size == BLANK_RECORD_SIZE


class ConsumeQueue:
    """One queue of one topic."""

    __slots__ = ("files", "log_end", "min_offset", "next_offset", "queue_id", "topic", "topic_bytes")

    def __init__(
        self, disk: Disk, folder: str, topic: str, queue_id: int, file_size: int, lock: threading.Lock
    ) -> None:
        self.files = QueueFiles(disk, folder, file_size, lock)
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.min_offset = 0
        """The first queue offset whose message the log may still have."""
        self.next_offset = 0
        """What the next message gets; ahead of max_offset while messages wait to be entered."""
        self.log_end = -1
        """Where the record of the last entry ends in the log."""

    def __repr__(self) -> str:
        return f"<{self.topic}/{self.queue_id} {self.min_offset}..{self.max_offset}>"

    @property
    def max_offset(self) -> int:
        """Behind the last entry."""
        return self.files.end // ENTRY_SIZE

    # Start

    def load(self) -> None:
        """Find files and end. Raises StoreError where the files are damaged."""
        end = self.files.load()
        while end > self.files.first:
            end -= self.files.size
            page = self.files.read_file(end, _PAGE)
            if _is_valid(page[:ENTRY_SIZE]):
                end = self._end_in_file(end, page)
                break
        self.files.set_end(end)
        self.min_offset = self.files.first // ENTRY_SIZE
        self._opened()

    def _opened(self) -> None:
        self.next_offset = max_offset = self.max_offset
        last = self.entry(max_offset - 1)
        self.log_end = -1 if last is None else (0 if last.is_blank else last.log_offset + last.size)

    def _end_in_file(self, start: int, page: bytes) -> int:
        used = -(-len(page.rstrip(b"\0")) // ENTRY_SIZE) * ENTRY_SIZE
        if used < len(page):
            return start + used
        low, high = used // ENTRY_SIZE, self.files.size // ENTRY_SIZE
        while low < high:
            middle = (low + high) // 2
            if _is_valid(self.files.read_file(start + middle * ENTRY_SIZE, ENTRY_SIZE)):
                low = middle + 1
            else:
                high = middle
        return start + low * ENTRY_SIZE

    # Entries

    def add_at(self, queue_offset: int, entries: bytes, log_end: int, *, missing_max: int = 0) -> bool:
        """Enter messages read from the log, the first of them at queue_offset; under the lock.

        An empty queue may start anywhere. In another one up to missing_max messages may be missing before them.
        False where they cannot stand there.
        """
        files = self.files
        end = files.end // ENTRY_SIZE
        if queue_offset != end:
            if end == files.first // ENTRY_SIZE and self.log_end < 0:
                files.restart(queue_offset * ENTRY_SIZE)
                end = files.first // ENTRY_SIZE
                self.min_offset = queue_offset
            elif queue_offset < end or queue_offset - end > missing_max:
                return False
            files.append(BLANK_ENTRY * (queue_offset - end))
        files.append(entries)
        self.log_end = log_end
        self.next_offset = max(self.next_offset, queue_offset + len(entries) // ENTRY_SIZE)
        return True

    def holds(self, queue_offset: int, log_offset: int) -> bool:
        """Whether an entry that is there is this record's, or blank; under the lock."""
        data = self.files.read_locked(queue_offset * ENTRY_SIZE, ENTRY_SIZE)
        if len(data) != ENTRY_SIZE:
            return True
        held, size, _ = ENTRY.unpack(data)
        return bool(held == log_offset or size == BLANK_RECORD_SIZE)

    def read(self, queue_offset: int, count: int) -> bytes:
        """Raw entries, up to the end of the file that the first is in."""
        return self.files.read(queue_offset * ENTRY_SIZE, count * ENTRY_SIZE)

    def entry(self, queue_offset: int) -> Entry | None:
        """One entry; None outside of what there is."""
        if not self.files.first // ENTRY_SIZE <= queue_offset < self.max_offset:
            return None
        data = self.read(queue_offset, 1)
        return Entry._make(ENTRY.unpack(data)) if len(data) == ENTRY_SIZE else None

    # Following the log

    def truncate(self, log_offset: int) -> None:
        """Forget the entries of messages at and behind a log offset."""
        low, high = self.files.first // ENTRY_SIZE, self.max_offset
        if low == high or (last := self.entry(high - 1)) is None:
            return
        if not last.is_blank and last.log_offset < log_offset and self._first_stray(high, log_offset) == high:
            return
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and entry.size > 0 and entry.log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        low = self._first_stray(low, log_offset)
        while low > self.files.first // ENTRY_SIZE and (last := self.entry(low - 1)) is not None and last.is_blank:
            low -= 1  # a queue never ends with a blank
        self.files.truncate(low * ENTRY_SIZE)
        self.min_offset = min(self.min_offset, low)
        self._opened()

    def _first_stray(self, limit: int, log_offset: int) -> int:
        """The limit, or the first entry before it that does not belong there.

        A power cut leaves any of the sectors written since the last sync. Bisection may have ended behind a hole
        or behind entries of lost messages; no page of such a region looks whole.
        """
        first, per_file = self.files.first // ENTRY_SIZE, self.files.size // ENTRY_SIZE
        start = limit
        while start > first and limit - start < _PAGE // ENTRY_SIZE:
            end = start
            start = max(end - _PAGE // ENTRY_SIZE, first, (end - 1) // per_file * per_file)
            stray = _stray_in(self.read(start, end - start), log_offset)
            if stray is not None:
                limit = start = start + stray
        return limit

    def last_code(self, accept: Callable[[int], bool]) -> int | None:
        """The newest tags code that is accepted; None where there is none."""
        for queue_offset in range(self.max_offset - 1, self.files.first // ENTRY_SIZE - 1, -1):
            entry = self.entry(queue_offset)
            if entry is not None and accept(entry.tags_code):
                return entry.tags_code
        return None

    def restart(self) -> None:
        """Forget everything: the topic was removed and made anew, and its queue offsets began again."""
        self.files.restart(0)
        self.min_offset = self.next_offset = 0
        self.log_end = -1

    def raise_min_offset(self, log_start: int) -> None:
        """Leave out the entries of messages before log_start."""
        low, high = self.min_offset, self.max_offset
        if (entry := self.entry(low)) is not None and not entry.is_blank and entry.log_offset >= log_start:
            return
        while low < high:
            middle = (low + high) // 2
            probe = middle
            while probe < high and (entry := self.entry(probe)) is not None and entry.is_blank:
                probe += 1
            entry = self.entry(probe) if probe < high else None
            if entry is None or entry.log_offset >= log_start:
                high = middle
            else:
                low = probe + 1
        while low < self.max_offset and (entry := self.entry(low)) is not None and entry.is_blank:
            low += 1
        self.min_offset = low

    def remove_before(self, log_start: int) -> int:
        """The log now starts here: returns how many files were removed."""
        self.raise_min_offset(log_start)
        return self.files.remove_before(self.min_offset * ENTRY_SIZE)


def _is_valid(entry: bytes) -> bool:
    if len(entry) != ENTRY_SIZE:
        return False
    log_offset, size, _ = ENTRY.unpack(entry)
    return bool(log_offset >= 0 and size > 0)


def _stray_in(entries: bytes, log_offset: int) -> int | None:
    """The first of these entries that is none, is not before log_offset, or goes back in the log."""
    before = -1
    for number, (each, size, _) in enumerate(ENTRY.iter_unpack(entries)):
        if size == BLANK_RECORD_SIZE:
            continue
        if size <= 0 or not before < each < log_offset:
            return number
        before = each
    return None
