"""Builds queues and index again from the log, in place or in a copy.

The new files are made beside the old ones and take their places when all are durable. The log itself is not
touched, unless it is asked that what stands behind its last record be made zero. A damaged region inside the log
stays what it is, and verify goes on to name it: the queues get blank entries for the messages that were there.

Crash   Before anything is exchanged, the checkpoint promises nothing any more and the file abort is there: whoever
        opens a directory in the middle of a repair builds everything again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rmq_core.clock import SystemClock
from rmq_core.errors import StoreError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import decode_record
from rmq_core.store.checkpoint import AbortFile, Checkpoint
from rmq_core.store.disk import Disk, lock_file
from rmq_core.store.dispatcher import Dispatcher, LightQueues
from rmq_core.store.index_file import Index
from rmq_core.store.index_shape import DEFAULT_SHAPE, index_shape
from rmq_core.store.inner_messages import sys_flags
from rmq_core.store.key_index import KeyIndex
from rmq_core.store.message_store import parse_delay_levels
from rmq_core.store.queues import Queues, QueueSizes
from rmq_core.store.tools import StoreFiles
from rmq_core.store.walk import Damage, LogWalk, Stretch

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_REBUILT = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
_LEFT_OUT = (*_REBUILT, "lock", "abort", "checkpoint", ".repair", ".cache")


_HOLE_MAX = 1000


@dataclass(slots=True)
class Repaired:
    """What was built."""

    root: Path
    records: int = 0
    queues: int = 0
    log_end: int = 0
    is_tail_clean: bool = True
    """Nothing stands behind the last record."""
    damages: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What the files do not say, where they are too damaged to tell."""

    truncate: bool = False
    """Make zero what stands behind the last record of the log."""
    delay_levels: str = DELAY_LEVELS
    """The broker's messageDelayLevel, which decides what the entries of delayed messages hold."""
    queue_file_size: int | None = None
    """The broker's mappedFileSizeConsumeQueue."""
    index_shape: tuple[int, int] | None = None
    """The broker's maxHashSlotNum and maxIndexNum."""


