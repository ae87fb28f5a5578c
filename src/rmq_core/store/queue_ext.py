"""What stands beside the entries of a queue: tags code, store time and the filter bits of SQL92 subscriptions.

An entry then holds the address of its unit instead of a tags code: a number below every hash of a tag.
"""

from __future__ import annotations

import struct
import threading
from typing import Final, NamedTuple

from rmq_core.store.disk import Disk
from rmq_core.store.queue_files import QueueFiles

ADDRESS_BASE: Final = -(1 << 63)
ADDRESS_MAX: Final = -(1 << 31) - 1
NO_ADDRESS: Final = 1

_UNIT: Final = struct.Struct(">hqqh")
_UNIT_SIZE_MAX: Final = 32767
_END_SIZE: Final = 4
_END: Final = struct.pack(">h", -1)


class ExtUnit(NamedTuple):
    """What one entry's unit says."""

    tags_code: int
    store_time_ms: int
    filter_bits: bytes


def is_address(tags_code: int) -> bool:
    """Whether the number in an entry is the address of a unit."""
    return tags_code <= ADDRESS_MAX


class QueueExt:
    """The units of one queue."""

    __slots__ = ("files",)

    def __init__(self, disk: Disk, folder: str, file_size: int, lock: threading.Lock) -> None:
        self.files = QueueFiles(disk, folder, file_size, lock)

    def load(self) -> None:
        """Find files and end: units follow each other by their sizes. Raises StoreError."""
        limit = self.files.load()
        address = self.files.first
        while address < limit:
            size = self._unit_size(address)
            if size >= _UNIT.size:
                address += size
            elif size < 0:  # the rest of this file is not used
                address += self.files.size - address % self.files.size
            else:
                break
        self.files.set_end(address)

    def _unit_size(self, address: int) -> int:
        data = self.files.read_file(address, 2)
        return struct.unpack(">h", data)[0] if len(data) == 2 else 0

    def add(self, unit: ExtUnit) -> int:
        """Append a unit and return its address; NO_ADDRESS where it is too large. Under the lock."""
        size = _UNIT.size + len(unit.filter_bits)
        if size > _UNIT_SIZE_MAX or size > self.files.size - _END_SIZE:
            return NO_ADDRESS
        left = self.files.size - self.files.end % self.files.size
        if size > left - _END_SIZE:
            self.files.append(_END + bytes(left - len(_END)))
        address = self.files.end
        head = _UNIT.pack(size, unit.tags_code, unit.store_time_ms, len(unit.filter_bits))
        self.files.append(head + unit.filter_bits)
        return address + ADDRESS_BASE

    def get(self, tags_code: int) -> ExtUnit | None:
        """The unit of an entry; None where there is none."""
        address = tags_code - ADDRESS_BASE
        if not is_address(tags_code) or not self.files.first <= address < self.files.end:
            return None
        head = self.files.read(address, _UNIT.size)
        if len(head) < _UNIT.size:
            return None
        size, code, store_time_ms, bits_size = _UNIT.unpack(head)
        if size != _UNIT.size + bits_size or bits_size < 0:
            return None
        bits = self.files.read(address + _UNIT.size, bits_size) if bits_size else b""
        return ExtUnit(code, store_time_ms, bits) if len(bits) == bits_size else None

    def truncate_behind(self, tags_code: int | None) -> None:
        """Forget the units behind the one that an entry points to; all of them where none does."""
        end = self.files.first
        if tags_code is not None:
            address = tags_code - ADDRESS_BASE
            end = address + max(self._unit_size(address) if address < self.files.end else 0, 0)
        self.files.truncate(end)

    def remove_before(self, tags_code: int) -> None:
        """Remove files before the unit of an entry."""
        if is_address(tags_code):
            self.files.remove_before(tags_code - ADDRESS_BASE)
