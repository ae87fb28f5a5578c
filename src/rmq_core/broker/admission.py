"""What is checked and rewritten before a message is put: names, permissions, retry and dead letters, delay.

Refused   With BrokerError, in the order and with the codes that clients know.
Rewritten A message that goes elsewhere first keeps where it belongs in REAL_TOPIC and REAL_QID. The properties
          are bytes from end to end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmq_core.errors import BrokerError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.bodies import TopicConfig, TopicFilterType
from rmq_core.protocol.codes import V3_4_9, Permission, ResponseCode
from rmq_core.protocol.message import (
    FORBIDDEN_SEND_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    append_properties,
    find_property,
    is_retry_topic,
    remove_property,
    topic_name_problem,
)
from rmq_core.store.message_store import PutStatus

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

HELP: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while"
TIMER_NAMES: Final = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
DEAD_LETTER_LEVEL: Final = -1

PUT_CODES: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}
STORED: Final = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT})
"""The message is in the log, even if it may not be on disk."""


def put_remark(status: PutStatus, reason: str) -> str:
    """What a producer is told of a put that failed."""
    if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        return f"the message is illegal, maybe msg body or properties length not matched: {reason}"
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        return f"service not available now. {reason}"
    if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return f"create mapped file failed, server is busy or broken: {reason}"
    return reason or "the message could not be stored"


def check_broker(broker: Broker) -> None:
    """Whether this broker takes messages at all now."""
    if not broker.is_master:
        raise BrokerError(ResponseCode.SYSTEM_BUSY, REJECTED)
    if broker.busy is not None:
        raise BrokerError(ResponseCode.SYSTEM_BUSY, broker.busy)
    start_ms = broker.settings.start_accept_send_request_time_stamp
    if broker.now_ms() < start_ms:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {start_ms}")


def check_topic(broker: Broker, topic: str) -> None:
    """Whether clients may send to a topic of this name."""
    config = broker.topics.get(topic)
    if config is not None and config.order and not broker.settings.broker_permission & Permission.WRITE:
        remark = f"the broker[{broker.settings.broker_ip1}] sending message is forbidden"
        raise BrokerError(ResponseCode.NO_PERMISSION, remark)
    problem = topic_name_problem(topic)
    if problem is not None:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, problem)
    if topic in FORBIDDEN_SEND_TOPICS:
        raise BrokerError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")


async def find_topic(broker: Broker, topic: str, default_topic: str, queue_count: int) -> TopicConfig:
    """The configuration of a topic that is sent to, made now where that may be. Raises BrokerError (17)."""
    config = broker.topics.get(topic)
    if config is not None:
        return config
    try:
        return await broker.topics.create_for_send(topic, default_topic, queue_count)
    except BrokerError:
        if not is_retry_topic(topic):
            remark = f"topic[{topic}] not exist, apply first please!\n{HELP}"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark) from None
    return await broker.topics.create_retry_topic(topic.removeprefix(RETRY_PREFIX))


def choose_queue(config: TopicConfig, queue_id: int, peer: str) -> int:
    """The queue that a message goes to. Raises BrokerError (29)."""
    if queue_id >= max(config.write_queue_nums, config.read_queue_nums):
        remark = f"request queueId[{queue_id}] is illegal, {_described(config)} Producer: {peer}"
        raise BrokerError(ResponseCode.INVALID_PARAMETER, remark)
    return queue_id if queue_id >= 0 else random.randrange(max(config.write_queue_nums, 1))


def _described(config: TopicConfig) -> str:
    """A topic as Apache's programs write it for people."""
    perm = "".join(
        letter if config.perm & bit else "-"
        for letter, bit in (("R", Permission.READ), ("W", Permission.WRITE), ("X", Permission.INHERIT))
    )
    attributes = ", ".join(f"{name}={value}" for name, value in (config.attributes or {}).items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type.value}, "
        f"topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


def filter_flag(config: TopicConfig) -> int:
    """What the topic's kind of tags adds to a system flag."""
    return flags.MULTI_TAGS if config.topic_filter_type is TopicFilterType.MULTI_TAG else 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message goes."""

    topic: str
    queue_id: int
    properties: bytes


async def redirect_retry(
    broker: Broker, place: Place, *, reconsume_times: int, max_times: int | None, version: int
) -> Place:
    """A message sent to a retry topic goes to the dead letters once it has failed too often. Raises BrokerError."""
    group = place.topic.removeprefix(RETRY_PREFIX)
    config = await broker.groups.find_or_create(group)
    if config is None:
        remark = f"subscription group not exist, {group} \n{HELP}"
        raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    limit = max_times if max_times is not None and version >= V3_4_9 else config.retry_max_times
    if reconsume_times <= limit and not broker.queue_locks.is_held(group):
        return place
    dead = await broker.topics.create_dead_letter_topic(group)
    return Place(dead.topic_name, 0, with_property(place.properties, b"DELAY", b"0"))


def with_property(properties: bytes, name: bytes, value: bytes) -> bytes:
    """The properties with one set."""
    return append_properties(remove_property(properties, name), b"%b\x01%b\x02" % (name, value))


def delayed(broker: Broker, place: Place) -> Place:
    """Where a message waits that is to be delivered later; the same place for one that is not.

    Raises BrokerError for a time of delivery: that is never ignored, since the message would be early.
    """
    properties = place.properties
    if b"DELAY" not in properties and b"TIMER_" not in properties:
        return place
    level = find_property(properties, b"DELAY")
    if level is not None and _is_positive(level):
        for name in TIMER_NAMES:
            properties = remove_property(properties, name)
        number = min(int(level), max(broker.store.delay_levels_ms))
        # Counted from the beginning of a long pass, the delay would end early for a message that came late in it.
        broker.store.renew_pass_time()
        return Place(SCHEDULE_TOPIC, number - 1, remember(Place(place.topic, place.queue_id, properties)))
    if any(find_property(properties, name) is not None for name in TIMER_NAMES):
        remark = "the timer is not enabled on this broker: messages with a time of delivery are refused"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    return place


def remember(place: Place) -> bytes:
    """The properties with where the message belongs."""
    properties = remove_property(remove_property(place.properties, b"REAL_TOPIC"), b"REAL_QID")
    more = b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (place.topic.encode(), place.queue_id)
    return append_properties(properties, more)


def _is_positive(text: bytes) -> bool:
    return text.isdigit() and len(text) < 10 and int(text) > 0
