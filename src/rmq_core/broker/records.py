"""Stored messages that the broker itself reads back, and where they belong.

Hot    What was written lately is in memory: it is a view of the mapped log, taken on the loop's thread.
Cold   What is older is read by a thread of the pool: a page fault in a mapping would hold up everybody.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from rmq_core.broker.admission import Place
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.message import find_property
from rmq_core.protocol.record import BLANK_SIZE, RECORD_SIZE_MIN, StoredRecord, decode_record
from rmq_core.store.message_store import MessageStore

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

HOT_SIZE: Final = 64 << 20
"""So far behind the end of the log everything is taken to be in memory."""
_SIZE_MAX: Final = 128 << 20


async def record_at(broker: Broker, log_offset: int) -> StoredRecord | None:
    """The message that readers find at a log offset; None where there is none, or a damaged one."""
    store = broker.store
    if not 0 <= log_offset < store.confirmed_offset:
        return None
    if store.log.end - log_offset <= HOT_SIZE:
        return _decoded(store.record(log_offset), log_offset)
    return _decoded(await broker.run(read_cold, store, log_offset), log_offset)


def read_cold(store: MessageStore, log_offset: int, size: int = 0) -> bytes | None:
    """A record read from the device, for a thread that may wait; its size is read first where it is not known."""
    if not size:
        head = store.log.read(log_offset, BLANK_SIZE)
        size = 0 if head is None else struct.unpack(">ii", head)[0]
        if not RECORD_SIZE_MIN <= size <= _SIZE_MAX or log_offset + size > store.confirmed_offset:
            return None
    return store.log.read(log_offset, size)


def _decoded(data: memoryview | bytes | None, log_offset: int) -> StoredRecord | None:
    if data is None:
        return None
    try:
        record = decode_record(data, verify_crc=True)
    except RemoteProtocolError:
        return None
    # An offset into the middle of a body could find bytes that only look like a record.
    return record if record.log_offset == log_offset else None


def place_of(properties: bytes) -> Place | None:
    """Where a message belongs that waits elsewhere; None where it does not say so."""
    topic = find_property(properties, b"REAL_TOPIC")
    queue_id = find_property(properties, b"REAL_QID")
    if not topic or queue_id is None or not queue_id.isdigit() or len(queue_id) > 10:
        return None
    return Place(topic.decode("utf-8", "replace"), int(queue_id), properties)
