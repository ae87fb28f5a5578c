"""Parts and bodies of records in one compiled pass, so that no record is fetched from memory twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rmq_core.columnar import kernels
from rmq_core.columnar.gather import COLUMN_SIZE_MAX, check_column_size
from rmq_core.columnar.parts import Bytes, Longs, Parts, RoomForParts
from rmq_core.columnar.room import COPY_ROOM, room_for


def measure_with_bodies(data: Bytes, positions: Longs) -> tuple[Parts, pa.Array | None]:
    """What measure() with fields gives, and a binary column of all bodies; None where a record is not whole.

    Compiled loops must be active. Raises ValueError where the bodies are more than a column can hold.
    """
    loops: Any = kernels.active()
    count = len(positions)
    rows = RoomForParts(count, with_fields=True)
    sizes = rows.spans[1]
    offsets_buffer, offsets = room_for(count + 1, np.int32)
    offsets[0] = 0
    buffer = pa.allocate_buffer(COPY_ROOM, resizable=True)
    done = 0
    while True:
        copied = np.frombuffer(buffer, np.uint8)
        done = loops.measure_and_gather(
            data, positions, done, rows.spans, rows.is_whole, rows.ints, rows.longs, offsets, copied
        )
        if done < 0:
            return rows.parts(), None
        if done == count:
            check_column_size(int(offsets[count]))
            bodies = pa.Array.from_buffers(pa.binary(), count, [None, offsets_buffer, buffer])
            return rows.parts(), bodies
        # There is room for all if the others are like those that were measured so far.
        measured = min(done + loops.ROWS_TOGETHER, count)
        total = int(offsets[done]) + int(sizes[done:measured].sum())
        check_column_size(total)
        del copied
        rest = total * (count - measured) * 17 // (16 * measured)
        buffer.resize(min(total + rest, COLUMN_SIZE_MAX) + COPY_ROOM)
