"""A disk that fails where a test wants it to: it is full, or its device reports errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rmq_core.store.disk import Disk


@dataclass(frozen=True, slots=True)
class Fault:
    """Which calls fail, and how."""

    operation: str
    """create, write, sync, or any other change: the name of the method; * for all of them."""
    part: str
    """Of the path, from the root of the store on."""
    code: int


class FaultyDisk(Disk):
    """Works until a fault is set, and again when all are healed. Half of a write that fails is written."""

    def __init__(self) -> None:
        super().__init__()
        self._faults: list[Fault] = []
        self._changes_left: int | None = None
        self.failed: list[tuple[str, Path]] = []
        """What failed: operation and path."""
        self.ratio = 0.1
        """How full it says that it is."""

    def fail(self, operation: str, part: str, *, code: int = errno.ENOSPC) -> None:
        """From now on let these calls fail."""
        self._faults.append(Fault(operation, part, code))

    def fail_after(self, changes: int) -> None:
        """Let everything fail once so many changes have been made."""
        self._changes_left = changes

    def heal(self) -> None:
        """Let everything work again."""
        self._faults.clear()
        self._changes_left = None

    def _judge(self, operation: str, path: Path) -> None:
        if self._changes_left is not None:
            self._changes_left -= 1
            if self._changes_left < 0:
                self._raise(operation, path, errno.EIO)
        for fault in self._faults:
            if fault.operation in (operation, "*") and fault.part in str(path):
                self._raise(operation, path, fault.code)

    def _raise(self, operation: str, path: Path, code: int) -> None:
        self.failed.append((operation, path))
        raise OSError(code, os.strerror(code), str(path))

    # Every change

    def create(self, path: Path, size: int, *, allocate: bool = False) -> None:
        self._judge("create", path)
        super().create(path, size, allocate=allocate)

    def write(self, path: Path, data: bytes | bytearray | memoryview, offset: int) -> None:
        try:
            self._judge("write", path)
        except OSError:
            if path.exists():
                super().write(path, bytes(data[: len(data) // 2]), offset)
            raise
        super().write(path, data, offset)

    def clear(self, path: Path, offset: int) -> None:
        self._judge("clear", path)
        super().clear(path, offset)

    def resize(self, path: Path, size: int) -> None:
        self._judge("resize", path)
        super().resize(path, size)

    def remove(self, path: Path) -> None:
        self._judge("remove", path)
        super().remove(path)

    def rename(self, path: Path, target: Path) -> None:
        self._judge("rename", path)
        super().rename(path, target)

    def sync(self, path: Path) -> None:
        self._judge("sync", path)
        super().sync(path)

    def sync_directory(self, path: Path) -> None:
        self._judge("sync_directory", path)
        super().sync_directory(path)

    def sync_many(self, paths: Iterable[Path]) -> None:
        for path in list(paths):
            self.sync(path)

    def used_ratio(self, path: Path) -> float:
        return self.ratio
