"""The log as an offline reader sees it: in one or several folders, in windows, and perhaps still growing.

Walk      LogWalk goes through one window after the other. A record that a window cuts is met again at the start of
          the next one. Behind 32 MiB and more of nothing but zeros no record is looked for in that file.
Growing   A record that is being written can look whole before its last page is there, but then its last byte is
          still zero: so the last record of a log does not count. What looks like damage is looked at twice.
"""

from __future__ import annotations

import bisect
import itertools
import re
import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import next_record
from rmq_core.errors import StoreError
from rmq_core.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    StoredRecord,
    check_record,
    decode_record,
)
from rmq_core.store.source import Source, View
from rmq_core.store.walk import Damage, LogWalk, Stretch

_HEAD: Final = struct.Struct(">ii")
SEGMENT_NAME: Final = re.compile(r"[0-9]{20}")
_GAP_MAX: Final = 16 << 10
"""Records of one queue that are nearer to each other than this are fetched together."""
_FETCH_MAX: Final = 64 << 20
_MANY: Final = 1000
"""So many records of one window make a batch of their own, and need not be copied together."""


def segment_size(files: Sequence[tuple[str, int]]) -> int:
    """The size that files of a log were made with; 0 where none has a fitting one.

    Each file starts at a multiple of it. Of several possible sizes the commonest counts, then the largest.
    """
    starts = [int(name) for name, size in files if SEGMENT_NAME.fullmatch(name) and size]
    sizes = [size for name, size in files if SEGMENT_NAME.fullmatch(name) and size]
    fits = [(sum(start % size == 0 for start in starts), sizes.count(size), size) for size in set(sizes)]
    return max(fits)[2] if fits else 0


class Gathered(NamedTuple):
    """Records from here and there in one buffer."""

    buffer: memoryview
    base: int
    """Log offset of the buffer's first byte, where it is one part of the log."""
    positions: NDArray[np.int64]
    rows: NDArray[np.int64]
    """Which of the wanted records these are: others are gone."""


@dataclass(slots=True)
class _Window:
    """A part of a file in the form in which LogWalk takes files."""

    view: memoryview
    base: int
    size: int
    """From the base to the end of the file, so that a blank record leads there."""

    @property
    def end(self) -> int:
        return self.base + len(self.view)

    @property
    def file_end(self) -> int:
        return self.base + self.size

    def file_view(self, offset: int) -> View | None:
        return (self.view, self.base) if self.base <= offset < self.end else None

    def next_start(self, offset: int) -> int | None:
        return None


