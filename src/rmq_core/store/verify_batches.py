"""Units of batch consume queues against the log: one for each record of a batch topic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from rmq_core.columnar import DispatchColumns
from rmq_core.protocol.record import decode_record
from rmq_core.store.groups import is_batch, is_shown
from rmq_core.store.offline_queues import UNITS
from rmq_core.store.tools import Findings, StoreFiles
from rmq_core.store.verify_files import QueueRun, queue_folders
from rmq_core.store.walk import Stretch

_Wanted = tuple[int, int, int, int, int, int]
"""Log offset, size, tags code, store time, base offset, messages."""
_NAMES: Final = ("log_offset", "size", "tags_code", "store_time_ms", "base_offset", "count")


class BatchCheck:
    """All batch consume queues."""

    def __init__(self, root: Path, files: StoreFiles, found: Findings) -> None:
        self._root = root
        self._files = files
        self._found = found
        self.units = 0
        self._runs: dict[tuple[str, int], QueueRun] = {}
        self._wanted: dict[tuple[str, int], list[_Wanted]] = {}
        size = -(-files.sizes.batch // UNITS.itemsize) * UNITS.itemsize
        for topic, queue_id, folder in queue_folders(files.disk, root / "batchconsumequeue", found):
            run = QueueRun.find(files.disk, folder, size, found, unit=UNITS.itemsize)
            if run is not None:
                self._runs[topic, queue_id] = run
        self.topics = {topic for topic, _ in self._runs}

    def add(self, step: Stretch, columns: DispatchColumns) -> None:
        """These records follow in the log."""
        for row in np.flatnonzero(is_batch(columns, self.topics) & is_shown(columns)).tolist():
            record = decode_record(step.buffer, int(step.positions[row]))
            count = record.properties.get("INNER_NUM", "1")
            wanted = (
                record.log_offset, record.size, int(columns.tags_codes[row]), record.store_time_ms,
                record.queue_offset, int(count) if count.isdigit() else 1,
            )  # fmt: skip
            self._wanted.setdefault((record.topic, record.queue_id), []).append(wanted)

    def finish(self) -> None:
        """The log is over."""
        for key, wanted in self._wanted.items():
            if key not in self._runs:
                folder = self._root / "batchconsumequeue" / key[0] / str(key[1])
                self._found.problem(folder, 0, f"the queue of the record at {wanted[0][0]} of the log is missing")
        for key, run in self._runs.items():
            self._compare(run, self._wanted.get(key, []))

    def _compare(self, run: QueueRun, wanted: list[_Wanted]) -> None:
        units = np.frombuffer(run.read(run.first, run.end - run.first), UNITS)
        self.units += len(units)
        offsets = units["log_offset"].astype(np.int64)
        expired = int(np.argmax(np.append(offsets, 1 << 62) >= self._files.segments.first))
        own = units[expired:]
        for number in range(max(len(own), len(wanted))):
            address = run.first + (expired + number) * UNITS.itemsize
            if number >= len(own):
                text = f"no unit for the record at {wanted[number][0]} of the log"
                self._found.problem(run.path(address), address % run.size, text, count=len(wanted) - number)
                return
            got = tuple(int(own[name][number]) for name in _NAMES)
            if number >= len(wanted):
                text = f"the log has no record for the unit {got}"
                self._found.problem(run.path(address), address % run.size, text, count=len(own) - number)
                return
            if got != wanted[number] or own["reserved"][number]:
                text = f"the unit is {got}, the record says {wanted[number]}"
                self._found.problem(run.path(address), address % run.size, text)
