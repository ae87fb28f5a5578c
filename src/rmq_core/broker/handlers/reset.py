"""Resets of groups to a time or an offset, in the broker or by telling the members.

In the broker  The offset waits for the group's next pull, online or not; held pulls are woken for it.
By telling     With useServerSideResetOffset=false the members are told, as brokers of 4.9 do; without members that
               listen nothing is reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq_core.errors import BrokerError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol.bodies import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from rmq_core.protocol.codes import V3_0_7_SNAPSHOT, Language, ResponseCode, version_name
from rmq_core.protocol.command import ONEWAY_FLAG, Command, encode_command
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.request import NoFields
from rmq_core.protocol.requests import InvokeBrokerToResetOffset, ResetConsumerClientOffset

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

STEP: Final = 64
"""Queues that are searched in one turn of the pool."""


@handles(InvokeBrokerToResetOffset)
async def invoke_broker_to_reset_offset(broker: Broker, call: Call[InvokeBrokerToResetOffset]) -> Answer[NoFields]:
    """Move a group on a topic; the answer says where to."""
    if broker.settings.use_server_side_reset_offset:
        offsets = await _reset_here(broker, call.header)
    else:
        offsets = await _tell_members(broker, call)
    name = broker.settings.broker_name
    table = {MessageQueue(call.header.topic, name, queue_id): offset for queue_id, offset in offsets.items()}
    return Answer(NoFields(), ResetOffsetBody(table).encode())


async def _reset_here(broker: Broker, header: InvokeBrokerToResetOffset) -> dict[int, int]:
    if not broker.is_master:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    queue_count = _check(broker, header)
    queue_id = -1 if header.queue_id is None else header.queue_id
    if queue_id < 0:
        offsets = await _offsets_at(broker, header, list(range(queue_count)))
    elif header.offset is None or header.offset == -1:
        offsets = await _offsets_at(broker, header, [queue_id])
    else:
        offsets = {queue_id: header.offset}
        _check_range(broker, header.topic, queue_id, header.offset)
    # Topic and group may be gone: the search took its time.
    _check(broker, header)
    for each, offset in offsets.items():
        broker.offsets.assign_reset(header.group, header.topic, each, offset)
        broker.long_polls.announce(header.topic, each)
    return offsets


def _check(broker: Broker, header: InvokeBrokerToResetOffset) -> int:
    """How many queues the topic has. Raises BrokerError where topic or group are not known."""
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
    if broker.groups.find(header.group) is None:
        raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
    return topic.read_queue_nums


def _check_range(broker: Broker, topic: str, queue_id: int, offset: int) -> None:
    low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
    if not low <= offset <= high + 1:
        remark = f"Target offset {offset} not in consume queue range [{low}-{high}]"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)


async def _offsets_at(broker: Broker, header: InvokeBrokerToResetOffset, queue_ids: list[int]) -> dict[int, int]:
    """The offset of a time in each queue; a time below 0 means the end."""
    topic, time_ms = header.topic, header.timestamp
    if time_ms < 0:
        return {queue_id: broker.store.max_offset(topic, queue_id) for queue_id in queue_ids}

    def search(some: list[int]) -> dict[int, int]:
        return {queue_id: broker.store.offset_by_time(topic, queue_id, time_ms) for queue_id in some}

    offsets: dict[int, int] = {}
    for start in range(0, len(queue_ids), STEP):
        offsets |= await broker.run(search, queue_ids[start : start + STEP])
    return offsets


# Telling the members


async def _tell_members(broker: Broker, call: Call[InvokeBrokerToResetOffset]) -> dict[int, int]:
    header = call.header
    topic = broker.topics.get(header.topic)
    if topic is None:
        remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
        raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark)
    found = await _offsets_at(broker, header, list(range(topic.write_queue_nums)))
    offsets = {}
    for queue_id, offset in found.items():
        committed = broker.offsets.query(header.group, header.topic, queue_id)
        if committed == -1:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
        offsets[queue_id] = offset if header.is_force else min(offset, committed)
    group = broker.clients.consumer_group(header.group)
    if group is None:
        remark = (
            "Consumer not online, so can not reset offset, "
            f"Group: {header.group} Topic: {header.topic} Timestamp: {header.timestamp}"
        )
        raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    for member in group.members.values():
        if member.version < V3_0_7_SNAPSHOT:
            remark = f"the client does not support this feature. version={version_name(member.version)}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    frame = _notice(broker, call, offsets)
    for connection in group.members:
        connection.send(frame)
    return offsets


def _notice(broker: Broker, call: Call[InvokeBrokerToResetOffset], offsets: dict[int, int]) -> bytes:
    header, name = call.header, broker.settings.broker_name
    if call.command.language is Language.CPP:
        rows = (MessageQueueForC(header.topic, name, queue_id, offset) for queue_id, offset in offsets.items())
        body = ResetOffsetBodyForC(tuple(rows)).encode()
    else:
        table = {MessageQueue(header.topic, name, queue_id): offset for queue_id, offset in offsets.items()}
        body = ResetOffsetBody(table).encode()
    request = ResetConsumerClientOffset(
        header.topic, header.group, header.timestamp, header.is_force, header.queue_id, header.offset
    )
    return encode_command(Command(request.code, flag=ONEWAY_FLAG, ext=request.to_ext(), body=body))
