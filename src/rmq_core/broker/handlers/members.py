"""Questions that are passed on to a member of a group, over the connection that it keeps to this broker."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmq_core.errors import BrokerError, CallTimeoutError, ClientError, RemoteProtocolError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.connection import Connection, next_opaque
from rmq_core.net.dispatch import handles
from rmq_core.protocol.bodies import GetConsumerStatusBody
from rmq_core.protocol.codes import V3_0_7_SNAPSHOT, V3_1_8_SNAPSHOT, ResponseCode, version_name
from rmq_core.protocol.command import Command
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.request import Header, NoFields
from rmq_core.protocol.requests import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    InvokeBrokerToGetConsumerStatus,
)

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

log = logging.getLogger(__name__)

ANSWER_MS: Final = 10_000
STATUS_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Relayed(Header):
    """Header fields of a member's answer, as they came."""

    fields: dict[str, str]

    def to_ext(self) -> dict[str, str]:
        return self.fields


@handles(GetConsumerRunningInfo)
async def get_consumer_running_info(broker: Broker, call: Call[GetConsumerRunningInfo]) -> Answer[Relayed]:
    """A member looked at from inside."""
    header = call.header
    return await _ask(broker, call.command, header.consumer_group, header.client_id, {}, call.body)


@handles(ConsumeMessageDirectly)
async def consume_message_directly(broker: Broker, call: Call[ConsumeMessageDirectly]) -> Answer[Relayed]:
    """Have a member consume one message of this broker now, and tell what came of it."""
    header = call.header
    try:
        log_offset = decode_offset_message_id(header.msg_id or "").log_offset
    except RemoteProtocolError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None

    def read() -> bytes | None:
        record = broker.store.record(log_offset)
        return None if record is None else bytes(record)

    record = await broker.run(read)
    if record is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {log_offset}")
    group = broker.groups.find(header.consumer_group)
    more = {"brokerName": broker.settings.broker_name}
    more["groupSysFlag"] = str((group.group_sys_flag if group is not None else 0) or 0)
    if header.topic:
        topic = broker.topics.get(header.topic)
        more["topicSysFlag"] = str(topic.topic_sys_flag if topic is not None else 0)
    return await _ask(broker, call.command, header.consumer_group, header.client_id or "", more, record)


async def _ask(
    broker: Broker, command: Command, group: str, client_id: str, more: dict[str, str], body: bytes
) -> Answer[Relayed]:
    """Pass a request on with its header fields and some more; the member's answer as it is.

    Raises BrokerError where there is no such member, it is too old, or it does not answer.
    """
    members = broker.clients.consumer_group(group)
    found = None if members is None else members.find(client_id)
    if found is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    connection, member = found
    if member.version < V3_1_8_SNAPSHOT:
        remark = (
            f"The Consumer <{client_id}> Version <{version_name(member.version)}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT"
        )
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    request = Command(command.code, next_opaque(), ext={**(command.ext or {}), **more}, body=body)
    try:
        answer = await connection.exchange(request, timeout_ms=ANSWER_MS)
    except CallTimeoutError as error:
        remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
        raise BrokerError(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from None
    except ClientError as error:
        remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark) from None
    return Answer(Relayed(answer.ext or {}), answer.body, answer.code, answer.remark)


@handles(InvokeBrokerToGetConsumerStatus)
async def invoke_broker_to_get_consumer_status(
    broker: Broker, call: Call[InvokeBrokerToGetConsumerStatus]
) -> Answer[NoFields]:
    """How far the members of a group, or one of them, have consumed a topic; silent ones are left out."""
    header = call.header
    group = broker.clients.consumer_group(header.group)
    if group is None:
        remark = f"No Any Consumer online in the consumer group: [{header.group}]"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    asked = [
        (connection, member)
        for connection, member in group.members.items()
        if not header.client_addr or member.client_id == header.client_addr
    ]
    for _, member in asked:
        if member.version < V3_0_7_SNAPSHOT:
            remark = f"the client does not support this feature. version={version_name(member.version)}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    request = GetConsumerStatusFromClient(header.topic, header.group)
    found = await asyncio.gather(*(_status_of(connection, request) for connection, _ in asked))
    table = {
        member.client_id: status for (_, member), status in zip(asked, found, strict=True) if status is not None
    }
    return Answer(NoFields(), GetConsumerStatusBody({}, table).encode())


async def _status_of(
    connection: Connection, request: GetConsumerStatusFromClient
) -> dict[MessageQueue, int] | None:
    """How far a member has consumed; None where it does not tell."""
    command = Command(request.code, next_opaque(), ext=request.to_ext())
    try:
        answer = await connection.exchange(command, timeout_ms=STATUS_MS)
        if answer.code == ResponseCode.SUCCESS and answer.body:
            return GetConsumerStatusBody.decode(answer.body).message_queue_table or {}
    except (ClientError, RemoteProtocolError) as error:
        log.warning("%s does not tell how far it has consumed: %s", connection.peer, error)
    return None
