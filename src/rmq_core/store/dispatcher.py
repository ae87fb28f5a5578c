"""From messages in the log to queue entries, light queues and index keys: one function, two feeds.

From appends   What a pass wrote, once it is confirmed: enter().
From the log   What recovery and replicas read, as columns: enter_log().
Both say in the same way what an entry holds (`_tags_code`) and hand keys to the index in the same form; the index
is built later, in bulk, by a thread of its own.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import DispatchColumns, dispatch_columns
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.filter import tags_code
from rmq_core.protocol.message import (
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    append_properties,
    decode_properties,
    find_property,
    remove_property,
)
from rmq_core.protocol.record import decode_record
from rmq_core.store.batch_queue import holds_messages
from rmq_core.store.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from rmq_core.store.groups import HIDDEN, QueueGroup, group_by_queue, is_batch, is_shown
from rmq_core.store.key_index import KeyIndex
from rmq_core.store.queue_ext import NO_ADDRESS, ExtUnit
from rmq_core.store.queues import Queues
from rmq_core.store.walk import Stretch

log = logging.getLogger(__name__)

Appended = tuple[ConsumeQueue, int, int, int, bytes, int, int]
"""queue, queue offset, log offset, size, properties, store time, system flag"""

_ENTRY_COLUMNS: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_TAGS: Final = b"\x02TAGS\x01"
_TAGS_CACHED_MAX: Final = 10_000
_LATE_DELAY_MS: Final = 1000
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> dict[int, int]:
    """Delays in ms by level, from Java's `1s 5s 10s 1m`."""
    return {level: int(each[:-1]) * _UNITS_MS[each[-1]] for level, each in enumerate(text.split(), 1)}


@dataclass(frozen=True, slots=True)
class LightQueues:
    """Whether messages also go to the light queues that their properties name."""

    is_enabled: bool = False

    def _names(self, topic: str, properties: bytes) -> list[str]:
        if not self.is_enabled or topic.startswith((RETRY_PREFIX, "rmq_sys_")) or topic == SCHEDULE_TOPIC:
            return []
        names = find_property(properties, b"INNER_MULTI_DISPATCH")
        return names.decode("utf-8", "replace").split(",") if names else []

    def with_offsets(self, topic: str, properties: bytes, queues: Queues) -> bytes:
        """The properties of a new message with the offsets that it gets in its light queues."""
        names = self._names(topic, properties)
        if not names:
            return properties
        offsets = [str(queues.get(name, 0).next_offset) if _is_light(name) else "" for name in names]
        properties = remove_property(properties, b"INNER_MULTI_QUEUE_OFFSET")
        text = ",".join(offsets).encode()
        return append_properties(properties, b"INNER_MULTI_QUEUE_OFFSET\x01" + text + b"\x02")

    def of(self, topic: str, properties: bytes) -> list[tuple[str, int]]:
        """Names and queue offsets of the light queues of a stored message."""
        names = self._names(topic, properties)
        offsets = (find_property(properties, b"INNER_MULTI_QUEUE_OFFSET") or b"").split(b",")
        if len(names) != len(offsets):
            return []
        found = {name: offset for name, offset in zip(names, offsets, strict=True) if _is_light(name)}
        return [(name, int(offset)) for name, offset in found.items() if offset.isdigit()]


def _is_light(name: str) -> bool:
    """Whether a light queue can have this name, and a directory too."""
    return name.startswith(LMQ_PREFIX) and "/" not in name and "\0" not in name and len(name.encode()) <= 255


