"""Subscription groups: create, change, delete, list, and how far they are behind."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from rmq_core.broker.attributes import GROUP_ATTRIBUTES, changed_attributes
from rmq_core.broker.consume_stats import broker_consume_stats, consume_stats, time_spans
from rmq_core.broker.groups import GROUP_NAME_MAX, READ_FORBIDDEN, group_config
from rmq_core.broker.handlers.topic import QUEUES_MAX, check_master, no_topic, page_size, page_start
from rmq_core.errors import BrokerError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    GroupForbidden,
    QueryConsumeTimeSpanBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import group_name_problem, retry_topic
from rmq_core.protocol.request import NoFields

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker
    from rmq_core.net.connection import Connection

log = logging.getLogger(__name__)


# Create, change, delete


@handles(r.UpdateAndCreateSubscriptiongroup)
async def update_and_create_group(
    broker: Broker, call: Call[r.UpdateAndCreateSubscriptiongroup]
) -> Answer[NoFields]:
    check_master(broker)
    await _update(broker, _checked(broker, SubscriptionGroupConfig.decode(call.body)), call.connection)
    return DONE


@handles(r.UpdateAndCreateSubscriptiongroupList)
async def update_and_create_groups(
    broker: Broker, call: Call[r.UpdateAndCreateSubscriptiongroupList]
) -> Answer[NoFields]:
    """All of them are checked before one is made."""
    check_master(broker)
    wanted = [_checked(broker, each) for each in SubscriptionGroupList.decode(call.body).group_config_list]
    for config in wanted:
        await _update(broker, config, call.connection)
    return DONE


def _checked(broker: Broker, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """The group as it will be, with what an older sender left out. Raises BrokerError where it may not be so."""
    problem = group_name_problem(config.group_name, length_max=GROUP_NAME_MAX)
    if problem is not None:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, problem)
    if not 0 <= config.retry_queue_nums <= QUEUES_MAX:
        remark = f"a group has 0 to {QUEUES_MAX} retry queues, not {config.retry_queue_nums}"
        raise BrokerError(ResponseCode.INVALID_PARAMETER, remark)
    known = broker.groups.find(config.group_name)
    like = known or group_config(config.group_name)
    current = None if known is None else known.attributes or {}
    missing = {
        name: getattr(like, name)
        for name in (
            "consume_message_orderly",
            "group_retry_policy",
            "group_sys_flag",
            "consume_timeout_minute",
            "subscription_data_set",
        )
        if getattr(config, name) is None
    }
    attributes = changed_attributes(GROUP_ATTRIBUTES, current, config.attributes or {})
    return replace(config, **missing, attributes=attributes)


async def _update(broker: Broker, config: SubscriptionGroupConfig, connection: Connection) -> None:
    before = broker.groups.find(config.group_name)
    await broker.groups.update(config)
    if config != before:
        log.info("the group %s was %s by %s", config.group_name, "changed" if before else "made", connection.peer)
    if retry_topic(config.group_name) in broker.topics.table:
        # Messages sent back spread over as many queues as the group now has.
        await broker.topics.create_retry_topic(config.group_name, config.retry_queue_nums)


@handles(r.DeleteSubscriptiongroup)
async def delete_group(broker: Broker, call: Call[r.DeleteSubscriptiongroup]) -> Answer[NoFields]:
    check_master(broker)
    header = call.header
    if broker.groups.find(header.group_name) is not None:
        log.info("the group %s is deleted, as %s asks", header.group_name, call.connection.peer)
    await broker.groups.delete(header.group_name)
    if header.remove_offset or header.clean_offset:
        broker.offsets.remove_group(header.group_name)
    if broker.settings.auto_delete_unused_stats:
        broker.stats.remove_group(header.group_name)
    return DONE


@handles(r.UpdateAndGetGroupForbidden)
async def update_and_get_group_forbidden(
    broker: Broker, call: Call[r.UpdateAndGetGroupForbidden]
) -> Answer[NoFields]:
    header, groups = call.header, broker.groups
    if header.readable is not None:
        bits = groups.forbidden.get(header.group, {}).get(header.topic, 0)
        changed = bits & ~READ_FORBIDDEN if header.readable else bits | READ_FORBIDDEN
        if changed != bits:
            await groups.set_forbidden(header.group, header.topic, changed)
    readable = not groups.is_read_forbidden(header.group, header.topic)
    return Answer(NoFields(), GroupForbidden(header.topic, header.group, readable).encode(), remark="")


# Look


@handles(r.GetSubscriptiongroupConfig)
async def get_group_config(broker: Broker, call: Call[r.GetSubscriptiongroupConfig]) -> Answer[NoFields]:
    config = await broker.groups.find_or_create(call.header.group)
    if config is None:
        raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return Answer(NoFields(), config.encode())


@handles(r.GetAllSubscriptiongroupConfig)
async def get_all_group_config(
    broker: Broker, call: Call[r.GetAllSubscriptiongroupConfig]
) -> Answer[r.TotalGroups]:
    """All groups, or a page of them where the caller says from which number on."""
    header, groups = call.header, broker.groups
    names, total = list(groups.table), None
    if header.group_seq is not None and broker.settings.enable_split_metadata:
        total = len(names)
        first = page_start(header.group_seq, header.data_version, groups.data_version)
        names = names[first : first + page_size(broker, header.max_group_num)]
    wrapper = SubscriptionGroupWrapper(
        {name: groups.table[name] for name in names},
        groups.data_version,
        {group: dict(topics) for group, topics in groups.forbidden.items()},
    )
    return Answer(r.TotalGroups(total), await broker.run(wrapper.encode))


@handles(r.GetConsumeStats)
async def get_consume_stats(broker: Broker, call: Call[r.GetConsumeStats]) -> Answer[NoFields] | None:
    header = call.header
    topics = [each for each in (header.topic_list or "").split(";") if each]
    stats = await consume_stats(
        broker, header.consumer_group, call.connection, topic=header.topic or None, topics=topics
    )
    return None if stats is None else Answer(NoFields(), stats.encode())


@handles(r.GetBrokerConsumeStats)
async def get_broker_consume_stats(broker: Broker, call: Call[r.GetBrokerConsumeStats]) -> Answer[NoFields] | None:
    stats = await broker_consume_stats(broker, call.connection, is_order=call.header.is_order)
    return None if stats is None else Answer(NoFields(), await broker.run(stats.encode))


@handles(r.QueryConsumeTimeSpan)
async def query_consume_time_span(broker: Broker, call: Call[r.QueryConsumeTimeSpan]) -> Answer[NoFields] | None:
    header = call.header
    if broker.topics.get(header.topic) is None:
        raise no_topic(header.topic)
    spans = await time_spans(broker, header.topic, header.group, call.connection)
    return None if spans is None else Answer(NoFields(), QueryConsumeTimeSpanBody(tuple(spans)).encode())
