"""The properties of many records as pairs of spans, found without a loop over records.

Regular   `name 1 value 2` again and again, the last 2 perhaps missing; every name and value has a character, and
          no name stands twice. A record with anything else is odd, and left to decode_properties().
Text      Separators are never part of a longer UTF-8 sequence, so bytes are cut first and decoded afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar.gather import binary_column, gather, text_buffers
from rmq_core.columnar.parts import Bools, Bytes, Longs, strided

COUNT_MAX: Final = 64
"""Records with more pairs are odd."""

_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of all regular records, in the order of the records; spans are those of `text`."""

    text: Bytes
    """The properties of all records behind one another."""
    text_starts: Longs
    """Where each record's properties start in the text."""
    ends: Longs
    """For each record, the number of pairs in it and all before it."""
    owners: Longs
    """For each pair, the number of its record."""
    name_starts: Longs
    name_sizes: Longs
    value_starts: Longs
    value_sizes: Longs
    words: NDArray[np.uint64]
    """The first eight bytes of each name."""

    def find(self, name: bytes) -> Longs:
        """The pairs that have this name."""
        word = np.uint64(int.from_bytes(name[:8], "little"))
        found = np.flatnonzero((self.words == word) & (self.name_sizes == len(name)))
        if len(name) > 8 and len(found):
            names = np.lib.stride_tricks.sliding_window_view(self.text, len(name))[self.name_starts[found]]
            found = found[(names == np.frombuffer(name, np.uint8)).all(axis=1)]
        return found

    def values(self, name: bytes, property_starts: Longs) -> tuple[Longs, Longs]:
        """Start and size of the value with this name in the buffer of the records; -1 and 0 without one."""
        starts = np.full(len(property_starts), -1, np.int64)
        sizes = np.zeros(len(property_starts), np.int64)
        found = self.find(name)
        rows = self.owners[found]
        starts[rows] = self.value_starts[found] - self.text_starts[rows] + property_starts[rows]
        sizes[rows] = self.value_sizes[found]
        return starts, sizes

    def map_column(self) -> pa.Array:
        """The pairs as a map column."""
        count = len(self.owners)
        offsets = np.zeros(len(self.ends) + 1, np.int32)
        offsets[1:] = self.ends
        # Names, values and what is between them are pieces of one text; names and values are then taken.
        bounds = np.zeros(4 * count + 1, np.int32)
        bounds[0:-1:4] = self.name_starts
        bounds[1::4] = self.name_starts + self.name_sizes
        bounds[2::4] = self.value_starts
        bounds[3::4] = self.value_starts + self.value_sizes
        bounds[-1] = len(self.text)
        pieces = binary_column(bounds, self.text).view(pa.string())
        at = np.arange(0, 4 * count, 4, dtype=np.int32)
        return pa.MapArray.from_arrays(
            pa.array(offsets), pieces.take(pa.array(at)), pieces.take(pa.array(at + np.int32(2)))
        )


def split_pairs(data: Bytes, starts: Longs, sizes: Longs) -> tuple[Pairs, Bools]:
    """The pairs of properties at these places, and which records are odd: if any is, the pairs mean nothing."""
    column = gather(data, starts, sizes)
    bounds, text = text_buffers(column)
    is_odd = np.zeros(len(starts), np.bool_)
    _mark_bad_text(column, text, bounds, is_odd)
    separators = np.flatnonzero((text - np.uint8(1)) < 2)
    kinds = text[separators]
    ends = np.searchsorted(separators, bounds[1:])
    # Some writers leave out the last separator of a record.
    is_open = sizes > 0
    is_open[is_open] = text[bounds[1:][is_open] - 1] != 2
    if is_open.any():
        at = ends[is_open]
        separators = np.insert(separators, at, bounds[1:][is_open])
        kinds = np.insert(kinds, at, 2)
        ends = ends + np.cumsum(is_open)
    counts = np.diff(ends, prepend=0)
    _mark_bad_order(kinds, counts, is_odd)
    is_odd |= counts > 2 * COUNT_MAX
    if is_odd.any():
        return _NOTHING, is_odd
    name_ends, value_ends = separators[0::2], separators[1::2]
    name_starts = np.empty_like(name_ends)
    name_starts[1:] = value_ends[:-1] + 1
    firsts = (ends - counts)[counts > 0] // 2
    name_starts[firsts] = bounds[:-1][counts > 0]
    owners = np.repeat(np.arange(len(starts)), counts // 2)
    name_sizes, value_starts = name_ends - name_starts, name_ends + 1
    value_sizes = value_ends - value_starts
    is_odd[owners[(name_sizes == 0) | (value_sizes == 0)]] = True
    words = first_words(text, name_starts, name_sizes)
    _mark_repeats(
        _name_codes(text, name_starts, name_sizes, words), owners, int(counts.max(initial=0)) // 2, is_odd
    )
    return Pairs(
        text, bounds[:-1], ends // 2, owners, name_starts, name_sizes, value_starts, value_sizes, words
    ), is_odd


_EMPTY: Final = np.zeros(0, np.int64)
_NOTHING: Final = Pairs(
    np.zeros(0, np.uint8), _EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY, np.zeros(0, np.uint64)
)


def _mark_bad_text(column: pa.Array, text: Bytes, bounds: Longs, is_odd: Bools) -> None:
    """Where one of the texts is not UTF-8, every one that is not ASCII is odd."""
    is_high = text >= 0x80
    if is_high.any():
        try:
            column.cast(pa.string())
        except pa.ArrowInvalid:
            is_odd[np.searchsorted(bounds, np.flatnonzero(is_high), side="right") - 1] = True


def _mark_bad_order(kinds: Bytes, counts: Longs, is_odd: Bools) -> None:
    """Separators take turns, and each record ends with the one behind a value."""
    if not (counts & 1).any() and (kinds[0::2] == 1).all() and (kinds[1::2] == 2).all():
        return
    owners = np.repeat(np.arange(len(counts)), counts)
    turns = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts) & 1
    is_odd[owners[kinds != turns + 1]] = True
    is_odd[(counts & 1) > 0] = True


def first_words(text: Bytes, starts: Longs, sizes: Longs) -> NDArray[np.uint64]:
    """The first eight bytes of each span as a number; of a shorter one, all of them."""
    if len(text) < 8:
        text = np.concatenate((text, np.zeros(8, np.uint8)))
    at = np.minimum(starts, len(text) - 8)
    words: NDArray[np.uint64] = strided(text, "<u8")[at]
    words = words >> ((starts - at) * 8).astype(np.uint64)
    masked: NDArray[np.uint64] = words & _MASKS[np.minimum(sizes, 8)]
    return masked


def _name_codes(text: Bytes, starts: Longs, sizes: Longs, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that are equal for equal names and hardly ever for others."""
    codes = words * _MIX + sizes.astype(np.uint64)
    for skipped in range(8, int(sizes.max(initial=0)), 8):
        rows = np.flatnonzero(sizes > skipped)
        codes[rows] = codes[rows] * _MIX + first_words(text, starts[rows] + skipped, sizes[rows] - skipped)
    return codes ^ codes >> np.uint64(29)


def _mark_repeats(codes: NDArray[np.uint64], owners: Longs, count_max: int, is_odd: Bools) -> None:
    """Records with a name that stands twice, and perhaps another one."""
    own_codes = codes + owners.astype(np.uint64) * _MIX
    for distance in range(1, count_max):
        same = np.flatnonzero(own_codes[distance:] == own_codes[:-distance])
        if len(same):
            is_odd[owners[same][owners[same] == owners[same + distance]]] = True
