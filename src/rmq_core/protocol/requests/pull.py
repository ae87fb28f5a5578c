"""Reading messages by queue offset. The body of the answer is stored records, one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.command import ONEWAY_FLAG
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


class PullFields(NamedTuple):
    """What a broker needs of a pull."""

    opaque: int
    is_oneway: bool
    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    sub_version: int
    subscription: str | None
    expression_type: str | None
    size_max: int
    """0 where the client names none."""


def decode_pull(header: dict[str, Any]) -> PullFields:
    """The hot decoder: what PullHeader reads, from a parsed header. Raises RemoteProtocolError."""
    try:
        ext = header["extFields"]
        get = ext.get
        return PullFields(
            header["opaque"],
            bool(header.get("flag", 0) & ONEWAY_FLAG),
            ext["consumerGroup"],
            ext["topic"],
            int(ext["queueId"]),
            int(ext["queueOffset"]),
            int(ext["maxMsgNums"]),
            int(ext["sysFlag"]),
            int(ext["commitOffset"]),
            int(ext["suspendTimeoutMillis"]),
            int(ext["subVersion"]),
            get("subscription"),
            get("expressionType"),
            int(get("maxMsgBytes") or 0),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"a pull without its fields: {error!r}") from None
