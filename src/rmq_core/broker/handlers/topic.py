"""Topics: create, change, delete, list, and how many messages their queues hold."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from rmq_core.broker.attributes import MESSAGE_TYPE, TOPIC_ATTRIBUTES, changed_attributes, parse_changes
from rmq_core.broker.consume_stats import topic_stats
from rmq_core.errors import BrokerError, RemoteProtocolError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    CreateTopicListRequestBody,
    DataVersion,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicConfigSerializeWrapper,
    TopicFilterType,
    TopicList,
)
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import (
    LMQ_PREFIX,
    is_dlq_topic,
    is_retry_topic,
    pop_retry_topic,
    topic_name_problem,
)
from rmq_core.protocol.request import NoFields

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker
    from rmq_core.net.connection import Connection

log = logging.getLogger(__name__)

QUEUES_MAX: Final = 1 << 16
PERM_MAX: Final = 7


def check_master(broker: Broker) -> None:
    """Raise BrokerError where the tables are a master's to change."""
    if not broker.is_master:
        remark = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)


def no_topic(topic: str) -> BrokerError:
    return BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")


def _invalid(remark: str) -> BrokerError:
    return BrokerError(ResponseCode.INVALID_PARAMETER, remark)


# Create and change


@handles(r.UpdateAndCreateTopic)
async def update_and_create_topic(broker: Broker, call: Call[r.UpdateAndCreateTopic]) -> Answer[NoFields]:
    check_master(broker)
    await _create(broker, _wanted(broker, call.header), call.connection)
    return DONE


async def _create(broker: Broker, config: TopicConfig, connection: Connection) -> None:
    before = broker.topics.get(config.topic_name)
    if await broker.topics.create(config) != before:
        log.info("the topic %s was %s by %s", config.topic_name, "changed" if before else "made", connection.peer)


def _wanted(broker: Broker, header: r.UpdateAndCreateTopic) -> TopicConfig:
    try:
        filter_type = TopicFilterType[header.topic_filter_type]
    except KeyError:
        raise _invalid(f"{header.topic_filter_type} is no filter type of topics") from None
    config = TopicConfig(
        header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=bool(header.order),
    )
    return _checked(broker, config, parse_changes(header.attributes or ""))


def _checked(broker: Broker, config: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
    """The topic as it will be. Raises BrokerError where it may not be so."""
    name = config.topic_name
    problem = topic_name_problem(name)
    if problem is not None:
        raise _invalid(problem)
    if broker.settings.validate_system_topic_when_update_topic:
        _check_not_system(broker, name)
    for queues in (config.read_queue_nums, config.write_queue_nums):
        if not 0 <= queues <= QUEUES_MAX:
            raise _invalid(f"a topic has 0 to {QUEUES_MAX} queues, not {queues}")
    if not 0 <= config.perm <= PERM_MAX:
        raise _invalid(f"a permission is 0 to {PERM_MAX}, not {config.perm}")
    known = broker.topics.get(name)
    current = None if known is None else known.attributes or {}
    attributes = changed_attributes(TOPIC_ATTRIBUTES, current, changes)
    if attributes.get(MESSAGE_TYPE) == "MIXED" and not broker.settings.enable_mixed_message_type:
        raise _invalid("MIXED message type is not supported.")
    return replace(config, attributes=attributes)


def _check_not_system(broker: Broker, name: str) -> None:
    if broker.topics.is_system(name):
        raise _invalid(f"The topic[{name}] is conflict with system topic.")


@handles(r.UpdateAndCreateTopicList)
async def update_and_create_topics(broker: Broker, call: Call[r.UpdateAndCreateTopicList]) -> Answer[NoFields]:
    """All of them are checked before one is made."""
    check_master(broker)
    wanted = [
        _checked(broker, config, config.attributes or {})
        for config in CreateTopicListRequestBody.decode(call.body).topic_config_list
    ]
    for config in wanted:
        await _create(broker, config, call.connection)
    return DONE


@handles(r.UpdateAndCreateStaticTopic)
async def update_and_create_static_topic(
    broker: Broker, call: Call[r.UpdateAndCreateStaticTopic]
) -> Answer[NoFields]:
    raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "topics with logical queues are not supported")


# Delete


