"""Hash files from a message's keys to its log offset.

File      A header, a table of slots, and entries. A slot names the newest entry of its chain, an entry the one
          before it. Only hashes are kept: whoever asks compares the keys of the messages themselves.
Active    The newest file takes entries. Its slots are in memory, and what is new is written out from time to time,
          its header last. The others are only read.
Steps     Slots are written in pieces: copying them keeps every other thread waiting.
Threads   Any. Changes are made one at a time under _writing; queries take only _lock, which comes after it and is
          held to copy what may change, never for a write.
Crash     Only a full file is synced before its time is reported. load() removes newer ones, and their keys are
          entered again from the log.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.protocol.filter import java_string_hash
from rmq_core.store.disk import Disk

log = logging.getLogger(__name__)

HEADER: Final = struct.Struct(">qqqqii")
ENTRY: Final = struct.Struct(">iqii")
_ENTRY_COLUMNS: Final = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_INT_MAX: Final = (1 << 31) - 1
_SLOTS_PER_PAGE: Final = 1024
_PAGES_AT_ONCE: Final = 64
_UNWRITTEN_MAX: Final = 4 << 20
"""Bytes of entries that may be in memory alone; a query copies them."""


def key_hash(topic: str, key: str) -> int:
    """The hash under which a key of a topic stands."""
    hashed = abs(java_string_hash(f"{topic}#{key}"))
    return hashed if hashed <= _INT_MAX else 0


@dataclass(slots=True)
class IndexHeader:
    """What a file says of itself."""

    begin_time_ms: int = 0
    end_time_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    next_entry: int = 1
    """Number of the next entry; the first is 1."""

    @classmethod
    def unpack(cls, data: bytes) -> IndexHeader:
        header = cls(*HEADER.unpack(data))
        header.next_entry = max(header.next_entry, 1)
        return header

    def pack(self) -> bytes:
        return HEADER.pack(
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.next_entry,
        )


class IndexFile:
    """One file."""

    def __init__(self, disk: Disk, path: Path, slot_count: int, entry_count: int) -> None:
        self._disk = disk
        self.path = path
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_at = HEADER.size + 4 * slot_count
        self.header = IndexHeader()
        # Only while it is the active one:
        self._slots: NDArray[np.int32] | None = None
        self._dirty_pages = np.zeros(0, np.bool_)
        self._unwritten = bytearray()
        self._written_entry = 1

    @property
    def is_full(self) -> bool:
        return self.header.next_entry >= self._entry_count

    @property
    def is_active(self) -> bool:
        return self._slots is not None

    @property
    def unwritten_bytes(self) -> int:
        return len(self._unwritten)

    def load(self) -> None:
        """Read the header."""
        self.header = IndexHeader.unpack(self._disk.read(self.path, 0, HEADER.size))
        self.header.next_entry = min(self.header.next_entry, self._entry_count)

    def create(self, before: IndexHeader | None) -> None:
        """Make the file; it goes on where the one before ended."""
        self._disk.create(self.path, self._entries_at + ENTRY.size * self._entry_count)
        if before is not None:
            self.header.begin_time_ms, self.header.begin_offset = before.end_time_ms, before.end_offset
        self._start_with(np.zeros(self._slot_count, np.int32))

    # Adding

    def activate(self) -> None:
        """Be ready for new entries."""
        if self._slots is None:
            data = self._disk.read(self.path, HEADER.size, 4 * self._slot_count)
            self._start_with(np.frombuffer(data, ">i4").astype(np.int32))
            self._written_entry = self.header.next_entry

    def _start_with(self, slots: NDArray[np.int32]) -> None:
        self._slots = slots
        self._dirty_pages = np.zeros(-(-self._slot_count // _SLOTS_PER_PAGE), np.bool_)

    def add(self, hashes: NDArray[np.int32], log_offsets: NDArray[np.int64], times_ms: NDArray[np.int64]) -> int:
        """Add as many entries as there is room for, and return how many that was."""
        assert self._slots is not None
        header = self.header
        count = min(len(hashes), self._entry_count - header.next_entry)
        if count <= 0:
            return 0
        if header.next_entry <= 1:
            header.begin_offset, header.begin_time_ms = int(log_offsets[0]), int(times_ms[0])
        slots = hashes[:count].astype(np.int64) % self._slot_count
        numbers = header.next_entry + np.arange(count, dtype=np.int64)
        known = self._slots[slots].astype(np.int64)
        known[(known <= 0) | (known > numbers)] = 0
        order = np.argsort(slots, kind="stable")
        is_first = np.ones(count, np.bool_)
        is_first[1:] = slots[order][1:] != slots[order][:-1]
        previous = np.empty(count, np.int64)
        before = np.roll(numbers[order], 1)
        previous[order] = np.where(is_first, known[order], before)
        self._slots[slots] = numbers  # of equal slots the last counts
        header.used_slots += int((is_first & (known[order] == 0)).sum())
        entries = np.empty(count, _ENTRY_COLUMNS)
        entries["hash"] = hashes[:count]
        entries["log_offset"] = log_offsets[:count]
        seconds = (times_ms[:count] - header.begin_time_ms) // 1000 if header.begin_time_ms > 0 else 0
        entries["seconds"] = np.clip(seconds, 0, _INT_MAX)
        entries["previous"] = previous
        self._unwritten += entries.tobytes()
        self._dirty_pages[slots // _SLOTS_PER_PAGE] = True
        header.next_entry += count
        header.end_offset, header.end_time_ms = int(log_offsets[count - 1]), int(times_ms[count - 1])
        return count

    def write(self) -> int:
        """Write new entries, then the pages of slots that changed, then the header; wrote() is told how many bytes.

        Raises OSError; everything is still there to be written then.
        """
        assert self._slots is not None
        size = len(self._unwritten)
        if not size:
            return 0
        with memoryview(self._unwritten) as entries:
            self._disk.write(self.path, entries, self._entries_at + ENTRY.size * self._written_entry)
        for first, end in _runs(np.flatnonzero(self._dirty_pages).tolist()):
            low, high = first * _SLOTS_PER_PAGE, end * _SLOTS_PER_PAGE
            data = self._slots[low:high].astype(">i4").tobytes()
            self._disk.write(self.path, data, HEADER.size + 4 * low)
        self._disk.write(self.path, self.header.pack(), 0)
        return size

    def wrote(self, size: int) -> None:
        """All entries, of so many bytes, can be read from the file now."""
        assert size == len(self._unwritten)
        self._unwritten.clear()
        self._dirty_pages[:] = False
        self._written_entry += size // ENTRY.size

    def deactivate(self) -> None:
        """No more entries will come, and all are written."""
        assert not self._unwritten
        self._slots = None

    # Looking

    def find(self, hashed: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets of entries with this hash, newest first."""
        return self.chain(hashed).find(count_max, begin_ms, end_ms)

    def chain(self, hashed: int) -> Chain:
        """The entries among which those of a hash are, as they are now."""
        slot = hashed % self._slot_count
        if self._slots is not None:
            return Chain(
                self,
                hashed,
                replace(self.header),
                int(self._slots[slot]),
                self._written_entry,
                bytes(self._unwritten),
            )
        first = int.from_bytes(self._disk.read(self.path, HEADER.size + 4 * slot, 4), "big", signed=True)
        return Chain(self, hashed, replace(self.header), first, self.header.next_entry, b"")

    def last_hashes(self) -> list[int]:
        """The hashes of the message entered last; all of them must have been written."""
        hashes, number = [], self.header.next_entry - 1
        while number > 0:
            hashed, log_offset, _, _ = ENTRY.unpack(self.read_entry(number))
            if log_offset != self.header.end_offset:
                break
            hashes.append(hashed)
            number -= 1
        return hashes

    def read_entry(self, number: int) -> bytes:
        """One entry of those that are written."""
        return self._disk.read(self.path, self._entries_at + ENTRY.size * number, ENTRY.size)


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """First page of each run of neighbours, and the one behind its last; long runs come in pieces."""
    first = end = -1
    for page in pages:
        if page != end or end - first == _PAGES_AT_ONCE:
            if end > first:
                yield first, end
            first = page
        end = page + 1
    if end > first:
        yield first, end


