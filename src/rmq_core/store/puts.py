"""What became of a message that was put, and the batches that clients send."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.message import PROPERTIES_SIZE_MAX, RETRY_PREFIX, append_properties
from rmq_core.protocol.record import TOPIC_SIZE_MAX_V1, reserve_record_crc

RETRY_TOPIC_SIZE_MAX: Final = 255
_BATCH_FIXED: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">H")


class PutStatus(Enum):
    """What became of a message."""

    PUT_OK = auto()
    FLUSH_DISK_TIMEOUT = auto()
    CREATE_MAPPED_FILE_FAILED = auto()
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()
    SERVICE_NOT_AVAILABLE = auto()
    UNKNOWN_ERROR = auto()


class Put(NamedTuple):
    """Where a message stands, or why it does not."""

    status: PutStatus
    log_offset: int = -1
    size: int = 0
    queue_offset: int = -1
    store_time_ms: int = 0
    log_offsets: Sequence[int] = ()
    """Of each message of a batch."""
    reason: str = ""

    @property
    def end(self) -> int:
        """Where the log goes on behind it."""
        return self.log_offset + self.size


def problem_of_queue(topic: str, queue_id: int) -> Put | None:
    """Why nothing can be stored under this name; None where it can."""
    size = len(topic.encode())
    if size > (RETRY_TOPIC_SIZE_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_SIZE_MAX_V1):
        return Put(PutStatus.MESSAGE_ILLEGAL, reason=f"a topic of {size} bytes is too long")
    if "/" in topic or topic in ("", ".", "..") or "\0" in topic:
        return Put(PutStatus.MESSAGE_ILLEGAL, reason="the topic is no name for a directory")
    if not 0 <= queue_id < 1 << 31:
        return Put(PutStatus.MESSAGE_ILLEGAL, reason=f"{queue_id} is no queue id")
    return None


def too_large(*, body_size: int, body_size_max: int, properties_size: int) -> Put:
    """The refusal of a message with a part that is too long."""
    if body_size > body_size_max:
        reason = f"a body of {body_size} bytes is larger than maxMessageSize {body_size_max}"
        return Put(PutStatus.MESSAGE_ILLEGAL, reason=reason)
    reason = f"properties of {properties_size} bytes are longer than {PROPERTIES_SIZE_MAX}"
    return Put(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason=reason)


class BatchParts(NamedTuple):
    """The messages of a batch, as columns."""

    heads: list[tuple[int, bytes | memoryview, bytes | memoryview]]
    """Flag, body and properties (with their length before them) of each."""
    properties: list[bytes]
    sizes: list[int]
    """Of the records that they become."""


def parse_batch(
    batch: bytes | memoryview, *, record_overhead: int, extra_properties: bytes, with_record_crc: bool = False
) -> BatchParts:
    """Take a client's batch apart; extra_properties are added to those of each message.

    Raises RemoteProtocolError where the bytes are no batch.
    """
    unpack, unpack_short = _BATCH_FIXED.unpack_from, _SHORT.unpack_from
    heads: list[tuple[int, bytes | memoryview, bytes | memoryview]] = []
    properties: list[bytes] = []
    sizes: list[int] = []
    at, end = 0, len(batch)
    if not end:
        raise RemoteProtocolError("the batch is empty")
    is_as_sent = not (extra_properties or with_record_crc)
    try:
        while at < end:
            size, _, _, flag, body_size = unpack(batch, at)
            tail = at + 20 + body_size
            if body_size < 0 or tail + 2 > end:
                raise RemoteProtocolError(f"the lengths at {at} of a batch disagree")
            following = tail + 2 + unpack_short(batch, tail)[0]
            if following > end or following - at != size:
                raise RemoteProtocolError(f"the lengths at {at} of a batch disagree")
            # Slices of bytes are copies, which cost less than views of them.
            own = bytes(batch[tail + 2 : following])
            if is_as_sent:
                properties_part = batch[tail:following]
            else:
                own = append_properties(own, extra_properties) if extra_properties else own
                own = reserve_record_crc(own) if with_record_crc else own
                properties_part = (len(own) & 0xFFFF).to_bytes(2, "big") + own
            heads.append((flag, batch[at + 20 : tail], properties_part))
            properties.append(own)
            sizes.append(record_overhead + body_size + len(own))
            at = following
    except struct.error:
        raise RemoteProtocolError(f"the batch ends within the message at {at}") from None
    return BatchParts(heads, properties, sizes)
