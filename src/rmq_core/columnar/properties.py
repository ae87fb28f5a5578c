"""The properties of many records: the values that queues, index and rows ask for by name, and all of them as a map.

What the fast way does not take, record by record: names that stand twice, text that is not UTF-8, more pairs than
anyone sends. There decode_properties() decides, as it does for a single message.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.gather import check_column_size
from rmq_core.columnar.pairs import Pairs, split_pairs
from rmq_core.columnar.parts import Bools, Bytes, Longs
from rmq_core.columnar.room import COPY_ROOM, room_for, rows_for
from rmq_core.protocol.message import decode_properties

KNOWN: Final = (b"TAGS", b"KEYS", b"UNIQ_KEY")
_SPECIAL: Final = (b"DELAY", b"INNER_NUM", b"INNER_MULTI_DISPATCH")
_MAP: Final = pa.map_(pa.string(), pa.string())


class Properties:
    """The properties that stand at some places of a buffer, taken apart as far as they are asked for.

    with_known: values() or is_special will be asked for. with_map: map_column() will be called.
    """

    def __init__(
        self, data: Bytes, starts: Longs, sizes: Longs, *, with_known: bool = True, with_map: bool = False
    ) -> None:
        self._with_known = with_known
        self._with_map = with_map
        self._data = data
        self._starts = starts
        self._sizes = sizes

    def values(self, name: bytes) -> tuple[Longs, Longs]:
        """Start and size of the value of a KNOWN name in each record, -1 and 0 without one; of several the last."""
        spans, _ = self._known
        at = 2 * KNOWN.index(name)
        return spans[at], spans[at + 1]

    @property
    def is_special(self) -> Bools:
        """Which records have a delay level, light queues or inner messages."""
        return self._known[1]

    @cached_property
    def _known(self) -> tuple[NDArray[np.int64], Bools]:
        if kernels.active() is not None:
            return self._cut.spans, self._cut.is_special
        spans, is_special = _nothing_known(len(self._starts))
        pairs, odd_rows = self._pairs
        for number, name in enumerate(KNOWN):
            spans[2 * number], spans[2 * number + 1] = pairs.values(name, self._starts)
        for name in _SPECIAL:
            is_special[pairs.owners[pairs.find(name)]] = True
        for row in odd_rows.tolist():
            self._find_known(row, spans[:, row], is_special[row : row + 1])
        return spans, is_special

    def _find_known(self, row: int, spans: NDArray[np.int64], is_special: Bools) -> None:
        at = int(self._starts[row])
        for pair in self._text(row).split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if value and name in KNOWN:
                number = 2 * KNOWN.index(name)
                spans[number : number + 2] = at + len(name) + 1, len(value)
            elif value and name in _SPECIAL:
                is_special[0] = True
            at += len(pair) + 1

    def _text(self, row: int) -> bytes:
        start = int(self._starts[row])
        return self._data[start : start + int(self._sizes[row])].tobytes()

    @cached_property
    def _pairs(self) -> tuple[Pairs, Longs]:
        """The pairs of regular records, none for the odd ones, and the odd ones."""
        is_odd = np.zeros(len(self._starts), np.bool_)
        while True:  # twice or three times where a record is odd: not all that is odd shows at once
            pairs, more = split_pairs(self._data, self._starts, np.where(is_odd, 0, self._sizes))
            if not more.any():
                break
            is_odd |= more
        return pairs, np.flatnonzero(is_odd)

    def map_column(self) -> pa.Array:
        """All of them as a map column."""
        if kernels.active() is not None:
            maps, odd_rows = self._cut.map_column()
        else:
            pairs, odd_rows = self._pairs
            maps = pairs.map_column()
        if not len(odd_rows):
            return maps
        others = [list(decode_properties(self._text(row)).items()) for row in odd_rows.tolist()]
        order = np.arange(len(maps))
        order[odd_rows] = len(maps) + np.arange(len(odd_rows))
        return pa.concat_arrays([maps.cast(_MAP), pa.array(others, _MAP)]).take(pa.array(order))

    @cached_property
    def _cut(self) -> _Cut:
        return _Cut(self._data, self._starts, self._sizes, with_known=self._with_known, with_map=self._with_map)


class _Cut:
    """Properties cut into pairs by the compiled loops, in one pass for all that is asked for."""

    def __init__(self, data: Bytes, starts: Longs, sizes: Longs, *, with_known: bool, with_map: bool) -> None:
        self._arguments = data, starts, sizes
        self._is_odd = np.zeros(len(starts), np.bool_)
        self._is_high = np.zeros(len(starts), np.bool_)
        self.spans, self.is_special = _nothing_known(len(starts) if with_known else 0)
        self._maps = self._cut(with_map=with_map)

    def map_column(self) -> tuple[pa.Array, Longs]:
        """The maps, and the odd rows, where they are empty."""
        maps = self._cut(with_map=True) if self._maps is None else self._maps
        if self._is_high.any():
            try:
                maps.keys.validate(full=True)
                maps.items.validate(full=True)
            except pa.ArrowInvalid:
                self._is_odd |= self._is_high
                maps = self._cut(with_map=True)
        return maps, np.flatnonzero(self._is_odd)

    def _cut(self, *, with_map: bool) -> Any:
        data, starts, sizes = self._arguments
        total = int(sizes.sum()) if with_map else 0
        check_column_size(total)
        # A pair has three bytes or more, and one behind it that only the last may lack.
        pairs_max = (total + len(starts)) // 4 if with_map else 0
        map_offsets = np.empty(len(starts) + 1, np.int32)
        name_offsets, value_offsets = (room_for(pairs_max + 1, np.int32) for _ in range(2))
        names, values = (room_for(total + COPY_ROOM, np.uint8) for _ in range(2))
        loops: Any = kernels.active()
        loops.cut_pairs(
            data, starts, sizes, self.spans, self.is_special, with_map, map_offsets,
            name_offsets[1], names[1], value_offsets[1], values[1], self._is_odd, self._is_high,
        )  # fmt: skip
        if not with_map:
            return None
        count = int(map_offsets[-1])
        name_column = pa.Array.from_buffers(pa.string(), count, [None, name_offsets[0], names[0]])
        value_column = pa.Array.from_buffers(pa.string(), count, [None, value_offsets[0], values[0]])
        return pa.MapArray.from_arrays(pa.array(map_offsets), name_column, value_column)


def _nothing_known(count: int) -> tuple[NDArray[np.int64], Bools]:
    spans = rows_for(2 * len(KNOWN), count, np.int64)
    spans[0::2] = -1
    spans[1::2] = 0
    return spans, np.zeros(count, np.bool_)
