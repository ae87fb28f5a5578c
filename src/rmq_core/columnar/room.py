"""Memory that is filled and handed to Arrow."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

COPY_ROOM: Final = 64
"""Compiled loops copy short texts faster where this much may be written behind them."""
PAIR_SIZE_MIN: Final = 4
"""Bytes that a pair of properties takes at least, if one is added for a record: only the last may lack its end."""

_KEPT: Final = 16 << 20


def room_for(count: int, kind: Any) -> tuple[pa.Buffer, NDArray[Any]]:
    """A buffer for that many numbers, and the array that fills it.

    Arrow's pool hands out memory that it had before. What numpy allocates is fresh in each batch, and its first use
    costs more than what is done with it.
    """
    size = max(count, 1) * np.dtype(kind).itemsize
    buffer = pa.allocate_buffer(size)
    return buffer, np.frombuffer(buffer, kind)


def rows_for(rows: int, count: int, kind: Any) -> tuple[pa.Buffer, NDArray[Any]]:
    """The same for rows of so many numbers each."""
    buffer, numbers = room_for(rows * count, kind)
    return buffer, numbers[: rows * count].reshape(rows, count)


@functools.cache
def keep_freed_memory() -> None:
    """Have what is freed here be used again, at the first call.

    glibc gives larger pieces back to the system at once, and fresh ones cost more than what numpy does with them,
    until a program has freed one that was larger still.
    """
    np.empty(_KEPT, np.uint8)
