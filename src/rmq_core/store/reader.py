"""A read-only view of a store directory: running, crashed, or Apache's; on this machine or wherever fsspec reaches.

Nothing is locked and nothing is written. What is seen of a running broker is a prefix of its messages: whole
records of the log, and queues that follow it within a second; refresh() sees more. What cannot be read is passed
over and said in `report`. Remote files are read in ranges, never copied.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar import row_schema, valid_records
from rmq_core.errors import CorruptRecordError, StoreError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import StoredRecord
from rmq_core.store.find import Finder
from rmq_core.store.inner_messages import decode_messages, inner_messages, sys_flags
from rmq_core.store.offline_log import Gathered, OfflineLog
from rmq_core.store.offline_queues import OfflineQueue, OfflineQueues, store_time_ms
from rmq_core.store.source import open_source
from rmq_core.store.walk import Damage, Stretch

if TYPE_CHECKING:
    import pandas as pd

Columns: TypeAlias = Sequence[str] | str | None
OnCorrupt: TypeAlias = Literal["skip", "fail"]

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 32 << 20
_FAR_FUTURE_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages of one queue, from one queue offset to before another."""

    topic: str
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """Messages whose records start between two offsets of the log."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue, as its files show it."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_time: datetime | None
    """When the first message was stored; None where there is none."""
    last_time: datetime | None
    size_bytes: int | None
    """Bytes of its records in the log; None where that was not asked for."""

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(slots=True)
class ReadReport:
    """What was passed over."""

    damages: list[Damage] = field(default_factory=list)
    """Regions of the log where no message could be read."""
    removed: list[QueueRange] = field(default_factory=list)
    """Messages that retention removed while they were being read."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What rows are wanted, and in which form."""

    columns: Columns
    include_properties: bool
    broker: str | None
    on_corrupt: OnCorrupt
    times_ms: tuple[int, int] | None = None


