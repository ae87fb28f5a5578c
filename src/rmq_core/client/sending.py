"""A message, or a batch of them, on its way: checked, compressed, identified, and written as a request or frame.

Everything here is a pure function of what it is given, but for the unique key, which no two calls share. The names
are those on the wire: a namespace is put in front of the topic here.

An Outgoing is made once per send, so that every attempt, on whatever broker, carries the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rmq_core.client.identity import new_unique_key
from rmq_core.client.send_results import SendResult, SendStatus
from rmq_core.errors import BrokerError, RemoteProtocolError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.codes import CURRENT_VERSION
from rmq_core.protocol.command import ONEWAY_FLAG, HeaderEncoding, frame_prefix
from rmq_core.protocol.compression import CompressionType, compress
from rmq_core.protocol.message import (
    AUTO_CREATE_TOPIC,
    PROPERTIES_SIZE_MAX,
    Message,
    MessageQueue,
    Property,
    is_dlq_topic,
    is_retry_topic,
    wrap_namespace,
)
from rmq_core.protocol.record import BatchRecord, encode_batch
from rmq_core.protocol.requests import SendBatchMessage, SendMessageV2, SendReplyMessageV2, Sent

MESSAGE_SIZE_MAX: Final = 4 << 20
BATCH_OVERHEAD: Final = 22
"""Bytes that a message takes in a batch besides its body and properties."""

SendRequest = SendMessageV2 | SendBatchMessage | SendReplyMessageV2

_STATUSES: Final = {status.value: status for status in SendStatus}
_UTF8_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRules:
    """What all sends of a producer have in common."""

    group: str
    """As on the wire."""
    namespace: str = ""
    message_size_max: int = MESSAGE_SIZE_MAX
    compress_over_bytes: int = 4096
    compression: CompressionType = CompressionType.ZLIB
    compression_level: int = 5
    default_topic: str = AUTO_CREATE_TOPIC
    default_topic_queues: int = 4

    def topic(self, name: str) -> str:
        """The topic's name on the wire."""
        return wrap_namespace(self.namespace, name) if self.namespace else name


@dataclass(slots=True)
class Outgoing:
    """What is sent, whichever queue it will go to. Not changed once it is made."""

    request: type[SendRequest]
    topic: str
    """As on the wire."""
    body: bytes
    properties: str
    msg_ids: tuple[str, ...]
    """One for each message."""
    sys_flag: int
    flag: int
    born_time_ms: int
    is_timed: bool = False
    """Whether a broker below 5.0 would deliver it at once."""
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    @property
    def is_batch(self) -> bool:
        return self.request is SendBatchMessage

    @property
    def msg_id(self) -> str:
        """The identity; of a batch those of its messages, as Java joins them."""
        return ",".join(self.msg_ids)

    @property
    def size(self) -> int:
        """About what it takes in memory."""
        return len(self.body) + len(self.properties)


def check_message(message: object) -> None:
    """Raises TypeError for what is none."""
    if not isinstance(message, Message):
        raise TypeError(f"message must be a Message, not {type(message).__name__}")


def check_size(message: Message, rules: SendRules) -> None:
    """Raises ValueError for a body that no broker would take."""
    size = len(message.body)
    if not size:
        raise ValueError("body is empty; brokers refuse empty messages")
    if size > rules.message_size_max:
        raise ValueError(f"body has {size} bytes, more than the {rules.message_size_max} a message may have")


