"""Messages of an offline store by key or id: through the index, and behind its end through the log itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rmq_core.columnar import dispatch_columns
from rmq_core.errors import RocketMQError
from rmq_core.protocol.message_id import decode_offset_message_id, encode_offset_message_id
from rmq_core.protocol.record import StoredRecord
from rmq_core.store.index_file import HEADER, IndexFile, IndexHeader, key_hash
from rmq_core.store.index_shape import index_shape
from rmq_core.store.key_index import key_rows
from rmq_core.store.offline_log import OfflineLog
from rmq_core.store.source import Source
from rmq_core.store.walk import Stretch

_FAR_FUTURE_MS = 1 << 62


class Finder:
    """Looks for single messages of some topics."""

    def __init__(self, source: Source, log: OfflineLog, topics: Sequence[str]) -> None:
        self._source = source
        self._log = log
        self._topics = topics

    def by_offset_id(self, msg_id: str) -> StoredRecord | None:
        """The message that a broker gave this id; None where it is another kind of id, or gone."""
        try:
            offset = decode_offset_message_id(msg_id).log_offset
        except RocketMQError:
            return None
        record = self._log.record(offset)
        # A client's own id has the same length: only the store host tells them apart.
        if record is None or encode_offset_message_id(record.store_host.pack(), offset) != msg_id.upper():
            return None
        return record

    def by_key(self, key: str, count_max: int) -> list[StoredRecord]:
        """The newest messages with a key or a client's id, newest first."""
        hashes = {key_hash(topic, key): topic for topic in self._topics}
        found: dict[int, StoredRecord] = {}
        files = self._index_files()
        for offset in self._unindexed(files, set(hashes)):
            self._add(found, offset, key)
        for file in files:
            if len(found) >= count_max:
                break
            for hashed in hashes:
                for offset in file.find(hashed, count_max, 0, _FAR_FUTURE_MS):
                    self._add(found, offset, key)
        return [found[offset] for offset in sorted(found, reverse=True)][:count_max]

    def _add(self, found: dict[int, StoredRecord], offset: int, key: str) -> None:
        record = None if offset in found else self._log.record(offset)
        if record is not None and record.topic in self._topics and _has_key(record, key):
            found[offset] = record

    def _unindexed(self, files: Sequence[IndexFile], hashes: set[int]) -> Iterator[int]:
        """Offsets of messages behind the end of the index that may have one of these hashes."""
        indexed = max((file.header.end_offset for file in files), default=self._log.first)
        start = self._log.first_record(indexed)
        wanted = np.fromiter(hashes, np.int32, len(hashes))
        for step in () if start is None else self._log.walk(start, verify_crc=False):
            if isinstance(step, Stretch):
                columns = dispatch_columns(step.buffer, step.positions)
                rows, found = key_rows(step.buffer, columns)
                yield from columns.log_offsets[rows[np.isin(found, wanted)]].tolist()

    def _index_files(self) -> list[IndexFile]:
        """The files that have entries, the newest first."""
        disk, folder = self._source.disk, self._source.root / "index"
        files = []
        for name, size in reversed(disk.list(folder)):
            if name.isdecimal() and size >= HEADER.size:
                path = folder / name
                if IndexHeader.unpack(disk.read(path, 0, HEADER.size)).next_entry > 1:
                    shape = index_shape(disk, path, size)
                    if shape is not None:
                        file = IndexFile(disk, path, *shape)
                        file.load()
                        files.append(file)
        return files


def _has_key(record: StoredRecord, key: str) -> bool:
    properties = record.properties
    return key == properties.get("UNIQ_KEY") or key in properties.get("KEYS", "").split(" ")
