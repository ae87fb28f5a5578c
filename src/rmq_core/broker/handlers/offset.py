"""Where queues begin and end, and how far groups have read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rmq_core.errors import BrokerError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import HotHandler, handles
from rmq_core.protocol.bodies import QueryCorrectionOffsetBody
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.command import RESPONSE_FLAG, Command, encode_command
from rmq_core.protocol.request import NoFields
from rmq_core.protocol.requests import (
    CloneGroupOffset,
    GetAllConsumerOffset,
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    QueueOffset,
    SearchOffsetByTimestamp,
    StoreTime,
    UpdateConsumerOffset,
)
from rmq_core.protocol.requests.offset import CommitFields, decode_commit

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

NOTHING_TO_CORRECT: Final = (1 << 63) - 1
RESET_WAITS: Final = "Offset has been previously reset"


# Committed offsets


def _commit_handler(broker: Broker) -> HotHandler:
    """Each member of each group commits each of its queues every few seconds."""

    def hot_update_offset(connection: Connection, header: dict[str, Any], body: bytes) -> bytes | None:
        fields = decode_commit(header)
        remark = _commit(broker, fields)
        if fields.is_oneway:
            return None
        return encode_command(Command(0, fields.opaque, RESPONSE_FLAG, remark=remark, encoding=connection.encoding))

    return hot_update_offset


HOT: Final[dict[int, Callable[[Broker], HotHandler]]] = {UpdateConsumerOffset.code: _commit_handler}
"""Makers of the hot handlers of this module, by request code."""


def _commit(broker: Broker, fields: CommitFields) -> str | None:
    """Store an offset; returns the remark of the answer. Raises BrokerError."""
    _, _, group, topic, queue_id, offset = fields
    if group not in broker.groups.table:
        raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    if topic not in broker.topics.table:
        raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
    if queue_id is None:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {topic}")
    if offset is None:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {topic}")
    # The member has not heard of the reset yet: its offset is from before.
    if broker.offsets.has_reset(group, topic, queue_id):
        return RESET_WAITS
    broker.offsets.commit(group, topic, queue_id, offset)
    return None


@handles(QueryConsumerOffset)
async def query_consumer_offset(broker: Broker, call: Call[QueryConsumerOffset]) -> Answer[QueueOffset]:
    """How far a group has read a queue. A new group begins at 0 where the first message is still in memory."""
    header = call.header
    offset = broker.offsets.query(header.consumer_group, header.topic, header.queue_id)
    if offset >= 0:
        return Answer(QueueOffset(offset))
    if header.set_zero_if_not_found is False:
        remark = "Not found, do not set to zero, maybe this group boot first"
        raise BrokerError(ResponseCode.QUERY_NOT_FOUND, remark)
    if _has_first_in_memory(broker, header.topic, header.queue_id):
        return Answer(QueueOffset(0))
    remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    raise BrokerError(ResponseCode.QUERY_NOT_FOUND, remark)


def _has_first_in_memory(broker: Broker, topic: str, queue_id: int) -> bool:
    store = broker.store
    queue = store.queues.table.get((topic, queue_id))
    if queue is None or queue.min_offset > 0 or store.max_offset(topic, queue_id) <= 0:
        return False
    entry = queue.entry(0)
    return entry is not None and not entry.is_blank and store.in_memory(entry.log_offset)


@handles(GetAllConsumerOffset)
async def get_all_consumer_offset(broker: Broker, call: Call[GetAllConsumerOffset]) -> Answer[NoFields]:
    """The whole table, for a replica."""
    return Answer(NoFields(), broker.offsets.encode())


@handles(CloneGroupOffset)
async def clone_group_offset(broker: Broker, call: Call[CloneGroupOffset]) -> Answer[NoFields]:
    """Give a group the offsets of another, for one topic or for all it has."""
    header, offsets = call.header, broker.offsets
    for topic in [header.topic] if header.topic else offsets.topics_of(header.src_group):
        members = broker.clients.consumer_group(header.src_group)
        is_left = not header.offline and members is not None and topic not in members.subscriptions
        if topic in broker.topics.table and not is_left:
            offsets.clone(header.src_group, header.dest_group, topic)
    return DONE


@handles(QueryCorrectionOffset)
async def query_correction_offset(broker: Broker, call: Call[QueryCorrectionOffset]) -> Answer[NoFields]:
    """The lowest offsets of all groups of a topic, where one group is ahead of them already: nothing to correct."""
    header = call.header
    topic = header.topic
    left_out = frozenset(filter(None, (header.filter_groups or "").split(",")))
    lowest = broker.offsets.lowest_of(
        topic, lambda queue_id: broker.store.min_offset(topic, queue_id), without=left_out
    )
    for queue_id, offset in broker.offsets.of(header.compare_group, topic).items():
        if lowest.get(queue_id, NOTHING_TO_CORRECT) > offset:
            lowest[queue_id] = NOTHING_TO_CORRECT
    return Answer(NoFields(), QueryCorrectionOffsetBody(lowest).encode())


# Queues


@handles(GetMaxOffset)
async def get_max_offset(broker: Broker, call: Call[GetMaxOffset]) -> Answer[QueueOffset]:
    """The offset that the next message of a queue gets; 0 where there is no queue."""
    header = call.header
    is_committed = header.committed is not False
    return Answer(QueueOffset(broker.store.max_offset(header.topic, header.queue_id, is_committed=is_committed)))


@handles(GetMinOffset)
async def get_min_offset(broker: Broker, call: Call[GetMinOffset]) -> Answer[QueueOffset]:
    """The offset of the oldest message of a queue; 0 where there is none."""
    return Answer(QueueOffset(broker.store.min_offset(call.header.topic, call.header.queue_id)))


@handles(SearchOffsetByTimestamp)
async def search_offset_by_timestamp(broker: Broker, call: Call[SearchOffsetByTimestamp]) -> Answer[QueueOffset]:
    """The offset of the first message stored at or after a time; by UPPER, of the last one at or before it."""
    header = call.header
    is_upper = (header.boundary_type or "").upper() == "UPPER"

    def search() -> int:
        return broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp, is_upper=is_upper)

    return Answer(QueueOffset(await broker.run(search)))


@handles(GetEarliestMsgStoretime)
async def get_earliest_msg_storetime(broker: Broker, call: Call[GetEarliestMsgStoretime]) -> Answer[StoreTime]:
    """When the oldest message of a queue was stored; -1 where there is none."""
    topic, queue_id = call.header.topic, call.header.queue_id

    def look() -> int:
        return broker.store.store_time_ms(topic, queue_id, broker.store.min_offset(topic, queue_id))

    return Answer(StoreTime(await broker.run(look)))
