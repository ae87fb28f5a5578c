"""Memory that is filled and handed to Arrow."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

COPY_ROOM: Final = 64
"""Compiled loops copy short texts faster where this much may be written behind them."""


def room_for(count: int, kind: Any) -> tuple[pa.Buffer, NDArray[Any]]:
    """A buffer for that many numbers, and the array that fills it.

    Arrow's pool hands out memory that it had before. What numpy allocates is fresh in each batch, and its first use
    costs more than what is done with it.
    """
    size = max(count, 1) * np.dtype(kind).itemsize
    buffer = pa.allocate_buffer(size)
    return buffer, np.frombuffer(buffer, kind)


def rows_for(rows: int, count: int, kind: Any) -> NDArray[Any]:
    """Room for rows of so many numbers each."""
    return room_for(rows * count, kind)[1][: rows * count].reshape(rows, count)
