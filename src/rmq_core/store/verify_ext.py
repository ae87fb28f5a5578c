"""Units beside the entries of a queue: each must be where its entry says, and follow the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.store.disk import Disk
from rmq_core.store.queue_ext import ADDRESS_BASE
from rmq_core.store.tools import Findings
from rmq_core.store.verify_files import QueueRun

_UNIT: Final = np.dtype([("size", ">i2"), ("code", ">i8"), ("time_ms", ">i8"), ("bits_size", ">i2")])
_END_SIZE: Final = 4


class ExtCheck:
    """The units of one queue."""

    def __init__(self, disk: Disk, folder: Path, size: int, found: Findings) -> None:
        self._found = found
        self._run = QueueRun.find(disk, folder, size, found, unit=1)
        self._next: int | None = None
        """Where the unit behind the last one must be."""

    def check(self, addresses: NDArray[np.int64], times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tags codes of the units that entries in their order name; what is wrong with them is noted."""
        codes = np.zeros(len(addresses), np.int64)
        if self._run is None:
            return codes
        run, at = self._run, addresses - ADDRESS_BASE
        inside = (at >= run.first) & (at % run.size + _UNIT.itemsize + _END_SIZE <= run.size) & (at < run.limit)
        for row in np.flatnonzero(~inside).tolist():
            self._found.problem(run.folder, 0, f"an entry names a unit at {at[row]}, where none can be")
        for start in np.unique(at[inside] - at[inside] % run.size).tolist():
            rows = np.flatnonzero(inside & (at // run.size == start // run.size))
            data = run.read(start, run.size)
            every = np.ndarray((len(data) - _UNIT.itemsize + 1,), _UNIT, buffer=data, strides=(1,))
            units = every[at[rows] - start]
            codes[rows] = units["code"]
            bad = (units["size"] != units["bits_size"].astype(np.int32) + _UNIT.itemsize) | (units["bits_size"] < 0)
            bad |= units["time_ms"] != times_ms[rows]
            for row in rows[bad].tolist():
                self._problem(int(at[row]), "the unit does not fit the record of its entry")
            self._check_order(at[rows], units["size"].astype(np.int64))
        return codes

    def _problem(self, address: int, text: str) -> None:
        assert self._run is not None
        self._found.problem(self._run.path(address), address % self._run.size, text)

    def _check_order(self, at: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Units of one file lie one behind the other; only a new file begins elsewhere."""
        assert self._run is not None
        wanted = at + sizes
        for row in np.flatnonzero(at[1:] != wanted[:-1]).tolist():
            self._problem(int(at[row + 1]), f"the unit does not follow the one before, which ends at {wanted[row]}")
        if self._next is not None and at[0] != self._next and at[0] % self._run.size:
            self._problem(int(at[0]), f"the unit does not follow the one before, which ends at {self._next}")
        self._next = int(wanted[-1])

    def finish(self) -> None:
        """No unit may follow the one of the last entry."""
        if self._run is not None and self._next is not None and self._run.end > self._next:
            self._problem(self._next, "units follow that no entry names")
