"""Membership of groups: heartbeats, member lists, orderly locks, messages sent back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32, Wire
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class HeartBeatReply(Header):
    """What the broker knows of heartbeats that carry no subscriptions."""

    is_support_heart_beat_v2: Annotated[bool | None, Wire("IS_SUPPORT_HEART_BEAT_V2")] = None
    is_sub_change: Annotated[bool | None, Wire("IS_SUB_CHANGE")] = None


@dataclass(frozen=True, slots=True)
class HeartBeat(Request[HeartBeatReply]):
    """Say who is there and what it does."""

    code: ClassVar = 34
    reply: ClassVar = HeartBeatReply
    body: ClassVar = bodies.HeartbeatData


@dataclass(frozen=True, slots=True)
class UnregisterClient(Request[NoFields]):
    """Leave a group."""

    code: ClassVar = 35
    client_id: Annotated[str, Wire("clientID")]
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerSendMsgBack(Request[NoFields]):
    """Have a message delivered again later. offset is its position in the commit log."""

    code: ClassVar = 36
    log_offset: Annotated[int, Wire("offset")]
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


@dataclass(frozen=True, slots=True)
class GetConsumerListByGroup(Request[NoFields]):
    """The client ids of a group's members."""

    code: ClassVar = 38
    reply_body: ClassVar = bodies.GetConsumerListByGroupResponseBody
    consumer_group: str


@dataclass(frozen=True, slots=True)
class NotifyConsumerIdsChanged(Request[NoFields]):
    """Told to a group's members: one came or left."""

    code: ClassVar = 40
    consumer_group: str


@dataclass(frozen=True, slots=True)
class LockBatchMq(Request[NoFields]):
    """Hold queues for orderly consumption."""

    code: ClassVar = 41
    body: ClassVar = bodies.LockBatchRequestBody
    reply_body: ClassVar = bodies.LockBatchResponseBody


@dataclass(frozen=True, slots=True)
class UnlockBatchMq(Request[NoFields]):
    """Give held queues back."""

    code: ClassVar = 42
    body: ClassVar = bodies.UnlockBatchRequestBody


@dataclass(frozen=True, slots=True)
class CheckClientConfig(Request[NoFields]):
    """Ask whether the broker can filter by a subscription."""

    code: ClassVar = 46
    body: ClassVar = bodies.CheckClientRequestBody


@dataclass(frozen=True, slots=True)
class GetClientConfig(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 47


@dataclass(frozen=True, slots=True)
class GetConsumerConnectionList(Request[NoFields]):
    """The members of a group; 206 where it has none."""

    code: ClassVar = 203
    reply_body: ClassVar = bodies.ConsumerConnection
    consumer_group: str


@dataclass(frozen=True, slots=True)
class GetProducerConnectionList(Request[NoFields]):
    """The clients that produce for a group."""

    code: ClassVar = 204
    reply_body: ClassVar = bodies.ProducerConnection
    producer_group: str


@dataclass(frozen=True, slots=True)
class GetConsumerRunningInfo(Request[NoFields]):
    """A member looked at from inside; the broker passes the question on."""

    code: ClassVar = 307
    reply_body: ClassVar = bodies.ConsumerRunningInfo
    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectly(Request[NoFields]):
    """Have a member consume one message now; the broker passes it on."""

    code: ClassVar = 309
    reply_body: ClassVar = bodies.ConsumeMessageDirectlyResult
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


@dataclass(frozen=True, slots=True)
class GetAllProducerInfo(Request[NoFields]):
    """All producing clients."""

    code: ClassVar = 328
    reply_body: ClassVar = bodies.ProducerTableInfo


@dataclass(frozen=True, slots=True)
class PushReplyMessageToClient(Request[NoFields]):
    """Told to a client: the answer to its request. The body is the message's."""

    code: ClassVar = 326
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: int
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: int
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
