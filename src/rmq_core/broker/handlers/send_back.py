"""Messages that a consumer could not deal with: they come again later, or go to the group's dead letters."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from rmq_core.broker.admission import HELP, REJECTED, TIMER_NAMES, Place, delayed, with_property
from rmq_core.broker.records import record_at
from rmq_core.errors import BrokerError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq_core.protocol.codes import V3_4_9, Permission, ResponseCode
from rmq_core.protocol.message import find_property, remove_property
from rmq_core.protocol.message_id import encode_offset_message_id
from rmq_core.protocol.record import StoredRecord
from rmq_core.protocol.request import NoFields
from rmq_core.protocol.requests import ConsumerSendMsgBack
from rmq_core.store.message_store import PutStatus

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

FIRST_RETRY_LEVEL: Final = 3


@handles(ConsumerSendMsgBack)
async def consumer_send_msg_back(broker: Broker, call: Call[ConsumerSendMsgBack]) -> Answer[NoFields]:
    """Store a copy that is delivered to the group alone, once its delay is over."""
    header = call.header
    if not broker.is_master:
        raise BrokerError(ResponseCode.SYSTEM_BUSY, REJECTED)
    await broker.groups.find_or_create(header.group)
    _check(broker, header.group)
    if _group(broker, header.group).retry_queue_nums <= 0:
        return DONE
    await _retry_topic(broker, header)
    record = await record_at(broker, header.log_offset)
    if record is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.log_offset}")
    # Much may have changed while this waited.
    group = _check(broker, header.group)
    limit = group.retry_max_times
    if header.max_reconsume_times is not None and call.command.version >= V3_4_9:
        limit = header.max_reconsume_times
    if record.reconsume_times >= limit or header.delay_level < 0:
        config, level = await broker.topics.create_dead_letter_topic(header.group), 0
    else:
        config, level = await _retry_topic(broker, header), header.delay_level
        level = level or FIRST_RETRY_LEVEL + record.reconsume_times
    properties = _properties(record, level)
    place = delayed(broker, Place(config.topic_name, random.randrange(max(config.read_queue_nums, 1)), properties))
    await _put(broker, record, place)
    topic = find_property(properties, b"RETRY_TOPIC") or b""
    broker.stats.sent_back(header.group, topic.decode("utf-8", "replace"))
    return DONE


def _group(broker: Broker, name: str) -> SubscriptionGroupConfig:
    group = broker.groups.find(name)
    if group is None:
        remark = f"subscription group not exist, {name} \n{HELP}"
        raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return group


def _check(broker: Broker, name: str) -> SubscriptionGroupConfig:
    group = _group(broker, name)
    if not broker.settings.broker_permission & Permission.WRITE:
        remark = f"the broker[{broker.settings.broker_ip1}] sending message is forbidden"
        raise BrokerError(ResponseCode.NO_PERMISSION, remark)
    return group


async def _retry_topic(broker: Broker, header: ConsumerSendMsgBack) -> TopicConfig:
    """The retry topic of the group, with as many queues as the group is to have."""
    queues = _group(broker, header.group).retry_queue_nums
    config = await broker.topics.create_retry_topic(header.group, queues, unit_mode=bool(header.unit_mode))
    if not config.perm & Permission.WRITE:
        remark = f"the topic[{config.topic_name}] sending message is forbidden"
        raise BrokerError(ResponseCode.NO_PERMISSION, remark)
    return config


def _properties(record: StoredRecord, level: int) -> bytes:
    """Those of the message, with where it comes from first and how long it waits this time."""
    properties = record.property_bytes
    # What a time of delivery was set for has happened: it must not be waited for again.
    for name in (*TIMER_NAMES, b"__CRC32#"):
        properties = remove_property(properties, name)
    if not find_property(properties, b"RETRY_TOPIC"):
        properties = with_property(properties, b"RETRY_TOPIC", record.topic.encode())
    if not find_property(properties, b"ORIGIN_MESSAGE_ID"):
        origin = encode_offset_message_id(record.store_host.pack(), record.log_offset)
        properties = with_property(properties, b"ORIGIN_MESSAGE_ID", origin.encode())
    properties = with_property(properties, b"WAIT", b"false")
    return with_property(properties, b"DELAY", str(level).encode())


async def _put(broker: Broker, record: StoredRecord, place: Place) -> None:
    put = broker.put(
        place.topic,
        place.queue_id,
        record.body,
        place.properties,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host.pack(),
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times + 1,
    )
    status = put.status
    if status is PutStatus.PUT_OK and broker.store.flusher.is_sync:
        # The consumer passes the original once this is answered, so the copy must be as durable. WAIT=false is
        # only what it says in Apache's stores.
        status = await broker.durable(put.end)
    if status is not PutStatus.PUT_OK:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, put.reason or status.name)
    broker.stats.sent(place.topic, place.queue_id, put.size)