class Dispatcher:
    """Enters messages where readers look for them."""

    def __init__(
        self,
        queues: Queues,
        index: KeyIndex | None,
        delay_levels_ms: dict[int, int],
        light_queues: LightQueues,
        filter_bits: Callable[[str, bytes], bytes] | None = None,
    ) -> None:
        """filter_bits(topic, properties): the bits of the SQL92 subscriptions that match, for queues with ext."""
        self._queues = queues
        self._index = index
        self._delay_levels_ms = delay_levels_ms
        self._light_queues = light_queues
        self._filter_bits = filter_bits
        self._codes: dict[bytes, int] = {}
        self.last_store_time_ms = 0
        """Of the message entered last."""
        self.missing = 0
        """Messages that the log lost: queues may have blanks for so many."""
        self.new_batch_topics: set[str] = set()
        """Topics for whose records batch queues were made, because their files are gone."""

    def enter(self, appended: list[Appended]) -> None:
        """Enter what was appended, in its order."""
        if self._queues.sizes.with_ext or self._light_queues.is_enabled:
            self._enter_one_by_one(appended)
        else:
            self._enter_by_queue(appended)
        if self._index is not None:
            self._index.collect(appended)
        self.last_store_time_ms = appended[-1][5]

    def _enter_by_queue(self, appended: list[Appended]) -> None:
        """The entries of each queue together: as many of them as a pass has, one step for each queue."""
        groups: dict[ConsumeQueue, list[int]] = {}
        codes, tags_size = self._codes, len(_TAGS)
        for queue, queue_offset, log_offset, size, properties, store_time_ms, sys_flag in appended:
            if sys_flag and sys_flag & flags.TRANSACTION_MASK in HIDDEN:
                continue
            values = groups.get(queue)
            if values is None:
                values = groups[queue] = [queue_offset]
            # Mostly the tag is one that was hashed before.
            start = properties.rfind(_TAGS) + tags_size
            end = properties.find(b"\x02", start)
            code = codes.get(properties[start:end]) if end > start >= tags_size else None
            if code is None or queue.topic == SCHEDULE_TOPIC:
                code = self._tags_code(queue.topic, properties, store_time_ms)
            values += (log_offset, size, code)
        with self._queues.lock:
            for queue, values in groups.items():
                if len(values) == 4:
                    entries = ENTRY.pack(values[1], values[2], values[3])
                else:
                    entries = struct.pack(">" + "qiq" * (len(values) // 3), *values[1:])
                self._enter_at(queue, values[0], entries, values[-3] + values[-2])
                self._queues.dirty.add(queue.files)

    def _enter_one_by_one(self, appended: list[Appended]) -> None:
        with_ext, dirty = self._queues.sizes.with_ext, self._queues.dirty
        with self._queues.lock:
            for queue, queue_offset, log_offset, size, properties, store_time_ms, sys_flag in appended:
                if sys_flag & flags.TRANSACTION_MASK in HIDDEN:
                    continue
                code = self._tags_code(queue.topic, properties, store_time_ms)
                if with_ext:
                    code = self._ext_address(queue, properties, code, store_time_ms)
                self._enter_at(queue, queue_offset, ENTRY.pack(log_offset, size, code), log_offset + size)
                dirty.add(queue.files)
                if self._light_queues.is_enabled:
                    self._enter_light(queue.topic, properties, log_offset, size, code)

    def _enter_at(self, queue: ConsumeQueue, queue_offset: int, entries: bytes, log_end: int) -> None:
        if not queue.add_at(queue_offset, entries, log_end, missing_max=self.missing):
            log.error("%r cannot take queue offset %d of a record before %d", queue, queue_offset, log_end)
            self.missing += len(entries) // ENTRY_SIZE

    def _tags_code(self, topic: str, properties: bytes, store_time_ms: int) -> int:
        if topic == SCHEDULE_TOPIC and (level := find_property(properties, b"DELAY")):
            return self._delivery_time(level, store_time_ms)
        tag = find_property(properties, b"TAGS")
        if not tag:
            return 0
        code = self._codes.get(tag)
        if code is None:
            if len(self._codes) >= _TAGS_CACHED_MAX:
                self._codes.clear()
            code = self._codes[tag] = tags_code(tag.decode("utf-8", "replace"))
        return code

    def _delivery_time(self, level: bytes, store_time_ms: int) -> int:
        if not level.isdigit() or int(level) <= 0:
            return 0
        number = min(int(level), max(self._delay_levels_ms, default=0))
        return store_time_ms + self._delay_levels_ms.get(number, _LATE_DELAY_MS)

    def _ext_address(self, queue: ConsumeQueue, properties: bytes, code: int, store_time_ms: int) -> int:
        bits = self._filter_bits(queue.topic, properties) if self._filter_bits is not None else b""
        ext = self._queues.ext_of(queue)
        address = ext.add(ExtUnit(code, store_time_ms, bits))
        self._queues.dirty.add(ext.files)
        return code if address == NO_ADDRESS else address

    def _enter_light(self, topic: str, properties: bytes, log_offset: int, size: int, code: int) -> None:
        for name, queue_offset in self._light_queues.of(topic, properties):
            queue = self._queues.get(name, 0)
            self._enter_at(queue, queue_offset, ENTRY.pack(log_offset, size, code), log_offset + size)
            queue.next_offset = max(queue.next_offset, queue.max_offset)
            self._queues.dirty.add(queue.files)

    # From the log

    def enter_log(self, stretch: Stretch) -> DispatchColumns:
        """Enter good records of the log that no queue has yet."""
        columns = dispatch_columns(stretch.buffer, stretch.positions)
        topics = [topic.decode("utf-8", "replace") for topic in columns.topics]
        shown = is_shown(columns)
        special = np.flatnonzero(columns.is_special & shown).tolist()
        for row in special:
            self._correct_code(stretch, columns, topics, row)
        batch_topics = {topic for topic, _ in self._queues.batch}
        with self._queues.lock:
            for group in group_by_queue(columns, batch_topics):
                self._enter_group(stretch, columns, group)
            for row in np.flatnonzero(is_batch(columns, batch_topics) & shown).tolist():
                self._enter_batch_record(stretch, columns, topics, row)
            if self._light_queues.is_enabled:
                for row in special:
                    self._enter_light_record(stretch, columns, topics, row)
        self.last_store_time_ms = max(self.last_store_time_ms, int(columns.store_times_ms[-1]))
        return columns

    def _correct_code(self, stretch: Stretch, columns: DispatchColumns, topics: list[str], row: int) -> None:
        if topics[columns.topic_ids[row]] == SCHEDULE_TOPIC:
            record = decode_record(stretch.buffer, int(stretch.positions[row]))
            code = self._tags_code(SCHEDULE_TOPIC, record.property_bytes, record.store_time_ms)
            columns.tags_codes[row] = code

    def _enter_group(self, stretch: Stretch, columns: DispatchColumns, group: QueueGroup) -> None:
        queue = self._queues.get(group.topic, group.queue_id)
        if group.is_new_beginning and 0 < queue.log_end <= int(columns.log_offsets[group.rows[0]]):
            queue.restart()
        # Some of them may be there already.
        known = min(max(queue.max_offset - group.queue_offset, 0), len(group.rows)) if queue.log_end >= 0 else 0
        if known and not queue.holds(group.queue_offset, int(columns.log_offsets[group.rows[0]])):
            self.missing += known  # damaged offsets: the places that are theirs stay empty
        rows, first = group.rows[known:], group.queue_offset + known
        if not len(rows):
            return
        entries = np.empty(len(rows), _ENTRY_COLUMNS)
        entries["log_offset"] = columns.log_offsets[rows]
        entries["size"] = columns.sizes[rows]
        entries["tags_code"] = columns.tags_codes[rows]
        if self._queues.sizes.with_ext:
            self._add_ext(stretch, columns, queue, rows, entries)
        log_end = int(columns.log_offsets[rows[-1]]) + int(columns.sizes[rows[-1]])
        if queue.add_at(first, entries.tobytes(), log_end, missing_max=self.missing):
            self._queues.dirty.add(queue.files)
        else:
            self.missing += len(rows)
            log.error(
                "%r cannot take queue offset %d of the record at %d", queue, first, columns.log_offsets[rows[0]]
            )

    def _add_ext(
        self,
        stretch: Stretch,
        columns: DispatchColumns,
        queue: ConsumeQueue,
        rows: NDArray[np.int64],
        entries: NDArray[np.void],
    ) -> None:
        for number, row in enumerate(rows.tolist()):
            record = decode_record(stretch.buffer, int(stretch.positions[row]))
            code = int(columns.tags_codes[row])
            address = self._ext_address(queue, record.property_bytes, code, record.store_time_ms)
            entries["tags_code"][number] = address

    def _enter_batch_record(self, stretch: Stretch, columns: DispatchColumns, topics: list[str], row: int) -> None:
        key = (topics[columns.topic_ids[row]], int(columns.queue_ids[row]))
        batch = self._queues.batch.get(key)
        record = decode_record(stretch.buffer, int(stretch.positions[row]))
        if batch is None:
            if not holds_messages(record):
                log.error(
                    "the record at %d says that it holds messages, in a queue of single ones", record.log_offset
                )
                return
            log.warning("the batch consume queue %s/%d is gone: it is built again", *key)
            batch = self._queues.add_batch(*key)
            self.new_batch_topics.add(key[0])
        count = decode_properties(record.property_bytes).get("INNER_NUM", "1")
        batch.add(
            record.log_offset,
            record.size,
            int(columns.tags_codes[row]),
            record.store_time_ms,
            record.queue_offset,
            int(count) if count.isdigit() else 1,
        )
        self._queues.dirty.add(batch.files)

    def _enter_light_record(self, stretch: Stretch, columns: DispatchColumns, topics: list[str], row: int) -> None:
        record = decode_record(stretch.buffer, int(stretch.positions[row]))
        topic = topics[columns.topic_ids[row]]
        for name, queue_offset in self._light_queues.of(topic, record.property_bytes):
            queue = self._queues.get(name, 0)
            if queue_offset >= queue.max_offset:
                entry = ENTRY.pack(record.log_offset, record.size, int(columns.tags_codes[row]))
                self._enter_at(queue, queue_offset, entry, record.log_offset + record.size)
                self._queues.dirty.add(queue.files)
