"""Records taken apart in one compiled pass, so that no record is fetched from memory twice."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_core.columnar import kernels
from rmq_core.columnar.cut import Cut, room_needed
from rmq_core.columnar.gather import check_column_size
from rmq_core.columnar.parts import Bytes, Longs, Parts, RoomForParts
from rmq_core.columnar.room import COPY_ROOM, room_for


@dataclass(frozen=True, slots=True)
class Apart:
    """What was asked for of some records."""

    parts: Parts
    bodies: pa.Array | None
    """A binary column, where bodies were asked for and all records are whole."""
    cut: Cut | None
    """The properties, where anything of them was asked for and all records are whole."""


def take_apart(
    data: Bytes, positions: Longs, *, with_bodies: bool = False, with_known: bool = False, with_map: bool = False
) -> Apart:
    """What measure() with fields gives, and bodies and properties as they are asked for.

    Compiled loops must be active. Raises ValueError where the bodies or properties are more than a column can hold.
    """
    loops: Any = kernels.active()
    count = len(positions)
    rows = RoomForParts(count, with_fields=True)
    cut = Cut(count, with_known=with_known, with_map=with_map) if with_known or with_map else None
    offsets_buffer, offsets = room_for(count + 1 if with_bodies else 1, np.int32)
    offsets[0] = 0
    bodies = pa.allocate_buffer(COPY_ROOM, resizable=True)
    done = 0
    while True:
        done = loops.take_apart(
            data, positions, done, rows.spans, rows.is_whole, rows.ints, rows.longs,
            with_bodies, offsets, np.frombuffer(bodies, np.uint8), *(_no_room() if cut is None else cut.room),
        )  # fmt: skip
        if done < 0:
            return Apart(rows.parts(), None, None)
        if done == count:
            break
        measured = min(done + loops.ROWS_TOGETHER, count)
        if with_bodies:
            so_far = int(rows.spans[1, :measured].sum())
            bodies.resize(room_needed(so_far, measured, count) + COPY_ROOM)
        if cut is not None and with_map:
            cut.make_room(room_needed(int(rows.spans[5, :measured].sum()), measured, count))
    column = None
    if with_bodies:
        check_column_size(int(offsets[count]))
        column = pa.Array.from_buffers(pa.binary(), count, [None, offsets_buffer, bodies])
    return Apart(rows.parts(), column, cut)


@functools.cache
def _no_room() -> tuple[Any, ...]:
    return Cut(0, with_known=False, with_map=False).room
