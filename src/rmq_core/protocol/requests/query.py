"""Looking messages up, by key and by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32, Wire
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class Indexed(Header):
    """How far the index has come."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(frozen=True, slots=True)
class QueryMessage(Request[Indexed]):
    """Messages by key; the body of the answer is stored records. Hash hits: the caller compares."""

    code: ClassVar = 12
    reply: ClassVar = Indexed
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: Annotated[bool | None, Wire("_UNIQUE_KEY_QUERY")] = None


@dataclass(frozen=True, slots=True)
class ViewMessageById(Request[NoFields]):
    """The record at a position in the commit log."""

    code: ClassVar = 33
    log_offset: Annotated[int, Wire("offset")]
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class QueryConsumeQueue(Request[NoFields]):
    """Entries of a consume queue, for diagnosis."""

    code: ClassVar = 321
    reply_body: ClassVar = bodies.QueryConsumeQueueResponseBody
    topic: str
    queue_id: Int32
    index: int
    count: Int32
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True)
class QueryBrokerOffset(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 13