class OfflineLog:
    """The files of a log."""

    def __init__(self, sources: Sequence[tuple[Source, Path]], name: str) -> None:
        """sources: where the folders of the log are. Raises StoreError where none holds a log."""
        files = [
            (source, folder / file, size) for source, folder in sources for file, size in source.disk.list(folder)
        ]
        self.size = segment_size([(path.name, size) for _, path, size in files])
        if not self.size:
            raise StoreError(
                f"{name} has no commit log; where storePathCommitLog names another folder, give that as commit_log"
            )
        self._files = {
            int(path.name): (source, path)
            for source, path, _ in files
            if SEGMENT_NAME.fullmatch(path.name) and int(path.name) % self.size == 0
        }
        self.starts = sorted(self._files)
        self.is_local = all(source.is_local for source, _ in sources)

    @property
    def first(self) -> int:
        """Where the oldest file starts."""
        return self.starts[0]

    @property
    def end(self) -> int:
        """Where the newest file ends."""
        return self.starts[-1] + self.size

    def next_start(self, offset: int) -> int | None:
        """The start of the first file behind the one that an offset belongs to."""
        at = bisect.bisect_right(self.starts, offset)
        return self.starts[at] if at < len(self.starts) else None

    def _file(self, offset: int) -> tuple[Source, Path, int] | None:
        start = offset - offset % self.size
        found = self._files.get(start)
        return None if found is None else (*found, start)

    def window(self, offset: int, size: int = 0) -> _Window | None:
        """Bytes from an offset on, perhaps with some before; None where there is no file, or it was removed."""
        file = self._file(offset)
        if file is None:
            return None
        source, path, start = file
        try:
            view, position = source.window(path, offset - start, max(size, 1))
        except FileNotFoundError:
            return None
        view = view[: self.size - position]
        return _Window(view, start + position, self.size - position)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of one file; fewer where it ends before or is gone."""
        file = self._file(offset)
        if file is None:
            return b""
        source, path, start = file
        try:
            return source.disk.read(path, offset - start, min(size, start + self.size - offset))
        except FileNotFoundError:
            return b""

    # Walking

    def first_record(self, offset: int) -> int | None:
        """Where the first whole record at or behind an offset starts; None where there is none."""
        at: int | None = max(offset, self.first)
        while at is not None:
            found = self._search(at)
            if found is not None:
                return found
            at = self.next_start(at)
        return None

    def _search(self, offset: int) -> int | None:
        """The first whole record in the rest of a file."""
        while (window := self.window(offset)) is not None and offset < window.end:
            rest = window.view[offset - window.base :]
            at = next_record(rest, 0, base=offset)
            if at >= 0:
                return offset + at
            if window.end >= window.file_end or not np.frombuffer(rest, np.uint8).any():
                return None
            # The next window overlaps this one by half, so that it shows what this one cut.
            offset += (len(rest) + 1) // 2
        return None

    def walk(self, start: int, *, verify_crc: bool = True) -> Iterator[Stretch | Damage]:
        """Good records from a place where one starts, and what lies between them. Ends with the last good one."""
        offset = start
        while True:
            window = self._record_window(offset)
            if window is None or offset >= window.end:
                following, reason = self.first_record(offset), "the file is missing"
            else:
                end = yield from self._walk_window(window, offset, verify_crc)
                if end is None:
                    return
                if end > offset:
                    offset = end
                    continue
                following, reason = self.first_record(offset + 1), "no whole record"
                if self._is_whole(offset):  # it was written in this moment
                    continue
            if following is None:
                return
            if following > offset:
                yield Damage(offset, following, reason)
            offset = following

    def _walk_window(
        self, window: _Window, start: int, verify_crc: bool
    ) -> Generator[Stretch | Damage, None, int | None]:
        """Walk through one window. The result is where to go on; None where the log ends for now."""
        walk = LogWalk(window, start, verify_crc=verify_crc)
        for step in walk:
            if isinstance(step, Damage):
                if self._is_whole(step.start):
                    return step.start
                yield step
            elif _is_finished(step):
                yield step
            else:
                if len(step.positions) > 1:
                    yield Stretch(step.buffer, step.base, step.positions[:-1], step.sizes[:-1])
                return None
        return walk.end

    def _record_window(self, offset: int) -> _Window | None:
        """A window that has all of the record at an offset, however large it says it is."""
        window = self.window(offset, _HEAD.size)
        if window is None:
            return None
        size = self._claimed_size(window.view[offset - window.base :][: _HEAD.size])
        return window if offset + size <= window.end else self.window(offset, size)

    def _claimed_size(self, head: bytes | memoryview) -> int:
        """What the head of a record says; 0 where it is none."""
        if len(head) < _HEAD.size:
            return 0
        size, magic = _HEAD.unpack(head)
        return size if magic in (MAGIC_V1, MAGIC_V2) and RECORD_SIZE_MIN <= size <= self.size else 0

    def _is_whole(self, offset: int) -> bool:
        """Whether a record or the end of a file stands there now."""
        window = self._record_window(offset)
        if window is None:
            return False
        at = offset - window.base
        if _HEAD.size <= window.end - offset and _HEAD.unpack_from(window.view, at)[1] == MAGIC_BLANK:
            return True
        if offset + RECORD_SIZE_MIN > window.end:
            return False
        check = check_record(window.view, at)
        return check.is_valid and check.size > 0 and int.from_bytes(window.view[at + 28 : at + 36], "big") == offset

    # Single records, and those of a queue

    def record(self, offset: int) -> StoredRecord | None:
        """The whole record that starts at an offset; None where none does."""
        size = self._claimed_size(self.read(offset, _HEAD.size))
        data = self.read(offset, size) if size else b""
        if len(data) < size or not size:
            return None
        check = check_record(data, 0)
        if not check.is_valid or check.size != size:
            return None
        record = decode_record(data)
        return record if record.log_offset == offset else None

    def portion(self, offsets: NDArray[np.int64], sizes: NDArray[np.int32]) -> int:
        """How many of these records may be gathered at once, at least one: those of one window if they are many."""
        if self.is_local and (window := self.window(int(offsets[0]))) is not None:
            count = int(np.argmin(np.append(offsets + sizes <= window.end, False)))
            if count >= _MANY:
                return count
        gaps = np.clip(np.diff(offsets, prepend=offsets[:1]), 0, _GAP_MAX)
        costs = np.cumsum(sizes + gaps, dtype=np.int64)
        return max(int(np.searchsorted(costs, _FETCH_MAX, side="right")), 1)

    def gather(self, offsets: NDArray[np.int64], sizes: NDArray[np.int32]) -> Gathered:
        """The bytes of these records: as they are mapped where that is one window, else copied together."""
        ends = offsets + sizes
        rows = np.arange(len(offsets))
        low, high = int(offsets.min()), int(ends.max())
        window = self.window(low) if self.is_local else None
        if window is not None and high <= window.end:
            return Gathered(window.view, window.base, offsets - window.base, rows)
        parts: list[bytes | memoryview] = []
        positions = np.full(len(offsets), -1, np.int64)
        gap_max = 0 if self.is_local else _GAP_MAX
        is_new_run = (
            (np.diff(offsets) < 0) | (offsets[1:] - ends[:-1] > gap_max) | (np.diff(offsets // self.size) != 0)
        )
        bounds = [0, *(np.flatnonzero(is_new_run) + 1).tolist(), len(offsets)]
        runs = [
            (low, high, int(offsets[low]), int(ends[low:high].max())) for low, high in itertools.pairwise(bounds)
        ]
        done = 0
        for start, group in itertools.groupby(runs, key=lambda run: run[2] - run[2] % self.size):
            own = list(group)
            for (low, high, begin, end), part in zip(own, self._read_runs(start, own), strict=False):
                positions[low:high] = offsets[low:high] - begin + done
                parts += (part, bytes(end - begin - len(part)))
                done += end - begin
        rows = np.flatnonzero(positions >= 0)
        return Gathered(memoryview(b"".join(parts)), 0, positions[rows], rows)

    def _read_runs(self, start: int, runs: list[tuple[int, int, int, int]]) -> Sequence[bytes | memoryview]:
        """The bytes of runs in one file; nothing where it is gone."""
        file = self._file(start)
        if file is None:
            return ()
        source, path, _ = file
        try:
            return source.read_runs(path, [(begin - start, end - start) for _, _, begin, end in runs])
        except FileNotFoundError:
            return ()


def _is_finished(step: Stretch) -> bool:
    """Whether the last record of a stretch is all there: something follows it, or its last byte is no zero."""
    at, size = int(step.positions[-1]), int(step.sizes[-1])
    if any(step.buffer[at + size : at + size + 4]):
        return True
    record = decode_record(step.buffer, at)
    return (record.property_bytes or b"no properties")[-1] != 0
