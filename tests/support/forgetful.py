"""A disk that forgets what was not synced, as a power cut makes it.

It works on real files beside a picture of what is durable: the content of each file at its last sync, the writes
since then, and the directory entries that were synced. power_cut() makes the files what a machine might find: the
durable content, of each sector written later any state that it had since, and any subset of the later entries.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from rmq_core.store.disk import Disk

SECTOR = 512


class ForgetfulDisk(Disk):
    """See above. Files that were there before it are durable as they are."""

    def __init__(self, root: Path, *, skip: Callable[[Path], bool] | None = None) -> None:
        """skip: whether the sync of a file or directory, named below root, is left out, to show that it matters."""
        super().__init__()
        self._root = root
        self._skip = skip
        self._durable: dict[Path, bytes] = {}
        self._writes: dict[Path, list[tuple[int, bytes]]] = {}
        # Entries changed since their directory was synced, with what they named before; None for new ones.
        self._lost_entries: dict[Path, bytes | None] = {}
        for path in root.rglob("*"):
            if path.is_file():
                self._durable[path] = path.read_bytes()
        self.syncs: list[Path] = []
        self.used: float | None = None
        """How full the disk is said to be, where a test says it."""

    def used_ratio(self, path: Path) -> float:
        return super().used_ratio(path) if self.used is None else self.used

    # Changes are noted

    def create(self, path: Path, size: int, *, allocate: bool = False) -> None:
        super().create(path, size, allocate=allocate)
        self._lost_entries.setdefault(path, None)
        self._durable[path] = bytes(size)
        self._writes[path] = []

    def make_directory(self, path: Path) -> None:
        if not path.is_dir() and path != self._root:
            self._lost_entries.setdefault(path, None)
        super().make_directory(path)

    def write(self, path: Path, data: bytes | bytearray | memoryview, offset: int) -> None:
        super().write(path, data, offset)
        self._writes.setdefault(path, []).append((offset, bytes(data)))

    def clear(self, path: Path, offset: int) -> None:
        super().clear(path, offset)
        self._writes.setdefault(path, []).append((offset, bytes(path.stat().st_size - offset)))

    def resize(self, path: Path, size: int) -> None:
        super().resize(path, size)
        self._durable[path] = self._durable.get(path, b"")[:size].ljust(size, b"\0")

    def remove(self, path: Path) -> None:
        if path in self._durable and path not in self._lost_entries:
            self._lost_entries[path] = self._durable[path]
        elif self._lost_entries.get(path, b"") is None:
            del self._lost_entries[path]
        self._durable.pop(path, None)
        self._writes.pop(path, None)
        super().remove(path)

    # Syncs make them durable

    def _is_skipped(self, path: Path) -> bool:
        return self._skip is not None and self._skip(path.relative_to(self._root))

    def sync(self, path: Path) -> None:
        self.syncs.append(path)
        super().sync(path)
        if not self._is_skipped(path):
            self._durable[path] = path.read_bytes()
            self._writes[path] = []

    def sync_directory(self, path: Path) -> None:
        self.syncs.append(path)
        super().sync_directory(path)
        if path.is_relative_to(self._root) and self._is_skipped(path):
            return
        for entry in [each for each in self._lost_entries if each.parent == path]:
            del self._lost_entries[entry]

    def sync_many(self, paths: Iterable[Path]) -> None:
        for path in list(paths):
            self.sync(path)

    # The cut

    def power_cut(self, chance: random.Random) -> None:
        """Make the files what a machine finds after its power failed now. The disk is of no use any more."""
        self.close()
        for path, writes in self._writes.items():
            if path not in self._durable:
                continue
            content = bytearray(self._durable[path])
            kept_share = chance.choice((0.0, 0.5, 0.9, 1.0))
            for history in _by_sector(writes).values():
                kept = len(history) if chance.random() < kept_share else chance.randint(0, len(history) - 1)
                for offset, data in history[:kept]:
                    content[offset : offset + len(data)] = data
            path.write_bytes(content)
        for path, before in self._lost_entries.items():
            if chance.random() < 0.5:
                continue
            if before is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(before)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _by_sector(writes: list[tuple[int, bytes]]) -> dict[int, list[tuple[int, bytes]]]:
    """What was written to each sector, in its order: a sector reaches the device as it was at some moment."""
    sectors: dict[int, list[tuple[int, bytes]]] = {}
    for offset, data in writes:
        at = 0
        while at < len(data):
            count = min(SECTOR - (offset + at) % SECTOR, len(data) - at)
            sectors.setdefault((offset + at) // SECTOR, []).append((offset + at, data[at : at + count]))
            at += count
    return sectors