def outgoing(
    message: Message,
    rules: SendRules,
    *,
    now_ms: int,
    msg_id: str | None = None,
    more: Mapping[str, str] | None = None,
    transaction: bool = False,
    reply: bool = False,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> Outgoing:
    """Make a message ready. `more` has properties that users cannot give. Raises ValueError, TypeError."""
    check_message(message)
    check_size(message, rules)
    if msg_id is None:
        msg_id = new_unique_key(now_ms)
    wire = message.wire_properties()
    is_timed = message.delay is not None or message.deliver_at is not None
    body, sys_flag = _compressed(message.body, rules)
    if transaction:
        sys_flag |= flags.TRANSACTION_PREPARED
    return Outgoing(
        SendReplyMessageV2 if reply else SendMessageV2,
        message.topic if reply else rules.topic(message.topic),
        body,
        _property_text(wire, msg_id, rules, more),
        (msg_id,),
        sys_flag,
        message.flag,
        now_ms,
        is_timed,
        reconsume_times,
        max_reconsume_times,
    )


def _compressed(body: bytes, rules: SendRules) -> tuple[bytes, int]:
    if len(body) < rules.compress_over_bytes:
        return body, 0
    compressed = compress(body, rules.compression, rules.compression_level)
    return (compressed, rules.compression.sys_flag) if len(compressed) < len(body) else (body, 0)


def _property_text(
    wire: dict[str, str], msg_id: str, rules: SendRules, more: Mapping[str, str] | None = None
) -> str:
    """The properties as they go into a header; Message has judged those of users."""
    wire[Property.UNIQUE_KEY.value] = msg_id
    if rules.namespace:
        wire[Property.INSTANCE_ID.value] = rules.namespace
    if more:
        wire.update(more)
    text = "".join([f"{name}\x01{value}\x02" for name, value in wire.items()])
    if len(text) * _UTF8_MAX > PROPERTIES_SIZE_MAX and (size := len(text.encode())) > PROPERTIES_SIZE_MAX:
        raise ValueError(f"properties take {size} bytes, more than {PROPERTIES_SIZE_MAX}")
    return text


# Batches


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """One message, encoded as it will stand in a batch."""

    message: Message
    msg_id: str
    record: BatchRecord
    size: int


def batch_piece(message: Message, rules: SendRules, *, now_ms: int) -> BatchPiece:
    """Make a message ready for a batch. Raises ValueError, TypeError."""
    if not isinstance(message, Message):
        raise TypeError(f"messages must be Message objects, not {type(message).__name__}")
    check_size(message, rules)
    msg_id = new_unique_key(now_ms)
    properties = _property_text(message.wire_properties(), msg_id, rules).encode()
    size = BATCH_OVERHEAD + len(message.body) + len(properties)
    return BatchPiece(message, msg_id, BatchRecord(message.flag, message.body, properties), size)


def outgoing_batch(pieces: Sequence[BatchPiece], rules: SendRules, *, now_ms: int) -> Outgoing:
    """Messages of one topic as one request; bodies of a batch are never compressed."""
    first = pieces[0].message
    return Outgoing(
        SendBatchMessage,
        rules.topic(first.topic),
        encode_batch(piece.record for piece in pieces),
        f"{Property.WAIT.value}\x01{'true' if first.wait_stored else 'false'}\x02",
        tuple(piece.msg_id for piece in pieces),
        0,
        0,
        now_ms,
    )


def check_batchable(messages: Sequence[Message]) -> None:
    """Raises ValueError and TypeError where the messages cannot share a request."""
    if isinstance(messages, Message) or not isinstance(messages, Sequence):
        raise TypeError("messages must be a list of Message objects")
    if not messages:
        raise ValueError("messages is empty")
    first = messages[0]
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"messages must be Message objects, not {type(message).__name__}")
        if message.topic != first.topic:
            raise ValueError(f"messages of a batch have one topic, not {first.topic} and {message.topic}")
        if message.wait_stored != first.wait_stored:
            raise ValueError("messages of a batch have the same wait_stored")
        if message.sharding_key != first.sharding_key:
            raise ValueError("messages of a batch go to one queue and so have the same sharding_key")
        if not is_batchable(message):
            raise ValueError("messages with a delay, and those to retry topics, cannot be sent in a batch")


def is_batchable(message: Message) -> bool:
    """Whether brokers take the message in a batch."""
    return (
        message.delay_level is None
        and message.delay is None
        and message.deliver_at is None
        and not is_retry_topic(message.topic)
        and not is_dlq_topic(message.topic)
    )


def split_pieces(pieces: Sequence[BatchPiece], size_max: int) -> list[list[BatchPiece]]:
    """In their order, in as few requests as the size allows; each has one message at least."""
    parts: list[list[BatchPiece]] = []
    size = 0
    for piece in pieces:
        if not parts or size + piece.size > size_max:
            parts.append([])
            size = 0
        parts[-1].append(piece)
        size += piece.size
    return parts


# Requests and frames


def send_request(out: Outgoing, queue: MessageQueue, rules: SendRules) -> SendRequest:
    """The request for one queue; its body is out.body."""
    return out.request(
        producer_group=rules.group,
        topic=out.topic,
        default_topic=rules.default_topic,
        default_topic_queue_nums=rules.default_topic_queues,
        queue_id=queue.queue_id,
        sys_flag=out.sys_flag,
        born_timestamp=out.born_time_ms,
        flag=out.flag,
        properties=out.properties,
        reconsume_times=out.reconsume_times,
        unit_mode=False,
        max_reconsume_times=out.max_reconsume_times,
        batch=out.is_batch,
        broker_name=queue.broker_name,
    )


def encode_send(
    message: Message, queue: MessageQueue, rules: SendRules, *, now_ms: int, msg_id: str | None = None
) -> tuple[SendRequest, bytes]:
    """One message for one queue, as a request and its body. Raises ValueError, TypeError."""
    out = outgoing(message, rules, now_ms=now_ms, msg_id=msg_id)
    return send_request(out, queue, rules), out.body


