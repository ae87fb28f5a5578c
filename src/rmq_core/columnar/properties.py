"""The properties of many records: the values that queues, index and rows ask for by name, and all of them as a map.

What the fast way does not take, record by record: names that stand twice, text that is not UTF-8, more pairs than
anyone sends. There decode_properties() decides, as it does for a single message.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.cut import KNOWN, Cut, nothing_known
from rmq_core.columnar.pairs import Pairs, split_pairs
from rmq_core.columnar.parts import Bools, Bytes, Longs
from rmq_core.columnar.room import keep_freed_memory
from rmq_core.protocol.message import decode_properties

_SPECIAL: Final = (b"DELAY", b"INNER_NUM", b"INNER_MULTI_DISPATCH")
_MAP: Final = pa.map_(pa.string(), pa.string())


class Properties:
    """The properties that stand at some places of a buffer, taken apart as far as they are asked for.

    cut: what a compiled loop has made of them already.
    """

    def __init__(self, data: Bytes, starts: Longs, sizes: Longs, cut: Cut | None = None) -> None:
        self._data = data
        self._starts = starts
        self._sizes = sizes
        self._given_cut = cut

    def values(self, name: bytes) -> tuple[Longs, Longs]:
        """Start and size of the value of a KNOWN name in each record, -1 and 0 without one; of several the last."""
        spans, _ = self._known
        at = 2 * KNOWN.index(name)
        return spans[at], spans[at + 1]

    @property
    def is_special(self) -> Bools:
        """Which records have a delay level, light queues or inner messages."""
        return self._known[1]

    @property
    def is_ascii(self) -> bool:
        """Whether all of them are known to be ASCII."""
        return self._given_cut is not None and not self._given_cut.is_high.any()

    @cached_property
    def _known(self) -> tuple[NDArray[np.int64], Bools]:
        if kernels.active() is not None:
            cut = self._given_cut or self._cut(with_known=True)
            return cut.spans, cut.is_special
        spans, is_special = nothing_known(len(self._starts))
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
        keep_freed_memory()
        is_odd = np.zeros(len(self._starts), np.bool_)
        while True:  # twice or three times where a record is odd: not all that is odd shows at once
            pairs, more = split_pairs(self._data, self._starts, np.where(is_odd, 0, self._sizes))
            if not more.any():
                break
            is_odd |= more
        return pairs, np.flatnonzero(is_odd)

    def _cut(self, *, with_known: bool = False, with_map: bool = False) -> Cut:
        cut = Cut(len(self._starts), with_known=with_known, with_map=with_map)
        return cut.run(self._data, self._starts, self._sizes)

    def map_column(self) -> pa.Array:
        """All of them as a map column."""
        if kernels.active() is not None:
            maps, odd_rows = self._cut_maps()
        else:
            pairs, odd_rows = self._pairs
            maps = pairs.map_column()
        if not len(odd_rows):
            return maps
        others = [list(decode_properties(self._text(row)).items()) for row in odd_rows.tolist()]
        order = np.arange(len(maps))
        order[odd_rows] = len(maps) + np.arange(len(odd_rows))
        return pa.concat_arrays([maps.cast(_MAP), pa.array(others, _MAP)]).take(pa.array(order))

    def _cut_maps(self) -> tuple[pa.Array, Longs]:
        """The maps, and the odd rows, where they are empty."""
        cut = self._given_cut
        if cut is None or not cut.with_map:
            cut = self._cut(with_map=True)
        maps = cut.maps()
        if cut.is_high.any():
            try:
                maps.keys.validate(full=True)
                maps.items.validate(full=True)
            except pa.ArrowInvalid:
                odd = cut.is_odd | cut.is_high
                cut = Cut(len(odd), with_known=False, with_map=True)
                cut.is_odd[:] = odd
                maps = cut.run(self._data, self._starts, self._sizes).maps()
        return maps, np.flatnonzero(cut.is_odd)
