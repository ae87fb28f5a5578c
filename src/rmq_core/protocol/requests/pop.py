"""Consumption by POP, 5.x: the broker hides what it hands out until it is acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32, Wire
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class Popped(Header):
    """What was handed out; the three texts describe the offsets."""

    pop_time: int
    invisible_time: int
    revive_qid: Int32
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True)
class PopMessage(Request[Popped]):
    """Messages of a topic; queue id -1 is any queue."""

    code: ClassVar = 200050
    reply: ClassVar = Popped
    accepts: ClassVar = frozenset({0, 209, 210})
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: int
    poll_time: int
    init_mode: Int32
    born_time: int | None = None
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class AckMessage(Request[NoFields]):
    """A popped message is done."""

    code: ClassVar = 200051
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Annotated[int, Wire("offset")]


@dataclass(frozen=True, slots=True)
class BatchAckMessage(Request[NoFields]):
    """Popped messages are done."""

    code: ClassVar = 200151
    body: ClassVar = bodies.BatchAckMessageRequestBody


@dataclass(frozen=True, slots=True)
class PeekMessage(Request[Popped]):
    """Look at messages without taking them."""

    code: ClassVar = 200052
    reply: ClassVar = Popped
    accepts: ClassVar = frozenset({0, 19})
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


@dataclass(frozen=True, slots=True)
class InvisibleTimeChanged(Header):
    """The new handle of the message."""

    pop_time: int
    invisible_time: int
    revive_qid: Int32


@dataclass(frozen=True, slots=True)
class ChangeMessageInvisibletime(Request[InvisibleTimeChanged]):
    """Hide a popped message for longer or shorter."""

    code: ClassVar = 200053
    reply: ClassVar = InvisibleTimeChanged
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Annotated[int, Wire("offset")]
    invisible_time: int


@dataclass(frozen=True, slots=True)
class Notified(Header):
    """Whether a pop would find something."""

    has_msg: bool
    polling_full: bool | None = None


@dataclass(frozen=True, slots=True)
class Notification(Request[Notified]):
    """Wait until a pop would find something."""

    code: ClassVar = 200054
    reply: ClassVar = Notified
    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: int
    born_time: int
    order: bool | None = None
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class Polling(Header):
    """How many pops wait."""

    polling_num: Int32


@dataclass(frozen=True, slots=True)
class PollingInfo(Request[Polling]):
    """How many pops wait on a queue."""

    code: ClassVar = 200055
    reply: ClassVar = Polling
    consumer_group: str
    topic: str
    queue_id: Int32


@dataclass(frozen=True, slots=True)
class PopRollback(Request[NoFields]):
    """Put the state of POP back to what older brokers read."""

    code: ClassVar = 200056


@dataclass(frozen=True, slots=True)
class QueryAssignment(Request[NoFields]):
    """Which queues a client shall consume, and how."""

    code: ClassVar = 400
    body: ClassVar = bodies.QueryAssignmentRequestBody
    reply_body: ClassVar = bodies.QueryAssignmentResponseBody


@dataclass(frozen=True, slots=True)
class SetMessageRequestMode(Request[NoFields]):
    """Make a group pull or pop a topic."""

    code: ClassVar = 401
    body: ClassVar = bodies.SetMessageRequestModeRequestBody


@dataclass(frozen=True, slots=True)
class GetAllMessageRequestMode(Request[NoFields]):
    """All modes, for a replica."""

    code: ClassVar = 402
    reply_body: ClassVar = bodies.MessageRequestModeSerializeWrapper