def encode_batch_send(
    messages: Sequence[Message], queue: MessageQueue, rules: SendRules, *, now_ms: int
) -> list[tuple[SendBatchMessage, bytes, tuple[str, ...]]]:
    """Messages for one queue, as requests with their bodies and message ids, split where the limit demands it."""
    check_batchable(messages)
    pieces = [batch_piece(message, rules, now_ms=now_ms) for message in messages]
    encoded = []
    for part in split_pieces(pieces, rules.message_size_max):
        out = outgoing_batch(part, rules, now_ms=now_ms)
        request = send_request(out, queue, rules)
        assert isinstance(request, SendBatchMessage)
        encoded.append((request, out.body, out.msg_ids))
    return encoded


class FrameWriter:
    """Writes the frames of sends to one queue: what does not change between them is encoded once."""

    __slots__ = ("_heads", "_tail")

    def __init__(self, topic: str, queue: MessageQueue, rules: SendRules) -> None:
        fixed = orjson.dumps(
            {
                "a": rules.group,
                "b": topic,
                "c": rules.default_topic,
                "d": str(rules.default_topic_queues),
                "e": str(queue.queue_id),
                "k": "false",
                "n": queue.broker_name,
            }
        )[:-1].decode()
        self._heads = {
            request: f'{{"code":{request.code},"extFields":{fixed},"m":"{str(is_batch).lower()}",'
            for request, is_batch in ((SendMessageV2, False), (SendBatchMessage, True), (SendReplyMessageV2, False))
        }
        self._tail = f'"language":"PYTHON","serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'

    def write(self, out: Outgoing, *, opaque: int, oneway: bool = False) -> bytes:
        """The whole frame. Raises LocalProtocolError where it is larger than a frame may be."""
        more = "" if out.max_reconsume_times is None else f'"l":"{out.max_reconsume_times}",'
        header = b"".join(
            (
                f'{self._heads[out.request]}"f":"{out.sys_flag}","g":"{out.born_time_ms}","h":"{out.flag}",'
                f'"j":"{out.reconsume_times}",{more}"i":'.encode(),
                orjson.dumps(out.properties),
                f'}},"flag":{ONEWAY_FLAG if oneway else 0},"opaque":{opaque},{self._tail}'.encode(),
            )
        )
        return b"".join((frame_prefix(header, len(out.body), HeaderEncoding.JSON), header, out.body))


# Answers


def read_sent(header: Mapping[str, Any], out: Outgoing, queue: MessageQueue) -> SendResult:
    """What a broker answered, from the parsed header. Raises BrokerError, RemoteProtocolError."""
    code = header.get("code")
    status = _STATUSES.get(code)  # type: ignore[arg-type]  # whatever it is, it is none of them
    if status is None:
        raise BrokerError(_whole(code), str(header.get("remark") or ""))
    ext = header.get("extFields") or {}
    try:
        queue_id = int(ext["queueId"])
        return SendResult(
            status,
            out.msg_ids[0] if len(out.msg_ids) == 1 else out.msg_id,
            ext["msgId"],
            queue if queue_id == queue.queue_id else MessageQueue(queue.topic, queue.broker_name, queue_id),
            int(ext["queueOffset"]),
            ext.get("transactionId"),
            ext.get("MSG_REGION"),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the answer to a send lacks its fields: {error!r}") from None


def _whole(code: object) -> int:
    if isinstance(code, int):
        return code
    raise RemoteProtocolError(f"an answer with the code {str(code)[:40]!r}")


def sent_header(code: int, reply: Sent) -> dict[str, Any]:
    """An answer that was read the long way, as read_sent() takes it."""
    return {
        "code": code,
        "extFields": {
            "msgId": reply.msg_id,
            "queueId": reply.queue_id,
            "queueOffset": reply.queue_offset,
            "transactionId": reply.transaction_id,
            "MSG_REGION": reply.msg_region,
        },
    }


def split_result(result: SendResult, msg_ids: Sequence[str]) -> tuple[SendResult, ...]:
    """The results of a batch's messages, from the one answer it got."""
    stored = result.offset_msg_id.split(",")
    if len(stored) != len(msg_ids):  # a broker may name the whole batch by one id
        stored = [result.offset_msg_id] * len(msg_ids)
    return tuple(
        SendResult(
            result.status,
            msg_id,
            offset_msg_id,
            result.queue,
            result.queue_offset + number,
            result.transaction_id,
            result.region_id,
        )
        for number, (msg_id, offset_msg_id) in enumerate(zip(msg_ids, stored, strict=True))
    )
