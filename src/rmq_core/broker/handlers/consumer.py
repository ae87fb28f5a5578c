"""Clients and their groups: heartbeats, members, orderly locks, subscriptions, and who is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq_core.broker.filters import compile_expression, is_tag_type
from rmq_core.broker.members import Member
from rmq_core.errors import BrokerError, RemoteProtocolError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import handles
from rmq_core.protocol.bodies import (
    CheckClientRequestBody,
    ClientConnection,
    ConsumerConnection,
    GroupList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    TopicList,
    UnlockBatchRequestBody,
)
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.command import RESPONSE_FLAG, Command, encode_command, frame_prefix
from rmq_core.protocol.request import NoFields
from rmq_core.protocol.requests import (
    CheckClientConfig,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetProducerConnectionList,
    HeartBeat,
    HeartBeatReply,
    LockBatchMq,
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
    UnlockBatchMq,
    UnregisterClient,
)

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

COPIED_MAX: Final = 4 << 10
"""Lists of members up to this size are cheaper to copy than to send by themselves."""


# Membership


@handles(HeartBeat)
async def heart_beat(broker: Broker, call: Call[HeartBeat]) -> Answer[HeartBeatReply]:
    """Enter a client in its groups; nothing here waits, so that what the client sends next finds it there."""
    data = HeartbeatData.decode(call.body)
    command = call.command
    changed = broker.clients.heartbeat(call.connection, command.version, command.language.name, data)
    return Answer(HeartBeatReply(is_support_heart_beat_v2=True, is_sub_change=changed))


@handles(UnregisterClient)
async def unregister_client(broker: Broker, call: Call[UnregisterClient]) -> Answer[NoFields]:
    """Remove a client from groups."""
    header = call.header
    broker.clients.unregister(call.connection, header.producer_group, header.consumer_group)
    return DONE


@handles(GetConsumerListByGroup)
async def get_consumer_list_by_group(broker: Broker, call: Call[GetConsumerListByGroup]) -> Answer[NoFields] | None:
    """The client ids of a group's members, between which they divide the queues."""
    group = broker.clients.consumer_group(call.header.consumer_group)
    if group is None:
        remark = f"no consumer for this group, {call.header.consumer_group}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    ids = group.client_ids()
    if len(ids) < COPIED_MAX or call.command.is_oneway:
        return Answer(NoFields(), ids)
    # All members of a large group ask at once: they share the bytes, which are not copied into each answer.
    command = call.command
    head = encode_command(Command(0, command.opaque, RESPONSE_FLAG, encoding=command.encoding))[8:]
    call.connection.send(frame_prefix(head, len(ids), command.encoding) + head)
    call.connection.send(ids)
    return None


@handles(CheckClientConfig)
async def check_client_config(broker: Broker, call: Call[CheckClientConfig]) -> Answer[NoFields]:
    """Whether this broker can filter by a subscription; asked before a consumer starts."""
    subscription = CheckClientRequestBody.decode(call.body).subscription_data
    if subscription is None or is_tag_type(subscription.expression_type):
        return DONE
    kind = subscription.expression_type
    if not broker.settings.enable_property_filter:
        remark = f"The broker does not support consumer to filter message by {kind}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    try:
        compile_expression(subscription.sub_string, kind)
    except RemoteProtocolError as error:
        raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
    return DONE


# Orderly locks


@handles(LockBatchMq)
async def lock_batch_mq(broker: Broker, call: Call[LockBatchMq]) -> Answer[NoFields]:
    """Take queues for a member, and say which it has got."""
    data = LockBatchRequestBody.decode(call.body)
    locked = broker.queue_locks.lock(data.consumer_group or "", data.client_id or "", data.mq_set)
    return Answer(NoFields(), LockBatchResponseBody(tuple(locked)).encode())


@handles(UnlockBatchMq)
async def unlock_batch_mq(broker: Broker, call: Call[UnlockBatchMq]) -> Answer[NoFields]:
    """Give queues of a member back."""
    data = UnlockBatchRequestBody.decode(call.body)
    broker.queue_locks.unlock(data.consumer_group or "", data.client_id or "", data.mq_set)
    return DONE


# Who is connected


@handles(GetConsumerConnectionList)
async def get_consumer_connection_list(broker: Broker, call: Call[GetConsumerConnectionList]) -> Answer[NoFields]:
    """The members of a group and what it subscribes to."""
    name = call.header.consumer_group
    group = broker.clients.consumer_group(name)
    if group is None:
        raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = ConsumerConnection(
        _connections(group.members),
        dict(group.subscriptions),
        group.consume_type,
        group.message_model,
        group.consume_from_where,
    )
    return Answer(NoFields(), body.encode())


@handles(GetProducerConnectionList)
async def get_producer_connection_list(broker: Broker, call: Call[GetProducerConnectionList]) -> Answer[NoFields]:
    """The clients that produce for a group."""
    name = call.header.producer_group
    members = broker.clients.producer_group(name)
    if not members:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return Answer(NoFields(), ProducerConnection(_connections(members)).encode())


def _connections(members: dict[Connection, Member]) -> tuple[ClientConnection, ...]:
    return tuple(
        ClientConnection(member.client_id, connection.peer, member.language, member.version)
        for connection, member in members.items()
    )


@handles(GetAllProducerInfo)
async def get_all_producer_info(broker: Broker, call: Call[GetAllProducerInfo]) -> Answer[NoFields]:
    """All clients that produce, by group."""
    table = {name: _producers(members) for name, members in broker.clients.producer_groups().items()}
    return Answer(NoFields(), ProducerTableInfo(table).encode())


def _producers(members: dict[Connection, Member]) -> tuple[ProducerInfo, ...]:
    return tuple(
        # Java writes an address with a slash in front, and its tools expect one.
        ProducerInfo(member.client_id, f"/{connection.peer}", member.language, member.version, member.last_time_ms)
        for connection, member in members.items()
    )


# Who consumes what


@handles(QueryTopicConsumeByWho)
async def query_topic_consume_by_who(broker: Broker, call: Call[QueryTopicConsumeByWho]) -> Answer[NoFields]:
    """The groups that consume a topic now, or have consumed it."""
    topic = call.header.topic
    groups = [*broker.clients.groups_subscribed_to(topic), *broker.offsets.groups_of(topic)]
    return Answer(NoFields(), GroupList(tuple(dict.fromkeys(groups))).encode())


@handles(QueryTopicsByConsumer)
async def query_topics_by_consumer(broker: Broker, call: Call[QueryTopicsByConsumer]) -> Answer[NoFields]:
    """The topics that a group has offsets for."""
    topics = tuple(broker.offsets.topics_of(call.header.group))
    return Answer(NoFields(), TopicList(topics, broker.address).encode())


@handles(QuerySubscriptionByConsumer)
async def query_subscription_by_consumer(
    broker: Broker, call: Call[QuerySubscriptionByConsumer]
) -> Answer[NoFields]:
    """What a group wants of a topic."""
    group, topic = call.header.group, call.header.topic
    data = broker.clients.subscription(group, topic) if topic else None
    return Answer(NoFields(), QuerySubscriptionResponseBody(data, group, topic).encode())
