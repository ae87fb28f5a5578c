"""From one good record of the log to the next: what recovery, verification and every offline reader share.

A damaged region is passed over: the walk goes on at the next record that is whole and stands where it says. The
walk ends where no such record follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import find_records, next_record, valid_records

CHUNK = 10_000
"""Records looked at in one step."""


class LogFiles(Protocol):
    """What a walk asks of a log: its files, by the offsets they start at."""

    size: int

    def file_view(self, offset: int) -> tuple[memoryview, int] | None: ...

    def next_start(self, offset: int) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """Good records, one behind the other, in one file."""

    buffer: memoryview
    base: int
    """Log offset of the buffer's first byte."""
    positions: NDArray[np.int64]
    sizes: NDArray[np.int32]

    @property
    def end(self) -> int:
        return self.base + int(self.positions[-1]) + int(self.sizes[-1])


@dataclass(frozen=True, slots=True)
class Damage:
    """Log offsets between which nothing can be read."""

    start: int
    end: int
    reason: str


class LogWalk:
    """Walk from one log offset to another; `end` is behind the last good record once it is over."""

    def __init__(self, files: LogFiles, start: int, end: int | None = None, *, verify_crc: bool = True) -> None:
        self._files = files
        self._limit = end
        self._verify_crc = verify_crc
        self.end = start

    def __iter__(self) -> Iterator[Stretch | Damage]:
        offset = self.end
        while self._limit is None or offset < self._limit:
            found = self._files.file_view(offset)
            if found is None:
                following = self._first_good_file(offset)
                if following is None:
                    return
                if following > offset:
                    yield Damage(offset, following, "the file is missing")
                offset = following
                continue
            buffer, base = found
            stretch, stop, is_blank = self._stretch(buffer, base, offset)
            if stretch is not None:
                yield stretch
                self.end = offset = stretch.end
            if stop is None:
                continue
            if is_blank:
                self.end = offset = base + self._files.size
                continue
            following = self._following(buffer, base, stop)
            if following is None:
                return
            whole_now, _, is_blank_now = self._stretch(buffer, base, offset)
            if whole_now is not None or is_blank_now:
                continue  # a writer has just been there: it wrote this before what follows
            yield Damage(offset, following, "no whole record")
            offset = following

    def _stretch(self, buffer: memoryview, base: int, offset: int) -> tuple[Stretch | None, int | None, bool]:
        """Good records from an offset, and where they stop if something else is there."""
        room = len(buffer) if self._limit is None else min(len(buffer), self._limit - base)
        found = find_records(buffer, offset - base, room, count_max=CHUNK)
        positions, sizes = found.positions, found.sizes
        if not len(positions):
            return None, offset - base if found.stop < room else None, found.is_blank
        good = valid_records(buffer, positions, sizes, verify_crc=self._verify_crc)
        good &= _stored_offsets(buffer, positions) == base + positions
        count = len(good) if good.all() else int(np.argmin(good))
        stretch = Stretch(buffer, base, positions[:count], sizes[:count]) if count else None
        if count < len(good):
            return stretch, int(positions[count]), False
        is_at_end = len(positions) == CHUNK and not found.is_blank
        return stretch, None if is_at_end or found.stop >= room else found.stop, found.is_blank

    def _following(self, buffer: memoryview, base: int, position: int) -> int | None:
        """The log offset of the next good record behind a position where none is."""
        room = len(buffer) if self._limit is None else min(len(buffer), self._limit - base)
        at = next_record(buffer, position + 1, base=base, end=room)
        return base + at if at >= 0 else self._first_good_file(base)

    def _first_good_file(self, offset: int) -> int | None:
        start = self._files.next_start(offset)
        while start is not None and (self._limit is None or start < self._limit):
            found = self._files.file_view(start)
            if found is not None and (at := next_record(found[0], 0, base=start)) >= 0:
                return start + at
            start = self._files.next_start(start)
        return None


def _stored_offsets(buffer: memoryview, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    every = np.ndarray((len(buffer) - 7,), ">i8", buffer=buffer, strides=(1,))
    return every[positions + 28].astype(np.int64)
