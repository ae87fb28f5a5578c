"""A message as consumers get it.

Lazy   What is read is decoded, and nothing else: a listener that looks at the body alone pays for the body alone.
Names  Topics come without the namespace, and a message that is delivered again shows the topic it was sent to.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.compression import decompress_body
from rmq_core.protocol.message import (
    KEY_SEPARATOR,
    MessageQueue,
    Property,
    decode_properties,
    is_retry_topic,
    unwrap_namespace,
)
from rmq_core.protocol.message_id import encode_offset_message_id
from rmq_core.protocol.record import (
    StoredRecord,
    check_record,
    decode_record,
    record_body,
    record_properties,
    record_queue_offset,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ReceivedMessage:
    """One message that was read from a queue. Treat it, and its properties, as read-only."""

    __slots__ = (
        "_body",
        "_namespace",
        "_properties",
        "_raw",
        "_record",
        "max_offset",
        "min_offset",
        "queue",
        "queue_offset",
        "size",
    )

    queue: MessageQueue
    """The queue it was read from: one of the group's retry topic where it is delivered again."""
    queue_offset: int
    size: int
    """Bytes of the stored record."""
    min_offset: int | None
    """The oldest queue_offset of its queue when it was read."""
    max_offset: int | None
    """The queue_offset that the next message of its queue would have got when it was read."""

    def __init__(
        self,
        record: StoredRecord | bytes,
        queue: MessageQueue,
        *,
        namespace: str = "",
        min_offset: int | None = None,
        max_offset: int | None = None,
    ) -> None:
        """record may be the bytes of one that check_record() found valid."""
        if isinstance(record, StoredRecord):
            self._raw: bytes | None = None
            self._record: StoredRecord | None = record
            self.queue_offset, self.size = record.queue_offset, record.size
        else:
            self._raw, self._record = record, None
            self.queue_offset, self.size = record_queue_offset(record), len(record)
        self.queue = queue
        self.min_offset = min_offset
        self.max_offset = max_offset
        self._namespace = namespace
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    def __repr__(self) -> str:
        queue = f"{self.queue.broker_name}/{self.queue.queue_id}@{self.queue_offset}"
        return (
            f"ReceivedMessage({self.topic!r}, {queue}, msg_id={self.msg_id}, tags={self.tags!r}, {self.size} bytes)"
        )

    @property
    def record(self) -> StoredRecord:
        """Every field as the broker stored it."""
        if self._record is None:
            assert self._raw is not None
            self._record = decode_record(self._raw)
            self._raw = None
        return self._record

    # What the sender said

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        topic = self.record.topic
        if is_retry_topic(topic):
            topic = self.properties.get(Property.RETRY_TOPIC, topic)
        return bare_name(self._namespace, topic)

    @property
    def body(self) -> bytes:
        """The body as it was sent. Raises RemoteProtocolError where its compression is damaged."""
        if self._body is None:
            if self._raw is not None:
                body, sys_flag = record_body(self._raw)
            else:
                body, sys_flag = self.record.body, self.record.sys_flag
            self._body = decompress_body(body, sys_flag) if sys_flag & flags.COMPRESSED else body
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """Every property, RocketMQ's own included."""
        if self._properties is None:
            raw = self._raw
            self._properties = (
                dict(self.record.properties) if raw is None else decode_properties(record_properties(raw))
            )
            if self.min_offset is not None:
                self._properties[Property.MIN_OFFSET.value] = str(self.min_offset)
            if self.max_offset is not None:
                self._properties[Property.MAX_OFFSET.value] = str(self.max_offset)
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys one by one."""
        return tuple(filter(None, self.properties.get(Property.KEYS, "").split(KEY_SEPARATOR)))

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get(Property.SHARDING_KEY)

    @property
    def delay_level(self) -> int | None:
        """The level by which it was, or is to be, delayed."""
        level = self.properties.get(Property.DELAY, "")
        return int(level) if level.isdecimal() else None

    @property
    def transaction_id(self) -> str | None:
        """Of a message that was sent in a transaction."""
        own = self.properties.get(Property.TRANSACTION_ID)
        if own is None and self.properties.get(Property.TRANSACTION_PREPARED) == "true":
            return self.properties.get(Property.UNIQUE_KEY)
        return own

    @property
    def flag(self) -> int:
        """The sender's own number."""
        return self.record.flag

    @property
    def born_time_ms(self) -> int:
        return self.record.born_time_ms

    @property
    def born_at(self) -> datetime | None:
        """When it was sent, by the sender's clock; None where that is no date."""
        return _moment(self.record.born_time_ms)

    @property
    def born_host(self) -> str:
        """Who sent it, as the broker saw it."""
        return str(self.record.born_host)

    # What the broker made of it

    @property
    def msg_id(self) -> str:
        """Its identity for its sender; the offset message id where the sender gave none."""
        return self.properties.get(Property.UNIQUE_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """Where it is stored, by which brokers find it."""
        return encode_offset_message_id(self.record.store_host.pack(), self.record.log_offset)

    @property
    def log_offset(self) -> int:
        return self.record.log_offset

    @property
    def reconsume_times(self) -> int:
        """How often its group has failed to consume it."""
        return self.record.reconsume_times

    @property
    def sys_flag(self) -> int:
        return self.record.sys_flag

    @property
    def stored_time_ms(self) -> int:
        return self.record.store_time_ms

    @property
    def stored_at(self) -> datetime | None:
        """When the broker stored it; None where that is no date."""
        return _moment(self.record.store_time_ms)

    @property
    def store_host(self) -> str:
        """The broker that stored it."""
        return str(self.record.store_host)


def decode_messages(
    body: bytes | memoryview,
    queue: MessageQueue,
    namespace: str = "",
    *,
    min_offset: int | None = None,
    max_offset: int | None = None,
) -> list[ReceivedMessage]:
    """Every message of a pull's body.

    Raises RemoteProtocolError where a record is damaged: to go on behind it would lose what it hides.
    """
    if namespace:
        queue = MessageQueue(bare_name(namespace, queue.topic), queue.broker_name, queue.queue_id)
    messages: list[ReceivedMessage] = []
    position, end = 0, len(body)
    while position < end:
        size, is_valid = check_record(body, position, verify_body_crc=False)
        if not is_valid or size <= 0:
            raise RemoteProtocolError(f"the answer to a pull of {queue} holds a damaged record at byte {position}")
        messages.append(
            ReceivedMessage(
                bytes(body[position : position + size]),
                queue,
                namespace=namespace,
                min_offset=min_offset,
                max_offset=max_offset,
            )
        )
        position += size
    return messages


def bare_name(namespace: str, name: str) -> str:
    """The name of a topic or group as users of a namespace see it."""
    return unwrap_namespace(name) if namespace else name


def _moment(time_ms: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None
