"""The files of one queue: appended in memory, written later and in batches, read from both.

Threads   One thread appends and reads; another writes out. What they share changes only under the lock that is
          handed in (one for all queues of a store), and never for longer than a few assignments.
Files     Of one size, next to each other, named by their first address, sparse. Nothing is created by reading.
"""

from __future__ import annotations

import threading
from pathlib import Path

from rmq_core.errors import StoreError
from rmq_core.store.disk import Disk
from rmq_core.store.segments import segment_name


class QueueFiles:
    """Bytes addressed from `first` to `end`."""

    __slots__ = (
        "_disk", "_folder", "_known_path", "_lock", "_tail", "_writing", "first", "is_removed", "size", "written",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str, size: int, lock: threading.Lock) -> None:
        self._disk = disk
        self._folder = folder
        self._lock = lock
        self.size = size
        self.first = 0
        """Address of the oldest file."""
        self.written = 0
        """Everything before this address is in the files."""
        self.is_removed = False
        """Nothing is written any more."""
        self._writing: bytes | bytearray = b""
        self._tail = bytearray()
        self._known_path: tuple[int, Path] | None = None
        """Where the file begins that was asked for last, and its path: making one takes longer than reading."""

    def __repr__(self) -> str:
        return f"<{self._folder} {self.first}..{self.end}>"

    @property
    def end(self) -> int:
        return self.written + len(self._writing) + len(self._tail)

    @property
    def folder(self) -> Path:
        return Path(self._folder)

    @property
    def has_tail(self) -> bool:
        return bool(self._tail)

    def path(self, address: int) -> Path:
        """The file of an address."""
        start, known = address - address % self.size, self._known_path
        if known is None or known[0] != start:
            known = self._known_path = (start, Path(self._folder, segment_name(start)))
        return known[1]

    def load(self) -> int:
        """Find the files and return the address behind the newest; 0 where there is none.

        Raises StoreError where they are not a run of files of the right size.
        """
        found = self._disk.list(self.folder)
        if found and not found[-1][1]:
            self._disk.remove(self.folder / found.pop()[0])
        for number, (name, size) in enumerate(found):
            start = int(name) if name.isdecimal() and len(name) == 20 else -1
            if number == 0:
                self.first = start
            if start < 0 or size != self.size or start != self.first + number * self.size:
                raise StoreError(f"{self.folder / name} ({size} bytes) does not belong there")
        if self.first % self.size:
            raise StoreError(f"{self.folder / found[0][0]} starts at no multiple of {self.size}")
        self.written = self.first
        return self.first + len(found) * self.size

    def restart(self, address: int) -> None:
        """Begin, empty, in the file of an address; under the lock."""
        for name, _ in self._disk.list(self.folder):
            self._disk.remove(self.folder / name)
        self.first = self.written = address - address % self.size
        self._writing = b""
        self._tail = bytearray()

    def set_end(self, address: int) -> None:
        """What the files hold ends here: said once, after load()."""
        self.written = address

    def append(self, data: bytes) -> None:
        """Add to the end; under the lock."""
        self._tail += data

    def read(self, address: int, size: int) -> bytes:
        """Bytes of one file or the memory behind it: fewer where the file or everything ends before."""
        with self._lock:
            written, writing, tail = self.written, self._writing, self._tail
        return self._read(address, size, written, writing, tail)

    def read_locked(self, address: int, size: int) -> bytes:
        """The same for a caller that holds the lock."""
        return self._read(address, size, self.written, self._writing, self._tail)

    def _read(
        self, address: int, size: int, written: int, writing: bytes | bytearray, tail: bytes | bytearray
    ) -> bytes:
        if address < written:
            size = min(size, written - address, self.size - address % self.size)
            try:
                return self._disk.read(self.path(address), address % self.size, size)
            except FileNotFoundError:  # removed while it was asked for
                return b""
        position = address - written
        if position < len(writing):
            return bytes(writing[position : position + size])
        position -= len(writing)
        return bytes(tail[position : position + size])

    def read_file(self, address: int, size: int) -> bytes:
        """Bytes of a file, whether or not they count: for finding the end."""
        return self._disk.read(self.path(address), address % self.size, size)

    def write_out(self) -> list[Path]:
        """Write what is in memory; returns the files that changed. Raises OSError; nothing is forgotten then."""
        if self.is_removed:
            return []
        with self._lock:
            if not self._writing:
                self._writing, self._tail = self._tail, bytearray()
            data, address = self._writing, self.written
        changed: list[Path] = []
        position = 0
        while position < len(data):
            at = address + position
            path = self.path(at)
            count = min(len(data) - position, self.size - at % self.size)
            self._write(path, data[position : position + count], at % self.size)
            changed.append(path)
            position += count
        with self._lock:
            self.written += len(data)
            self._writing = b""
        return changed

    def _write(self, path: Path, data: bytes | bytearray, offset: int) -> None:
        try:
            self._disk.write(path, data, offset)
        except FileNotFoundError:
            self._disk.create(path, self.size)
            self._disk.write(path, data, offset)

    def truncate(self, address: int) -> None:
        """Forget everything from an address on, in the files too."""
        with self._lock:
            if address >= self.end:
                return
            kept = max(address - self.written, 0)
            self._writing = b"".join((self._writing, self._tail))[:kept]
            self._tail = bytearray()
            self.written = min(self.written, address)
        self.clear_behind()

    def clear_behind(self) -> None:
        """Make the files end where the entries do: what lies behind is zero, or gone."""
        kept = self.end
        # From behind: whatever interrupts this, what is left is a run of files.
        for name, _ in reversed(self._disk.list(self.folder)):
            path, start = self.folder / name, int(name)
            if start >= kept > self.first:
                self._disk.remove(path)
            elif start + self.size > kept:
                self._disk.clear(path, max(kept - start, 0))

    def remove_before(self, address: int) -> int:
        """Remove whole files before an address, never the last; returns how many."""
        count = 0
        while self.first + self.size <= min(address, self.written - 1):
            self._disk.remove(self.path(self.first))
            self.first += self.size
            count += 1
        return count

    def remove(self) -> None:
        """Remove everything; what is added later goes nowhere."""
        self.is_removed = True
        with self._lock:
            self.restart(0)
        self._disk.remove_directory(self.folder)
