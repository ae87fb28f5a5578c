"""Queues as an offline reader sees them: ordinary ones, light ones, and those of batch topics.

Live      The queues of a running broker follow its log within a second. load() sees what is in the files now.
Removed   Retention may remove files that were there before: pieces() then raises FileNotFoundError.
"""

from __future__ import annotations

import contextlib
import difflib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.errors import StoreError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.message import LMQ_PREFIX
from rmq_core.store.batch_queue import UNIT_SIZE, BatchQueue
from rmq_core.store.consume_queue import BLANK_RECORD_SIZE, ENTRY_SIZE, ConsumeQueue
from rmq_core.store.offline_log import SEGMENT_NAME, OfflineLog
from rmq_core.store.source import Source

ENTRIES: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
UNITS: Final = np.dtype(
    [
        ("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("store_time_ms", ">i8"),
        ("base_offset", ">i8"), ("count", ">i2"), ("compacted", ">i4"), ("reserved", ">i4"),
    ]
)  # fmt: skip
_PIECE: Final = 10_000
_PAGE: Final = 4096
_FOLDERS: Final = ("consumequeue", "batchconsumequeue")


class Piece(NamedTuple):
    """Some messages of a queue: where their records are. A record of a batch topic holds several."""

    end: int
    """The queue offset behind them."""
    log_offsets: NDArray[np.int64]
    sizes: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class OfflineQueue:
    """One queue with the range of its messages that the log may still have."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    _files: ConsumeQueue | BatchQueue
    _log: OfflineLog

    @property
    def is_light(self) -> bool:
        """Its messages belong to another queue too, which their records name."""
        return self.topic.startswith(LMQ_PREFIX)

    def pieces(self, start: int, end: int, count: int = _PIECE) -> Iterator[Piece]:
        """The entries of these queue offsets in order, so many at once; blank ones are left out."""
        offset, end = max(start, self.min_offset), min(end, self.max_offset)
        while offset < end:
            if isinstance(self._files, BatchQueue):
                piece = self._units(self._files, offset, end, count)
            else:
                piece = self._entries(self._files, offset, min(count, end - offset))
            if piece.end <= offset:
                raise FileNotFoundError(f"entries of {self.topic}/{self.queue_id} from {offset} on were removed")
            yield piece
            offset = piece.end

    @staticmethod
    def _entries(files: ConsumeQueue, offset: int, count: int) -> Piece:
        entries = np.frombuffer(files.read(offset, count), ENTRIES)
        used = entries[(entries["size"] > 0) & (entries["size"] != BLANK_RECORD_SIZE)]
        return Piece(offset + len(entries), used["log_offset"].astype(np.int64), used["size"].astype(np.int32))

    @staticmethod
    def _units(batch: BatchQueue, offset: int, limit: int, count: int) -> Piece:
        data = batch.files.read(batch.place(offset) * UNIT_SIZE, count * UNIT_SIZE)
        units = np.frombuffer(data, UNITS)
        units = units[units["base_offset"] < limit]
        end = int(units["base_offset"][-1]) + int(units["count"][-1]) if len(units) else offset
        return Piece(end, units["log_offset"].astype(np.int64), units["size"].astype(np.int32))

    def offset_at(self, time_ms: int) -> int:
        """The first queue offset stored at or after a time."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._stored_ms(middle, high)
            if stored_ms is not None and stored_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _stored_ms(self, start: int, end: int) -> int | None:
        """Store time of the first message between two queue offsets that can be read."""
        with contextlib.suppress(FileNotFoundError):
            for piece in self.pieces(start, end, count=16):
                for log_offset in piece.log_offsets.tolist():
                    stored_ms = store_time_ms(self._log, log_offset)
                    if stored_ms is not None:
                        return stored_ms
        return None

    def times(self) -> tuple[datetime | None, datetime | None]:
        """When its first and last message were stored."""
        return tuple(  # type: ignore[return-value]
            None if stored_ms is None else as_datetime(stored_ms)
            for stored_ms in (
                self._stored_ms(self.min_offset, self.max_offset),
                self._stored_ms(self.max_offset - 1, self.max_offset),
            )
        )

    def size_bytes(self) -> int:
        """Bytes that the records of its messages take in the log."""
        total = 0
        with contextlib.suppress(FileNotFoundError):
            for piece in self.pieces(self.min_offset, self.max_offset):
                total += int(piece.sizes.sum(dtype=np.int64))
        return total


def as_datetime(time_ms: int) -> datetime | None:
    """A store time; None where it is none that a calendar has."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def store_time_ms(log: OfflineLog, log_offset: int) -> int | None:
    """Store time of the record at an offset; None where none can be read."""
    head = log.read(log_offset, 76)
    if len(head) < 76 or int.from_bytes(head[28:36], "big") != log_offset:
        return None
    at = 68 if head[39] & flags.BORN_HOST_V6 else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


class OfflineQueues:
    """All queues of a directory, opened when they are asked for."""

    def __init__(self, source: Source, log: OfflineLog, name: str) -> None:
        self._source = source
        self._log = log
        self._name = name
        self._opened: dict[tuple[str, int], OfflineQueue] = {}

    def topics(self) -> list[str]:
        """Every topic with a folder for queues."""
        disk, root = self._source.disk, self._source.root
        return sorted({topic for folder in _FOLDERS for topic in disk.list_directories(root / folder)})

    def ids(self, topic: str) -> list[int]:
        """The ids of a topic's queues. Raises StoreError where there is no such topic."""
        disk, root = self._source.disk, self._source.root
        names = {name for folder in _FOLDERS for name in disk.list_directories(root / folder / topic)}
        if not names:
            near = difflib.get_close_matches(topic, self.topics(), n=1, cutoff=0.0)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise StoreError(f"{self._name} has no topic {topic}{hint}")
        return sorted(int(name) for name in names if name.isdecimal())

    def get(self, topic: str, queue_id: int) -> OfflineQueue:
        """One queue. Raises StoreError where there is none, or where its files do not fit together."""
        queue = self._opened.get((topic, queue_id))
        if queue is None:
            ids = self.ids(topic)
            if queue_id not in ids:
                raise StoreError(f"the topic {topic} has no queue {queue_id}, only {', '.join(map(str, ids))}")
            queue = self._opened[topic, queue_id] = self._load(topic, queue_id)
        return queue

    def reload(self, queue: OfflineQueue) -> OfflineQueue:
        """The same queue as its files are now."""
        self._opened.pop((queue.topic, queue.queue_id), None)
        return self.get(queue.topic, queue.queue_id)

    def _load(self, topic: str, queue_id: int) -> OfflineQueue:
        disk, root = self._source.disk, self._source.root
        own: ConsumeQueue | BatchQueue
        for folder in _FOLDERS:
            path = root / folder / topic / str(queue_id)
            files = [(name, size) for name, size in disk.list(path) if SEGMENT_NAME.fullmatch(name)]
            if not files:
                continue
            size = files[0][1]
            if folder == "consumequeue":
                own = ConsumeQueue(disk, str(path), topic, queue_id, size, threading.Lock())
            else:
                own = BatchQueue(disk, str(path), topic, queue_id, size, threading.Lock())
            own.load()
            own.raise_min_offset(self._log.first)
            end = own.max_offset
            if isinstance(own, ConsumeQueue) and self._is_half_written(own):
                end -= 1
            return OfflineQueue(topic, queue_id, own.min_offset, max(end, own.min_offset), own, self._log)
        own = ConsumeQueue(disk, "", topic, queue_id, ENTRY_SIZE, threading.Lock())
        return OfflineQueue(topic, queue_id, 0, 0, own, self._log)

    def _is_half_written(self, queue: ConsumeQueue) -> bool:
        """Whether the last entry lies across two pages, and what is on the second was not there yet."""
        address = (queue.max_offset - 1) * ENTRY_SIZE
        last = queue.entry(queue.max_offset - 1)
        if last is None or last.is_blank or address % _PAGE + ENTRY_SIZE <= _PAGE:
            return False
        record = self._log.record(last.log_offset)
        return record is None or record.size != last.size
