"""What offline tools find out by looking: file sizes, and files that do not belong; and how they say it."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmq_core.errors import StoreError
from rmq_core.store.disk import Disk
from rmq_core.store.offline_log import SEGMENT_NAME, segment_size
from rmq_core.store.queues import QueueSizes
from rmq_core.store.segments import Segments

PROBLEMS_PER_FILE: Final = 10
_SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not agree: the file, where in it, and what."""

    path: str
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.path} at {self.offset}: {self.text}"


@dataclass(slots=True)
class Findings:
    """Problems and notes, only the first ones of each file in full."""

    root: Path
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def problem(self, path: Path, offset: int, text: str, *, count: int = 1) -> None:
        """Something is wrong at an offset of a file, and perhaps the same behind it."""
        name = str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
        if self._counts[name] < PROBLEMS_PER_FILE:
            self.problems.append(Problem(name, offset, text + (f", and {count - 1} more" if count > 1 else "")))
        self._counts[name] += 1

    def note(self, text: str) -> None:
        """Something is unusual and no damage."""
        self.notes.append(text)

    def finish(self) -> None:
        """Say of which files not everything was said."""
        for name, count in self._counts.items():
            if count > PROBLEMS_PER_FILE:
                self.problems.append(Problem(name, 0, f"{count - PROBLEMS_PER_FILE} more problems like these"))


class FoundSegments(Segments):
    """The files of a log as they are: one that was cut or has grown shows what belongs to it."""

    def file_view(self, offset: int) -> tuple[memoryview, int] | None:
        found = super().file_view(offset)
        return None if found is None else (found[0][: self.size], found[1])


@dataclass(slots=True)
class StoreFiles:
    """A directory as it is found, nothing changed."""

    disk: Disk
    segments: FoundSegments
    sizes: QueueSizes
    odd_files: list[tuple[Path, int, str]]
    """Files of the log that do not fit the others: where, and why."""

    @classmethod
    def find(cls, root: Path, commit_log: Sequence[Path] = ()) -> StoreFiles:
        """Look at a directory. Raises StoreError where it has no log."""
        disk = Disk(mappings_max=64)
        folders = list(commit_log) or [root / "commitlog"]
        files = [(folder / name, size) for folder in folders for name, size in disk.list(folder)]
        size = segment_size([(path.name, found) for path, found in files])
        if not size:
            raise StoreError(f"{root} has no commit log")
        odd: list[tuple[Path, int, str]] = []
        if size % _SECTOR:
            odd.append((files[0][0], size, f"{size} bytes: no broker makes files of this size; was it cut?"))
        segments = FoundSegments(disk, folders, size)
        for path, found in files:
            if not SEGMENT_NAME.fullmatch(path.name) or int(path.name) % size:
                odd.append((path, 0, f"its name is no multiple of {size}"))
                continue
            if found != size:
                odd.append((path, min(found, size), f"it has {found} bytes, a file of this log {size}"))
            if found:
                segments.note(int(path.name), path)
        queue_sizes = QueueSizes(
            common_size(disk, root / "consumequeue", 6_000_000),
            common_size(disk, root / "consumequeue_ext", 50_331_648),
            common_size(disk, root / "batchconsumequeue", 13_800_000),
            bool(disk.list_directories(root / "consumequeue_ext")),
        )
        return cls(disk, segments, queue_sizes, odd)


def common_size(disk: Disk, folder: Path, default: int) -> int:
    """The size that most of the queue files in a folder have."""
    sizes: collections.Counter[int] = collections.Counter()
    for topic in disk.list_directories(folder):
        for queue_id in disk.list_directories(folder / topic):
            files = disk.list(folder / topic / queue_id)
            sizes.update(size for name, size in files if SEGMENT_NAME.fullmatch(name) and size)
            if sizes.total() > 1000:
                break
    return sizes.most_common(1)[0][0] if sizes else default
