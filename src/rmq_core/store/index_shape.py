"""How many slots and entries an index file has: its size alone does not say.

The header says where the first and the last entry point, and how many slots are used. Of all ways to divide the
file's bytes only the right one agrees with all of that.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.disk import Disk
from rmq_core.store.index_file import ENTRY, HEADER, IndexHeader

DEFAULT_SHAPE = (5_000_000, 20_000_000)


def file_size(shape: tuple[int, int]) -> int:
    """Bytes of a file with so many slots and entries."""
    return HEADER.size + 4 * shape[0] + ENTRY.size * shape[1]


def index_shape(disk: Disk, path: Path, size: int, *, is_mapped: bool = False) -> tuple[int, int] | None:
    """Slots and entries of a file; None where it cannot be told, as for one without entries.

    is_mapped: the file is here, and is looked at without reading all of it.
    """
    if size == file_size(DEFAULT_SHAPE):
        return DEFAULT_SHAPE
    if size < HEADER.size + ENTRY.size:
        return None
    data = disk.map(path) if is_mapped else disk.read(path, 0, size)
    header = IndexHeader.unpack(bytes(data[: HEADER.size]))
    if header.next_entry <= 1:
        return None
    for slot_count in _candidates(data, header).tolist():
        slots = np.frombuffer(data, ">i4", slot_count, HEADER.size)
        used = slots[slots != 0]
        if len(used) == header.used_slots and (used > 0).all() and (used < header.next_entry).all():
            return slot_count, (size - HEADER.size - 4 * slot_count) // ENTRY.size
    return None


def _candidates(data: bytes | memoryview, header: IndexHeader) -> NDArray[np.int64]:
    """Numbers of slots with which first and last entry are where the header says."""
    rest = len(data) - HEADER.size
    used = ENTRY.size * header.next_entry
    # Entries fill the file to its end, so with each slot more or less they move by four bytes, and only every
    # fifth number of slots fits: the places where the first entry can be are one entry apart.
    least = 1 + (rest // 4 - 1) % 5 if rest % 4 == 0 else 0
    count = (rest - used - 4 * least) // ENTRY.size + 1
    if least == 0 or count <= 0:
        return np.zeros(0, np.int64)
    place = HEADER.size + 4 * least + ENTRY.size
    firsts = np.ndarray((count,), ">i8", buffer=data, offset=place + 4, strides=(ENTRY.size,))
    rows = np.flatnonzero(firsts == np.int64(header.begin_offset))
    first = place + ENTRY.size * rows
    last = first + used - 2 * ENTRY.size
    every_long = np.ndarray((len(data) - 7,), ">i8", buffer=data, strides=(1,))
    every_int = np.ndarray((len(data) - 3,), ">i4", buffer=data, strides=(1,))
    fits = every_long[last + 4] == header.end_offset
    fits &= (every_int[first] >= 0) & (every_int[first + 12] == 0) & (every_int[first + 16] == 0)
    found: NDArray[np.int64] = least + 5 * rows[fits]
    return found
