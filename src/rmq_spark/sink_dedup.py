"""Which messages are the same one: an identity that a task tried again gives its rows once more.

It is a hash of what is written where (query and micro-batch), of the row's content, and of the row's number among
the equal rows of its task. Positions do not count: after a shuffle rows come in another order each time.

Memory    Eight bytes for each row that a task has seen.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

DEDUP_PROPERTY: Final = "SPARK_DEDUP_ID"
DIGEST_SIZE: Final = 16


def context_of(*parts: object) -> bytes:
    """What tells the rows of one write from equal rows of another."""
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=DIGEST_SIZE).digest()


class RowIdentities:
    """The identities of the rows of one task, in the order in which they come."""

    def __init__(self, context: bytes) -> None:
        self._context = context
        self._seen = SeenNumbers()

    def of(self, contents: pa.Array) -> NDArray[np.uint8]:
        """The digests of some rows, by their content (binary, no nulls)."""
        _, offsets, data = contents.buffers()
        view = memoryview(b"" if data is None else data)
        count = len(contents)
        ends = np.frombuffer(offsets, np.int32, count + 1, contents.offset * 4).tolist()
        salt = self._context
        digests = b"".join(
            [blake2b(view[low:high], digest_size=DIGEST_SIZE, salt=salt).digest() for low, high in pairwise(ends)]
        )
        found = np.frombuffer(digests, np.uint8).reshape(count, DIGEST_SIZE).copy()
        ordinals = self._seen.add(found[:, :8].copy().view(np.uint64).ravel())
        for row in np.flatnonzero(ordinals).tolist():
            again = blake2b(found[row].tobytes(), digest_size=DIGEST_SIZE, salt=salt)
            again.update(int(ordinals[row]).to_bytes(8, "big"))
            found[row] = np.frombuffer(again.digest(), np.uint8)
        return found


class SeenNumbers:
    """Counts how often each number has come, at eight bytes for each that came once."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []
        """Sorted; each is at least twice as long as the one behind it."""
        self._repeats: dict[int, int] = {}
        """How often the numbers came that came more than once."""

    def add(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How often each of them had come before."""
        unique, counts = np.unique(numbers, return_counts=True)
        known = self._known(unique)
        ordinals = np.zeros(len(numbers), np.int64)
        repeated = np.flatnonzero(known | (counts > 1))
        if len(repeated):
            is_repeated = np.zeros(len(unique), np.bool_)
            is_repeated[repeated] = True
            for row in np.flatnonzero(is_repeated[np.searchsorted(unique, numbers)]).tolist():
                number = int(numbers[row])
                before = self._repeats.get(number)
                if before is None:
                    before = int(known[np.searchsorted(unique, numbers[row])])
                ordinals[row] = before
                self._repeats[number] = before + 1
        self._put(unique[~known])
        return ordinals

    def _known(self, unique: NDArray[np.uint64]) -> NDArray[np.bool_]:
        known = np.zeros(len(unique), np.bool_)
        for run in self._runs:
            at = np.searchsorted(run, unique)
            at[at == len(run)] = 0
            known |= run[at] == unique
        return known

    def _put(self, numbers: NDArray[np.uint64]) -> None:
        if not len(numbers):
            return
        while self._runs and len(self._runs[-1]) < 2 * len(numbers):
            numbers = np.sort(np.concatenate((self._runs.pop(), numbers)), kind="stable")
        self._runs.append(numbers)
