"""A stored message: its bytes in the commit log, in pull bodies and in check-backs; and the batches clients send.

Layout    A fixed part with two hosts of 8 or 20 bytes (bits of the system flag tell), then body, topic and
          properties, each after its length. Version 2 has two bytes for the topic's length instead of one.
Blank     A segment ends with a blank record: its size and magic, and nothing that counts behind them.
Checks    Every length is judged before it is used. Bad bytes raise RemoteProtocolError, or end a walk over records.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.message import append_properties, decode_properties, remove_property

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124

BLANK_SIZE: Final = 8
RECORD_SIZE_MIN: Final = 91
TOPIC_SIZE_MAX_V1: Final = 127

CRC_MASK: Final = 0x7FFFFFFF
CRC_PROPERTY_SIZE: Final = 20

_HEAD: Final = struct.Struct(">ii")
_SYS_FLAG: Final = struct.Struct(">i")
_SYS_FLAG_POSITION: Final = 36
_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_POSITION: Final = 20
_SHORT: Final = struct.Struct(">h")
_HOST_BITS: Final = flags.BORN_HOST_V6 | flags.STORE_HOST_V6
_CRC_NAME: Final = b"__CRC32#"
_CRC_START: Final = _CRC_NAME + b"\x01"


def _encode_struct(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqqiq{born}sq{store}siqi")


def _decode_struct(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqqiq{born - 4}siq{store - 4}siiqi")


# By the sizes of the two hosts, with the bits that tell a reader about them.
_ENCODERS: Final = {
    (8, 8): (_encode_struct(8, 8), 0),
    (20, 8): (_encode_struct(20, 8), flags.BORN_HOST_V6),
    (8, 20): (_encode_struct(8, 20), flags.STORE_HOST_V6),
    (20, 20): (_encode_struct(20, 20), _HOST_BITS),
}
# By bits 4 and 5 of the system flag.
_DECODERS: Final = (_decode_struct(8, 8), _decode_struct(20, 8), _decode_struct(8, 20), _decode_struct(20, 20))


class Host(NamedTuple):
    """An address as records hold it: 4 or 16 bytes, and a port."""

    ip: bytes
    port: int

    @classmethod
    def of(cls, address: str, port: int) -> Host:
        """From an address in text. Raises ValueError if it is none."""
        return cls(ipaddress.ip_address(address).packed, port)

    def pack(self) -> bytes:
        """The bytes of the host in a record."""
        return self.ip + self.port.to_bytes(4, "big", signed=True)

    def __str__(self) -> str:
        address = ipaddress.ip_address(self.ip)
        return f"[{address}]:{self.port}" if address.version == 6 else f"{address}:{self.port}"


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Every field of a record."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    body: bytes
    """As it is stored: compressed if the system flag says so."""
    property_bytes: bytes
    born_time_ms: int
    born_host: Host
    store_time_ms: int
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    magic: int = MAGIC_V1
    size: int = 0
    """Bytes of the whole record; encoding counts them anew."""
    _properties: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded when first asked for. Treat as read-only."""
        if self._properties is None:
            object.__setattr__(self, "_properties", decode_properties(self.property_bytes))
        assert self._properties is not None
        return self._properties


def record_size(
    *, body_size: int, topic_size: int, properties_size: int, host_sizes: int = 16, magic: int = MAGIC_V1
) -> int:
    """Bytes of a record whose two hosts take host_sizes bytes together. A long topic makes it version 2."""
    is_v2 = magic == MAGIC_V2 or topic_size > TOPIC_SIZE_MAX_V1
    return 75 + host_sizes + body_size + topic_size + properties_size + is_v2


