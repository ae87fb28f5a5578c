"""Where an offline reader gets its bytes: a directory here, or one that fsspec reaches. Nothing is written.

Local    Small pieces are read, records are mapped, at most 64 MiB at once: some workers may not map more.
Remote   Only ranges are asked for, never whole files; what was fetched is kept in memory up to a limit.
Live     Files may grow new content or be removed while they are read: FileNotFoundError then says so.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from rmq_core.errors import StoreError
from rmq_core.store.disk import Disk

HALF_WINDOW: Final = 32 << 20
"""A local window shows at least so many bytes behind what it was opened for, and twice as many in all."""
REMOTE_WINDOW: Final = 8 << 20
_WINDOWS_MAX: Final = 4
_BLOCK_SIZE: Final = 64 << 10
_BLOCKS_MAX: Final = 256

View: TypeAlias = tuple[memoryview, int]
"""Bytes of a file, and where in it they start."""


class Source(Protocol):
    """A directory tree that is only read; paths are absolute within it."""

    @property
    def disk(self) -> Disk:
        """The same as a disk, for what reads queues and index files."""
        ...

    @property
    def root(self) -> Path: ...

    is_local: bool

    def window(self, path: Path, position: int, size: int) -> View:
        """Bytes of a file from a position on: `size` of them or more, fewer where it ends before."""
        ...

    def read_runs(self, path: Path, runs: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """The bytes between each two positions of a file, which are in ascending order."""
        ...

    def forget(self) -> None:
        """What was read may have changed."""
        ...


class _ReadingDisk(Disk):
    """A disk that changes nothing. Empty files are not shown: they hold nothing, and openers would remove them."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StoreError("a store that was opened for reading is not changed")

    create = write = clear = resize = remove = rename = make_directory = _refuse
    sync = sync_directory = sync_many = _refuse

    def read(self, path: Path, offset: int, size: int) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def list(self, path: Path) -> list[tuple[str, int]]:
        return [(name, size) for name, size in super().list(path) if size]


class LocalSource:
    """Files of this machine."""

    is_local = True

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise StoreError(f"{root} is no directory")
        self.root = root
        self.disk: Disk = _ReadingDisk()
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[Path, int, int], memoryview] = OrderedDict()

    def window(self, path: Path, position: int, size: int) -> View:
        start = position - position % HALF_WINDOW
        wanted = max(2 * HALF_WINDOW, position - start + size)
        key = (path, start, wanted)
        with self._lock:
            view = self._windows.get(key)
            if view is not None:
                self._windows.move_to_end(key)
                return view, start
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            length = min(wanted, os.fstat(fd).st_size - start)
            if length <= 0:
                return memoryview(b""), start
            view = memoryview(mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start))
        finally:
            os.close(fd)
        with self._lock:
            self._windows[key] = view
            while len(self._windows) > _WINDOWS_MAX:
                self._windows.popitem(last=False)
        return view, start

    def read_runs(self, path: Path, runs: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        parts: list[bytes | memoryview] = []
        for start, end in runs:
            view, base = self.window(path, start, end - start)
            parts.append(view[start - base : end - base])
        return parts

    def forget(self) -> None:
        with self._lock:
            self._windows.clear()


class _RemoteDisk(_ReadingDisk):
    """Files behind fsspec, read in blocks of which the last ones are kept."""

    def __init__(self, fs: Any, folder: str) -> None:
        super().__init__()
        self._fs = fs
        self._remote_folder = folder.rstrip("/")
        self._blocks: OrderedDict[tuple[Path, int], bytes] = OrderedDict()
        self._blocks_lock = threading.Lock()

    def remote(self, path: Path) -> str:
        return f"{self._remote_folder}{path.as_posix()}"

    def read(self, path: Path, offset: int, size: int) -> bytes:
        first, last = offset // _BLOCK_SIZE, (offset + max(size, 1) - 1) // _BLOCK_SIZE
        if last - first > 1:
            return self.fetch(path, offset, offset + size)
        data = b"".join(self._block(path, number) for number in range(first, last + 1))
        return data[offset - first * _BLOCK_SIZE :][:size]

    def _block(self, path: Path, number: int) -> bytes:
        key = (path, number)
        with self._blocks_lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
                return block
        block = self.fetch(path, number * _BLOCK_SIZE, (number + 1) * _BLOCK_SIZE)
        with self._blocks_lock:
            self._blocks[key] = block
            while len(self._blocks) > _BLOCKS_MAX:
                self._blocks.popitem(last=False)
        return block

    def fetch(self, path: Path, start: int, end: int) -> bytes:
        """A range of a file, fewer bytes where it ends before."""
        data: bytes = self._fs.cat_file(self.remote(path), start=start, end=end)
        return data

    def list(self, path: Path) -> list[tuple[str, int]]:
        return sorted((self._name(entry), entry["size"]) for entry in self._entries(path, "file") if entry["size"])

    def list_directories(self, path: Path) -> Sequence[str]:
        return sorted(self._name(entry) for entry in self._entries(path, "directory"))

    @staticmethod
    def _name(entry: dict[str, Any]) -> str:
        return str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]

    def _entries(self, path: Path, kind: str) -> Sequence[dict[str, Any]]:
        try:
            found = self._fs.ls(self.remote(path), detail=True)
        except FileNotFoundError:
            return []
        return [entry for entry in found if entry["type"] == kind]

    def forget_blocks(self) -> None:
        with self._blocks_lock:
            self._blocks.clear()
        self._fs.invalidate_cache()


class RemoteSource:
    """Files behind a URL that fsspec knows."""

    is_local = False

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        import fsspec

        try:
            self._fs, folder = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise StoreError(f"{url} cannot be opened: {error}") from error
        self.root = Path("/")
        self._disk = _RemoteDisk(self._fs, folder)
        if not self._fs.isdir(folder):
            raise StoreError(f"{url} is no directory")
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[Path, int], bytes] = OrderedDict()

    @property
    def disk(self) -> Disk:
        return self._disk

    def window(self, path: Path, position: int, size: int) -> View:
        size = max(size, REMOTE_WINDOW)
        with self._lock:
            for (known, start), data in self._windows.items():
                if known == path and start <= position and position + size <= start + len(data):
                    return memoryview(data), start
        data = self._disk.fetch(path, position, position + size)
        with self._lock:
            self._windows[path, position] = data
            while len(self._windows) > _WINDOWS_MAX:
                self._windows.popitem(last=False)
        return memoryview(data), position

    def read_runs(self, path: Path, runs: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        starts, ends = [run[0] for run in runs], [run[1] for run in runs]
        parts: list[Any] = self._fs.cat_ranges([self._disk.remote(path)] * len(runs), starts, ends)
        for part in parts:
            if isinstance(part, Exception):
                raise part
        return parts

    def forget(self) -> None:
        with self._lock:
            self._windows.clear()
        self._disk.forget_blocks()


def open_source(url: str | Path, options: dict[str, Any]) -> Source:
    """The directory of a path or URL. Raises StoreError where there is none."""
    text = str(url)
    if "://" not in text or text.startswith("file://"):
        if options:
            raise ValueError(f"a local directory takes no options, got {', '.join(options)}")
        return LocalSource(Path(text.removeprefix("file://")))
    return RemoteSource(text, options)
