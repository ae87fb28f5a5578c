"""Messages by queue offset and by time.

Hot    The bytes are views of the mapped log, neighbours joined, and go to a socket without a copy.
Cold   What would have to come from the device is not touched through a mapping: a fault there stops every thread.
       get() says COLD instead, and the same call with may_wait=True, in a thread of its own, reads it.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import numpy as np

from rmq_core.config import StoreSettings
from rmq_core.store.batch_queue import BatchQueue
from rmq_core.store.commit_log import CommitLog
from rmq_core.store.consume_queue import BLANK_RECORD_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueue
from rmq_core.store.queue_ext import ExtUnit, is_address
from rmq_core.store.queues import Queues

ANSWER_SIZE_MAX: Final = 128 << 20
ORDINARY_COUNT_MAX: Final = 32
"""Who asks for more does not mean the limits that protect ordinary readers."""
_BULK_COUNT_MAX: Final = 16_384
"""Entries looked at in one go."""
_ENTRY_COLUMNS: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_WARM_STEP: Final = 128 << 10
"""So far apart are the places that are looked at to find out whether a part of the log is in memory."""
_RECENT: Final = 64 << 20
"""So far behind the end of the log everything is taken to be in memory."""


class GetStatus(Enum):
    """How a look for messages ended."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    COLD = auto()


@dataclass(slots=True)
class Got:
    """What was found, and where to look next."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    parts: list[memoryview | bytes] = field(default_factory=list)
    """Records, one behind the other."""
    count: int = 0
    size: int = 0
    suggests_slave: bool = False
    """The messages are so old that a replica should serve them."""

    def be_cold(self, offset: int) -> None:
        """Nothing was read: ask again from there, where waiting is allowed."""
        self.status, self.next_offset = GetStatus.COLD, offset
        self.parts, self.count, self.size = [], 0, 0


@dataclass(slots=True)
class _Run:
    """Records that are neighbours in the log."""

    start: int = -1
    end: int = -1
    count: int = 0


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages are wanted: judged by what the queue entry says, then by the record."""

    by_entry: Callable[[int, ExtUnit | None], bool] | None = None
    by_record: Callable[[memoryview], bool] | None = None


