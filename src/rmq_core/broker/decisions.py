"""Which half messages are decided: the book that the op messages keep, in memory.

Done      Every half message before `done` is decided, asked about again as a newer copy, or given up. Behind it,
          the decided ones are remembered one by one: as many as came since the oldest undecided one.
Copies    A half message that the broker asks about is put again, so that `done` can pass the old one. Each copy
          names the first (TRAN_PREPARED_QUEUE_OFFSET); the newest stands for all, and a decision about an old one
          is a decision about it.
Durable   `done` passes a half message only once what decided it is confirmed, that is visible to readers and, with
          SYNC_FLUSH, on disk. Positions derived from it may therefore be stored at any time.
"""

from __future__ import annotations

from collections import deque


class Decisions:
    """The decided half messages of a queue."""

    def __init__(self, done: int = 0, op_done: int = 0) -> None:
        self.done = done
        """Queue offset before which every half message is decided."""
        self.op_done = op_done
        """Op messages before this queue offset only tell of such half messages."""
        self._ends: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._ops: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._ends)

    def is_decided(self, offset: int) -> bool:
        """Whether nothing is to be done any more about the half message at a queue offset."""
        return offset < self.done or offset in self._ends

    def decide(self, offset: int, log_end: int = 0) -> None:
        """The half message at a queue offset is decided by what ends at log_end."""
        if offset >= self.done:
            self._ends[offset] = min(self._ends.get(offset, log_end), log_end)

    def note_op(self, op_offset: int, halves: list[int]) -> None:
        """The op message at op_offset tells of these half messages; in the order of op_offset."""
        self._ops.append((op_offset, max(halves, default=-1)))

    def renew(self, first: int, offset: int) -> None:
        """The half message that first stood at `first` has a copy at `offset`."""
        if offset >= self._newest.get(first, offset):
            self._first.pop(self._newest.get(first, -1), None)
            self._newest[first] = offset
            self._first[offset] = first

    def newest(self, first: int, offset: int) -> int:
        """Where the newest copy stands of the half message that first stood at `first`, now read at `offset`."""
        return max(self._newest.get(first, offset), offset)

    def advance(self, confirmed: int) -> bool:
        """Move done and op_done as far as what is confirmed allows. Returns whether one of them moved."""
        before = (self.done, self.op_done)
        done, ends = self.done, self._ends
        while (end := ends.get(done)) is not None and end <= confirmed:
            del ends[done]
            first = self._first.pop(done, None)
            if first is not None:
                del self._newest[first]
            done += 1
        self.done = done
        while self._ops and self._ops[0][1] < done:
            self.op_done = self._ops.popleft()[0] + 1
        return (done, self.op_done) != before
