"""The loops that numba compiles: the work of the numpy code beside their calls, with the same result byte for byte.

Rules     Pure functions of arrays: no objects, no state, every position and length judged before it is used.
Compile   Each has its signature: importing this module compiles all of them or takes all from the cache, and
          kernels.load() imports it, which says where the cache is.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rmq_core.columnar.machine import (
    CAN_FOLD,
    compiled,
    fold_crc,
    load_int,
    load_long,
    load_word,
    prefetch,
)
from rmq_core.columnar.pair_loops import copy_text, cut_pairs, first_word
from rmq_core.columnar.room import COPY_ROOM, PAIR_SIZE_MIN

_W: Any = np.uint64
_HIGHS: Final = _W(0x8080808080808080)
_MIX: Final = _W(0x9E3779B97F4A7C15)
_ONES, _BLANKS = _W(0x0101010101010101), _W(0x2020202020202020)
_POWER_8: Final = pow(31, 8, 1 << 32)
_POWERS: Final = np.array([31**exponent for exponent in range(8)], np.uint64)

_MAGIC_V1: Final = -626843481
_MAGIC_V2: Final = -626843477
_SIZE_MIN: Final = 91
_FIXED_SIZE: Final = 88
ROWS_TOGETHER: Final = 128
_AHEAD: Final = 8
"""Rows whose bytes are fetched before they are needed."""


def _crc_tables() -> Any:
    """What each of sixteen bytes adds to the CRC of all of them."""
    tables = np.zeros((16, 256), np.uint32)
    table: Any = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0xEDB88320), np.uint32(0))
    tables[0] = table
    for number in range(1, 16):
        tables[number] = (tables[number - 1] >> 8) ^ table[tables[number - 1] & 255]
    return tables


_CRC: Final = _crc_tables()


# Positions and parts


@compiled("two_ints", "bytes", "int", "int", "longs_out")
def find(data: Any, start: int, limit: int, positions: Any) -> Any:
    """From one record to the next by size and magic: how many there are, and where the walk stopped."""
    count, at = 0, start
    while count < positions.size and at >= 0 and at + _SIZE_MIN <= limit:
        size, magic = load_int(data, at), load_int(data, at + 4)
        if (magic != _MAGIC_V1 and magic != _MAGIC_V2) or size < _SIZE_MIN or size > limit - at:  # noqa: PLR1714
            break
        prefetch(data, at + 2 * _AHEAD * size)  # where it is if all are like this one
        positions[count] = at
        count += 1
        at += size
    return count, at


@compiled("none", "bytes", "longs", "int", "int", "spans_out", "bools_out", "bool", "int_rows_out", "spans_out")
def measure(  # noqa: PLR0912
    data: Any, positions: Any, low: int, high: int,
    spans: Any, is_whole: Any, with_fields: Any, ints: Any, longs: Any,
) -> None:  # fmt: skip
    """parts.measure() for some rows: which records are whole, and their spans and fields; no others are touched.

    ints, longs: the fields in the order of parts.INT_FIELDS and parts.LONG_FIELDS.
    """
    for row in range(low, high):
        if row + 2 * _AHEAD < positions.size:
            for ahead in range(0, 384 if with_fields else 128, 64):
                prefetch(data, positions[row + 2 * _AHEAD] + ahead)
            start = positions[row + _AHEAD]
            if 0 <= start <= data.size - _SIZE_MIN:
                prefetch(data, start + _FIXED_SIZE + load_int(data, start + _FIXED_SIZE - 4))
        start = positions[row]
        if start < 0 or start > data.size - _SIZE_MIN:
            continue
        size, magic, sys_flag = load_int(data, start), load_int(data, start + 4), load_int(data, start + 36)
        is_v2 = magic == _MAGIC_V2
        if (magic != _MAGIC_V1 and not is_v2) or size < _SIZE_MIN or size > data.size - start:
            continue
        end = start + size
        body_start = start + _FIXED_SIZE + 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        if body_start > end:
            continue
        body_size = max(load_int(data, body_start - 4), 0)
        at = body_start + body_size
        if at + 3 + is_v2 > end:
            continue
        topic_size: Any = np.int64(data[at])
        if is_v2:
            at += 1
            topic_size = topic_size << 8 | data[at]
        topic_start = at + 1
        properties_start = topic_start + topic_size + 2
        if topic_size > (0x7FFF if is_v2 else 127) or properties_start > end:
            continue
        properties_size: Any = np.int64(data[properties_start - 2]) << 8 | np.int64(data[properties_start - 1])
        if properties_size > 0x7FFF:
            properties_size = 0
        if properties_start + properties_size != end:
            continue
        spans[0, row], spans[1, row] = body_start, body_size
        spans[2, row], spans[3, row] = topic_start, topic_size
        spans[4, row], spans[5, row] = properties_start, properties_size
        is_whole[row] = True
        if with_fields:
            ints[0, row] = size
            ints[1, row] = load_int(data, start + 8)
            ints[2, row] = load_int(data, start + 12)
            ints[3, row] = load_int(data, start + 16)
            ints[4, row] = sys_flag
            ints[5, row] = load_int(data, body_start - 16)
            longs[0, row] = load_long(data, start + 20)
            longs[1, row] = load_long(data, start + 28)
            longs[2, row] = load_long(data, start + 40)
            longs[3, row] = load_long(data, start + 56 + 12 * (sys_flag >> 4 & 1))
            longs[4, row] = load_long(data, body_start - 12)


@compiled("bool", "longs", "int", "int", "longs_out")
def to_microseconds(times_ms: Any, least_ms: int, limit_ms: int, times_us: Any) -> Any:
    """Whether all times are inside these limits; then they are in microseconds."""
    is_inside = True
    for row in range(times_ms.size):
        is_inside &= least_ms <= times_ms[row] < limit_ms
        times_us[row] = times_ms[row] * 1000
    return is_inside


# CRC


@compiled("int", "bytes", "int", "int", is_part=True)
def _crc32(data: Any, start: int, end: int) -> Any:
    at, crc = start, np.uint32(0xFFFFFFFF)
    low_byte = _W(0xFF)
    if CAN_FOLD and end - start >= 32:
        crc = np.uint32(fold_crc(data, start, end - start >> 4, _W(crc)))
        at += end - start & ~15
    while at + 16 <= end:
        first, second = load_word(data, at) ^ _W(crc), load_word(data, at + 8)
        crc = (
            _CRC[15, first & low_byte]
            ^ _CRC[14, first >> _W(8) & low_byte]
            ^ _CRC[13, first >> _W(16) & low_byte]
            ^ _CRC[12, first >> _W(24) & low_byte]
            ^ _CRC[11, first >> _W(32) & low_byte]
            ^ _CRC[10, first >> _W(40) & low_byte]
            ^ _CRC[9, first >> _W(48) & low_byte]
            ^ _CRC[8, first >> _W(56)]
            ^ _CRC[7, second & low_byte]
            ^ _CRC[6, second >> _W(8) & low_byte]
            ^ _CRC[5, second >> _W(16) & low_byte]
            ^ _CRC[4, second >> _W(24) & low_byte]
            ^ _CRC[3, second >> _W(32) & low_byte]
            ^ _CRC[2, second >> _W(40) & low_byte]
            ^ _CRC[1, second >> _W(48) & low_byte]
            ^ _CRC[0, second >> _W(56)]
        )
        at += 16
    if at + 8 <= end:
        first = load_word(data, at) ^ _W(crc)
        crc = (
            _CRC[7, first & low_byte]
            ^ _CRC[6, first >> _W(8) & low_byte]
            ^ _CRC[5, first >> _W(16) & low_byte]
            ^ _CRC[4, first >> _W(24) & low_byte]
            ^ _CRC[3, first >> _W(32) & low_byte]
            ^ _CRC[2, first >> _W(40) & low_byte]
            ^ _CRC[1, first >> _W(48) & low_byte]
            ^ _CRC[0, first >> _W(56)]
        )
        at += 8
    while at < end:
        crc = _CRC[0, (crc ^ data[at]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += 1
    return np.int64(~crc & np.uint32(0x7FFFFFFF))


@compiled("none", "bytes", "longs", "longs", "longs", "bools_out")
def check_bodies(data: Any, positions: Any, starts: Any, sizes: Any, good: Any) -> None:
    """Take from the good whole records those whose body is not empty and has not the CRC that the record says."""
    for row in range(positions.size):
        if good[row] and sizes[row] > 0:
            crc = _crc32(data, starts[row], starts[row] + sizes[row])
            good[row] = crc == load_int(data, positions[row] + 8)


# Spans: their bytes, and hashes of them


@compiled("none", "bytes", "longs", "longs", "int", "int", "ints_out", "bytes_out")
def gather(data: Any, starts: Any, sizes: Any, low: int, high: int, offsets: Any, copied: Any) -> None:
    """Copy the spans of some rows behind one another, from the offset of the first on, and say where each ends."""
    end = np.int64(offsets[low])
    for row in range(low, high):
        if row + _AHEAD < high:
            for ahead in range(0, min(sizes[row + _AHEAD], 256), 64):
                prefetch(data, starts[row + _AHEAD] + ahead)
        copy_text(copied, end, data, starts[row], sizes[row])
        end += sizes[row]
        offsets[row + 1] = end


@compiled("word", "word", is_part=True)
def _hash_word(word: Any) -> Any:
    """Java's hash of eight bytes: of pairs first, then of pairs of those."""
    pairs = (word & _W(0x00FF00FF00FF00FF)) * _W(31) + (word >> _W(8) & _W(0x00FF00FF00FF00FF))
    fours = (pairs & _W(0x0000FFFF0000FFFF)) * _W(31**2) + (pairs >> _W(16) & _W(0x0000FFFF0000FFFF))
    return (fours & _W(0xFFFFFFFF)) * _W(31**4) + (fours >> _W(32))


