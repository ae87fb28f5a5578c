"""Where records are in a buffer, and whether they are whole.

Nothing here trusts a length: it is compared with the buffer before it is used.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.parts import (
    Bools,
    Buffer,
    Bytes,
    FixedParts,
    Longs,
    byte_array,
    measure,
    position_array,
    strided,
)
from rmq_core.protocol.record import (
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    check_record,
)

_HEAD: Final = struct.Struct(">ii")
_MAGICS: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_LOG_OFFSET: Final = struct.Struct(">q")
_STEP: Final = 65_536
"""Records found, or bodies checked, before room is made for more."""


_RUN_MIN, _RUN_MAX = 32, 4096


class Found(NamedTuple):
    """Records one behind the other, and what ended them."""

    positions: Longs
    sizes: NDArray[np.int32]
    stop: int
    is_blank: bool
    """A blank record stands at `stop`."""


def find_records(buffer: Buffer, start: int = 0, end: int | None = None, *, count_max: int | None = None) -> Found:
    """Walk from one record to the next by their sizes and magic alone."""
    limit = len(buffer) if end is None else min(end, len(buffer))
    left = limit if count_max is None else count_max
    loops = kernels.active()
    parts: list[Longs] = []
    stop = start
    while left > 0:
        if loops is None:
            positions, stop = _walk(buffer, stop, limit, min(left, _STEP))
        else:
            positions = np.empty(min(left, _STEP), np.int64)
            count, stop = loops.find(byte_array(buffer), stop, limit, positions)
            positions = positions[:count]
        parts.append(positions)
        left -= len(positions)
        if len(positions) < _STEP:
            break
    found = np.concatenate((*parts, np.array([stop], np.int64)))
    is_blank = stop + _HEAD.size <= limit and _HEAD.unpack_from(buffer, stop)[1] == MAGIC_BLANK
    return Found(found[:-1], np.diff(found).astype(np.int32), stop, is_blank)


def _walk(buffer: Buffer, start: int, limit: int, count_max: int) -> tuple[Longs, int]:
    """Many producers write records of one size: where some follow each other, a whole run is looked at together."""
    data, parts = byte_array(buffer), [np.zeros(0, np.int64)]
    stop, left, patience = start, count_max, _RUN_MIN
    while left > 0:
        found = _run(data, stop, limit, min(left, _RUN_MAX))
        is_over = False
        if len(found):
            stop = 2 * int(found[-1]) - int(found[-2])
            patience = _RUN_MIN
        else:
            step = min(left, patience)
            found, stop = _walk_singly(buffer, stop, limit, step)
            is_over = len(found) < step
            patience = min(2 * patience, _STEP)
        parts.append(found)
        left -= len(found)
        if is_over:
            break
    return np.concatenate(parts), stop


def _run(data: Bytes, start: int, limit: int, count_max: int) -> Longs:
    """The records from here on that are as long as the first; none where they are not worth the effort."""
    if start < 0 or start > limit - RECORD_SIZE_MIN:
        return np.zeros(0, np.int64)
    size, magic = _HEAD.unpack_from(data.data, start)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN:
        return np.zeros(0, np.int64)
    count, count_max = 0, min(count_max, (limit - start) // size)
    heads = strided(data, "<u8")
    for tried in (_RUN_MIN, count_max):
        if count == tried or tried > count_max:
            break
        same = heads[start : start + tried * size : size] == heads[start]
        count = tried if same.all() else int(np.argmin(same))
        if count < tried:
            break
    found: Longs = start + size * np.arange(count if count >= _RUN_MIN else 0)
    return found


def _walk_singly(buffer: Buffer, start: int, limit: int, count_max: int) -> tuple[Longs, int]:
    positions: list[int] = []
    add, unpack, stop, last = positions.append, _HEAD.unpack_from, start, limit - RECORD_SIZE_MIN
    for _ in range(count_max):
        if stop > last:
            break
        size, magic = unpack(buffer, stop)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_SIZE_MIN:  # noqa: PLR1714
            break
        add(stop)
        stop += size
    if positions and stop > limit:  # only the last one can end beyond the limit
        stop = positions.pop()
    return np.array(positions, np.int64), stop


def valid_records(
    buffer: Buffer, positions: Longs, sizes: NDArray[np.integer], *, verify_crc: bool = True
) -> Bools:
    """Which records are whole: of these sizes, all their lengths agree, and their bodies have the right CRC."""
    data, starts = byte_array(buffer), position_array(positions)
    parts = measure(data, starts)
    good: Bools = parts.is_whole & (parts.ends - starts == sizes)
    if verify_crc:
        check_bodies = _check_bodies if (loops := kernels.active()) is None else loops.check_bodies
        check_bodies(data, starts, parts.body_starts, parts.body_sizes, good)
    return good


def _check_bodies(data: Bytes, positions: Longs, starts: Longs, sizes: Longs, good: Bools) -> None:
    checked = np.flatnonzero(good & (sizes > 0))
    for low in range(0, len(checked), _STEP):
        rows = checked[low : low + _STEP]
        spans = map(slice, starts[rows].tolist(), (starts[rows] + sizes[rows]).tolist())
        crcs = np.fromiter(map(zlib.crc32, map(data.data.__getitem__, spans)), np.int64, len(rows))
        good[rows] = crcs & CRC_MASK == FixedParts(data, positions[rows])["body_crc"]


def next_record(buffer: Buffer, position: int, *, base: int, end: int | None = None) -> int:
    """The first place from a position on where a whole record stands that knows its own log offset; -1 if none.

    base: the log offset of the buffer's first byte.
    """
    limit = len(buffer) if end is None else min(end, len(buffer))
    view = memoryview(buffer)[:limit]
    for match in _MAGICS.finditer(view, position + 4):
        start = match.start() - 4
        if start + RECORD_SIZE_MIN > limit:
            break
        if _LOG_OFFSET.unpack_from(view, start + 28)[0] == base + start:
            check = check_record(view, start)
            if check.is_valid and check.size > 0:
                return start
    return -1