def encode_record_into(
    buffer: bytearray | memoryview,
    position: int,
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    body: Buffer,
    properties: bytes,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
    magic: int = MAGIC_V1,
) -> int:
    """Write one record and return the position behind it. Hosts come packed; their bits are set from their sizes.

    Raises LocalProtocolError where a field does not fit its bytes or the record does not fit the buffer.
    """
    body_size, topic_size, properties_size = len(body), len(topic), len(properties)
    if topic_size > TOPIC_SIZE_MAX_V1:
        magic = MAGIC_V2
    try:
        fixed, host_bits = _ENCODERS[len(born_host), len(store_host)]
        size = fixed.size + body_size + topic_size + properties_size + (4 if magic == MAGIC_V2 else 3)
        if position + size > len(buffer):
            raise LocalProtocolError(f"a record of {size} bytes does not fit at {position} of {len(buffer)}")
        crc = zlib.crc32(body) & CRC_MASK if body_crc is None else body_crc
        fixed.pack_into(
            buffer, position,
            size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag & ~_HOST_BITS | host_bits,
            born_time_ms, born_host, store_time_ms, store_host, reconsume_times, prepared_transaction_offset,
            body_size,
        )  # fmt: skip
        at = position + fixed.size
        buffer[at : at + body_size] = body
        at += body_size
        if magic == MAGIC_V2:
            _SHORT.pack_into(buffer, at, topic_size)
            at += 2
        else:
            buffer[at] = topic_size
            at += 1
        buffer[at : at + topic_size] = topic
        at += topic_size
        _SHORT.pack_into(buffer, at, properties_size)
    except KeyError:
        raise LocalProtocolError("a host takes 8 or 20 bytes in a record") from None
    except struct.error as error:
        raise LocalProtocolError(f"a field does not fit a record: {error}") from error
    buffer[at + 2 : at + 2 + properties_size] = properties
    return at + 2 + properties_size


def encode_record(record: StoredRecord) -> bytes:
    """The bytes of a record, with its CRC and magic as they are. Raises as encode_record_into() does."""
    topic = record.topic.encode()
    born_host, store_host = record.born_host.pack(), record.store_host.pack()
    buffer = bytearray(
        record_size(
            body_size=len(record.body),
            topic_size=len(topic),
            properties_size=len(record.property_bytes),
            host_sizes=len(born_host) + len(store_host),
            magic=record.magic,
        )
    )
    encode_record_into(
        buffer,
        0,
        topic=topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        body=record.body,
        properties=record.property_bytes,
        born_time_ms=record.born_time_ms,
        born_host=born_host,
        store_time_ms=record.store_time_ms,
        store_host=store_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_crc=record.body_crc,
        magic=record.magic,
    )
    return bytes(buffer)


def encode_blank(size: int) -> bytes:
    """The start of a blank record that fills the last `size` bytes of a segment."""
    return _HEAD.pack(size, MAGIC_BLANK)


def decode_record(buffer: Buffer, position: int = 0, *, verify_crc: bool = False) -> StoredRecord:
    """The record at a position; its topic's bad UTF-8 becomes U+FFFD.

    Raises RemoteProtocolError if there is no whole record, its lengths disagree, or the body fails its CRC.
    """
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(buffer, position + _SYS_FLAG_POSITION)
        fixed = _DECODERS[sys_flag >> 4 & 3]
        (
            size, magic, body_crc, queue_id, flag, queue_offset, log_offset, _, born_time_ms, born_ip, born_port,
            store_time_ms, store_ip, store_port, reconsume_times, prepared_transaction_offset, body_size,
        ) = fixed.unpack_from(buffer, position)  # fmt: skip
    except struct.error:
        raise RemoteProtocolError(f"no whole record at {position}") from None
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RemoteProtocolError(f"no record at {position}: magic {magic & 0xFFFFFFFF:#x}")
    body_start = position + fixed.size
    body_end, topic_start, topic_end, end = _tail(buffer, body_start, body_size, magic)
    if end - position != size:
        raise RemoteProtocolError(f"the record at {position} says {size} bytes and has {end - position}")
    body = bytes(buffer[body_start:body_end])
    if verify_crc and zlib.crc32(body) & CRC_MASK != body_crc:
        raise RemoteProtocolError(f"the body of the record at {position} fails its CRC")
    return StoredRecord(
        topic=str(buffer[topic_start:topic_end], "utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        body=body,
        property_bytes=bytes(buffer[topic_end + 2 : end]),
        born_time_ms=born_time_ms,
        born_host=Host(born_ip, born_port),
        store_time_ms=store_time_ms,
        store_host=Host(store_ip, store_port),
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=body_crc,
        magic=magic,
        size=size,
    )


def record_properties(buffer: Buffer, position: int = 0) -> bytes:
    """The property_bytes of the record at a position, for whoever needs nothing else of it.

    Raises RemoteProtocolError if there is no whole record.
    """
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(buffer, position + _SYS_FLAG_POSITION)
        body_start = position + _DECODERS[sys_flag >> 4 & 3].size
        (body_size,) = _SYS_FLAG.unpack_from(buffer, body_start - 4)
        _, magic = _HEAD.unpack_from(buffer, position)
    except struct.error:
        raise RemoteProtocolError(f"no whole record at {position}") from None
    _, _, topic_end, end = _tail(buffer, body_start, body_size, magic)
    return bytes(buffer[topic_end + 2 : end])


def record_queue_offset(buffer: Buffer, position: int = 0) -> int:
    """The queue_offset of the record at a position that check_record() found valid."""
    queue_offset: int = _QUEUE_OFFSET.unpack_from(buffer, position + _QUEUE_OFFSET_POSITION)[0]
    return queue_offset


def record_body(buffer: Buffer, position: int = 0) -> tuple[bytes, int]:
    """The body as it is stored, and the system flag, of a record that check_record() found valid."""
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, position + _SYS_FLAG_POSITION)
    start = position + _DECODERS[sys_flag >> 4 & 3].size
    (size,) = _SYS_FLAG.unpack_from(buffer, start - 4)
    return bytes(buffer[start : start + max(size, 0)]), sys_flag