@dataclass(frozen=True, slots=True)
class Chain:
    """The entries of one slot: the newest, and from each to the one before. Later additions do not show."""

    file: IndexFile
    hashed: int
    header: IndexHeader
    first: int
    written_entry: int
    unwritten: bytes

    def find(self, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets of the entries with this very hash and a time in the range, newest first.

        Raises FileNotFoundError where the file has been removed.
        """
        found: list[int] = []
        number, limit = self.first, self.header.next_entry
        # Numbers only go down along a chain; damaged ones that do not would lead round in circles.
        while 0 < number < limit and len(found) < count_max:
            hashed, log_offset, seconds, previous = ENTRY.unpack(self._entry(number))
            if seconds < 0:
                break
            stored_ms = self.header.begin_time_ms + seconds * 1000
            if hashed == self.hashed and begin_ms <= stored_ms <= end_ms:
                found.append(log_offset)
            if stored_ms < begin_ms:
                break
            number, limit = previous, number
        return found

    def _entry(self, number: int) -> bytes:
        if number < self.written_entry:
            return self.file.read_entry(number)
        at = (number - self.written_entry) * ENTRY.size
        return self.unwritten[at : at + ENTRY.size]


class Index:
    """All index files of a store."""

    def __init__(
        self, disk: Disk, folder: Path, *, slot_count: int, entry_count: int, now: Callable[[], int]
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._now = now
        self._files: list[IndexFile] = []
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._may_repeat = False
        self.rolled_end_ms = 0
        """When the newest message of the last full and durable file was stored."""

    def load(self, drop_after_ms: int | None) -> None:
        """Find the files. Those with messages after a time are removed: a crash may have left them half written."""
        size = HEADER.size + 4 * self._slot_count + ENTRY.size * self._entry_count
        for name, found_size in self._disk.list(self._folder):
            path = self._folder / name
            if not name.isdecimal() or found_size != size:
                log.warning("%s is left alone: it is no index file of %d bytes", path, size)
                continue
            file = IndexFile(self._disk, path, self._slot_count, self._entry_count)
            file.load()
            if drop_after_ms is not None and (not file.is_full or file.header.end_time_ms > drop_after_ms):
                self._disk.remove(path)
                continue
            self._files.append(file)
        self.rolled_end_ms = max((each.header.end_time_ms for each in self._files if each.is_full), default=0)
        self._may_repeat = bool(self._files) and self._files[-1].is_full

    def last_end(self) -> tuple[int, int]:
        """Store time and log offset of the message indexed last; zeros where there is none."""
        with self._lock:
            for file in reversed(self._files):
                if file.header.next_entry > 1:
                    return file.header.end_time_ms, file.header.end_offset
        return 0, 0

    def add(self, hashes: NDArray[np.int32], log_offsets: NDArray[np.int64], times_ms: NDArray[np.int64]) -> None:
        """Enter keys in the order of the log; those of messages before the last one entered are known already.

        Raises OSError.
        """
        with self._writing:
            while len(hashes):
                file = self._active()
                if file.header.next_entry > 1:
                    fresh = int(np.argmax(log_offsets >= file.header.end_offset))
                    if log_offsets[fresh] < file.header.end_offset:
                        return
                    hashes, log_offsets, times_ms = hashes[fresh:], log_offsets[fresh:], times_ms[fresh:]
                elif self._may_repeat:
                    # At a start the message that filled the file before comes again.
                    self._may_repeat = False
                    before = self._files[-2]
                    is_new = log_offsets > before.header.end_offset
                    is_new |= (log_offsets == before.header.end_offset) & ~np.isin(hashes, before.last_hashes())
                    hashes, log_offsets, times_ms = hashes[is_new], log_offsets[is_new], times_ms[is_new]
                with self._lock:
                    count = file.add(hashes, log_offsets, times_ms)
                hashes, log_offsets, times_ms = hashes[count:], log_offsets[count:], times_ms[count:]
                if file.unwritten_bytes > _UNWRITTEN_MAX:
                    self._write_out(file)

    def _active(self) -> IndexFile:
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            with self._lock:
                last.activate()
            return last
        if last is not None and last.is_active:
            self._write_out(last)
            self._disk.sync(last.path)
            with self._lock:
                last.deactivate()
            self.rolled_end_ms = max(self.rolled_end_ms, last.header.end_time_ms)
        file = IndexFile(self._disk, self._folder / self._next_name(), self._slot_count, self._entry_count)
        file.create(None if last is None else last.header)
        with self._lock:
            self._files.append(file)
        return file

    def _next_name(self) -> str:
        now_ms = self._now()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
        if self._files and name <= self._files[-1].path.name:
            name = f"{int(self._files[-1].path.name) + 1:017d}"
        taken = {each for each, _ in self._disk.list(self._folder)}
        while name in taken:
            name = f"{int(name) + 1:017d}"
        return name

    def write_out(self) -> None:
        """Write what is only in memory. Raises OSError."""
        with self._writing:
            if self._files and self._files[-1].is_active:
                self._write_out(self._files[-1])

    def _write_out(self, file: IndexFile) -> None:
        size = file.write()
        with self._lock:
            file.wrote(size)

    def flush(self) -> None:
        """Write and make durable. Raises OSError."""
        with self._writing:
            if self._files and self._files[-1].is_active:
                self._write_out(self._files[-1])
                self._disk.sync(self._files[-1].path)

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets under the hash of a key, newest first."""
        hashed = key_hash(topic, key)
        found: list[int] = []
        with self._lock:
            files = [file for file in reversed(self._files) if file.header.next_entry > 1]
        try:
            for file in files:
                with self._lock:
                    chain = file.chain(hashed)
                header = chain.header
                if header.begin_time_ms <= end_ms and header.end_time_ms >= begin_ms:
                    found += chain.find(count_max - len(found), begin_ms, end_ms)
                if header.begin_time_ms < begin_ms or len(found) >= count_max:
                    break
        except FileNotFoundError:
            pass  # retention has just removed this file, and those before it
        return found

    def remove_from(self, log_offset: int) -> None:
        """Remove files with messages at and behind a log offset: the log has lost them."""
        with self._writing:
            while self._files and self._files[-1].header.end_offset >= log_offset:
                if self._files[-1].header.next_entry <= 1:
                    break
                log.warning("%s has keys of messages that the log lost, and is removed", self._files[-1].path)
                with self._lock:
                    file = self._files.pop()
                self._disk.remove(file.path)
        self.rolled_end_ms = max((each.header.end_time_ms for each in self._files if each.is_full), default=0)
        self._may_repeat = bool(self._files) and self._files[-1].is_full

    def remove_before(self, log_offset: int) -> int:
        """Remove files whose messages are all before a log offset, never the last; returns how many."""
        count = 0
        with self._writing:
            while len(self._files) > 1 and self._files[0].header.end_offset < log_offset:
                with self._lock:
                    file = self._files.pop(0)
                self._disk.remove(file.path)
                count += 1
        return count
