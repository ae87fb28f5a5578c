"""Answers to requests of other clients: pushed to the client that asked, and stored where the settings say so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rmq_core.broker.admission import PUT_CODES, check_broker, check_topic, choose_queue, find_topic
from rmq_core.broker.handlers.send import Outgoing, Refused, complete_properties, outgoing, refused_answer
from rmq_core.broker.hosts import packed_host
from rmq_core.errors import BrokerError, ClientError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import append_properties, find_property
from rmq_core.protocol.message_id import encode_offset_message_id
from rmq_core.protocol.requests import PushReplyMessageToClient, SendReplyMessage, SendReplyMessageV2, Sent
from rmq_core.store.message_store import PutStatus

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

log = logging.getLogger(__name__)

PUSH_MS = 10_000


@handles(SendReplyMessage)
async def send_reply_message(broker: Broker, call: Call[SendReplyMessage]) -> Answer[Any]:
    """Push and store an answer."""
    return await _serve(broker, call)


@handles(SendReplyMessageV2)
async def send_reply_message_v2(broker: Broker, call: Call[SendReplyMessageV2]) -> Answer[Any]:
    """Push and store an answer."""
    return await _serve(broker, call)


async def _serve(broker: Broker, call: Call[Any]) -> Answer[Any]:
    check_broker(broker)
    message = outgoing(call.header)
    try:
        check_topic(broker, message.topic)
        config = await find_topic(broker, message.topic, message.default_topic, message.default_queues)
        queue_id = choose_queue(config, message.queue_id, call.connection.peer)
    except BrokerError as error:
        return refused_answer(broker, error)
    properties, _ = complete_properties(broker, message.properties, given_key=None)
    properties = append_properties(properties, b"PUSH_REPLY_TIME\x01%d\x02" % broker.now_ms())
    problem = await _push(broker, message, call, properties, queue_id)
    put_id, queue_offset, status = "0", 0, PutStatus.PUT_OK
    if broker.settings.store_reply_message_enable:
        put = broker.put(
            message.topic,
            queue_id,
            call.body,
            properties,
            born_time_ms=message.born_time_ms,
            born_host=packed_host(call.connection.peer),
            flag=message.flag,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times,
        )
        status = await broker.stored(put, properties)
        if PUT_CODES[status] == ResponseCode.SUCCESS:
            put_id, queue_offset = encode_offset_message_id(broker.store_host, put.log_offset), put.queue_offset
            broker.stats.sent(message.topic, queue_id, put.size)
        else:
            log.warning("a reply could not be stored: %s", put.reason)
    header = Sent(
        put_id,
        queue_id,
        queue_offset,
        msg_region=broker.settings.region_id,
        trace_on=broker.settings.trace_on,
    )
    if problem is None:
        return Answer(header)
    if put_id == "0":
        own = Refused(broker.settings.region_id, broker.settings.trace_on)
        return Answer(own, code=ResponseCode.SYSTEM_ERROR, remark=problem)
    return Answer(header, code=ResponseCode.SYSTEM_ERROR, remark=problem)


async def _push(broker: Broker, message: Outgoing, call: Call[Any], properties: bytes, queue_id: int) -> str | None:
    """Hand the answer to the client that asked; returns what went wrong."""
    found = find_property(properties, b"REPLY_TO_CLIENT")
    if found is None:
        return "reply message properties[REPLY_TO_CLIENT] is null"
    client_id = found.decode("utf-8", "replace")
    connection = broker.clients.producer_by_client_id(client_id)
    if connection is None:
        return f"push reply message fail, channel of <{client_id}> not found."
    request = PushReplyMessageToClient(
        producer_group=call.header.producer_group,
        topic=message.topic,
        default_topic=message.default_topic,
        default_topic_queue_nums=message.default_queues,
        queue_id=queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_time_ms,
        flag=message.flag,
        properties=properties.decode("utf-8", "replace"),
        reconsume_times=message.reconsume_times,
        unit_mode=call.header.unit_mode,
        born_host=call.connection.peer,
        store_host=broker.address,
        store_timestamp=broker.now_ms(),
    )
    try:
        await connection.call(request, call.body, timeout_ms=PUSH_MS)
    except (BrokerError, ClientError) as error:
        log.info("a reply could not be pushed to %s: %s", client_id, error)
        return f"push reply message to {client_id}fail."
    return None
