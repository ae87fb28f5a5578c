"""What brokers ask of a client, on the connections that the client opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_core.errors import BrokerError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol.bodies import GetConsumerStatusBody, ResetOffsetBody
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import Property
from rmq_core.protocol.record import decode_record
from rmq_core.protocol.request import NoFields
from rmq_core.protocol.requests import (
    CheckTransactionState,
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    PushReplyMessageToClient,
    ResetConsumerClientOffset,
)

if TYPE_CHECKING:
    from rmq_core.client.instance import ClientInstance
    from rmq_core.client.roles import ConsumerRole


@handles(NotifyConsumerIdsChanged)
async def notify_consumer_ids_changed(client: ClientInstance, call: Call[NotifyConsumerIdsChanged]) -> None:
    """A member came or left: divide the queues anew."""
    client.rebalance_soon()


@handles(CheckTransactionState)
async def check_transaction_state(client: ClientInstance, call: Call[CheckTransactionState]) -> None:
    """Pass the question on to the producer of the half message."""
    half = decode_record(call.body)
    producer = client.producers.get(half.properties.get(Property.PRODUCER_GROUP, ""))
    if producer is not None:
        producer.check_transaction(call.connection.peer, call.header, half)


@handles(ResetConsumerClientOffset)
async def reset_consumer_client_offset(client: ClientInstance, call: Call[ResetConsumerClientOffset]) -> None:
    """Move one of our consumers to other offsets."""
    consumer = client.consumers.get(call.header.group)
    if consumer is not None:
        await consumer.reset_offsets(call.header.topic, ResetOffsetBody.decode(call.body).offset_table)


@handles(GetConsumerStatusFromClient)
async def get_consumer_status(client: ClientInstance, call: Call[GetConsumerStatusFromClient]) -> Answer[NoFields]:
    """How far one of our consumers is."""
    positions = _consumer(client, call.header.group).positions(call.header.topic)
    return Answer(NoFields(), GetConsumerStatusBody(message_queue_table=positions).encode())


@handles(GetConsumerRunningInfo)
async def get_consumer_running_info(client: ClientInstance, call: Call[GetConsumerRunningInfo]) -> Answer[NoFields]:
    """Show one of our consumers from inside."""
    consumer = _consumer(client, call.header.consumer_group)
    return Answer(NoFields(), consumer.running_info(with_stacks=bool(call.header.jstack_enable)).encode())


@handles(ConsumeMessageDirectly)
async def consume_message_directly(client: ClientInstance, call: Call[ConsumeMessageDirectly]) -> Answer[NoFields]:
    """Consume one message now."""
    consumer = _consumer(client, call.header.consumer_group)
    result = await consumer.consume_directly(decode_record(call.body), call.header.broker_name)
    return Answer(NoFields(), result.encode())


@handles(PushReplyMessageToClient)
async def push_reply_message_to_client(
    client: ClientInstance, call: Call[PushReplyMessageToClient]
) -> Answer[NoFields]:
    """The answer to a request that one of our producers sent."""
    client.replies.deliver(call.header, call.body)
    return DONE


def _consumer(client: ClientInstance, group: str) -> ConsumerRole:
    consumer = client.consumers.get(group)
    if consumer is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
    return consumer
