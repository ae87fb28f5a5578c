"""All messages in arrival order.

A pass collects the parts of its records, and ends with joining and writing them once for each file it touched.
Offsets, stamps and the blank record at the end of a file are decided when a message is appended; bytes that cannot
be written are an error of the whole pass.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Final
from zlib import crc32

from rmq_core.config import StoreSettings
from rmq_core.errors import StoreError
from rmq_core.protocol import record as records
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import BLANK_SIZE, CRC_MASK, MAGIC_V1, MAGIC_V2, TOPIC_SIZE_MAX_V1
from rmq_core.store.disk import Disk
from rmq_core.store.segments import Segments

_SHORT: Final = struct.Struct(">h")
_PLAIN: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
_BYTE: Final = [bytes((number,)) for number in range(256)]
_NO_HOST_BITS: Final = ~(flags.BORN_HOST_V6 | flags.STORE_HOST_V6)
_LOG_OFFSET: Final = struct.Struct(">q")
_BATCH_HEAD: Final = struct.Struct(">iiiiiqq")


def log_segments(disk: Disk, settings: StoreSettings) -> Segments:
    """The files of the log, where the settings have them."""
    folders = [Path(each.strip()) for each in (settings.store_path_commit_log or "").split(",") if each.strip()]
    read_only = settings.read_only_commit_log_store_paths or ""
    return Segments(
        disk,
        folders or [Path(settings.store_path_root_dir) / "commitlog"],
        settings.mapped_file_size_commit_log,
        read_only_folders=[Path(each.strip()) for each in read_only.split(",") if each.strip()],
        full_ratio=settings.disk_space_clean_forcibly_ratio / 100,
    )


class CommitLog:
    """The log: appended by one thread, read by any."""

    def __init__(self, segments: Segments, store_host: bytes) -> None:
        self.segments = segments
        self.store_host = store_host
        self.end = 0
        """Where the next record will stand."""
        self.written = 0
        """Everything before is in the files."""
        self.flushed = 0
        """Everything before is durable; moved by the flusher."""
        self.last_store_time_ms = 0
        """Of the message appended last. Never goes back."""
        self.written_time_ms = 0
        """Store time of the message written last; set after `written`, so read it first."""
        self._file_end = 0
        self._parts: list[bytes | bytearray | memoryview] = []
        """What is appended and not written, since the last file was begun. It is memory that never changes."""
        self._runs: list[tuple[int, bytes]] = []
        """The same of files before, and where it belongs."""
        self._latest = 0
        """The first part of what was appended last."""
        self._allocating = threading.Lock()

    def open(self, end: int) -> None:
        """Go on at an offset, after recovery."""
        self.end = self.written = self.flushed = end
        start = end - end % self.segments.size
        self._file_end = start + self.segments.size if self.segments.has(start) else start

    @property
    def start(self) -> int:
        """The oldest offset that there is."""
        return self.segments.first

    @property
    def unwritten(self) -> int:
        return self.end - self.written

    # Appending

    def reserve(self, size: int) -> int:
        """Make room for bytes that must stand in one file, and return where they will stand.

        Raises OSError or StoreError where the next file cannot be made; nothing has changed then.
        """
        if size + BLANK_SIZE > self._file_end - self.end:
            self._roll(size)
        return self.end

    def _roll(self, size: int) -> None:
        if size + BLANK_SIZE > self.segments.size:
            raise StoreError(f"a record of {size} bytes does not fit a file of {self.segments.size}")
        left = self._file_end - self.end
        next_start = self._file_end
        self.allocate(next_start)
        if left:
            self._parts.append(records.encode_blank(left))
        if self._parts:
            data = b"".join(self._parts)
            self._runs.append((self.end + min(left, BLANK_SIZE) - len(data), data))
            self._parts.clear()
        self.end = next_start
        self._file_end = next_start + self.segments.size

    def allocate(self, start: int) -> None:
        """Make the file that starts there, if it is not there yet."""
        with self._allocating:
            if not self.segments.has(start):
                self.segments.add(start)

    def allocate_ahead(self) -> bool:
        """Make the next file once half of the present one is used; for a thread that may wait."""
        left = self._file_end - self.end
        if self._file_end and left < self.segments.size // 2 and not self.segments.has(self._file_end):
            self.allocate(self._file_end)
            return True
        return False

    def append(
        self,
        size: int,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        body: bytes | memoryview,
        properties: bytes,
        born_time_ms: int,
        born_host: bytes,
        store_time_ms: int,
        flag: int,
        sys_flag: int,
        reconsume_times: int,
        prepared_transaction_offset: int,
    ) -> None:
        """Append one record in the room that reserve() made for it."""
        parts, store_host, end = self._parts, self.store_host, self.end
        self._latest = len(parts)
        if len(born_host) == 8 and len(store_host) == 8 and len(topic) <= TOPIC_SIZE_MAX_V1:
            # Not copied now: joining all parts of a pass at its end is the only copy.
            parts += (
                _PLAIN.pack(
                    size, MAGIC_V1, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, end,
                    sys_flag & _NO_HOST_BITS, born_time_ms, born_host, store_time_ms, store_host, reconsume_times,
                    prepared_transaction_offset, len(body),
                ),
                body,
                _BYTE[len(topic)],
                topic,
                _SHORT.pack(len(properties)),
                properties,
            )  # fmt: skip
        else:
            record = bytearray(size)
            records.encode_record_into(
                record,
                0,
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                log_offset=end,
                body=body,
                properties=properties,
                born_time_ms=born_time_ms,
                born_host=born_host,
                store_time_ms=store_time_ms,
                store_host=store_host,
                flag=flag,
                sys_flag=sys_flag,
                reconsume_times=reconsume_times,
                prepared_transaction_offset=prepared_transaction_offset,
            )
            parts.append(record)
        self.end = end + size

    def stamp_crc(self, sizes: list[int]) -> None:
        """Fill in the CRCs over the whole of the records of these sizes, which were the last call's to append."""
        data = bytearray().join(self._parts[self._latest :])
        self._parts[self._latest :] = [data]
        at = 0
        for size in sizes:
            records.stamp_record_crc(data, at, size)
            at += size

    def append_batch(
        self,
        sizes: list[int],
        heads: list[tuple[int, bytes | memoryview, bytes | memoryview]],
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        common: bytes,
    ) -> None:
        """Append records that share all but flag, body and properties, in the room that was made for them.

        heads: flag, body and properties (with their length before them) of each. common: the fields from the
        system flag to the prepared transaction offset, encoded.
        """
        log_offset, parts = self.end, self._parts
        self._latest = len(parts)
        is_v2 = len(topic) > TOPIC_SIZE_MAX_V1
        magic = MAGIC_V2 if is_v2 else MAGIC_V1
        topic_part = (_SHORT.pack(len(topic)) if is_v2 else bytes((len(topic),))) + topic
        pack = _BATCH_HEAD.pack
        for size, (flag, body, properties) in zip(sizes, heads, strict=True):
            parts += (
                pack(size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, log_offset),
                common,
                len(body).to_bytes(4, "big"),
                body,
                topic_part,
                properties,
            )
            queue_offset += 1
            log_offset += size
        self.end = log_offset

    def append_copy(self, log_offset: int, data: bytes | memoryview) -> None:
        """Write bytes of another log at the end, whatever they are. An empty log may begin at any file.

        Raises OSError or StoreError; the log must not be used any more then.
        """
        self.end = self.written = log_offset
        view, at = memoryview(data), 0
        while at < len(view):
            start = self.end - self.end % self.segments.size
            self.allocate(start)
            self._file_end = start + self.segments.size
            count = min(len(view) - at, self._file_end - self.end)
            self.segments.write(self.end, view[at : at + count])
            at += count
            self.end += count
            self.written = self.end

    def write(self) -> None:
        """Write what the pass appended. Raises OSError; the log must not be used any more then."""
        for offset, data in self._runs:
            self.segments.write(offset, data)
        self._runs.clear()
        if self._parts:
            data = b"".join(self._parts)
            self.segments.write(self.end - len(data), data)
            self._parts.clear()
        self.written = self.end
        self.written_time_ms = self.last_store_time_ms

    # Reading

    def view(self, log_offset: int, size: int) -> memoryview | None:
        """A record's bytes; None where the log does not have them."""
        if not self.segments.first <= log_offset <= self.written - size:
            return None
        return self.segments.view(log_offset, size)

    def read(self, log_offset: int, size: int) -> bytes | None:
        """The same from the device, for a thread that may wait."""
        if not self.segments.first <= log_offset <= self.written - size:
            return None
        data = self.segments.read(log_offset, size)
        return data if len(data) == size else None

    def record(self, log_offset: int) -> memoryview | None:
        """The whole record that starts there; None where none does."""
        head = self.view(log_offset, BLANK_SIZE)
        if head is None:
            return None
        size, magic = struct.unpack(">ii", head)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < records.RECORD_SIZE_MIN:
            return None
        view = self.view(log_offset, size)
        # Where it says it is: bytes of a body may look like a record.
        return view if view is not None and _LOG_OFFSET.unpack_from(view, 28)[0] == log_offset else None

    def store_time_ms(self, log_offset: int, size: int) -> int:
        """When the record that starts there was stored; -1 where there is none."""
        view = self.view(log_offset, size)
        if view is None or size < records.RECORD_SIZE_MIN:
            return -1
        (sys_flag,) = struct.unpack_from(">i", view, 36)
        (time_ms,) = struct.unpack_from(">q", view, 68 if sys_flag & 0x10 else 56)
        return int(time_ms)
