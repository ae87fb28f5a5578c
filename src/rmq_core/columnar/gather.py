"""Spans of a buffer as Arrow columns: copied out, so that a column outlives the buffer."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from rmq_core.columnar import kernels
from rmq_core.columnar.parts import Bools, Bytes, Longs, strided
from rmq_core.columnar.room import COPY_ROOM, room_for

COLUMN_SIZE_MAX: Final = 2**31 - 1
"""Arrow's offsets have 32 bits."""


def check_column_size(size: int) -> None:
    """Raises ValueError where Arrow could not count the bytes of one column."""
    if size > COLUMN_SIZE_MAX:
        raise ValueError(f"a column of {size} bytes does not fit one batch (2 GiB); decode fewer records at a time")


def gather(data: Bytes, starts: Longs, sizes: Longs) -> pa.Array:
    """A binary column of the spans, which lie inside the data. Raises ValueError above 2 GiB."""
    count = len(starts)
    total = int(sizes.sum())
    check_column_size(total)
    if not total:
        return binary_column(np.zeros(count + 1, np.int32), np.zeros(0, np.uint8))
    if (loops := kernels.active()) is not None:
        (offsets, offsets_array), (copied, copied_array) = (
            room_for(count + 1, np.int32),
            room_for(total + COPY_ROOM, np.uint8),
        )
        offsets_array[0] = 0
        loops.gather(data, starts, sizes, 0, count, offsets_array, copied_array)
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, copied])
    size = int(sizes[0])
    if (sizes == size).all():
        rows = strided(data, f"V{size}")[starts]
        return binary_column(np.arange(count + 1, dtype=np.int32) * size, rows)
    return _take(data, starts, sizes, total)


def _take(data: Bytes, starts: Longs, sizes: Longs, total: int) -> pa.Array:
    """Let Arrow copy: the buffer is cut into spans and the gaps behind them, and every second piece is taken."""
    low, high = int(starts.min()), int((starts + sizes).max())
    is_large = high - low > COLUMN_SIZE_MAX - 1 or 2 * total > COLUMN_SIZE_MAX
    offsets = np.empty(2 * len(starts) + 1, np.int64 if is_large else np.int32)
    offsets[0:-1:2] = starts - low
    offsets[1::2] = starts - low + sizes
    # Arrow reserves room by the mean size of a piece: the end of the last gap, not taken, makes that exact.
    offsets[-1] = min(offsets[0] + 2 * total, high - low) if not is_large else offsets[0]
    kind = pa.large_binary() if is_large else pa.binary()
    pieces = pa.Array.from_buffers(
        kind, 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data[low:high])]
    )
    taken = pieces.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))
    return taken.cast(pa.binary()) if is_large else taken


def binary_column(offsets: np.ndarray[Any, Any], copied: np.ndarray[Any, Any]) -> pa.Array:
    """A column of Arrow's buffers."""
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(copied))]
    )


def gather_text(data: Bytes, starts: Longs, sizes: Longs, *, is_ascii: bool = False) -> pa.Array:
    """A string column of the spans; null where a start is negative. What is not UTF-8 has U+FFFD.

    is_ascii: that is known of all of them.
    """
    present: Bools = starts >= 0
    validity = None
    if not present.all():
        starts, sizes = np.where(present, starts, 0), np.where(present, sizes, 0)
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    column = gather(data, starts, sizes)
    if not is_ascii:
        column = as_text(column)
    return pa.Array.from_buffers(pa.string(), len(column), [validity, *column.buffers()[1:]])


def as_text(column: pa.Array) -> pa.Array:
    """A binary column as text; what is not UTF-8 has U+FFFD."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(value, "utf-8", "replace") for value in column.to_pylist()], pa.string())


def text_buffers(column: pa.Array) -> tuple[Longs, Bytes]:
    """Offsets and bytes of a binary column without nulls, as arrays."""
    _, offsets, copied = column.buffers()
    at = np.frombuffer(offsets, np.int32, len(column) + 1).astype(np.int64)
    return at, np.frombuffer(copied, np.uint8, int(at[-1])) if at[-1] else np.zeros(0, np.uint8)
