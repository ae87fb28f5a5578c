"""Queues assigned by the broker, and whether they are pulled or popped."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rmq_core.protocol.bodies.clients import MessageModel
from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.message import MessageQueue


class MessageRequestMode(StrEnum):
    """How messages of a queue are asked for."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True)
class QueryAssignmentRequestBody(Body):
    """Asks which queues a client shall consume."""

    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: MessageModel | None = None


@dataclass(frozen=True, slots=True)
class MessageQueueAssignment(Body):
    """A queue and how to consume it; queue id -1 is the whole broker."""

    message_queue: MessageQueue | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class QueryAssignmentResponseBody(Body):
    """The assignment; None means that the old one stays."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetMessageRequestModeRequestBody(Body):
    """Makes a group pull or pop a topic."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: Int32 = 0


@dataclass(frozen=True, slots=True)
class MessageRequestModeSerializeWrapper(Body):
    """All modes of a broker: topic → group → mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(default_factory=dict)
