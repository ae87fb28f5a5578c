"""Columns of bytes, put together without a Python object for each row: what sink_rows builds messages from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_core.protocol.message import RESERVED, TRANSIENT_PREFIX

Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

_EMPTY: Final = pa.scalar(b"", pa.binary())
_HEX: Final = np.array([f"{value:02X}" for value in range(256)], "S2").view(np.uint8).reshape(256, 2)
_RESERVED: Final = pa.array([name.encode() for name in sorted(RESERVED)], pa.binary())
SEPARATORS: Final = (1, 2)
"""The bytes that end names and pairs: no text of a property may hold them."""


def binary(column: pa.Array) -> pa.Array:
    """A column of text or bytes as bytes, a chunk of its own that starts at its first row."""
    return column.cast(pa.binary())


def spans(column: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Where the values of a binary column start and end, and the bytes they are in."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def sizes(column: pa.Array) -> Longs:
    """The size of each value of a binary column; 0 for a null."""
    ends, _ = spans(column)
    found = np.diff(ends).astype(np.int64)
    if column.null_count:
        found[nulls(column)] = 0
    return found


def nulls(column: pa.Array) -> Bools:
    """Which rows are null."""
    found: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return found


def fixed(matrix: NDArray[np.uint8]) -> pa.Array:
    """A binary column whose values are the lines of a matrix."""
    count, width = matrix.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    data = np.ascontiguousarray(matrix)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def hex_digits(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A matrix of bytes as the matrix of their hexadecimal digits."""
    count, width = numbers.shape
    found: NDArray[np.uint8] = _HEX[numbers].reshape(count, 2 * width)
    return found


def joined(*columns: Any) -> pa.Array:
    """The values of each row after one another; a null in one makes the row null."""
    return pc.binary_join_element_wise(*columns, _EMPTY)


def text(value: bytes) -> pa.Scalar:
    """A value that all rows have."""
    return pa.scalar(value, pa.binary())


def pair(name: str, values: pa.Array) -> pa.Array:
    """The property of each row as it is written; nothing where the value is null or empty."""
    written = joined(text(name.encode() + b"\x01"), values, text(b"\x02"))
    is_absent = nulls(values) | (sizes(values) == 0)
    if is_absent.any():
        return pc.if_else(pa.array(~is_absent), written, _EMPTY)
    return written


def first_with_separator(column: pa.Array) -> int | None:
    """The first row whose text holds a byte that separates properties."""
    ends, data = spans(column)
    part = data[int(ends[0]) : int(ends[-1])]
    at = np.flatnonzero((part == SEPARATORS[0]) | (part == SEPARATORS[1]))
    if not len(at):
        return None
    rows = np.searchsorted(ends, at + int(ends[0]), side="right") - 1
    valid = rows[~nulls(column)[rows]]
    return int(valid[0]) if len(valid) else None


class MapPairs:
    """The pairs of a column of maps that become properties: those of users, with a name and a value."""

    def __init__(self, column: pa.MapArray) -> None:
        ends = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        starts, counts = ends[:-1], np.diff(ends)
        if column.null_count:
            counts = np.where(nulls(column), 0, counts)
        total = int(counts.sum())
        self.rows: Longs = np.repeat(np.arange(len(counts)), counts)
        """The row of each pair."""
        at = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(starts, counts)
        taken = pa.array(at)
        self.names = binary(column.keys).take(taken)
        self.values = binary(column.items).take(taken)
        self._row_count = len(counts)
        self._keep(self._wanted())

    def _wanted(self) -> Bools:
        is_reserved = pc.is_in(self.names, value_set=_RESERVED).to_numpy(zero_copy_only=False)
        is_transient = pc.starts_with(self.names, TRANSIENT_PREFIX.encode()).to_numpy(zero_copy_only=False)
        wanted: Bools = (sizes(self.names) > 0) & (sizes(self.values) > 0) & ~is_reserved & ~is_transient
        return wanted

    def _keep(self, wanted: Bools) -> None:
        if not wanted.all():
            mask = pa.array(wanted)
            self.rows, self.names, self.values = (
                self.rows[wanted],
                self.names.filter(mask),
                self.values.filter(mask),
            )

    def first_with_separator(self) -> int | None:
        """The first row with a name or a value that holds a byte which separates properties."""
        found = [first_with_separator(column) for column in (self.names, self.values)]
        rows = [int(self.rows[at]) for at in found if at is not None]
        return min(rows, default=None)

    def written(self) -> pa.Array:
        """The pairs of each row as one value."""
        pairs = joined(self.names, text(b"\x01"), self.values, text(b"\x02"))
        ends, _ = spans(pairs)
        counts = np.bincount(self.rows, minlength=self._row_count)
        row_ends = np.concatenate(([0], np.cumsum(counts)))
        offsets = np.ascontiguousarray(ends[row_ends], np.int32)
        data = pairs.buffers()[2]
        return pa.Array.from_buffers(
            pa.binary(), self._row_count, [None, pa.py_buffer(offsets), pa.py_buffer(b"") if data is None else data]
        )


class UniqueKeys:
    """Identities of messages as clients make them, many at a time: a prefix, milliseconds, a counter."""

    def __init__(self, prefix: bytes) -> None:
        """prefix: ten bytes that no other maker has."""
        self._prefix = np.frombuffer(prefix, np.uint8)
        self._next_tick = 0

    def take(self, count: int, elapsed_ms: int) -> NDArray[np.uint8]:
        """So many keys, as lines of 32 digits. elapsed_ms: since the start of the month."""
        # 65,536 keys fit a millisecond; who needs more takes them from the next ones.
        first = max(self._next_tick, elapsed_ms << 16)
        self._next_tick = first + count
        ticks = np.arange(first, first + count, dtype=np.int64).astype(">i8").view(np.uint8).reshape(count, 8)
        whole = np.empty((count, 16), np.uint8)
        whole[:, :10] = self._prefix
        whole[:, 10:] = ticks[:, 2:]
        return hex_digits(whole)


def concatenated(parts: Iterable[NDArray[np.uint8] | bytes], count: int) -> NDArray[np.uint8]:
    """Matrices side by side; bytes are the same in every line."""
    lines = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part))) if isinstance(part, bytes) else part
        for part in parts
    ]
    return np.concatenate(lines, axis=1) if lines else np.zeros((count, 0), np.uint8)