def repair(
    root: str | Path,
    *,
    to: str | Path | None = None,
    commit_log: Sequence[str | Path] = (),
    options: RepairOptions | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Repaired:
    """Rebuild a directory; `to` names a new one that gets a repaired copy. Raises StoreError, OSError.

    commit_log: the folders of the log where they are others than `commitlog`; a copy has all in one.
    """
    source, options = Path(root), options or RepairOptions()
    folders = [Path(each) for each in commit_log]
    sizes, shape = _shapes(source, folders, options)
    if to is None:
        target = source
    else:
        target, folders = Path(to), _copy(source, Path(to), folders)
    with lock_file(target / "lock"):
        rebuilding = _Rebuilding(source, target, folders, sizes, shape, options)
        return rebuilding.run(on_progress or (lambda done, total: None))


def _shapes(root: Path, folders: list[Path], options: RepairOptions) -> tuple[QueueSizes, tuple[int, int]]:
    """Sizes of the files to make: as asked for, else as those that are there, else Apache's."""
    files = StoreFiles.find(root, folders)
    found = files.sizes
    sizes = QueueSizes(options.queue_file_size or found.entries, found.ext, found.batch, found.with_ext)
    shape = options.index_shape
    for name, size in files.disk.list(root / "index"):
        if shape is None and name.isdecimal():
            shape = index_shape(files.disk, root / "index" / name, size)
    files.disk.close()
    return sizes, shape or DEFAULT_SHAPE


def _copy(source: Path, target: Path, folders: list[Path]) -> list[Path]:
    """Copy all but what is built anew; returns the folders of the copied log."""
    if target.exists():
        raise StoreError(f"{target} already exists")
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        for folder in folders:
            if not folder.is_relative_to(source):
                shutil.copytree(folder, target / "commitlog", dirs_exist_ok=True)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        raise
    inside = [target / folder.relative_to(source) for folder in folders if folder.is_relative_to(source)]
    return [*inside, target / "commitlog"] if folders else []


class _Rebuilding:
    """One directory whose queues and index are being made."""

    def __init__(
        self,
        source: Path,
        root: Path,
        folders: list[Path],
        sizes: QueueSizes,
        shape: tuple[int, int],
        options: RepairOptions,
    ) -> None:
        """source: where the old queues are, which say what topics have batch queues."""
        self._root = root
        self._options = options
        self._workshop = root / ".repair"
        if self._workshop.exists():
            shutil.rmtree(self._workshop)
        self._files = StoreFiles.find(root, folders)
        self._disk: Disk = self._files.disk
        self._queues = Queues(self._disk, self._workshop, sizes)
        for topic in self._disk.list_directories(source / "batchconsumequeue"):
            for name in self._disk.list_directories(source / "batchconsumequeue" / topic):
                if name.isdecimal():
                    self._queues.add_batch(topic, int(name))
        self._index = Index(
            self._disk,
            self._workshop / "index",
            slot_count=shape[0],
            entry_count=shape[1],
            now=SystemClock().now_ms,
        )

    def run(self, on_progress: Callable[[int, int], None]) -> Repaired:
        """Build everything and put it in its place."""
        segments, found = self._files.segments, Repaired(self._root)
        keys = KeyIndex(self._index, segments)
        levels = parse_delay_levels(self._options.delay_levels)
        dispatcher = Dispatcher(self._queues, None, levels, LightQueues(is_enabled=True))
        # A record whose queue offset was damaged leaves a hole; those behind it must not be lost for that.
        dispatcher.missing = _HOLE_MAX
        walk = LogWalk(segments, segments.first)
        for step in walk:
            if isinstance(step, Damage):
                found.damages.append(step)
                dispatcher.missing += step.end - step.start
                continue
            self._add_batches(step)
            keys.build_log(step.buffer, dispatcher.enter_log(step))
            self._queues.write_out()
            self._index.write_out()
            found.records += len(step.positions)
            on_progress(step.end - segments.first, segments.end - segments.first)
        for topic, queue_id in [key for key in self._queues.table if key[1] < 0]:
            # No queue has such an id: its records are damaged, and stay where they are.
            self._queues.table.pop((topic, queue_id)).files.remove()
        self._queues.sync()
        self._index.flush()
        found.queues, found.log_end = len(self._queues.table) + len(self._queues.batch), walk.end
        if self._options.truncate:
            self._truncate(walk.end)
        found.is_tail_clean = self._is_zero_from(walk.end)
        self._exchange(dispatcher.last_store_time_ms, is_clean=found.is_tail_clean)
        self._disk.close()
        return found

    def _add_batches(self, step: Stretch) -> None:
        """Make the batch queues that these records need."""
        inner = sys_flags(step.buffer, step.positions) & flags.INNER_BATCH != 0
        for at in step.positions[inner].tolist():
            record = decode_record(step.buffer, at)
            if (record.topic, record.queue_id) not in self._queues.batch:
                self._queues.add_batch(record.topic, record.queue_id)

    def _truncate(self, log_end: int) -> None:
        """Make the log end where its last record does, with whole files."""
        segments = self._files.segments
        for start in segments.starts:
            path = segments.path(start)
            if path.stat().st_size != segments.size and start + segments.size > log_end:
                self._disk.resize(path, segments.size)
        segments.clear(log_end)

    def _is_zero_from(self, log_end: int) -> bool:
        segments = self._files.segments
        for start in [log_end, *(each for each in segments.starts if each > log_end)]:
            found = segments.file_view(start)
            if found is not None and np.frombuffer(found[0], np.uint8)[start - found[1] :].any():
                return False
        return True

    def _exchange(self, time_ms: int, *, is_clean: bool) -> None:
        abort, checkpoint = (
            AbortFile(self._disk, self._root / "abort"),
            Checkpoint(self._disk, self._root / "checkpoint"),
        )
        abort.create()
        self._disk.remove(self._root / "checkpoint")
        checkpoint.store()
        old = self._workshop / "old"
        self._disk.make_directory(old)
        for name in _REBUILT:
            if (self._root / name).exists():
                (self._root / name).rename(old / name)
            if (self._workshop / name).exists():
                (self._workshop / name).rename(self._root / name)
        self._disk.sync_directory(self._root)
        checkpoint.log_time_ms = checkpoint.queues_time_ms = time_ms
        checkpoint.index_time_ms = self._index.rolled_end_ms
        checkpoint.store()
        shutil.rmtree(self._workshop)
        if is_clean:
            abort.remove()
