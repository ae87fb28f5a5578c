"""Positions in queues: of groups, of delay levels, after a reset."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_core.protocol.bodies.topics import DataVersion
from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.message import MessageQueue


@dataclass(frozen=True, slots=True)
class ConsumerOffsetSerializeWrapper(Body):
    """All committed offsets of a broker: topic@group → queue id → offset."""

    offset_table: dict[str, dict[Int32, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topic_map: dict[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class DelayOffsetSerializeWrapper(Body):
    """How far each delay level has been delivered."""

    offset_table: dict[Int32, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(Body):
    """The offsets that a reset sets."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageQueueForC(Body):
    """A queue with its new offset, for clients in C++."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ResetOffsetBodyForC(Body):
    """ResetOffsetBody for clients in C++."""

    offset_table: tuple[MessageQueueForC, ...] = ()


@dataclass(frozen=True, slots=True)
class GetConsumerStatusBody(Body):
    """What a group's members hold: clients fill messageQueueTable, the broker consumerTable."""

    message_queue_table: dict[MessageQueue, int] | None = None
    consumer_table: dict[str, dict[MessageQueue, int]] | None = None


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffsetBody(Body):
    """Offsets by queue id; the largest long means that nothing needs correction."""

    correction_offsets: dict[Int32, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(Body):
    """Times of the first, the last and the consumed message of a queue."""

    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


@dataclass(frozen=True, slots=True)
class QueryConsumeTimeSpanBody(Body):
    """The time spans of a topic's queues."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()