def _tail(buffer: Buffer, body_start: int, body_size: int, magic: int) -> tuple[int, int, int, int]:
    """Where the body ends, the topic starts and ends, and the record ends; all of it inside the buffer."""
    body_end = body_start + max(body_size, 0)
    topic_start = body_end + (2 if magic == MAGIC_V2 else 1)
    try:
        topic_size = _SHORT.unpack_from(buffer, body_end)[0] if magic == MAGIC_V2 else buffer[body_end]
        if topic_size < 0 or (magic == MAGIC_V1 and topic_size > TOPIC_SIZE_MAX_V1):
            raise RemoteProtocolError(f"a topic of {topic_size} bytes")
        topic_end = topic_start + topic_size
        (properties_size,) = _SHORT.unpack_from(buffer, topic_end)
    except (struct.error, IndexError):
        raise RemoteProtocolError("the record ends beyond its buffer") from None
    end = topic_end + 2 + max(properties_size, 0)
    if end > len(buffer):
        raise RemoteProtocolError("the record ends beyond its buffer")
    return body_end, topic_start, topic_end, end


class RecordCheck(NamedTuple):
    """What stands at a position of the log: a record (its size), the end of a segment (0), or neither."""

    size: int
    """Of a record that is not valid: what it claims if only its lengths disagree, else -1."""
    is_valid: bool


_BAD: Final = RecordCheck(-1, False)
_END_OF_SEGMENT: Final = RecordCheck(0, True)


def check_record(
    buffer: Buffer,
    position: int = 0,
    *,
    verify_body_crc: bool = True,
    verify_record_crc: bool = False,
) -> RecordCheck:
    """Judge the record at a position as Apache's recovery does; never raises for what the bytes hold.

    With verify_record_crc the record must carry a CRC over the whole of it, and the body's own is not looked at.
    The log offset in the record is not compared with anything.
    """
    if len(buffer) - position < _HEAD.size:
        return _BAD
    size, magic = _HEAD.unpack_from(buffer, position)
    if size > len(buffer) - position:
        return _BAD
    if magic == MAGIC_BLANK:
        return _END_OF_SEGMENT
    if magic not in (MAGIC_V1, MAGIC_V2) or size <= 0:
        return _BAD
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(buffer, position + _SYS_FLAG_POSITION)
        fixed_size = _DECODERS[sys_flag >> 4 & 3].size
        (body_size,) = _SYS_FLAG.unpack_from(buffer, position + fixed_size - 4)
        body_end, _, _, end = _tail(buffer, position + fixed_size, body_size, magic)
    except (struct.error, RemoteProtocolError):
        return _BAD
    if body_size > 0 and verify_body_crc and not verify_record_crc:
        (body_crc,) = _SYS_FLAG.unpack_from(buffer, position + 8)
        if zlib.crc32(memoryview(buffer)[position + fixed_size : body_end]) & CRC_MASK != body_crc:
            return _BAD
    if verify_record_crc and not has_valid_record_crc(buffer, position, size):
        return _BAD
    return RecordCheck(size, end - position == size)