@compiled("none", "bytes", "longs", "longs", "ints_out", "bools_out", "bool")
def hash_spans(data: Any, starts: Any, sizes: Any, hashes: Any, is_other: Any, only_words: Any) -> None:
    """hashes.hash_inside(): go on with each hash over its span, unless that is another one."""
    for row in range(starts.size):
        if row + _AHEAD < starts.size:
            prefetch(data, starts[row + _AHEAD])
        at, end = starts[row], starts[row] + sizes[row]
        hashed, others = _W(np.uint32(hashes[row])), _W(0)
        while at < end:
            size = end - at
            word = first_word(data, at, size)
            others |= word
            if only_words:
                unequal = word ^ _BLANKS
                others |= (unequal - _ONES) & ~unequal
            if size >= 8:
                hashed = hashed * _W(_POWER_8) + _hash_word(word)
            else:  # zeros before it do not change a hash
                hashed = hashed * _POWERS[size] + _hash_word(word << _W(64 - 8 * size))
            hashed &= _W(0xFFFFFFFF)
            at += 8
        is_other[row] = others & _HIGHS != _W(0)
        if not is_other[row]:
            hashes[row] = np.int32(hashed)


@compiled("none", "bytes", "int", "ints_out", "ints_out")
def link_entries(entries: Any, number: int, newest: Any, previous: Any) -> None:
    """Enter index entries of twenty bytes in their slots: what was the newest before each.

    number: of the first of them. newest: by slot.
    """
    slots = newest.size
    share = 1.0 / slots
    for row in range(previous.size + _AHEAD):
        for ahead in range(2):  # first what will be needed is fetched
            at = row - _AHEAD * ahead
            if 0 <= at < previous.size:
                hashed = load_int(entries, 20 * at)
                slot = hashed - np.int64(hashed * share) * slots
                if slot < 0:
                    slot += slots
                elif slot >= slots:
                    slot -= slots
                if ahead == 0:
                    prefetch(newest, slot)
                else:
                    previous[at] = newest[slot]
                    newest[slot] = number + at


