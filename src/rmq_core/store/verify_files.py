"""The files of queues as they lie in a directory: names, sizes, gaps, and what stands behind the last entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmq_core.errors import StoreError
from rmq_core.store.disk import Disk
from rmq_core.store.offline_log import SEGMENT_NAME
from rmq_core.store.segments import segment_name
from rmq_core.store.tools import Findings

_CHUNK_MIN, _CHUNK = 4 << 10, 4 << 20


def queue_folders(disk: Disk, folder: Path, found: Findings) -> Iterator[tuple[str, int, Path]]:
    """Topic, id and folder of every queue; what is none is a problem."""
    if any(name.startswith("MANIFEST") for name, _ in disk.list(folder)):
        raise StoreError(f"{folder} holds RocksDB files: only storeType=default can be looked at")
    for name, _ in disk.list(folder):
        found.problem(folder / name, 0, "no file belongs there")
    for topic in disk.list_directories(folder):
        for name, _ in disk.list(folder / topic):
            found.problem(folder / topic / name, 0, "no file belongs there")
        for name in disk.list_directories(folder / topic):
            if name.isdecimal() and str(int(name)) == name:
                yield topic, int(name), folder / topic / name
            else:
                found.problem(folder / topic / name, 0, "its name is no queue id")


@dataclass(slots=True)
class QueueRun:
    """Files next to each other, from the oldest on."""

    disk: Disk
    folder: Path
    size: int
    first: int
    file_count: int
    end: int
    """Address behind the last byte that is not zero, rounded up to a whole unit."""

    @classmethod
    def find(cls, disk: Disk, folder: Path, size: int, found: Findings, *, unit: int = 20) -> QueueRun | None:
        """The files of a folder; None where there are none. What does not fit the run is a problem."""
        run: QueueRun | None = None
        for name, length in disk.list(folder):
            path = folder / name
            start = int(name) if SEGMENT_NAME.fullmatch(name) else -1
            if start < 0 or start % size:
                found.problem(path, 0, f"its name is no multiple of {size}")
            elif run is not None and start != run.limit:
                found.problem(folder / segment_name(run.limit), 0, f"the file before {name} is missing")
                return run
            else:
                if length != size:
                    found.problem(path, min(length, size), f"it has {length} bytes, a file of this queue {size}")
                run = run or cls(disk, folder, size, start, 0, start)
                run.file_count += 1
                used = run._used(start, min(length, size))
                if used:
                    run.end = start + -(-used // unit) * unit
                elif run.file_count > 1:
                    found.note(f"{folder.parent.name}/{folder.name}/{name} holds nothing")
        return run

    def _used(self, start: int, length: int) -> int:
        """How much of a file comes before the zeros at its end."""
        at = min(length, self.disk.data_end(self.folder / segment_name(start)))
        step = _CHUNK_MIN  # mostly there are few zeros
        while at > 0:
            low, step = max(at - step, 0), _CHUNK
            data = np.frombuffer(self.disk.read(self.folder / segment_name(start), low, at - low), np.uint8)
            if data.any():
                return low + int(len(data) - np.argmax(data[::-1] != 0))
            at = low
        return 0

    @property
    def limit(self) -> int:
        """Address behind the newest file."""
        return self.first + self.file_count * self.size

    def path(self, address: int) -> Path:
        """The file of an address."""
        return self.folder / segment_name(address - address % self.size)

    def read(self, address: int, count: int) -> bytes:
        """Bytes of one file or several; zeros where a file was cut."""
        parts = []
        end = min(address + count, self.limit)
        while address < end:
            size = min(end - address, self.size - address % self.size)
            data = self.disk.read(self.path(address), address % self.size, size)
            parts.append(data.ljust(size, b"\0"))
            address += size
        return b"".join(parts)