EVERYTHING: Final = MessageFilter()


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def _unpacker(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Takes that many entries apart: count is ORDINARY_COUNT_MAX or less."""
    return struct.Struct(">" + "qiq" * count).unpack


def _joined(starts: Sequence[int], ends: Sequence[int], file_size: int) -> Iterator[tuple[int, int]]:
    """Records as parts of the log: neighbours in one file are one part."""
    low = high = starts[0]
    for start, end in zip(starts, ends, strict=True):
        if start != high or not high % file_size:
            if high > low:
                yield low, high
            low = start
        high = end
    yield low, high


class QueueReader:
    """Reads queues."""

    def __init__(
        self, log: CommitLog, queues: Queues, settings: StoreSettings, *, memory_size: int | None = None
    ) -> None:
        self._log = log
        self._queues = queues
        self._settings = settings
        self._memory_size = physical_memory() if memory_size is None else memory_size

    def in_memory(self, log_offset: int) -> bool:
        """Whether Apache's broker would take this message to be in memory."""
        share = self._memory_size * self._settings.access_message_in_memory_max_ratio // 100
        return self._log.end - log_offset <= share

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        *,
        size_max: int = ANSWER_SIZE_MAX,
        filter_: MessageFilter = EVERYTHING,
        may_wait: bool = False,
    ) -> Got:
        """Messages from a queue offset on."""
        batch = self._queues.batch.get((topic, queue_id))
        if batch is not None:
            return self._get_batches(batch, offset, count_max, size_max)
        queue = self._queues.table.get((topic, queue_id))
        if queue is None:
            return Got(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        got = _judge_offset(offset, queue.min_offset, queue.max_offset)
        if got.status is GetStatus.FOUND:
            size_max = min(max(size_max, 100), ANSWER_SIZE_MAX)
            if filter_ is not EVERYTHING:
                is_done = False
            elif count_max > ORDINARY_COUNT_MAX:
                is_done = self._collect_bulk(queue, got, offset, count_max, size_max, may_wait)
            else:
                is_done = self._collect_recent(queue, got, offset, count_max, size_max)
            if not is_done:
                self._collect(queue, got, offset, count_max, size_max, filter_, may_wait)
        return got

    def _collect_recent(self, queue: ConsumeQueue, got: Got, offset: int, count_max: int, size_max: int) -> bool:
        """The usual pull: everything, near the log's end, where nothing is cold and limits stay the same.

        False where something needs a closer look.
        """
        log, (bytes_max, transfer_count) = self._log, self._limits(count_max)[0]
        bytes_max, count_max = min(size_max, bytes_max), max(min(count_max, transfer_count), 1)
        data = queue.read(offset, min(count_max, got.max_offset - offset))
        if len(data) < ENTRY_SIZE:
            return False
        count = len(data) // ENTRY_SIZE
        values = _unpacker(count)(data[: count * ENTRY_SIZE])
        starts, sizes = values[::3], values[1::3]
        total = sum(sizes)
        if total > bytes_max:
            count = max(bisect.bisect_right(list(itertools.accumulate(sizes)), bytes_max), 1)
            starts, sizes = starts[:count], sizes[:count]
            total = sum(sizes)
        ends = tuple(map(operator.add, starts, sizes))
        first, end = min(starts), max(ends)
        if min(sizes) <= 0 or first < log.start or end > log.written:
            return False
        if (
            log.end - first > _RECENT
            or not self.in_memory(first)
            or (found := log.segments.file_view(first)) is None
        ):
            return False
        view, base = found
        if end > base + log.segments.size or any(map(operator.eq, starts[1:], ends)):
            parts = self._views(_joined(starts, ends, log.segments.size))
            if parts is None:
                return False
        else:
            parts = [view[low - base : high - base] for low, high in zip(starts, ends, strict=True)]
        got.parts, got.count, got.size, got.next_offset = parts, count, total, offset + count
        return True

    def _views(self, spans: Iterable[Sequence[int]]) -> list[memoryview | bytes] | None:
        """Parts of the log, each within one file, that are in memory; None where a file is gone."""
        segments = self._log.segments
        parts: list[memoryview | bytes] = []
        start = end = 0
        for low, high in spans:
            if not start <= low < end:
                found = segments.file_view(low)
                if found is None:
                    return None
                view, start = found
                end = start + segments.size
            parts.append(view[low - start : high - start])
        return parts

    def _is_warm(self, start: int, end: int, size: int) -> bool:
        """Whether most of a part of the log is wanted, and all of it can be read without waiting."""
        if self._log.end - start <= _RECENT:
            return True
        is_cached = self._log.segments.is_cached
        return end - start <= 4 * size and all(is_cached(at, 1) for at in range(start, end, _WARM_STEP))

    def _collect_bulk(
        self, queue: ConsumeQueue, got: Got, offset: int, count_max: int, size_max: int, may_wait: bool
    ) -> bool:
        """Neighbours in the log are found by columns; False where the first entry needs a closer look."""
        size_max = min(size_max, self._settings.max_transfer_bytes_on_bulk_pull)
        wanted = min(count_max, got.max_offset - offset, _BULK_COUNT_MAX)
        data = queue.read(offset, wanted)
        # A read ends with its file, and with what is written: what is behind that belongs to the same answer.
        while (known := len(data) // ENTRY_SIZE) < wanted and (more := queue.read(offset + known, wanted - known)):
            data += more
        entries = np.frombuffer(data, _ENTRY_COLUMNS, len(data) // ENTRY_SIZE)
        starts, sizes = entries["log_offset"].astype(np.int64), entries["size"].astype(np.int64)
        is_good = (sizes > 0) & (sizes != BLANK_RECORD_SIZE)
        is_good &= (starts >= self._log.start) & (starts <= self._log.written - sizes)
        count = len(is_good) if is_good.all() else int(np.argmin(is_good))
        if not count:
            return False
        count = max(int(np.searchsorted(np.cumsum(sizes[:count]), size_max, side="right")), 1)
        starts, ends = starts[:count], starts[:count] + sizes[:count]
        is_apart = (starts[1:] != ends[:-1]) | (starts[1:] % self._log.segments.size == 0)
        bounds = [0, *(np.flatnonzero(is_apart) + 1).tolist(), count]
        got.count, got.size = count, int(sizes[:count].sum())
        parts = None
        if self._is_warm(int(starts[0]), int(ends[-1]), got.size):
            lasts = np.array(bounds[1:], np.int64) - 1
            parts = self._views(zip(starts[bounds[:-1]].tolist(), ends[lasts].tolist(), strict=True))
        if parts is not None:
            got.parts = parts
        for low, high in itertools.pairwise(bounds) if parts is None else ():
            if not self._add_run(got, _Run(int(starts[low]), int(ends[high - 1]), high - low), may_wait):
                got.be_cold(offset)
                return True
        got.next_offset = offset + count
        got.suggests_slave = not self.in_memory(int(starts[-1]))
        return True

    def _collect(  # noqa: PLR0912
        self,
        queue: ConsumeQueue,
        got: Got,
        offset: int,
        count_max: int,
        size_max: int,
        filter_: MessageFilter,
        may_wait: bool,
    ) -> None:
        end = self._log.end
        memory_share = self._memory_size * self._settings.access_message_in_memory_max_ratio // 100
        count_max = min(count_max, _BULK_COUNT_MAX)
        scan_max = max(self._settings.max_filter_message_size, count_max * ENTRY_SIZE) // ENTRY_SIZE
        data = queue.read(offset, min(scan_max, got.max_offset - offset))
        if len(data) < ENTRY_SIZE:
            per_file = queue.files.size // ENTRY_SIZE
            got.status, got.next_offset = GetStatus.OFFSET_FOUND_NULL, offset + per_file - offset % per_file
            return
        got.status = GetStatus.NO_MATCHED_MESSAGE
        by_entry, by_record = filter_.by_entry, filter_.by_record
        ext = self._queues.ext.get((queue.topic, queue.queue_id))
        near_limits, far_limits, run = *self._limits(count_max), _Run()
        next_offset, newest, skip_before = offset, 0, 0
        for log_offset, size, code in ENTRY.iter_unpack(data):
            if got.count:
                is_near = end - log_offset <= memory_share
                bytes_max, transfer_count = near_limits if is_near else far_limits
                if (
                    got.count >= count_max
                    or got.size + size > min(size_max, bytes_max)
                    or got.count >= transfer_count
                ):
                    break
            next_offset += 1
            if size == BLANK_RECORD_SIZE or log_offset < skip_before:
                continue
            newest = log_offset
            if by_entry is not None:
                unit = ext.get(code) if ext is not None and is_address(code) else None
                if not by_entry(unit.tags_code if unit is not None else code, unit):
                    continue
            if size <= 0 or not self._log.start <= log_offset <= self._log.written - size:
                if not got.count:
                    got.status = GetStatus.MESSAGE_WAS_REMOVING
                skip_before = self._log.segments.next_start(log_offset) or 0
                continue
            if by_record is not None:
                if self._is_cold(log_offset, size, may_wait):
                    got.be_cold(offset)
                    return
                record = self._fetch(log_offset, size, may_wait)
                if record is None or not by_record(memoryview(record)):
                    continue
            if log_offset != run.end or not run.end % self._log.segments.size:
                if not self._add_run(got, run, may_wait):
                    got.be_cold(offset)
                    return
                run = _Run(log_offset, log_offset)
            run.end += size
            run.count += 1
            got.count += 1
            got.size += size
            got.status = GetStatus.FOUND
        if not self._add_run(got, run, may_wait):
            got.be_cold(offset)
            return
        got.next_offset = next_offset
        got.suggests_slave = end - newest > memory_share

    def _limits(self, count_max: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """How many bytes and messages an answer may have: of those in memory, and of others."""
        settings = self._settings
        if count_max > ORDINARY_COUNT_MAX:
            bulk = (settings.max_transfer_bytes_on_bulk_pull, count_max)
            return bulk, bulk
        return (
            (settings.max_transfer_bytes_on_message_in_memory, settings.max_transfer_count_on_message_in_memory),
            (settings.max_transfer_bytes_on_message_in_disk, settings.max_transfer_count_on_message_in_disk),
        )

    def _is_cold(self, log_offset: int, size: int, may_wait: bool) -> bool:
        """Whether a part of the log must be read elsewhere, because reading it here would wait."""
        is_recent = self._log.end - log_offset <= _RECENT
        return not (is_recent or may_wait or self._log.segments.is_cached(log_offset, size))

    def _fetch(self, log_offset: int, size: int, may_wait: bool) -> memoryview | bytes | None:
        if may_wait and self._log.end - log_offset > _RECENT:
            return self._log.read(log_offset, size)
        return self._log.view(log_offset, size)

    def _add_run(self, got: Got, run: _Run, may_wait: bool) -> bool:
        """Add neighbours in the log; False where they are cold and must be read elsewhere."""
        size = run.end - run.start
        if not size:
            return True
        if self._is_cold(run.start, size, may_wait):
            return False
        part = self._fetch(run.start, size, may_wait)
        if part is None:  # removed while they were looked at
            got.count -= run.count
            got.size -= size
            got.status = GetStatus.FOUND if got.count else GetStatus.MESSAGE_WAS_REMOVING
        else:
            got.parts.append(part)
        return True

    def _get_batches(self, batch: BatchQueue, offset: int, count_max: int, size_max: int) -> Got:
        got = _judge_offset(offset, batch.min_offset, batch.max_offset)
        if got.status is not GetStatus.FOUND:
            return got
        got.status = GetStatus.NO_MATCHED_MESSAGE
        for unit in batch.units(offset):
            if got.count and (got.count + unit.message_count > count_max or got.size + unit.size > size_max):
                break
            got.next_offset = unit.base_offset + unit.message_count
            part = self._log.view(unit.log_offset, unit.size)
            if part is None:
                continue
            got.parts.append(part)
            got.count += unit.message_count
            got.size += unit.size
            got.status = GetStatus.FOUND
        return got

    # By time

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, is_upper: bool = False) -> int:
        """The first queue offset stored at or after a time; is_upper: the last one stored at or before it.

        Where there is none: behind the last message, or with is_upper the first.
        """
        batch = self._queues.batch.get((topic, queue_id))
        if batch is not None:
            return self._batch_by_time(batch, time_ms, is_upper)
        queue = self._queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._stored_ms(queue, middle, high)
            if stored_ms is None:
                high = middle
            elif stored_ms < time_ms or (is_upper and stored_ms == time_ms):
                low = middle + 1
            else:
                high = middle
        return low if not is_upper else max(low - 1, queue.min_offset)

    def _stored_ms(self, queue: ConsumeQueue, offset: int, limit: int) -> int | None:
        """Store time of the first message at or behind an offset; None where there is none."""
        for each in range(offset, limit):
            entry = queue.entry(each)
            if entry is not None and not entry.is_blank:
                stored_ms = self._log.store_time_ms(entry.log_offset, entry.size)
                if stored_ms >= 0:
                    return stored_ms
        return None

    @staticmethod
    def _batch_by_time(batch: BatchQueue, time_ms: int, is_upper: bool) -> int:
        found = batch.min_offset
        for unit in batch.units():
            if is_upper and unit.store_time_ms > time_ms:
                break
            found = unit.base_offset
            if not is_upper and unit.store_time_ms >= time_ms:
                break
        return found

    def store_time_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at a queue offset was stored; -1 where there is none."""
        queue = self._queues.table.get((topic, queue_id))
        entry = None if queue is None else queue.entry(offset)
        return -1 if entry is None or entry.is_blank else self._log.store_time_ms(entry.log_offset, entry.size)


def _judge_offset(offset: int, min_offset: int, max_offset: int) -> Got:
    if max_offset == 0:
        return Got(GetStatus.NO_MESSAGE_IN_QUEUE, 0, min_offset, max_offset)
    if offset < min_offset:
        return Got(GetStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset)
    if offset == max_offset:
        return Got(GetStatus.OFFSET_OVERFLOW_ONE, offset, min_offset, max_offset)
    if offset > max_offset:
        return Got(GetStatus.OFFSET_OVERFLOW_BADLY, max_offset, min_offset, max_offset)
    return Got(GetStatus.FOUND, offset, min_offset, max_offset)
