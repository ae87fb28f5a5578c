"""Properties cut into pairs by the compiled loops, which must be active: what was found, and room for it.

The spans of known values and the pairs of maps come from one pass, which other loops may go on with in pieces.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.gather import COLUMN_SIZE_MAX, check_column_size
from rmq_core.columnar.parts import Bools, Bytes, Longs
from rmq_core.columnar.room import COPY_ROOM, PAIR_SIZE_MIN, room_for, rows_for

KNOWN: Final = (b"TAGS", b"KEYS", b"UNIQ_KEY")


class Cut:
    """The pairs of some records.

    with_known: where the values of KNOWN names are. with_map: all pairs as maps.
    """

    __slots__ = (
        "_map_offsets", "_name_offsets", "_names", "_value_offsets", "_values", "is_high", "is_odd", "is_special",
        "spans", "with_map",
    )  # fmt: skip

    def __init__(self, count: int, *, with_known: bool, with_map: bool) -> None:
        self.with_map = with_map
        self.is_odd = np.zeros(count, np.bool_)
        """Rows that the loops leave to decode_properties(): their maps are empty."""
        self.is_high = np.zeros(count, np.bool_)
        """Rows that are not ASCII."""
        self.spans, self.is_special = nothing_known(count if with_known else 0)
        self._map_offsets = room_for(count + 1, np.int32)
        self._map_offsets[1][0] = 0
        self._names, self._values, self._name_offsets, self._value_offsets = (
            pa.allocate_buffer(COPY_ROOM, resizable=True) for _ in range(4)
        )
        for buffer in (self._name_offsets, self._value_offsets):
            np.frombuffer(buffer, np.int32)[0] = 0

    @property
    def room(self) -> tuple[Any, ...]:
        """What the loops fill: their arguments from the spans of known values on."""
        return (
            self.spans, self.is_special, self.with_map, self._map_offsets[1],
            np.frombuffer(self._name_offsets, np.int32), np.frombuffer(self._names, np.uint8),
            np.frombuffer(self._value_offsets, np.int32), np.frombuffer(self._values, np.uint8),
            self.is_odd, self.is_high,
        )  # fmt: skip

    def make_room(self, size: int) -> None:
        """Have room for the maps of all records, whose texts have so many bytes; what is there stays.

        Nobody may hold what `room` gave. Raises ValueError where the texts are more than a column can hold.
        """
        check_column_size(size)
        if self.with_map:
            pairs_max = (size + len(self.is_odd)) // PAIR_SIZE_MIN + 1
            for buffer in (self._names, self._values):
                buffer.resize(size + COPY_ROOM)
            for buffer in (self._name_offsets, self._value_offsets):
                buffer.resize((pairs_max + 1) * 4)

    def run(self, data: Bytes, starts: Longs, sizes: Longs) -> Cut:
        """Cut the texts at these places of the data."""
        self.make_room(int(sizes.sum()))
        loops: Any = kernels.active()
        loops.cut_pairs(data, starts, sizes, 0, len(starts), *self.room)
        return self

    def maps(self) -> pa.Array:
        """All pairs as a map column."""
        offsets, numbers = self._map_offsets
        count = int(numbers[len(self.is_odd)])
        names = pa.Array.from_buffers(pa.string(), count, [None, self._name_offsets, self._names])
        values = pa.Array.from_buffers(pa.string(), count, [None, self._value_offsets, self._values])
        at = pa.Array.from_buffers(pa.int32(), len(self.is_odd) + 1, [None, offsets])
        return pa.MapArray.from_arrays(at, names, values)


def nothing_known(count: int) -> tuple[NDArray[np.int64], Bools]:
    """Spans of known values where there is none, and that no record is special."""
    _, spans = rows_for(2 * len(KNOWN), count, np.int64)
    spans[0::2] = -1
    spans[1::2] = 0
    return spans, np.zeros(count, np.bool_)


def room_needed(so_far: int, done: int, count: int) -> int:
    """Bytes for all rows, if the others are like those that were measured so far."""
    check_column_size(so_far)
    return min(so_far + so_far * (count - done) * 17 // (16 * max(done, 1)), COLUMN_SIZE_MAX)
