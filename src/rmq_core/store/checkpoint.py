"""What survives a stop beside the messages: flush times, and whether the stop was clean.

checkpoint  Up to which store time log, queues and index are durable. Taken before a flush, stored after it, so
            that it never promises too much.
abort       Exists while a broker runs. Found at a start, it says that the last stop was not clean.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from rmq_core.store.disk import Disk

CHECKPOINT_SIZE: Final = 4096
MARGIN_MS: Final = 3000
"""Messages of one time may be flushed apart: recovery starts this much earlier."""

_FIELDS: Final = struct.Struct(">qqqqq")


class Checkpoint:
    """The file `checkpoint`."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.log_time_ms = 0
        """Store time of the last message whose record is durable."""
        self.queues_time_ms = 0
        """Store time of the last message whose queue entries are durable."""
        self.index_time_ms = 0
        """End of the last index file that was full."""
        self.master_flushed_offset = 0
        self.confirmed_offset = 0
        self._stored = b""

    def load(self) -> None:
        """Read it; one that is missing or short promises nothing."""
        try:
            data = self._disk.read(self._path, 0, _FIELDS.size)
        except FileNotFoundError:
            return
        if len(data) == _FIELDS.size:
            (
                self.log_time_ms,
                self.queues_time_ms,
                self.index_time_ms,
                self.master_flushed_offset,
                self.confirmed_offset,
            ) = _FIELDS.unpack(data)

    def forget_queues(self) -> None:
        """Promise nothing of the queues any more: a start that builds them all again may be interrupted."""
        if self.queues_time_ms:
            self.queues_time_ms = 0
            self.store()

    def store(self) -> None:
        """Write it durably, if it says anything new."""
        data = _FIELDS.pack(
            self.log_time_ms,
            self.queues_time_ms,
            self.index_time_ms,
            self.master_flushed_offset,
            self.confirmed_offset,
        )
        if data == self._stored:
            return
        if (self._path.name, CHECKPOINT_SIZE) not in self._disk.list(self._path.parent):
            self._disk.remove(self._path)
            self._disk.create(self._path, CHECKPOINT_SIZE)
        self._disk.write(self._path, data, 0)
        self._disk.sync(self._path)
        self._stored = data

    @property
    def recovery_time_ms(self) -> int:
        """Messages stored before are durable in log and queues."""
        return max(min(self.log_time_ms, self.queues_time_ms) - MARGIN_MS, 0)


class AbortFile:
    """The file `abort`."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self) -> None:
        """Say that a broker runs, with its process id."""
        text = str(os.getpid()).encode()
        if self.exists:
            self._disk.resize(self._path, len(text))
        else:
            self._disk.create(self._path, len(text))
        self._disk.write(self._path, text, 0)
        self._disk.sync(self._path)

    def remove(self) -> None:
        """Say that it stopped cleanly."""
        self._disk.remove(self._path)
        self._disk.sync_directory(self._path.parent)