@compiled("bool", "bytes", "int", "int", "int", "int", is_part=True)
def _is_equal(data: Any, start: int, size: int, other_start: int, other_size: int) -> Any:
    if size != other_size:
        return False
    for done in range(0, size, 8):
        left = size - done
        if first_word(data, start + done, left) != first_word(data, other_start + done, left):
            return False
    return True


@compiled("int", "bytes", "longs", "longs", "ints_out", "ints_out", "longs_out")
def number_texts(data: Any, starts: Any, sizes: Any, ids: Any, table: Any, firsts: Any) -> Any:
    """Number the spans by their bytes in the order in which they come; returns how many differ.

    The table has -1 everywhere and a power of two of places. The answer is -1 where
    more than half of them would be taken.
    """
    count, mask, last = 0, _W(table.size - 1), -1
    for row in range(starts.size):
        if row + _AHEAD < starts.size:
            prefetch(data, starts[row + _AHEAD])
        start, size = starts[row], sizes[row]
        if last >= 0 and _is_equal(data, start, size, starts[last], sizes[last]):
            ids[row] = ids[last]
            continue
        hashed = _W(size)
        for done in range(0, size, 8):
            hashed = (hashed ^ first_word(data, start + done, size - done)) * _MIX
            hashed ^= hashed >> _W(32)
        place = hashed & mask
        while table[place] >= 0:
            first = firsts[table[place]]
            if _is_equal(data, start, size, starts[first], sizes[first]):
                break
            place = place + _W(1) & mask
        if table[place] < 0:
            if 2 * count >= table.size:
                return -1
            table[place] = count
            firsts[count] = row
            count += 1
        ids[row] = table[place]
        last = row
    return count


