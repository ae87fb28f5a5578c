"""The least that makes columns of plain records in one compiled pass, straight into Arrow's buffers.

Left out: topic and hosts, IPv6, version 2, inflating, names that stand twice, and text that is not ASCII.
Needs numba.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pyarrow as pa

from rmq_core.columnar.machine import copy, load_int, load_long, load_word, trailing_zeros

_W: Any = np.uint64
_ONES, _TWOS, _HIGHS = _W(0x0101010101010101), _W(0x0202020202020202), _W(0x8080808080808080)
_jit: Any = numba.njit(nogil=True)


def _find(data: Any, positions: Any) -> Any:
    at = count = 0
    while at + 91 <= data.size and count < positions.size:
        size = load_int(data, at)
        if size < 91 or at + size > data.size:
            break
        positions[count] = at
        count += 1
        at += size
    return count


def _copy_short(target: Any, to: Any, source: Any, start: Any, size: Any) -> None:
    done = 0
    while done < size:
        copy(target, to + done, source, start + done, 8)
        done += 8


def _decode_into(
    data: Any, positions: Any, with_map: Any, ints: Any, longs: Any, body_offsets: Any, body: Any,
    counts: Any, name_offsets: Any, names: Any, value_offsets: Any, values: Any, bad: Any,
) -> Any:  # fmt: skip
    used = pair = names_size = values_size = np.int64(0)
    body_offsets[0] = counts[0] = name_offsets[0] = value_offsets[0] = 0
    for row in range(positions.size):
        at = positions[row]
        size, body_size = load_int(data, at), load_int(data, at + 84)
        end, start = at + size, at + 88 + body_size
        ints[0, row], ints[1, row] = load_int(data, at + 12), load_int(data, at + 16)
        ints[2, row], ints[3, row] = load_int(data, at + 36), load_int(data, at + 72)
        ints[4, row], ints[5, row] = load_int(data, at + 8), size
        longs[0, row], longs[1, row] = load_long(data, at + 20), load_long(data, at + 28)
        longs[2, row], longs[3, row] = load_long(data, at + 40), load_long(data, at + 56)
        longs[4, row] = load_long(data, at + 76)
        is_good = body_size >= 0 and start + 3 <= end
        if is_good:
            start += 3 + np.int64(data[start])
            is_good = start <= end
        if is_good:
            is_good = start + (np.int64(data[start - 2]) << 8 | np.int64(data[start - 1])) == end
        if not is_good:
            bad[row] = 1
            body_offsets[row + 1], counts[row + 1] = used, pair
            continue
        copy(body, used, data, at + 88, body_size)
        used += body_size
        body_offsets[row + 1] = used
        at, middle, high, step = start, np.int64(-1), _W(0), start
        while with_map and step < end:
            word = load_word(data, step) if step + 8 <= data.size else _TWOS
            high |= word
            one, two = word ^ _ONES, word ^ _TWOS
            marks = (((one - _ONES) & ~one) | ((two - _ONES) & ~two)) & _HIGHS
            while marks:
                place = step + (trailing_zeros(marks) >> 3)
                marks &= marks - _W(1)
                if place >= end:
                    break
                if data[place] == 1 and middle < 0:
                    middle = place
                elif data[place] == 2:
                    if middle >= 0:
                        _copy_short(names, names_size, data, at, middle - at)
                        _copy_short(values, values_size, data, middle + 1, place - middle - 1)
                        names_size += middle - at
                        values_size += place - middle - 1
                        pair += 1
                        name_offsets[pair], value_offsets[pair] = names_size, values_size
                    at, middle = place + 1, np.int64(-1)
            step += 8
        if high & _HIGHS:
            bad[row] = 2
        counts[row + 1] = pair
    return used, pair, names_size, values_size


_find, _copy_short, _decode_into = _jit(_find), _jit(_copy_short), _jit(_decode_into)


def find(log: bytes) -> Any:
    """Positions of all records."""
    positions = np.empty(len(log) // 91 + 1, np.int64)
    return positions[: _find(np.frombuffer(log, np.uint8), positions)]


def decode(log: bytes, positions: Any, *, with_map: bool) -> pa.RecordBatch:
    """Eleven numbers, the body, and the properties as a map if asked for."""
    data, count = np.frombuffer(log, np.uint8), len(positions)
    last = int(positions[-1])
    room = last - int(positions[0]) + int.from_bytes(log[last : last + 4], "big") + 64
    ints, longs = np.empty((6, count), np.int32), np.empty((5, count), np.int64)
    body_offsets, counts = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
    body, names, values = (np.empty(room, np.uint8) for _ in range(3))
    name_offsets, value_offsets = np.empty(room // 2, np.int32), np.empty(room // 2, np.int32)
    used, pairs, names_size, values_size = _decode_into(
        data, positions, with_map, ints, longs, body_offsets, body,
        counts, name_offsets, names, value_offsets, values, np.zeros(count, np.uint8),
    )  # fmt: skip
    columns = [pa.array(each) for each in (*ints, *longs)]
    columns.append(_column(pa.binary(), body_offsets, body[:used]))
    if with_map:
        name_column = _column(pa.string(), name_offsets[: pairs + 1], names[:names_size])
        value_column = _column(pa.string(), value_offsets[: pairs + 1], values[:values_size])
        columns.append(pa.MapArray.from_arrays(pa.array(counts), name_column, value_column))
    return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])


def _column(kind: pa.DataType, offsets: Any, data: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
