"""Where a queue begins and ends, what lies in it at a time, and where a new group starts to read it.

Queues are named as on the wire. A broker's master is asked; where none is known, another process of the broker.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from rmq_core.client.pulls import broker_of
from rmq_core.protocol.message import MessageQueue, is_retry_topic
from rmq_core.protocol.requests import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    SearchOffsetByTimestamp,
)

if TYPE_CHECKING:
    from rmq_core.client.instance import ClientInstance

StartFrom: TypeAlias = Literal["latest", "earliest"] | datetime
"""Where a group begins on a queue of which it has no progress."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """The queue_offset of the oldest message; what the next one will get where there is none."""
    broker = await broker_of(instance, queue)
    answer = await instance.call(broker.address, GetMinOffset(queue.topic, queue.queue_id))
    return max(answer.header.queue_offset, 0)


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """The queue_offset that the next message will get."""
    broker = await broker_of(instance, queue)
    answer = await instance.call(broker.address, GetMaxOffset(queue.topic, queue.queue_id))
    return max(answer.header.queue_offset, 0)


async def offset_by_time(instance: ClientInstance, queue: MessageQueue, time_ms: int) -> int:
    """The queue_offset of the first message stored at that time or later; the end where there is none."""
    broker = await broker_of(instance, queue)
    answer = await instance.call(broker.address, SearchOffsetByTimestamp(queue.topic, queue.queue_id, time_ms))
    return max(answer.header.queue_offset, 0)


async def earliest_store_time_ms(instance: ClientInstance, queue: MessageQueue) -> int | None:
    """When the oldest message was stored; None where there is none."""
    broker = await broker_of(instance, queue)
    answer = await instance.call(broker.address, GetEarliestMsgStoretime(queue.topic, queue.queue_id))
    return answer.header.timestamp if answer.header.timestamp >= 0 else None


async def start_offset(instance: ClientInstance, queue: MessageQueue, start_from: StartFrom) -> int:
    """Where a new group begins. Retries are read from their first one, whatever the group starts from."""
    if start_from == "latest":
        return 0 if is_retry_topic(queue.topic) else await max_offset(instance, queue)
    if start_from == "earliest" or is_retry_topic(queue.topic):
        return await min_offset(instance, queue)
    assert isinstance(start_from, datetime)
    return await offset_by_time(instance, queue, milliseconds("start_from", start_from))


def checked_start_from(start_from: StartFrom) -> StartFrom:
    """Raises TypeError and ValueError where it is none of the three."""
    if isinstance(start_from, datetime):
        milliseconds("start_from", start_from)
    elif start_from not in ("latest", "earliest"):
        raise ValueError(f"start_from must be 'latest', 'earliest' or a datetime, not {start_from!r}")
    return start_from


def milliseconds(what: str, moment: datetime) -> int:
    """Milliseconds since 1970. Raises TypeError for what is no datetime, ValueError for one without a time zone."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{what} must be a datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ValueError(f"{what} has no time zone; give one, as in datetime(..., tzinfo=UTC)")
    return max((moment - _EPOCH) // _MILLISECOND, 0)
