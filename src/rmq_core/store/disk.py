"""The only door to files: create, write, sync, map, remove. The one module that knows platforms.

Written   By pwrite alone; mappings are read-only. So a disk error is an OSError here and never a signal later.
Durable   Only what sync() was called for: the content of a file, and with it every directory entry on the way to
          it that is new. Tests put a disk in this place that forgets anything else (tests/support/forgetful.py).
Bounded   Descriptors and mappings are kept open up to a limit; the least recently used are let go. A mapping
          lives on as long as a view of it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from rmq_core.errors import StoreError

IS_MAC = sys.platform == "darwin"
ZEROS = bytes(1 << 20)
SYNC_ALL_FROM = 64
"""So many files and more are synced by one call for their whole file system."""


class _Descriptor:
    __slots__ = ("fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0


class Disk:
    """Files by path; safe to use from several threads."""

    def __init__(self, *, descriptors_max: int = 512, mappings_max: int = 256) -> None:
        self._descriptors: OrderedDict[Path, _Descriptor] = OrderedDict()
        self._mappings: OrderedDict[Path, memoryview] = OrderedDict()
        self._descriptors_max = descriptors_max
        self._mappings_max = mappings_max
        self._new_entries: set[Path] = set()  # directories with entries that may not be durable
        self._lock = threading.Lock()
        self._syncing_entries = threading.Lock()

    # Changes

    def create(self, path: Path, size: int, *, allocate: bool = False) -> None:
        """Make a file of zeros, and its directories. With allocate its blocks are taken now, not when written."""
        self.make_directory(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            if allocate:
                _allocate(fd, size)
            os.ftruncate(fd, size)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(fd)
        with self._lock:
            self._new_entries.add(path.parent)

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        with self._lock:
            self._new_entries.add(path.parent)

    def write(self, path: Path, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of the data. Raises OSError; any part of it may have been written then."""
        # Not by _open(): a generator takes longer than a short write.
        held = self._take(path)
        try:
            written = os.pwrite(held.fd, data, offset)
            while written < len(data):
                more = os.pwrite(held.fd, memoryview(data)[written:], offset + written)
                if not more:
                    raise OSError(errno.EIO, "nothing was written", str(path))
                written += more
        finally:
            self._give_back(path, held)

    def clear(self, path: Path, offset: int) -> None:
        """Make everything from an offset to the end of the file zero."""
        with self._open(path) as fd:
            end = os.fstat(fd).st_size
            while (offset := _next_data(fd, offset, end)) < end:
                chunk = os.pread(fd, min(len(ZEROS), end - offset), offset)
                if not chunk:
                    return
                if chunk.count(0) != len(chunk):
                    os.pwrite(fd, ZEROS[: len(chunk)], offset)
                offset += len(chunk)

    def resize(self, path: Path, size: int) -> None:
        """Cut a file or fill it up with zeros. Never call it for one that is mapped."""
        with self._open(path) as fd:
            os.ftruncate(fd, size)

    def remove(self, path: Path) -> None:
        """Remove a file; views of its mapping stay good."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            with self._lock:
                self._new_entries.add(path.parent)
        # Afterwards: before, another thread could open it again and keep what is gone under its name.
        self.forget(path)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; one that is not empty stays."""
        with contextlib.suppress(OSError):
            path.rmdir()
            with self._lock:
                self._new_entries.add(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name; what had that name is gone."""
        path.replace(target)
        self.forget(path)
        self.forget(target)
        with self._lock:
            self._new_entries.update((path.parent, target.parent))

    # Durability

    def sync(self, path: Path) -> None:
        """Make content and existence of a file durable."""
        with self._open(path) as fd:
            _sync_data(fd)
        # One thread at a time: the other must not find nothing to do while the first is still at it.
        with self._syncing_entries:
            with self._lock:
                new = [each for each in path.parents if each in self._new_entries]
            for directory in new:
                self.sync_directory(directory)

    def sync_directory(self, path: Path) -> None:
        """Make the entries of a directory durable, removals too."""
        with self._lock:
            self._new_entries.discard(path)
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def sync_many(self, paths: Iterable[Path]) -> None:
        """Make many files of one file system durable."""
        paths = list(paths)
        if len(paths) >= SYNC_ALL_FROM and _syncfs is not None:
            with self._syncing_entries, self._open(paths[0]) as fd:
                with self._lock:
                    self._new_entries.clear()
                if _syncfs(fd) != 0:
                    raise OSError(ctypes.get_errno(), "syncfs failed", str(paths[0]))
            return
        for path in paths:
            self.sync(path)

    # Reading

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Bytes of a file; fewer where it ends before."""
        held = self._take(path)  # as _open() does it, which takes as long as the reading
        try:
            return os.pread(held.fd, size, offset)
        finally:
            self._give_back(path, held)

    def map(self, path: Path) -> memoryview:
        """The whole of a file as it is and will be; not for files that change their size."""
        with self._lock:
            view = self._mappings.get(path)
            if view is not None:
                self._mappings.move_to_end(path)
                return view
        with self._open(path) as fd:
            mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        view = memoryview(mapping)
        with self._lock:
            view = self._mappings.setdefault(path, view)
            while len(self._mappings) > self._mappings_max:
                self._mappings.popitem(last=False)
        return view

    def is_cached(self, path: Path, offset: int) -> bool:
        """Whether reading there would not wait for the device, as far as the platform can say."""
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        with self._open(path) as fd:
            try:
                os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:  # a file system that cannot say
                return True
        return True

    def data_end(self, path: Path) -> int:
        """Behind which byte a file is known to be zero: most queue files are sparse, and long."""
        with self._open(path) as fd:
            end = os.fstat(fd).st_size
            if not hasattr(os, "SEEK_DATA"):
                return end
            at = 0
            try:
                while at < end:
                    at = os.lseek(fd, os.lseek(fd, at, os.SEEK_DATA), os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # that says: no more data
                    return end
            return at

    def list(self, path: Path) -> list[tuple[str, int]]:
        """Name and size of the plain files of a directory, by name; none where there is no directory."""
        try:
            with os.scandir(path) as entries:
                return sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    def list_directories(self, path: Path) -> Sequence[str]:
        """Names of the directories in a directory."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []

    def modified_ms(self, path: Path) -> int:
        """When a file was last written."""
        return path.stat().st_mtime_ns // 1_000_000

    def used_ratio(self, path: Path) -> float:
        """How full the file system of a path is, from 0 to 1; -1 where that is unknown."""
        for existing in (path, *path.parents):
            try:
                status = os.statvfs(existing)
            except OSError:
                continue
            total = status.f_blocks
            used = total - status.f_bfree
            return used / (used + status.f_bavail) if used + status.f_bavail else -1.0
        return -1.0

    # Descriptors

    @contextlib.contextmanager
    def _open(self, path: Path) -> Iterator[int]:
        held = self._take(path)
        try:
            yield held.fd
        finally:
            self._give_back(path, held)

    def _take(self, path: Path) -> _Descriptor:
        with self._lock:
            held = self._descriptors.get(path)
            if held is None:
                try:
                    held = _Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                except OSError as error:
                    if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                        raise
                    held = _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                self._descriptors[path] = held
                self._close_unused()
            else:
                self._descriptors.move_to_end(path)
            held.users += 1
        return held

    def _give_back(self, path: Path, held: _Descriptor) -> None:
        with self._lock:
            held.users -= 1
            if not held.users and self._descriptors.get(path) is not held:
                os.close(held.fd)

    def _close_unused(self) -> None:
        while len(self._descriptors) > self._descriptors_max:
            _, held = self._descriptors.popitem(last=False)
            if not held.users:
                os.close(held.fd)

    def forget(self, path: Path) -> None:
        """Let go of a file's descriptor and mapping."""
        with self._lock:
            self._mappings.pop(path, None)
            held = self._descriptors.pop(path, None)
            if held is not None and not held.users:
                os.close(held.fd)

    def close(self) -> None:
        """Let go of everything."""
        for path in list(self._descriptors):
            self.forget(path)
        self._mappings.clear()


class DirectoryLock:
    """The exclusive lock on a store directory that Apache's broker takes too; held until it is closed."""

    _held: ClassVar[set[tuple[int, int]]] = set()
    """Those of this process, by device and inode: the system's locks keep only other processes out."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Asked before the file is opened: closing it again would end the lock that this process has.
        if path.exists() and self._key_of(path) in self._held:
            raise StoreError(f"{path.parent} is in use by this process already")
        # Not for appending: that would put what is written at a position at the end.
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            self._file.close()
            raise StoreError(f"{path.parent} is in use by another process: its lock file is held") from None
        self._key = self._key_of(path)
        self._held.add(self._key)
        os.pwrite(self._file.fileno(), b"lock", 0)

    @staticmethod
    def _key_of(path: Path) -> tuple[int, int]:
        status = path.stat()
        return status.st_dev, status.st_ino

    def close(self) -> None:
        """Let the directory go."""
        self._file.close()
        self._held.discard(self._key)

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_file(path: Path) -> DirectoryLock:
    """Take the lock. Raises StoreError where this or another process has it."""
    return DirectoryLock(path)


def _next_data(fd: int, offset: int, end: int) -> int:
    """The first place from an offset on that is no hole; the end where there is none."""
    if not hasattr(os, "SEEK_DATA") or offset >= end:
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        return end if error.errno == errno.ENXIO else offset


def _allocate(fd: int, size: int) -> None:
    if IS_MAC:
        # struct fstore: flags F_ALLOCATEALL, mode F_PEOFPOSMODE, offset, length, bytes allocated
        request = (4).to_bytes(4, "little") + (3).to_bytes(4, "little") + bytes(8) + size.to_bytes(8, "little")
        fcntl.fcntl(fd, 42, request + bytes(8))
    else:
        os.posix_fallocate(fd, 0, size)


def _sync_data(fd: int) -> None:
    if IS_MAC:
        fcntl.fcntl(fd, 51)  # F_FULLFSYNC: fsync alone leaves the data in the drive's cache there
    else:
        os.fdatasync(fd)


def _find_syncfs() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


_syncfs = _find_syncfs()