@handles(r.DeleteTopicInBroker)
async def delete_topic(broker: Broker, call: Call[r.DeleteTopicInBroker]) -> Answer[NoFields]:
    """The topic with its queues, its offsets and its retry topics of POP. Name servers are told by the tools."""
    check_master(broker)
    topic = call.header.topic
    if not topic.strip():
        raise _invalid("The specified topic is blank.")
    if broker.settings.validate_system_topic_when_update_topic:
        _check_not_system(broker, topic)
    names = [topic]
    if broker.settings.clear_retry_topic_when_delete_topic and not (is_retry_topic(topic) or is_dlq_topic(topic)):
        groups = broker.offsets.groups_of(topic)
        retries = (pop_retry_topic(group, topic, v2=v2) for group in groups for v2 in (False, True))
        names += [name for name in retries if name in broker.topics.table]
    for name in names:
        if name in broker.topics.table:
            log.info("the topic %s is deleted, as %s asks", name, call.connection.peer)
        await _delete(broker, name)
    return DONE


async def _delete(broker: Broker, topic: str) -> None:
    known = broker.topics.get(topic)
    await broker.topics.delete(topic)
    broker.offsets.remove_topic(topic)
    if broker.settings.auto_delete_unused_stats:
        broker.stats.remove_topic(topic)
    await broker.run(broker.store.remove_topic, topic)
    for queue_id in range(0 if known is None else known.read_queue_nums):
        broker.long_polls.announce(topic, queue_id)


# Look


@handles(r.GetTopicConfig)
async def get_topic_config(broker: Broker, call: Call[r.GetTopicConfig]) -> Answer[NoFields]:
    config = broker.topics.get(call.header.topic)
    if config is None:
        raise no_topic(call.header.topic)
    body = TopicConfigAndQueueMapping(
        config.topic_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_filter_type,
        config.topic_sys_flag,
        config.order,
        config.attributes,
    )
    return Answer(NoFields(), body.encode())


@handles(r.GetAllTopicConfig)
async def get_all_topic_config(broker: Broker, call: Call[r.GetAllTopicConfig]) -> Answer[r.TotalTopics]:
    """All topics, or a page of them where the caller says from which number on."""
    header, topics = call.header, broker.topics
    names, total = list(topics.table), None
    if header.topic_seq is not None and broker.settings.enable_split_metadata:
        total = len(names)
        first = page_start(header.topic_seq, header.data_version, topics.data_version)
        names = names[first : first + page_size(broker, header.max_topic_num)]
    wrapper = TopicConfigSerializeWrapper(
        {name: topics.table[name] for name in names},
        topics.data_version,
        mapping_data_version=DataVersion(broker.boot_time_ms, 0, 0),
        topic_queue_mapping_detail_map={},
        topic_queue_mapping_info_map={},
    )
    return Answer(r.TotalTopics(total), await broker.run(wrapper.encode))


def page_start(wanted: int, version_text: str | None, version: DataVersion) -> int:
    """Where a page starts: at the beginning, if the table has changed since the caller's first page."""
    try:
        known = DataVersion.from_json(orjson.loads(version_text)) if version_text else None
    except (orjson.JSONDecodeError, RemoteProtocolError):
        known = None
    return max(wanted, 0) if known == version else 0


def page_size(broker: Broker, wanted: int | None) -> int:
    limit = broker.settings.split_metadata_size
    return limit if wanted is None or wanted < 1 else min(wanted, limit)


@handles(r.GetTopicStatsInfo)
async def get_topic_stats_info(broker: Broker, call: Call[r.GetTopicStatsInfo]) -> Answer[NoFields] | None:
    if broker.topics.get(call.header.topic) is None:
        raise no_topic(call.header.topic)
    stats = await topic_stats(broker, call.header.topic, call.connection)
    return None if stats is None else Answer(NoFields(), stats.encode())


@handles(r.GetSystemTopicListFromBroker)
async def get_system_topics(broker: Broker, call: Call[r.GetSystemTopicListFromBroker]) -> Answer[NoFields]:
    return Answer(NoFields(), TopicList(tuple(broker.topics.system_topics())).encode())


@handles(r.CleanUnusedTopic)
async def clean_unused_topics(broker: Broker, call: Call[r.CleanUnusedTopic]) -> Answer[NoFields]:
    """Remove the queues of topics that are not in the table any more; light queues never were."""
    for topic in {topic for topic, _ in broker.store.queues.table}:
        is_kept = topic in broker.topics.table or topic.startswith(LMQ_PREFIX) or broker.topics.is_system(topic)
        if not is_kept:
            await broker.run(broker.store.remove_topic, topic)
    return DONE