# All of it


@compiled(
    "int", "bytes", "longs", "int", "spans_out", "bools_out", "int_rows_out", "spans_out",
    "bool", "ints_out", "bytes_out", "spans_out", "bools_out",
    "bool", "ints_out", "ints_out", "bytes_out", "ints_out", "bytes_out", "bools_out", "bools_out",
)  # fmt: skip
def take_apart(
    data: Any, positions: Any, start: int, spans: Any, is_whole: Any, ints: Any, longs: Any,
    with_bodies: Any, offsets: Any, copied: Any, known: Any, is_special: Any,
    with_maps: Any, map_offsets: Any, name_offsets: Any, names: Any, value_offsets: Any, values: Any,
    is_odd: Any, is_high: Any,
) -> Any:  # fmt: skip
    """Measure, gather bodies and cut properties, some records at a time while the processor has them at hand.

    Begins with a row, and returns the row at which it ended: all are done, or there is no room for what the
    ROWS_TOGETHER rows from there on hold, which are measured. It is -1 where a record is not whole.
    """
    low = start
    while low < positions.size:
        high = min(low + ROWS_TOGETHER, positions.size)
        measure(data, positions, low, high, spans, is_whole, True, ints, longs)
        body_size = text_size = np.int64(0)
        for row in range(low, high):
            if not is_whole[row]:
                return -1
            body_size += spans[1, row]
            text_size += spans[5, row]
        if with_bodies and offsets[low] + body_size + COPY_ROOM > copied.size:
            break
        if with_maps:
            pair = np.int64(map_offsets[low])
            names_size, values_size = np.int64(name_offsets[pair]), np.int64(value_offsets[pair])
            is_full = pair + (text_size + high - low) // PAIR_SIZE_MIN >= name_offsets.size
            if is_full or max(names_size, values_size) + text_size + COPY_ROOM > names.size:
                break
        if with_bodies:
            gather(data, spans[0], spans[1], low, high, offsets, copied)
        if with_maps or known.size:
            cut_pairs(
                data, spans[4], spans[5], low, high, known, is_special, with_maps, map_offsets,
                name_offsets, names, value_offsets, values, is_odd, is_high,
            )  # fmt: skip
        low = high
    return low