class StoreReader:
    """Made by open_store()."""

    def __init__(
        self,
        url: str | Path,
        *,
        commit_log: Sequence[str | Path] = (),
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.url = str(url)
        options = storage_options or {}
        self._source = open_source(url, options)
        folders = [open_source(each, options) for each in commit_log]
        self._folders = [(each, each.root) for each in folders] or [(self._source, self._source.root / "commitlog")]
        self.report = ReadReport()
        """What reading has passed over so far."""
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StoreReader {self.url}: log {self.log.first}..{self.log.end}>"

    def close(self) -> None:
        """Let all files go; rows that were read stay good."""
        self._source.forget()
        for source, _ in self._folders:
            source.forget()

    def refresh(self) -> None:
        """Look again at a directory that is being written to."""
        self.close()
        self.log = OfflineLog(self._folders, self.url)
        self._queues = OfflineQueues(self._source, self.log, self.url)

    # What there is

    def topics(self, *, sizes: bool | None = None) -> list[QueueInfo]:
        """Every queue with its range, times and size.

        A size takes a look at every entry: unless `sizes` says otherwise only where the files are on this machine.
        """
        with_sizes = self._source.is_local if sizes is None else sizes
        found = []
        for topic in self._queues.topics():
            for queue_id in self._queues.ids(topic):
                queue = self._queues.get(topic, queue_id)
                size = queue.size_bytes() if with_sizes else None
                found.append(QueueInfo(topic, queue_id, queue.min_offset, queue.max_offset, *queue.times(), size))
        return found

    def queue_ranges(
        self, topic: str, *, queue: int | None = None, start: datetime | None = None, end: datetime | None = None
    ) -> list[QueueRange]:
        """The ranges of a topic's queues between two store times. Raises StoreError for one that is not there."""
        from_ms, to_ms = _to_ms(start), _to_ms(end)
        found = []
        for queue_id in self._queues.ids(topic) if queue is None else [queue]:
            own = self._queues.get(topic, queue_id)
            first = own.min_offset if from_ms is None else own.offset_at(from_ms)
            last = own.max_offset if to_ms is None else own.offset_at(to_ms)
            found.append(QueueRange(topic, queue_id, first, max(first, last)))
        return found

    def log_range(self, *, start: datetime | None = None, end: datetime | None = None) -> LogRange:
        """The files of the log that can have messages between two store times."""
        from_ms, to_ms = _to_ms(start), _to_ms(end)
        starts, low, high = self.log.starts, 0, len(self.log.starts)
        if from_ms is not None:
            low = max(bisect.bisect_left(starts, from_ms, key=self._first_time) - 1, 0)
        if to_ms is not None:
            high = bisect.bisect_left(starts, to_ms, lo=low, key=self._first_time)
        return LogRange(starts[low], starts[high] if high < len(starts) else self.log.end)

    def _first_time(self, start: int) -> int:
        stored_ms = store_time_ms(self.log, start)
        if stored_ms is None:  # no message starts the file: it counts as what the next one is
            following = self.log.next_start(start)
            return _FAR_FUTURE_MS if following is None else self._first_time(following)
        return stored_ms

    def count(self, topic: str | None = None) -> int:
        """How many messages a topic has, or the whole log, without a look at their bodies."""
        if topic is not None:
            return sum(each.end - each.start for each in self.queue_ranges(topic))
        total = 0
        for step in self._walk(LogRange(self.log.first, self.log.end), verify_crc=False):
            if isinstance(step, Stretch):
                total += len(step.positions)
                batches = step.positions[sys_flags(step.buffer, step.positions) & flags.INNER_BATCH != 0]
                for at in batches.tolist():
                    record = self.log.record(step.base + at)
                    total += len(inner_messages(record)) - 1 if record is not None else 0
        return total

    def splits(self, size: int = 128 << 20, topic: str | None = None) -> list[QueueRange] | list[LogRange]:
        """Ranges of about so many bytes for parallel readers, of a topic's queues or of the log, for read_range().

        Together they cover everything once.
        """
        if size <= 0:
            raise ValueError(f"a split of {size} bytes")
        if topic is None:
            return [
                LogRange(at, min(at + size, start + self.log.size))
                for start in self.log.starts
                for at in range(start, start + self.log.size, size)
            ]
        found: list[QueueRange] = []
        for each in self.queue_ranges(topic):
            own = self._queues.get(topic, each.queue_id)
            # A few sizes tell how many messages make up a split.
            sample = next(iter(own.pieces(each.start, each.end, count=1000)), None)
            mean = 0.0 if sample is None else float(sample.sizes.sum()) / max(sample.end - each.start, 1)
            step = max(int(size // max(mean, 1)), 1)
            found += [
                QueueRange(topic, each.queue_id, at, min(at + step, each.end))
                for at in range(each.start, each.end, step)
            ]
        return found

    # Messages as columns

    def to_batches(
        self,
        topic: str | None = None,
        *,
        queue: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        columns: Columns = None,
        include_properties: bool = False,
        broker: str | None = None,
        on_corrupt: OnCorrupt = "skip",
    ) -> Iterator[pa.RecordBatch]:
        """Messages of a topic (queue by queue), or of the whole log in its order, as Arrow batches.

        start, end: store times, the end not included. broker: the column of that name, by default what the store
        says of itself. on_corrupt: "skip" passes damage over and notes it in `report`; "fail" raises
        CorruptRecordError. Raises ValueError and StoreError for wrong arguments at once, before anything is read.
        """
        request = self._request(columns, include_properties, broker, on_corrupt)
        ranges: Sequence[QueueRange | LogRange]
        if topic is not None:
            ranges = self.queue_ranges(topic, queue=queue, start=start, end=end)
        elif queue is not None:
            raise ValueError("a queue belongs to a topic: give both")
        else:
            ranges = [self.log_range(start=start, end=end)]
            times = (_to_ms(start) or 0, _FAR_FUTURE_MS if end is None else _to_ms(end) or 0)
            if start is not None or end is not None:
                request = _Request(request.columns, include_properties, request.broker, on_corrupt, times)
        return (batch for each in ranges for batch in self._read(each, request))

    def read_range(
        self,
        range_: QueueRange | LogRange,
        *,
        columns: Columns = None,
        include_properties: bool = False,
        broker: str | None = None,
        on_corrupt: OnCorrupt = "skip",
    ) -> Iterator[pa.RecordBatch]:
        """The messages of one range, as those of to_batches()."""
        return self._read(range_, self._request(columns, include_properties, broker, on_corrupt))

    def to_arrow(
        self,
        topic: str | None = None,
        *,
        queue: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        columns: Columns = None,
        include_properties: bool = False,
        broker: str | None = None,
        on_corrupt: OnCorrupt = "skip",
    ) -> pa.Table:
        """What to_batches() gives, as one table."""
        batches = self.to_batches(
            topic, queue=queue, start=start, end=end, columns=columns, include_properties=include_properties,
            broker=broker, on_corrupt=on_corrupt,
        )  # fmt: skip
        return pa.Table.from_batches(batches, row_schema(columns, include_properties=include_properties))

    def to_pandas(
        self,
        topic: str | None = None,
        *,
        queue: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        columns: Columns = None,
        include_properties: bool = False,
        broker: str | None = None,
        on_corrupt: OnCorrupt = "skip",
    ) -> pd.DataFrame:
        """What to_batches() gives, as a pandas DataFrame; pandas must be installed."""
        return self.to_arrow(
            topic, queue=queue, start=start, end=end, columns=columns, include_properties=include_properties,
            broker=broker, on_corrupt=on_corrupt,
        ).to_pandas()  # fmt: skip

    def _request(
        self, columns: Columns, include_properties: bool, broker: str | None, on_corrupt: OnCorrupt
    ) -> _Request:
        row_schema(columns, include_properties=include_properties)
        if on_corrupt not in ("skip", "fail"):
            raise ValueError(f"on_corrupt is skip or fail, not {on_corrupt!r}")
        return _Request(columns, include_properties, broker or self._broker_name(), on_corrupt)

    def _broker_name(self) -> str | None:
        """The name in `brokerIdentity`, which brokers under a controller write."""
        try:
            text = self._source.disk.read(self._source.root / "brokerIdentity", 0, 1024)
        except (FileNotFoundError, IsADirectoryError):
            return None
        parts = text.decode("utf-8", "replace").strip().split("#")
        return parts[1] if len(parts) > 2 else None

    def _read(self, range_: QueueRange | LogRange, request: _Request) -> Iterator[pa.RecordBatch]:
        steps = self._queue_steps(range_) if isinstance(range_, QueueRange) else self._walk(range_)
        for step in steps:
            if isinstance(step, Damage):
                if request.on_corrupt == "fail":
                    raise CorruptRecordError(step.start, step.reason)
                self.report.damages.append(step)
                continue
            positions, sizes = step.positions, step.sizes
            if request.times_ms is not None:
                wanted = _between(step, request.times_ms)
                positions, sizes = positions[wanted], sizes[wanted]
            for low, high in _cut(sizes):
                yield from decode_messages(
                    step.buffer,
                    positions[low:high],
                    columns=request.columns,
                    include_properties=request.include_properties,
                    broker=request.broker,
                    base=step.base,
                    offsets=(range_.start, range_.end) if isinstance(range_, QueueRange) else None,
                )

    def _walk(self, range_: LogRange, *, verify_crc: bool = True) -> Iterator[Stretch | Damage]:
        """Good records that start in a range of the log, and the damage that does."""
        start = self.log.first_record(range_.start)
        if start is None:
            return
        if range_.start <= self.log.first < start < range_.end:
            is_gone = self.log.window(self.log.first) is None
            yield Damage(self.log.first, start, "the file is missing" if is_gone else "no whole record")
        if start >= range_.end:
            return
        for step in self.log.walk(start, verify_crc=verify_crc):
            if isinstance(step, Damage):
                if step.start >= range_.end:
                    return
                yield step
                continue
            count = int(np.searchsorted(step.base + step.positions, range_.end))
            if count:
                yield Stretch(step.buffer, step.base, step.positions[:count], step.sizes[:count])
            if count < len(step.positions):
                return

    # Queues

    def _queue_steps(self, range_: QueueRange) -> Iterator[Stretch | Damage]:
        queue = self._queues.get(range_.topic, range_.queue_id)
        offset, end = max(range_.start, queue.min_offset), min(range_.end, queue.max_offset)
        if range_.start < offset:
            self._note_removed(range_, range_.start, min(offset, range_.end))
        while offset < end:
            try:
                for piece in queue.pieces(offset, end, count=BATCH_ROWS):
                    yield from self._records(queue, piece.log_offsets, piece.sizes)
                    offset = piece.end
                return
            except FileNotFoundError:
                queue = self._queues.reload(queue)
                following = max(queue.min_offset, offset)
                if following == offset:
                    raise StoreError(f"the files of {queue.topic}/{queue.queue_id} are gone") from None
                self._note_removed(range_, offset, min(following, end))
                offset = following

    def _note_removed(self, range_: QueueRange, start: int, end: int) -> None:
        self.report.removed.append(QueueRange(range_.topic, range_.queue_id, start, end))

    def _records(
        self, queue: OfflineQueue, offsets: NDArray[np.int64], sizes: NDArray[np.int32]
    ) -> Iterator[Stretch | Damage]:
        """The records that some entries name, and those that are not there."""
        is_wild = (offsets < 0) | (offsets % self.log.size + sizes > self.log.size)
        for row in np.flatnonzero(is_wild).tolist():
            yield self._bad_entry(queue, offsets, sizes, row, "no record can be there")
        offsets, sizes = offsets[~is_wild], sizes[~is_wild]
        while len(offsets):
            count = self.log.portion(offsets, sizes)
            found = self.log.gather(offsets[:count], sizes[:count])
            good = self._are_named(queue, found, sizes[:count])
            missing = np.setdiff1d(np.arange(count), found.rows[good])
            for row in missing.tolist():
                yield self._bad_entry(queue, offsets, sizes, row, "no whole record of it is there")
            if good.any():
                rows = found.rows[good]
                yield Stretch(found.buffer, found.base, found.positions[good], sizes[rows])
            offsets, sizes = offsets[count:], sizes[count:]

    @staticmethod
    def _are_named(queue: OfflineQueue, found: Gathered, sizes: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which records are whole, and of this queue."""
        good = valid_records(found.buffer, found.positions, sizes[found.rows])
        ids = np.ndarray((max(len(found.buffer) - 3, 0),), ">i4", buffer=found.buffer, strides=(1,))
        if not queue.is_light:
            good[good] = ids[found.positions[good] + 12] == queue.queue_id
        return good

    @staticmethod
    def _bad_entry(
        queue: OfflineQueue, offsets: NDArray[np.int64], sizes: NDArray[np.int32], row: int, reason: str
    ) -> Damage:
        start = int(offsets[row])
        return Damage(
            start, start + int(sizes[row]), f"an entry of {queue.topic}/{queue.queue_id} names it, {reason}"
        )

    # Single messages

    def record(self, log_offset: int) -> StoredRecord | None:
        """The message at a log offset; None where there is none."""
        return self.log.record(log_offset)

    def find(
        self, *, key: str | None = None, msg_id: str | None = None, topic: str | None = None, count_max: int = 64
    ) -> list[StoredRecord]:
        """Messages by one of their keys, or by either kind of message id; newest first.

        What the index does not cover yet is looked for in the log itself.
        """
        if (key is None) == (msg_id is None):
            raise ValueError("give either key or msg_id")
        if count_max <= 0:
            raise ValueError(f"count_max is {count_max}")
        if topic is not None:
            self._queues.ids(topic)
        finder = Finder(self._source, self.log, [topic] if topic is not None else self._queues.topics())
        if msg_id is not None and (record := finder.by_offset_id(msg_id)) is not None:
            return [record] if topic in (None, record.topic) else []
        return finder.by_key(key or msg_id or "", count_max)


def open_store(
    url: str | Path, *, commit_log: str | Path | Sequence[str | Path] = (), **storage_options: Any
) -> StoreReader:
    """Look into a store directory: a path, or a URL that fsspec knows (its options follow by name).

    commit_log: the folders that storePathCommitLog names, where they are not `commitlog` in the store. Raises
    StoreError where there is no store.
    """
    folders = [commit_log] if isinstance(commit_log, str | Path) else list(commit_log)
    return StoreReader(url, commit_log=folders, storage_options=storage_options)


def _to_ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise TypeError(f"a time is a datetime, not {time!r}")
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone: give an aware datetime")
    return -int(-time.timestamp() * 1000 // 1)  # rounded up: a message counts from its millisecond on


def _between(step: Stretch, times_ms: tuple[int, int]) -> NDArray[np.bool_]:
    every = np.ndarray((max(len(step.buffer) - 7, 0),), ">i8", buffer=step.buffer, strides=(1,))
    is_v6 = sys_flags(step.buffer, step.positions) & flags.BORN_HOST_V6 != 0
    times = every[step.positions + np.where(is_v6, 68, 56)]
    is_between: NDArray[np.bool_] = (times >= times_ms[0]) & (times < times_ms[1])
    return is_between


def _cut(sizes: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Cut rows into batches that are neither too long nor too large."""
    ends = np.cumsum(sizes, dtype=np.int64)
    low = 0
    while low < len(sizes):
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
        high = min(max(high, low + 1), low + BATCH_ROWS)
        yield low, high
        low = high
