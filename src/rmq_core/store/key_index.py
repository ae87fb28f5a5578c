"""Keys of messages on their way into the index: collected as they come, hashed and entered in bulk.

The thread that appends only hands its list over, and build() runs in another one, in steps: an array operation
keeps all other threads waiting, the loop too, for as long as it takes. After a start, and where more waits than
should be in memory, only the part of the log is remembered, and the keys come from there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import DispatchColumns, dispatch_columns, hash_record_keys
from rmq_core.protocol import sys_flag as flags
from rmq_core.store.index_file import Index
from rmq_core.store.segments import Segments
from rmq_core.store.walk import LogWalk, Stretch

if TYPE_CHECKING:
    from rmq_core.store.dispatcher import Appended

PENDING_MAX: Final = 100_000
"""Messages remembered one by one."""
STEP: Final = 2048
"""Messages entered at once."""
_INT_MIN: Final = -(1 << 31)


class KeyIndex:
    """The index, and what waits to be entered in it."""

    def __init__(self, index: Index, segments: Segments) -> None:
        self.index = index
        self._segments = segments
        self._pending: list[int] = []
        self._behind: tuple[int, int] | None = None
        self._lock = threading.Lock()  # of the two above; taken last, and never held for long
        self._building = threading.Lock()

    @property
    def lag_bytes(self) -> int:
        """How much of the log holds messages whose keys cannot be found yet."""
        with self._lock:
            if self._behind is not None:
                return self._behind[1] - self._behind[0]
            return self._pending[-1] - self._pending[0] + 1 if self._pending else 0

    def collect(self, appended: list[Appended]) -> None:
        """Remember messages for the next build()."""
        with self._lock:
            if self._behind is None and len(self._pending) < PENDING_MAX:
                self._pending += [each[2] for each in appended]
                return
        last = appended[-1]
        self.collect_log(appended[0][2], last[2] + last[3])

    def collect_log(self, start: int, end: int) -> None:
        """The same for a part of the log, which build() will read."""
        with self._lock:
            if self._behind is not None:
                start = self._behind[0]
            elif self._pending:
                start, self._pending = self._pending[0], []
            if start < end:
                self._behind = (start, end)

    def build(self, stop: threading.Event | None = None) -> None:
        """Enter what was collected: it is read from the log. Raises OSError; it is all tried again then."""
        with self._building:
            while self._behind is not None:
                if not self._build_log(*self._behind, stop):
                    return
            with self._lock:
                pending, self._pending = self._pending, []
            try:
                self._build_pending(pending)
            except OSError:
                with self._lock:
                    self._pending = pending + self._pending
                raise

    def build_recent(self) -> None:
        """The same for messages that came lately; nothing while the index has to catch up with the log."""
        if self._behind is None:
            self.build()

    def _build_pending(self, pending: list[int]) -> None:
        offsets = np.array(pending, np.int64)
        starts = offsets - offsets % self._segments.size
        for start in np.unique(starts).tolist():
            found = self._segments.file_view(start)
            if found is not None:
                self._enter_in_steps(found[0], offsets[starts == start] - start)

    def _build_log(self, start: int, end: int, stop: threading.Event | None) -> bool:
        """Enter the keys of a part of the log; False where that was stopped."""
        for step in LogWalk(self._segments, start, end, verify_crc=False):
            if stop is not None and stop.is_set():
                return False
            if isinstance(step, Stretch):
                self._enter_in_steps(step.buffer, step.positions)
                self._built(step.end)
        self._built(end)
        return True

    def _built(self, end: int) -> None:
        with self._lock:
            if self._behind is not None and self._behind[0] < end:
                self._behind = (end, self._behind[1]) if end < self._behind[1] else None

    def build_log(self, buffer: memoryview, columns: DispatchColumns) -> None:
        """Enter the keys of records read from the log."""
        with self._building:
            self._enter(buffer, columns)

    def _enter_in_steps(self, buffer: memoryview, positions: NDArray[np.int64]) -> None:
        for first in range(0, len(positions), STEP):
            self._enter(buffer, dispatch_columns(buffer, positions[first : first + STEP]))

    def _enter(self, buffer: memoryview, columns: DispatchColumns) -> None:
        rows, hashes = key_rows(buffer, columns)
        if len(rows):
            self.index.add(hashes, columns.log_offsets[rows], columns.store_times_ms[rows])


def key_rows(buffer: memoryview, columns: DispatchColumns) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The hashes that records have in the index, and whose they are: the client's id first, then each own key."""
    shown = columns.sys_flags & flags.TRANSACTION_MASK != flags.TRANSACTION_ROLLBACK
    rows, hashes = hash_record_keys(buffer, columns, shown)
    return rows, _index_hashes(hashes)


def _index_hashes(hashes: NDArray[Any]) -> NDArray[Any]:
    """Java's absolute value, where the smallest number has none and counts as 0."""
    return np.where(hashes == _INT_MIN, 0, np.abs(hashes)).astype(np.int32)
