"""Reading messages by queue offset. The body of the answer is stored records, one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rmq_core.protocol.fields import Int32, Wire
from rmq_core.protocol.request import Header, Request


@dataclass(frozen=True, slots=True)
class PullHeader(Header):
    """What a pull asks for."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: Annotated[str | None, Wire("proxyFrowardClientId")] = None


@dataclass(frozen=True, slots=True)
class Pulled(Header):
    """Where to go on, and the queue's range."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


@dataclass(frozen=True, slots=True)
class PullMessage(PullHeader, Request[Pulled]):
    """Messages of one queue from an offset on; waits for some where asked to."""

    code: ClassVar = 11
    reply: ClassVar = Pulled
    accepts: ClassVar = frozenset({0, 19, 20, 21})


@dataclass(frozen=True, slots=True)
class LitePullMessage(PullHeader, Request[Pulled]):
    """PullMessage of a lite pull consumer, 5.x."""

    code: ClassVar = 361
    reply: ClassVar = Pulled
    accepts: ClassVar = frozenset({0, 19, 20, 21})
