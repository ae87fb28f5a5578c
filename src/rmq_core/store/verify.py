"""Does everything in a directory agree? Every record, every queue entry, every index entry and slot.

The log is the truth. A walk over it says which entries each queue must have and which keys the index; both are
compared with what the files hold, in pieces, so that the size of the store does not matter.

Problem   Something that a broker would not have written, or that says something else than the log.
Note      Something unusual that a broker leaves, or that nobody can judge: a stop that was not clean, a topic that
          was deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import orjson

from rmq_core.columnar import DispatchColumns, dispatch_columns, kernels
from rmq_core.errors import StoreError
from rmq_core.protocol.record import CRC_PROPERTY_SIZE, has_valid_record_crc
from rmq_core.store.checkpoint import CHECKPOINT_SIZE, Checkpoint
from rmq_core.store.segments import segment_name
from rmq_core.store.tools import Findings, Problem, StoreFiles
from rmq_core.store.verify_batches import BatchCheck
from rmq_core.store.verify_index import IndexCheck
from rmq_core.store.verify_queues import QueueCheck
from rmq_core.store.walk import Damage, LogWalk, Stretch

__all__ = ["Problem", "Verified", "verify"]

_CHECKPOINT: Final = struct.Struct(">qqqqq")
_CRC_NAME: Final = int.from_bytes(b"__CRC32#", "little")


@dataclass(slots=True)
class Verified:
    """What a check found."""

    records: int = 0
    entries: int = 0
    index_entries: int = 0
    log_end: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.problems


class Verification:
    """One check of one directory."""

    def __init__(
        self, root: Path, commit_log: Sequence[Path], on_progress: Callable[[int, int], None] | None
    ) -> None:
        self._files = StoreFiles.find(root, commit_log)
        self._root = root
        self._on_progress = on_progress or (lambda done, total: None)
        self._found = Findings(root)
        self._damages: list[Damage] = []
        self._last_time_ms = 0
        self._is_running = (root / "abort").exists()

    def run(self) -> Verified:
        """Check everything."""
        try:
            return self._run()
        finally:
            self._files.disk.close()

    def _run(self) -> Verified:
        result = Verified()
        if self._is_running:
            self._found.note("the file abort is there: a broker is running, or its last stop was not clean")
        for path, offset, text in self._files.odd_files:
            self._found.problem(path, offset, text)
        segments = self._files.segments
        entered_ms = self._entered_ms() if self._is_running else None
        queues = QueueCheck(self._root, self._files, self._found, topic_names(self._root), entered_ms=entered_ms)
        batches = BatchCheck(self._root, self._files, self._found)
        index = IndexCheck(self._files.disk, self._root / "index", self._found, segments.first)
        walk = LogWalk(segments, segments.first)
        steps = _with_columns(walk)
        for each in _one_ahead(steps) if kernels.is_loaded() else steps:
            if isinstance(each, Damage):
                self._damages.append(each)
                self._log_problem(each.start, f"{each.reason} up to {each.end}")
                continue
            step, columns = each
            self._check_record_crcs(step)
            for row in np.flatnonzero((columns.queue_ids < 0) | (columns.queue_offsets < 0)).tolist():
                self._log_problem(int(columns.log_offsets[row]), "its queue id or queue offset is none")
            queues.add(step, columns, batches.topics)
            batches.add(step, columns)
            index.add(step.buffer, columns)
            result.records += len(step.positions)
            self._last_time_ms = max(self._last_time_ms, int(columns.store_times_ms.max()))
            self._on_progress(step.end - segments.first, segments.end - segments.first)
        result.log_end = walk.end
        self._check_tail(walk.end)
        queues.finish(self._damages, walk.end)
        batches.finish()
        index.finish(self._missing_key, is_running=self._is_running)
        self._check_checkpoint(walk.end)
        self._found.finish()
        result.entries, result.index_entries = queues.entries + batches.units, index.entries
        result.problems, result.notes = self._found.problems, self._found.notes
        return result

    # The log

    def _place(self, offset: int) -> tuple[Path, int]:
        """The file of a log offset, and where in it that is."""
        segments = self._files.segments
        start = offset - offset % segments.size
        path = segments.path(start) if segments.has(start) else self._root / "commitlog" / segment_name(start)
        return path, offset - start

    def _log_problem(self, offset: int, text: str) -> None:
        self._found.problem(*self._place(offset), text)

    def _missing_key(self, offset: int, count: int) -> None:
        self._found.problem(*self._place(offset), "a key of this message is in no index file", count=count)

    def _check_record_crcs(self, step: Stretch) -> None:
        """Records that carry a CRC over all of their bytes must agree with it."""
        every = np.ndarray((max(len(step.buffer) - 7, 0),), "<u8", buffer=step.buffer, strides=(1,))
        ends = step.positions + step.sizes
        with_crc = every[ends - CRC_PROPERTY_SIZE] == _CRC_NAME
        for row in np.flatnonzero(with_crc).tolist():
            if not has_valid_record_crc(step.buffer, int(step.positions[row]), int(step.sizes[row])):
                self._log_problem(step.base + int(step.positions[row]), "the record does not agree with its CRC")

    def _check_tail(self, log_end: int) -> None:
        """Behind the last record nothing may stand."""
        segments = self._files.segments
        for start in [log_end, *(each for each in segments.starts if each > log_end)]:
            found = segments.file_view(start)
            if found is None:
                continue
            view = found[0][start - found[1] :]
            dirty = int(np.count_nonzero(np.frombuffer(view, np.uint8)))
            if dirty:
                text = f"{dirty} bytes behind the last record are not zero: a torn record?"
                self._log_problem(start, text)

    # Small files

    def _entered_ms(self) -> int:
        """What the checkpoint promises of the queues."""
        checkpoint = Checkpoint(self._files.disk, self._root / "checkpoint")
        checkpoint.load()
        return checkpoint.queues_time_ms

    def _check_checkpoint(self, log_end: int) -> None:
        path = self._root / "checkpoint"
        if not path.exists():
            self._found.problem(path, 0, "it is missing")
            return
        data = path.read_bytes()
        if len(data) != CHECKPOINT_SIZE:
            self._found.problem(path, len(data), f"it has {len(data)} bytes, not {CHECKPOINT_SIZE}")
        if len(data) < _CHECKPOINT.size:
            return
        *times, flushed, confirmed = _CHECKPOINT.unpack_from(data)
        for number, (name, value) in enumerate(zip(("log", "queues", "index"), times, strict=True)):
            if value < 0 or value > self._last_time_ms:
                text = f"the time of the {name} is {value}, the last message is of {self._last_time_ms}"
                self._found.problem(path, 8 * number, text)
        for number, value in ((3, flushed), (4, confirmed)):
            if value < 0 or value > log_end:
                self._found.problem(path, 8 * number, f"{value} is no offset of a log that ends at {log_end}")
        if any(data[_CHECKPOINT.size :]):
            self._found.problem(path, _CHECKPOINT.size, "what follows the times is not zero")


_Step: TypeAlias = Damage | tuple[Stretch, DispatchColumns]


def _with_columns(walk: LogWalk) -> Iterator[_Step]:
    for step in walk:
        yield step if isinstance(step, Damage) else (step, dispatch_columns(step.buffer, step.positions))


def _one_ahead(steps: Iterator[_Step]) -> Iterator[_Step]:
    """The same steps, each made by another thread while the one before is looked at: compiled loops let it run."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, steps, None)
        while (step := following.result()) is not None:
            following = pool.submit(next, steps, None)
            yield step


def topic_names(root: Path) -> set[str] | None:
    """The topics of config/topics.json; None where that cannot be told."""
    try:
        table = orjson.loads((root / "config" / "topics.json").read_bytes())["topicConfigTable"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return set(table)


def verify(
    root: str | Path,
    *,
    commit_log: Sequence[str | Path] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Check a directory. Raises StoreError where it is no store.

    commit_log: the folders of the log where they are others than `commitlog`. on_progress(done, all) hears how many
    bytes of the log were walked.
    """
    if not Path(root).is_dir():
        raise StoreError(f"{root} is no directory")
    return Verification(Path(root), [Path(each) for each in commit_log], on_progress).run()
