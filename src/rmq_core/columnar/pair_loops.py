"""The compiled loop that cuts properties into pairs, and the small ones that others use too.

Shape     Many producers write the same names in the same order, with values of the same sizes. Records that are as
          the one before in this are not cut again: their values are where its were.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rmq_core.columnar.machine import (
    compiled,
    copy,
    find_bytes,
    find_high,
    find_unequal,
    load_word,
    prefetch,
    trailing_zeros,
)

_W: Any = np.uint64
_ALL: Final = _W(0xFFFFFFFFFFFFFFFF)
_MIX: Final = _W(0x9E3779B97F4A7C15)
_PAIRS_MAX: Final = 64
_SHORT, _BLOCK, _LONG = 32, 64, 512
_AHEAD: Final = 8
"""Rows whose bytes are fetched before they are needed."""
_BLOCKS: Final = 2
"""Longer texts are always cut."""


def _word(text: bytes) -> Any:
    return _W(int.from_bytes(text, "little"))


_TAGS: Final = _word(b"TAGS")
_KEYS: Final = _word(b"KEYS")
_UNIQ_KEY: Final = _word(b"UNIQ_KEY")
_DELAY: Final = _word(b"DELAY")
_INNER_NU: Final = _word(b"INNER_NU")
_M: Final = _word(b"M")
_INNER_MU: Final = _word(b"INNER_MU")
_LTI_DISP: Final = _word(b"LTI_DISP")
_ATCH: Final = _word(b"ATCH")


@compiled("none", "bytes_out", "int", "bytes", "int", "int", is_part=True)
def copy_text(target: Any, to: Any, source: Any, start: Any, size: Any) -> None:
    """Copy bytes that are likely few: always as many, where both sides have room for what is copied too much."""
    if size <= _SHORT and start + _SHORT <= source.size and to + _SHORT <= target.size:
        copy(target, to, source, start, _SHORT)
    elif size <= _LONG and start + size + _BLOCK <= source.size and to + size + _BLOCK <= target.size:
        for done in range(0, size, _BLOCK):
            copy(target, to + done, source, start + done, _BLOCK)
    else:
        copy(target, to, source, start, size)


@compiled("word", "bytes", "int", "int", is_part=True)
def first_word(data: Any, start: int, size: int) -> Any:
    """The first eight bytes of a span that is not empty as a number; of a shorter one, all of them."""
    if start + 8 <= data.size:
        word = load_word(data, start)
        return word if size >= 8 else word & (_ALL >> _W(64 - 8 * size))
    word = _W(0)
    for each in range(min(size, 8)):
        word |= _W(data[start + each]) << _W(8 * each)
    return word


@compiled("int", "bytes", "int", "int", "word", is_part=True)
def _known(data: Any, start: int, size: int, word: Any) -> Any:
    """Which name this is, by its first word: 0 TAGS, 1 KEYS, 2 UNIQ_KEY, 3 a special one, -1 any other."""
    if size == 4:
        return 0 if word == _TAGS else 1 if word == _KEYS else -1
    if size == 8:
        return 2 if word == _UNIQ_KEY else -1
    is_special = size == 5 and word == _DELAY
    if size == 9:
        is_special = word == _INNER_NU and first_word(data, start + 8, 1) == _M
    elif size == 20:
        is_special = word == _INNER_MU and first_word(data, start + 8, 8) == _LTI_DISP
        is_special = is_special and first_word(data, start + 16, 4) == _ATCH
    return 3 if is_special else -1


@compiled("three_words", "bytes", "int", "int", is_part=True)
def _find_separators(data: Any, start: Any, end: Any) -> Any:
    """Of 64 bytes, a bit for each 1, for each 2 and for each that is not ASCII. A 2 stands where the end is."""
    left = end - start
    if start + 64 <= data.size:
        ones, twos = find_bytes(data, start, np.uint8(1)), find_bytes(data, start, np.uint8(2))
        highs = find_high(data, start)
        if left >= 64:
            return ones, twos, highs
        inside = (_W(1) << _W(left)) - _W(1)
        return ones & inside, twos & inside | _W(1) << _W(left), highs & inside
    ones, twos, highs = _W(0), _W(0), _W(0)
    for each in range(min(left, 64)):
        byte, bit = data[start + each], _W(1) << _W(each)
        ones |= bit if byte == 1 else _W(0)
        twos |= bit if byte == 2 else _W(0)
        highs |= bit if byte >= 0x80 else _W(0)
    return ones, twos | _W(1) << _W(left) if left < 64 else twos, highs


@compiled(
    "bool", "bytes", "int", "int", "bytes_out", "ints_out", "int", "int", is_part=True
)  # fmt: skip
def _is_repeated(data: Any, start: Any, size: Any, names: Any, name_offsets: Any, first: Any, end: Any) -> bool:
    """Whether a name is among earlier ones."""
    for pair in range(first, end):
        other = name_offsets[pair]
        if name_offsets[pair + 1] - other == size:
            done = 0
            while done < size and data[start + done] == names[other + done]:
                done += 1
            if done == size:
                return True
    return False


# What a shape holds
_SIZE, _START, _ROW, _FIRST, _COUNT, _CREDIT, _FIXED = 0, 1, 2, 3, 4, 5, 6
_SHAPE_SIZE: Final = _FIXED + _BLOCKS
_CREDIT_MAX, _PRICE = 128, 32
"""Taking a shape costs as much as so many records gain by having it: where they differ too often, none is taken."""


@compiled(
    "none", "longs_out", "bytes", "longs", "longs", "int", "int", "int", "ints_out", "bytes_out", "ints_out",
    is_part=True,
)  # fmt: skip
def _take_shape(
    shape: Any, data: Any, starts: Any, sizes: Any, row: Any,
    first: Any, end: Any, name_offsets: Any, names: Any, value_offsets: Any,
) -> None:  # fmt: skip
    """Remember a record by its pairs from the first to the end, unless there is something else between them.

    A shape's fixed bits, one for each byte, are its names and separators.
    """
    start, size = starts[row], sizes[row]
    shape[_SIZE] = -1
    if size > _BLOCKS * 64 or first == end or shape[_CREDIT] < _PRICE:
        return
    shape[_CREDIT] -= _PRICE
    for block in range(_BLOCKS):
        shape[_FIXED + block] = 0
    at = np.int64(0)
    for pair in range(first, end):
        name_end = at + name_offsets[pair + 1] - name_offsets[pair]
        value_end = name_end + 1 + value_offsets[pair + 1] - value_offsets[pair]
        if value_end > size or data[start + name_end] != 1 or (value_end < size and data[start + value_end] != 2):
            return
        for each in range(at, name_end + 1):
            if each < name_end and data[start + each] != names[name_offsets[pair] + each - at]:
                return
            shape[_FIXED + (each >> 6)] |= np.int64(1) << (each & 63)
        if value_end < size:
            shape[_FIXED + (value_end >> 6)] |= np.int64(1) << (value_end & 63)
        at = value_end + 1
    shape[_SIZE], shape[_START], shape[_ROW] = size, start, row
    shape[_FIRST], shape[_COUNT] = first, end - first


@compiled("bool", "longs_out", "bytes", "int", is_part=True)
def _has_shape(shape: Any, data: Any, start: int) -> bool:
    """Whether a text as long as the shape has its names and separators, and nothing but ASCII."""
    if max(start, shape[_START]) + _BLOCKS * 64 > data.size:
        return False
    for block in range(_BLOCKS):
        left = shape[_SIZE] - 64 * block
        if left <= 0:
            break
        inside = _ALL if left >= 64 else (_W(1) << _W(left)) - _W(1)
        at, fixed = start + 64 * block, _W(shape[_FIXED + block])
        unequal = find_unequal(data, at, shape[_START] + 64 * block) & fixed
        others = find_bytes(data, at, np.uint8(1)) | find_bytes(data, at, np.uint8(2))
        if unequal | (((others & ~fixed) | find_high(data, at)) & inside):
            return False
    return True


@compiled(
    "int", "longs_out", "bytes", "int", "ints_out", "bytes_out", "ints_out", "bytes_out", "int", is_part=True
)  # fmt: skip
def _repeat_shape(
    shape: Any, data: Any, start: Any, name_offsets: Any, names: Any, value_offsets: Any, values: Any, pair: Any
) -> Any:
    """Add the pairs of a text that has the shape; returns the number behind the last."""
    first, count = shape[_FIRST], shape[_COUNT]
    shape[_CREDIT] = min(shape[_CREDIT] + 1, _CREDIT_MAX)
    names_size, values_size, at = np.int64(name_offsets[pair]), np.int64(value_offsets[pair]), start
    names_start = np.int64(name_offsets[first])
    for done in range(0, np.int64(name_offsets[first + count]) - names_start, 64):
        copy(names, names_size + done, names, names_start + done, 64)
    for number in range(count):
        name_end = np.int64(name_offsets[first + number + 1])
        value_size = np.int64(value_offsets[first + number + 1]) - np.int64(value_offsets[first + number])
        at += name_end - np.int64(name_offsets[first + number]) + 1
        copy_text(values, values_size, data, at, value_size)
        at += value_size + 1
        values_size += value_size
        name_offsets[pair + number + 1] = names_size + name_end - names_start
        value_offsets[pair + number + 1] = values_size
    return pair + count


@compiled("none", "longs_out", "int", "int", "spans_out", "bools_out", is_part=True)
def _repeat_known(shape: Any, row: int, start: int, spans: Any, is_special: Any) -> None:
    """The known names of a text that has the shape."""
    other = shape[_ROW]
    is_special[row] = is_special[other]
    for kind in range(0, spans.shape[0], 2):
        if spans[kind, other] >= 0:
            spans[kind, row] = spans[kind, other] - shape[_START] + start
            spans[kind + 1, row] = spans[kind + 1, other]


@compiled("bool", "bytes", "int", "int", "bytes_out", "ints_out", "int", "int", "word", "words_out", is_part=True)
def _is_new(
    data: Any, at: Any, size: Any, names: Any, name_offsets: Any, first: Any, pair: Any, word: Any, seen: Any
) -> bool:
    """Whether a record has room for one more pair, and no name like this one.

    seen: a bit for each name before it. Only where another name has set the same one can this one stand twice.
    """
    bit = _W(1) << (word * _MIX + _W(size) >> _W(58))
    if pair - first == _PAIRS_MAX:
        return False
    if seen[0] & bit and _is_repeated(data, at, size, names, name_offsets, first, pair):
        return False
    seen[0] |= bit
    return True


@compiled(
    "none", "bytes", "longs", "longs", "int", "int", "spans_out", "bools_out",
    "bool", "ints_out", "ints_out", "bytes_out", "ints_out", "bytes_out", "bools_out", "bools_out",
)  # fmt: skip
def cut_pairs(  # noqa: PLR0912, PLR0915
    data: Any, starts: Any, sizes: Any, low: int, high: int, spans: Any, is_special: Any,
    with_maps: Any, map_offsets: Any, name_offsets: Any, names: Any, value_offsets: Any, values: Any,
    is_odd: Any, is_high: Any,
) -> None:  # fmt: skip
    """Cut the properties of some rows into pairs.

    spans: start and size of the last value of TAGS, KEYS and UNIQ_KEY. A record is special that has a special name.
    with_maps: go on filling Arrow's buffers. Records that are odd before, repeat a name or have too many pairs get
    none and are odd. A record is high where it is not ASCII.
    """
    with_known = spans.size > 0
    shape, seen = np.empty(_SHAPE_SIZE, np.int64), np.zeros(1, np.uint64)
    shape[_SIZE], shape[_CREDIT] = -1, _CREDIT_MAX
    pair = names_size = values_size = np.int64(0)
    if with_maps:
        pair = np.int64(map_offsets[low])
        names_size, values_size = np.int64(name_offsets[pair]), np.int64(value_offsets[pair])
    for row in range(low, high):
        for ahead in range(0, 128 if row + _AHEAD < high else 0, 64):
            prefetch(data, starts[row + _AHEAD] + ahead)
        at, middle, odd_bytes, step = starts[row], np.int64(-1), _W(0), starts[row]
        end, first, seen[0] = at + sizes[row], pair, _W(0)
        is_regular = with_maps and not is_odd[row]
        if is_regular and sizes[row] == shape[_SIZE] and _has_shape(shape, data, at):
            pair = _repeat_shape(shape, data, at, name_offsets, names, value_offsets, values, pair)
            names_size, values_size = np.int64(name_offsets[pair]), np.int64(value_offsets[pair])
            map_offsets[row + 1] = pair
            if with_known:
                _repeat_known(shape, row, at, spans, is_special)
            continue
        while step <= end:
            ones, twos, highs = _find_separators(data, step, end)
            odd_bytes |= highs
            while twos:
                # Of the name separators before this end of a pair, the first counts.
                below = (twos & (~twos + _W(1))) - _W(1)
                if middle < 0 and ones & below:
                    middle = step + trailing_zeros(ones)
                place = step + trailing_zeros(twos)
                name_size, value_size = middle - at, place - middle - 1
                if name_size > 0 and value_size > 0:
                    word = first_word(data, at, name_size)
                    known = _known(data, at, name_size, word) if with_known else -1
                    if known == 3:
                        is_special[row] = True
                    elif known >= 0:
                        spans[2 * known, row], spans[2 * known + 1, row] = middle + 1, value_size
                    if is_regular:
                        if not _is_new(data, at, name_size, names, name_offsets, first, pair, word, seen):
                            is_regular, is_odd[row] = False, True
                        copy_text(names, names_size, data, at, name_size)
                        copy_text(values, values_size, data, middle + 1, value_size)
                        names_size += name_size
                        values_size += value_size
                        pair += 1
                        name_offsets[pair], value_offsets[pair] = names_size, values_size
                at, middle = place + 1, np.int64(-1)
                ones &= ~below
                twos &= twos - _W(1)
            if middle < 0 and ones:
                middle = step + trailing_zeros(ones)
            step += 64
        is_high[row] = odd_bytes != _W(0)
        if with_maps:
            if not is_regular:
                pair, names_size, values_size = first, np.int64(name_offsets[first]), np.int64(value_offsets[first])
            map_offsets[row + 1] = pair
            if is_regular and odd_bytes == _W(0) and row + 1 < high and sizes[row + 1] == sizes[row]:
                _take_shape(shape, data, starts, sizes, row, first, pair, name_offsets, names, value_offsets)
