"""Sending messages. The body is the message's own; version 2 says the same in one-letter names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.fields import Int32, Wire
from rmq_core.protocol.request import Header, Request


@dataclass(frozen=True, slots=True)
class SendHeader(Header):
    """What every send says of its message."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: int
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


@dataclass(frozen=True, slots=True)
class SendHeaderV2(Header):
    """SendHeader with names of one letter."""

    producer_group: Annotated[str, Wire("a")]
    topic: Annotated[str, Wire("b")]
    default_topic: Annotated[str, Wire("c")]
    default_topic_queue_nums: Annotated[Int32, Wire("d")]
    queue_id: Annotated[Int32, Wire("e")]
    sys_flag: Annotated[Int32, Wire("f")]
    born_timestamp: Annotated[int, Wire("g")]
    flag: Annotated[Int32, Wire("h")]
    properties: Annotated[str | None, Wire("i")] = None
    reconsume_times: Annotated[Int32 | None, Wire("j")] = None
    unit_mode: Annotated[bool | None, Wire("k")] = None
    max_reconsume_times: Annotated[Int32 | None, Wire("l")] = None
    batch: Annotated[bool | None, Wire("m")] = None
    broker_name: Annotated[str | None, Wire("n")] = None


@dataclass(frozen=True, slots=True)
class Sent(Header):
    """Where a message was stored."""

    msg_id: str
    queue_id: Int32
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: Annotated[str | None, Wire("MSG_REGION")] = None
    trace_on: Annotated[bool | None, Wire("TRACE_ON")] = None


@dataclass(frozen=True, slots=True)
class SendMessage(SendHeader, Request[Sent]):
    """Store a message."""

    code: ClassVar = 10
    reply: ClassVar = Sent
    accepts: ClassVar = frozenset({0, 10, 11, 12})


@dataclass(frozen=True, slots=True)
class SendMessageV2(SendHeaderV2, Request[Sent]):
    """Store a message."""

    code: ClassVar = 310
    reply: ClassVar = Sent
    accepts: ClassVar = frozenset({0, 10, 11, 12})


@dataclass(frozen=True, slots=True)
class SendBatchMessage(SendHeaderV2, Request[Sent]):
    """Store several messages of one queue; the answer lists their ids."""

    code: ClassVar = 320
    reply: ClassVar = Sent
    accepts: ClassVar = frozenset({0, 10, 11, 12})


@dataclass(frozen=True, slots=True)
class SendReplyMessage(SendHeader, Request[Sent]):
    """Answer a request of another client through the broker."""

    code: ClassVar = 324
    reply: ClassVar = Sent
    accepts: ClassVar = frozenset({0, 10, 11, 12})


@dataclass(frozen=True, slots=True)
class SendReplyMessageV2(SendHeaderV2, Request[Sent]):
    """Answer a request of another client through the broker."""

    code: ClassVar = 325
    reply: ClassVar = Sent
    accepts: ClassVar = frozenset({0, 10, 11, 12})


@dataclass(frozen=True, slots=True)
class Recalled(Header):
    """The message that will not be delivered."""

    msg_id: str
    msg_region: Annotated[str | None, Wire("MSG_REGION")] = None


@dataclass(frozen=True, slots=True)
class RecallMessage(Request[Recalled]):
    """Take back a timed message before it is delivered."""

    code: ClassVar = 370
    reply: ClassVar = Recalled
    topic: str
    recall_handle: str
    producer_group: str | None = None


SendFields = tuple[int, str, str, str, int, int, int, int, int, str | None, str | None, str | None, str | None]
"""opaque, then the fields of SendHeaderV2 that a broker needs, in its order: group, topic, default topic and
its queues, queue id, system flag, born time, flag as they are typed; properties, reconsume times, their maximum
and batch as they came, or None."""


def decode_send_v1(header: dict[str, Any]) -> SendFields:
    """The same from the names of version 1. Raises RemoteProtocolError."""
    try:
        ext = header["extFields"]
        get = ext.get
        return (
            header["opaque"],
            ext["producerGroup"],
            ext["topic"],
            ext["defaultTopic"],
            int(ext["defaultTopicQueueNums"]),
            int(ext["queueId"]),
            int(ext["sysFlag"]),
            int(ext["bornTimestamp"]),
            int(ext["flag"]),
            get("properties"),
            get("reconsumeTimes"),
            get("maxReconsumeTimes"),
            get("batch"),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"a send without its fields: {error!r}") from None


def decode_send_v2(header: dict[str, Any]) -> SendFields:
    """The hot decoder: what SendHeaderV2 reads, from a parsed header. Raises RemoteProtocolError."""
    try:
        ext = header["extFields"]
        get = ext.get
        return (
            header["opaque"],
            ext["a"],
            ext["b"],
            ext["c"],
            int(ext["d"]),
            int(ext["e"]),
            int(ext["f"]),
            int(ext["g"]),
            int(ext["h"]),
            get("i"),
            get("j"),
            get("l"),
            get("m"),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"a send without its fields: {error!r}") from None
