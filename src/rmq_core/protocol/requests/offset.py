"""Positions in queues and of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import bodies
from rmq_core.protocol.command import ONEWAY_FLAG
from rmq_core.protocol.fields import Int32, Wire, read_int
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class QueueOffset(Header):
    """A queue_offset."""

    queue_offset: Annotated[int, Wire("offset")]


@dataclass(frozen=True, slots=True)
class QueryConsumerOffset(Request[QueueOffset]):
    """The next queue_offset a group will read of a queue; 22 where it has none."""

    code: ClassVar = 14
    reply: ClassVar = QueueOffset
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True)
class UpdateConsumerOffset(Request[NoFields]):
    """Store how far a group has read a queue."""

    code: ClassVar = 15
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: int


class CommitFields(NamedTuple):
    """What a broker needs of an UpdateConsumerOffset; what is missing is answered by its name."""

    opaque: int
    is_oneway: bool
    group: str
    topic: str
    queue_id: int | None
    offset: int | None


def decode_commit(header: dict[str, Any]) -> CommitFields:
    """The hot decoder: what UpdateConsumerOffset reads, from a parsed header. Raises RemoteProtocolError."""
    try:
        ext = header["extFields"]
        queue_id, offset = ext.get("queueId"), ext.get("commitOffset")
        return CommitFields(
            header["opaque"],
            bool(header.get("flag", 0) & ONEWAY_FLAG),
            ext["consumerGroup"],
            ext["topic"],
            None if queue_id in (None, "") else read_int(queue_id, bits=32),
            None if offset in (None, "") else read_int(offset),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise RemoteProtocolError(f"a commit without its fields: {error!r}") from None


@dataclass(frozen=True, slots=True)
class SearchOffsetByTimestamp(Request[QueueOffset]):
    """The queue_offset of the message stored at a time."""

    code: ClassVar = 29
    reply: ClassVar = QueueOffset
    topic: str
    queue_id: Int32
    timestamp: int
    boundary_type: str | None = None


@dataclass(frozen=True, slots=True)
class GetMaxOffset(Request[QueueOffset]):
    """Ask for the queue_offset the next message of a queue will get."""

    code: ClassVar = 30
    reply: ClassVar = QueueOffset
    topic: str
    queue_id: Int32
    committed: bool | None = None


@dataclass(frozen=True, slots=True)
class GetMinOffset(Request[QueueOffset]):
    """Ask for the queue_offset of the oldest message of a queue."""

    code: ClassVar = 31
    reply: ClassVar = QueueOffset
    topic: str
    queue_id: Int32


@dataclass(frozen=True, slots=True)
class StoreTime(Header):
    """Milliseconds since 1970."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class GetEarliestMsgStoretime(Request[StoreTime]):
    """When the oldest message of a queue was stored; -1 where there is none."""

    code: ClassVar = 32
    reply: ClassVar = StoreTime
    topic: str
    queue_id: Int32


@dataclass(frozen=True, slots=True)
class GetAllConsumerOffset(Request[NoFields]):
    """All committed offsets, for a replica."""

    code: ClassVar = 43
    reply_body: ClassVar = bodies.ConsumerOffsetSerializeWrapper


@dataclass(frozen=True, slots=True)
class GetAllDelayOffset(Request[NoFields]):
    """The progress of all delay levels, for a replica."""

    code: ClassVar = 45
    reply_body: ClassVar = bodies.DelayOffsetSerializeWrapper


@dataclass(frozen=True, slots=True)
class ResetConsumerClientOffset(Request[NoFields]):
    """Told to a group's members: go on from these offsets."""

    code: ClassVar = 220
    body: ClassVar = bodies.ResetOffsetBody
    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: Int32 | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class GetConsumerStatusFromClient(Request[NoFields]):
    """Asked of a member: what it has consumed."""

    code: ClassVar = 221
    reply_body: ClassVar = bodies.GetConsumerStatusBody
    topic: str
    group: str
    client_addr: str | None = None


@dataclass(frozen=True, slots=True)
class InvokeBrokerToResetOffset(Request[NoFields]):
    """Move a group to a time or an offset."""

    code: ClassVar = 222
    reply_body: ClassVar = bodies.ResetOffsetBody
    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: Int32 | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class InvokeBrokerToGetConsumerStatus(Request[NoFields]):
    """What the members of a group have consumed."""

    code: ClassVar = 223
    reply_body: ClassVar = bodies.GetConsumerStatusBody
    topic: str
    group: str
    client_addr: str | None = None


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffset(Request[NoFields]):
    """The smallest offsets of several groups, to correct one by."""

    code: ClassVar = 308
    reply_body: ClassVar = bodies.QueryCorrectionOffsetBody
    compare_group: str
    topic: str
    filter_groups: str | None = None


@dataclass(frozen=True, slots=True)
class CloneGroupOffset(Request[NoFields]):
    """Give a group the offsets of another."""

    code: ClassVar = 314
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None
