"""A run of files of one size, addressed by one growing offset. Each is named by the offset of its first byte.

Holes     A file in the middle may be missing (somebody removed it): what is before and behind it stays readable.
Folders   The files may lie in several folders; a new one goes where Apache's broker would put it.
Threads   Any. The list of files is replaced and never changed, so that whoever reads it needs no lock. A file that
          is removed while somebody asks for it is not there, and that is no error.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from rmq_core.errors import StoreError
from rmq_core.store.disk import Disk

log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]{20}")


def segment_name(start: int) -> str:
    return f"{start:020d}"


class Segments:
    """Files of `size` bytes each."""

    def __init__(
        self,
        disk: Disk,
        folders: Sequence[Path],
        size: int,
        *,
        read_only_folders: Sequence[Path] = (),
        full_ratio: float = 1.0,
    ) -> None:
        """full_ratio: from here on a folder's disk takes new files only where there is no other."""
        self._disk = disk
        self._folders = list(folders)
        self._read_only_folders = list(read_only_folders)
        self._full_ratio = full_ratio
        self.size = size
        self.starts: tuple[int, ...] = ()
        """First offsets, ascending."""
        self._paths: dict[int, Path] = {}
        self._changing = threading.Lock()

    def load(self, setting: str) -> None:
        """Find the files. `setting` is what the size is called, for messages.

        An empty last file goes; one that was cut short beside whole ones is filled up with zeros.
        Raises StoreError where the sizes do not fit the setting.
        """
        found: dict[int, tuple[Path, int]] = {}
        self._paths.clear()
        for folder in (*self._folders, *self._read_only_folders):
            for name, size in self._disk.list(folder):
                if _NAME.fullmatch(name) and int(name) % self.size == 0:
                    found[int(name)] = (folder / name, size)
                elif _NAME.fullmatch(name) and size:
                    raise StoreError(f"{folder / name} starts at no multiple of {self.size}: another {setting}?")
                else:
                    log.warning("%s is left alone: its name is not an offset", folder / name)
        if found and not found[max(found)][1]:
            self._disk.remove(found.pop(max(found))[0])
        whole = sum(size == self.size for _, size in found.values())
        for start, (path, size) in found.items():
            if size < self.size and whole:
                log.warning("%s has %d bytes and is filled up to %d with zeros", path, size, self.size)
                self._disk.resize(path, self.size)
            elif size != self.size:
                raise StoreError(f"{path} has {size} bytes, but {setting} is {self.size}")
            self._paths[start] = path
        self._list()

    def _list(self) -> None:
        self.starts = tuple(sorted(self._paths))

    @property
    def first(self) -> int:
        """Where the oldest file starts; 0 where there is none."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """Where the newest file ends; 0 where there is none."""
        return self.starts[-1] + self.size if self.starts else 0

    def path(self, start: int) -> Path:
        return self._paths[start]

    def has(self, offset: int) -> bool:
        return offset - offset % self.size in self._paths

    def next_start(self, offset: int) -> int | None:
        """The start of the first file behind the one that an offset belongs to."""
        at = bisect.bisect_right(self.starts, offset)
        return self.starts[at] if at < len(self.starts) else None

    def note(self, start: int, path: Path) -> None:
        """A file that was found."""
        with self._changing:
            self._paths[start] = path
            self._list()

    def add(self, start: int) -> None:
        """Make the next file, durably and with all its blocks. Raises OSError."""
        path = self._folder_for(start) / segment_name(start)
        try:
            self._disk.create(path, self.size, allocate=True)
        except FileExistsError:
            raise StoreError(f"{path} already exists") from None
        try:
            self._disk.sync(path)
        except OSError:
            with contextlib.suppress(OSError):  # or the next attempt would find it in its way
                self._disk.remove(path)
            raise
        self.note(start, path)

    def _folder_for(self, start: int) -> Path:
        folders = sorted(self._folders)
        if len(folders) > 1:
            folders = [each for each in folders if self._disk.used_ratio(each) < self._full_ratio] or folders
        return folders[start // self.size % len(folders)]

    def remove(self, start: int) -> None:
        """Remove a file; views of it stay good."""
        with self._changing:
            path = self._paths.pop(start)
            self._list()
        self._disk.remove(path)
        self._disk.sync_directory(path.parent)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write within one file."""
        start = offset - offset % self.size
        self._disk.write(self._paths[start], data, offset - start)

    def clear(self, offset: int) -> None:
        """Make all from an offset on zero, and remove the files that start there or behind it.

        The first file stays in any case: without it nobody would know where the log goes on.
        """
        # From behind: whatever interrupts this, no file is left behind a gap.
        for start in [each for each in reversed(self.starts[1:]) if each >= offset]:
            self.remove(start)
        start = offset - offset % self.size
        if start in self._paths:
            self._disk.clear(self._paths[start], offset - start)
            self._disk.sync(self._paths[start])

    def sync(self, start_offset: int, end_offset: int) -> None:
        """Make what was written between two offsets durable."""
        first = start_offset - start_offset % self.size
        for start in self.starts:
            if first <= start < end_offset:
                self._disk.sync(self._paths[start])

    def file_view(self, offset: int) -> tuple[memoryview, int] | None:
        """The whole file that an offset belongs to, and where it starts."""
        start = offset - offset % self.size
        view = self._map(start)
        return None if view is None else (view, start)

    def _map(self, start: int) -> memoryview | None:
        path = self._paths.get(start)
        try:
            return None if path is None else self._disk.map(path)
        except FileNotFoundError:
            return None

    def view(self, offset: int, size: int) -> memoryview | None:
        """Bytes as a view of the mapped file; None where they are not within one file."""
        start = offset - offset % self.size
        position = offset - start
        if size < 0 or position + size > self.size:
            return None
        view = self._map(start)
        return None if view is None else view[position : position + size]

    def read(self, offset: int, size: int) -> bytes:
        """The same as view(), read and not mapped: for bytes that may have to come from the device."""
        start = offset - offset % self.size
        path = self._paths.get(start)
        try:
            return (
                b""
                if path is None
                else self._disk.read(path, offset - start, min(size, start + self.size - offset))
            )
        except FileNotFoundError:
            return b""

    def is_cached(self, offset: int, size: int) -> bool:
        start = offset - offset % self.size
        path = self._paths.get(start)
        if path is None:
            return True
        position = offset - start
        try:
            is_cached = self._disk.is_cached(path, position)
            return is_cached and (size <= 1 or self._disk.is_cached(path, position + size - 1))
        except FileNotFoundError:
            return True

    def modified_ms(self, start: int) -> int:
        return self._disk.modified_ms(self._paths[start])
