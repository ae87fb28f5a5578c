"""The least that stores a message: encode it into a mapped file, with CRC, queue entry and tag hash.

No checks, no roll-over, no other reader: one file, mapped for writing, and entries in memory.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from pathlib import Path

FIXED = struct.Struct(">iiiiiqqiq8sq8siqi")
ENTRY = struct.Struct(">qiq")
HOST = b"\x7f\0\0\1" + struct.pack(">i", 10911)


class BareLog:
    """A mapped file that takes messages until it is full."""

    def __init__(self, path: Path, size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, size)
        self._mapping = mmap.mmap(fd, size)
        os.close(fd)
        self._view = memoryview(self._mapping)
        self._entries = bytearray(size // 100 * ENTRY.size)
        self._codes: dict[bytes, int] = {}
        self._next: dict[tuple[str, int], int] = {}
        self.end = 0

    def rewind(self) -> None:
        """Begin anew, in pages that are there already."""
        self.end = 0
        self._next.clear()

    def put(self, topic: str, queue_id: int, body: bytes, properties: bytes, born_time_ms: int) -> tuple[int, int]:
        """Append one message and return its offsets in log and queue."""
        view, topic_bytes = self._view, topic.encode()
        key = (topic, queue_id)
        queue_offset = self._next.get(key, 0)
        size = FIXED.size + len(body) + 1 + len(topic_bytes) + 2 + len(properties)
        now_ms = time.time_ns() // 1_000_000
        at = self.end
        FIXED.pack_into(
            self._mapping, at,
            size, -626843481, zlib.crc32(body) & 0x7FFFFFFF, queue_id, 0, queue_offset, at, 0, born_time_ms, HOST,
            now_ms, HOST, 0, 0, len(body),
        )  # fmt: skip
        start = at + FIXED.size
        end = start + len(body)
        view[start:end] = body
        topic_size = len(topic_bytes)
        view[end] = topic_size
        view[end + 1 : end + 1 + topic_size] = topic_bytes
        end += 1 + topic_size
        properties_size = len(properties)
        view[end] = properties_size >> 8
        view[end + 1] = properties_size & 255
        view[end + 2 : end + 2 + properties_size] = properties
        self._next[key] = queue_offset + 1
        self.end = at + size
        found = properties.find(b"TAGS\x01")
        tag = properties[found + 5 : properties.find(b"\x02", found)]
        code = self._codes.get(tag)
        if code is None:
            code = self._codes[tag] = java_hash(tag.decode())
        ENTRY.pack_into(self._entries, queue_offset * ENTRY.size, at, size, code)
        return at, queue_offset


def java_hash(text: str) -> int:
    """Java's String.hashCode of ASCII text."""
    value = 0
    for unit in text.encode():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