def scan_records(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, int]]:
    """Position and size of one record after another, by their sizes and magic alone.

    Ends at the first that is not whole, at a blank record, and at anything that is no record.
    """
    end = len(buffer)
    while position + RECORD_SIZE_MIN <= end:
        size, magic = _HEAD.unpack_from(buffer, position)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_SIZE_MIN <= size <= end - position:
            return
        yield position, size
        position += size


def decode_pull_body(buffer: Buffer, *, verify_crc: bool = False) -> list[StoredRecord]:
    """The records of a body, up to the first that cannot be decoded, as Apache's clients read it."""
    records = []
    for position, _ in scan_records(buffer):
        try:
            records.append(decode_record(buffer, position, verify_crc=verify_crc))
        except RemoteProtocolError:
            break
    return records


# The CRC over a whole record, which 5.x can keep as the last property


def reserve_record_crc(properties: bytes) -> bytes:
    """The properties with room for the record's CRC at their end, and none of an earlier one."""
    room = _CRC_START + b"0" * 10 + b"\x02"
    return append_properties(remove_property(properties, _CRC_NAME), room)


def stamp_record_crc(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Fill the room made by reserve_record_crc(), after every other field has its last value."""
    end = position + size
    digits = encode_crc_digits(_record_crc(buffer, position, size))
    buffer[end - CRC_PROPERTY_SIZE : end] = _CRC_START + digits + b"\x02"


def has_valid_record_crc(buffer: Buffer, position: int, size: int) -> bool:
    """Whether the record ends with its CRC, and the CRC is right."""
    if size < RECORD_SIZE_MIN + CRC_PROPERTY_SIZE:
        return False
    end = position + size
    expected = _CRC_START + encode_crc_digits(_record_crc(buffer, position, size)) + b"\x02"
    return bytes(buffer[end - CRC_PROPERTY_SIZE : end]) == expected


def encode_crc_digits(crc: int) -> bytes:
    """Ten decimal digits, the least significant first."""
    return (b"%010d" % crc)[::-1]


def _record_crc(buffer: Buffer, position: int, size: int) -> int:
    return zlib.crc32(memoryview(buffer)[position : position + size - CRC_PROPERTY_SIZE]) & CRC_MASK


# Batches as clients send them

_BATCH_FIXED: Final = struct.Struct(">iiiii")


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One message of a batch; topic, queue and times are those of the request."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(records: Iterable[BatchRecord]) -> bytes:
    """The body of a batch request. Raises LocalProtocolError where a field does not fit its bytes."""
    parts: list[bytes] = []
    try:
        for record in records:
            body_size, properties_size = len(record.body), len(record.properties)
            # Magic and CRC are zero: brokers neither read nor check them here.
            parts += (
                _BATCH_FIXED.pack(22 + body_size + properties_size, 0, 0, record.flag, body_size),
                record.body,
                _SHORT.pack(properties_size),
                record.properties,
            )
    except struct.error as error:
        raise LocalProtocolError(f"a field does not fit a batch: {error}") from error
    return b"".join(parts)


def decode_batch(body: Buffer) -> list[BatchRecord]:
    """Every message of a batch request. Raises RemoteProtocolError if any of them is not whole."""
    records, position = [], 0
    try:
        while position < len(body):
            size, _, _, flag, body_size = _BATCH_FIXED.unpack_from(body, position)
            body_start = position + _BATCH_FIXED.size
            body_end = body_start + body_size
            if body_size < 0:
                raise RemoteProtocolError(f"a body of {body_size} bytes in a batch")
            (properties_size,) = _SHORT.unpack_from(body, body_end)
            end = body_end + 2 + properties_size
            if properties_size < 0 or end > len(body) or end - position != size:
                raise RemoteProtocolError(f"the lengths at {position} of a batch disagree")
            records.append(BatchRecord(flag, bytes(body[body_start:body_end]), bytes(body[body_end + 2 : end])))
            position = end
    except struct.error:
        raise RemoteProtocolError(f"the batch ends within the message at {position}") from None
    return records
