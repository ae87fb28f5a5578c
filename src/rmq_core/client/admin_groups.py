"""Administration of consumer groups: create, change, delete, list, what they subscribe to and may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from rmq_core.client.admin_results import GroupSettings, Subscription
from rmq_core.client.admin_topics import AdminTopics
from rmq_core.client.routes import BrokerAddress
from rmq_core.errors import BrokerError, NoRouteError
from rmq_core.protocol import bodies as b
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import GroupRetryPolicy
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import BUILT_IN_GROUPS, dlq_topic, is_system_group, retry_topic

_RETRIES_MAX: Final = 1 << 30


class AdminGroups(AdminTopics):
    """Consumer groups."""

    async def create_group(
        self,
        name: str,
        *,
        consume_enabled: bool = True,
        broadcast_enabled: bool = True,
        starts_from_earliest: bool = True,
        ordered: bool = False,
        retry_queues: int = 1,
        retries_max: int = 16,
        broker_id: int = 0,
        slow_broker_id: int = 1,
        notifies_members: bool = True,
        consume_timeout_minutes: int | None = None,
        retry_policy: GroupRetryPolicy | None = None,
        attributes: Mapping[str, str] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a group, or give it exactly these settings."""
        settings = GroupSettings(
            name=name,
            consume_enabled=consume_enabled,
            broadcast_enabled=broadcast_enabled,
            starts_from_earliest=starts_from_earliest,
            is_ordered=ordered,
            retry_queues=retry_queues,
            retries_max=retries_max,
            broker_id=broker_id,
            slow_broker_id=slow_broker_id,
            notifies_members=notifies_members,
            consume_timeout_minutes=consume_timeout_minutes,
            retry_policy=retry_policy,
            attributes=dict(attributes or {}),
        )
        body = self._group_config(settings).encode()
        await self._call_each(await self._masters(broker, cluster), r.UpdateAndCreateSubscriptiongroup(), body)

    async def create_groups(
        self, groups: Sequence[GroupSettings], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Create or change many groups by one request to each broker, 5.3. All are checked before one is made."""
        body = b.SubscriptionGroupList(tuple(self._group_config(each) for each in groups)).encode()
        await self._call_each(await self._masters(broker, cluster), r.UpdateAndCreateSubscriptiongroupList(), body)

    async def delete_group(
        self,
        name: str,
        *,
        with_offsets: bool = False,
        keep_topics: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Delete a group, and its retry and dead-letter topics unless one broker is named or they are kept."""
        group = self._group(name)
        request = r.DeleteSubscriptiongroup(group, remove_offset=with_offsets, clean_offset=with_offsets)
        await self._call_each(await self._masters(broker, cluster), request)
        if broker is None and not keep_topics:
            for topic in (retry_topic(name), dlq_topic(name)):
                try:
                    await self.delete_topic(topic, cluster=cluster)
                except NoRouteError:
                    continue  # it never had any

    async def groups(
        self, *, broker: str | None = None, cluster: str | None = None, internal: bool = False
    ) -> tuple[str, ...]:
        """The names of all groups. internal: with those that RocketMQ needs itself."""

        async def look(target: BrokerAddress) -> dict[str, b.SubscriptionGroupConfig]:
            return await self._group_table(target.address)

        tables = await self._each(await self._masters(broker, cluster), look)
        names = self._own(name for table in tables.values() for name in table)
        return tuple(name for name in names if internal or not (name in BUILT_IN_GROUPS or is_system_group(name)))

    async def group_settings(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, GroupSettings]:
        """The group as each broker keeps it; brokers that do not know it are left out.

        Raises BrokerError (26) where none knows it.
        """
        group = self._group(name)

        async def look(target: BrokerAddress) -> GroupSettings | None:
            # Not by the request for one group: brokers that make groups by themselves would make it.
            config = (await self._group_table(target.address)).get(group)
            return None if config is None else self._group_settings(config)

        found = await self._each(await self._masters(broker, cluster), look)
        known = {each: settings for each, settings in found.items() if settings is not None}
        if not known:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows the group {name}")
        return known

    async def all_group_settings(self, broker: str) -> dict[str, GroupSettings]:
        """Every group of a broker, by name; those of other namespaces left out where we have one."""
        table = await self._group_table((await self._broker(broker)).address)
        found = {self._bare(name): self._group_settings(config) for name, config in table.items()}
        return {name: found[name] for name in self._own(table)}

    # What groups read

    async def consumers_of(self, topic: str) -> tuple[str, ...]:
        """The groups that consume a topic, or have consumed it."""
        name = self._topic(topic)
        answers = await self._call_each(await self._of_topic(name), r.QueryTopicConsumeByWho(name))
        return tuple(
            self._own(group for each in answers.values() for group in b.GroupList.decode(each.body).group_list)
        )

    async def topics_of(self, group: str) -> tuple[str, ...]:
        """The topics that a group has offsets of."""
        name = self._group(group)
        answers = await self._call_each(await self._of_group(name), r.QueryTopicsByConsumer(name))
        return tuple(
            self._own(topic for each in answers.values() for topic in b.TopicList.decode(each.body).topic_list)
        )

    async def subscription(self, group: str, topic: str) -> Subscription | None:
        """What a group wants of a topic; None where none of its members is connected, or it wants nothing."""
        name, wanted = self._group(group), self._topic(topic)
        answers = await self._call_each(await self._of_topic(wanted), r.QuerySubscriptionByConsumer(name, wanted))
        for answer in answers.values():
            data = b.QuerySubscriptionResponseBody.decode(answer.body).subscription_data
            if data is not None:
                return self._subscription(data)
        return None

    async def may_read(self, group: str, topic: str) -> dict[str, bool]:
        """Whether each broker of a topic lets a group read it."""
        return await self._readable(group, topic, None)

    async def set_may_read(self, group: str, topic: str, allowed: bool) -> dict[str, bool]:
        """Let a group read a topic, or forbid it; what holds on each broker now."""
        return await self._readable(group, topic, allowed)

    async def _readable(self, group: str, topic: str, wanted: bool | None) -> dict[str, bool]:
        name, of = self._group(group), self._topic(topic)
        request = r.UpdateAndGetGroupForbidden(name, of, wanted)
        answers = await self._call_each(await self._of_topic(of), request)
        return {
            each: b.GroupForbidden.decode(answer.body).readable is not False for each, answer in answers.items()
        }

    # Between our values and those on the wire

    async def _group_table(self, address: str) -> dict[str, b.SubscriptionGroupConfig]:
        table: dict[str, b.SubscriptionGroupConfig] = {}
        version: b.DataVersion | None = None
        total = 1
        while len(table) < total:
            text = None if version is None else orjson.dumps(version.to_json()).decode()
            request = r.GetAllSubscriptiongroupConfig(group_seq=len(table), data_version=text)
            answer = await self._call(address, request)
            page = b.SubscriptionGroupWrapper.decode(answer.body)
            if page.data_version != version and version is not None:
                table.clear()  # it changed meanwhile, and the broker began again
            version = page.data_version
            table |= page.subscription_group_table
            total = answer.header.total_group_num or 0
            if not page.subscription_group_table:
                break
        return table

    def _group_config(self, settings: GroupSettings) -> b.SubscriptionGroupConfig:
        group = self._group(settings.name, what="name")
        for what, value, high in (
            ("retry_queues", settings.retry_queues, 1 << 16),
            ("retries_max", settings.retries_max, _RETRIES_MAX),
        ):
            if not isinstance(value, int) or not (-1 if what == "retries_max" else 0) <= value <= high:
                raise ValueError(f"{what} must be a number up to {high}, not {value!r}")
        return b.SubscriptionGroupConfig(
            group,
            consume_enable=settings.consume_enabled,
            consume_from_min_enable=settings.starts_from_earliest,
            consume_broadcast_enable=settings.broadcast_enabled,
            retry_queue_nums=settings.retry_queues,
            retry_max_times=settings.retries_max,
            broker_id=settings.broker_id,
            which_broker_when_consume_slowly=settings.slow_broker_id,
            notify_consumer_ids_changed_enable=settings.notifies_members,
            consume_message_orderly=settings.is_ordered,
            group_retry_policy=settings.retry_policy,
            group_sys_flag=settings.sys_flag,
            consume_timeout_minute=settings.consume_timeout_minutes,
            # The request changes attributes, and a change to a value carries a sign.
            attributes={f"+{key}": value for key, value in settings.attributes.items()} or None,
        )

    def _group_settings(self, config: b.SubscriptionGroupConfig) -> GroupSettings:
        return GroupSettings(
            name=self._bare(config.group_name),
            consume_enabled=config.consume_enable,
            broadcast_enabled=config.consume_broadcast_enable,
            starts_from_earliest=config.consume_from_min_enable,
            is_ordered=bool(config.consume_message_orderly),
            retry_queues=config.retry_queue_nums,
            retries_max=config.retry_max_times,
            broker_id=config.broker_id,
            slow_broker_id=config.which_broker_when_consume_slowly,
            notifies_members=config.notify_consumer_ids_changed_enable,
            consume_timeout_minutes=config.consume_timeout_minute,
            retry_policy=config.group_retry_policy,
            sys_flag=config.group_sys_flag,
            attributes=dict(config.attributes or {}),
        )

    def _subscription(self, data: b.SubscriptionData) -> Subscription:
        return Subscription(
            self._bare(data.topic),
            data.sub_string or "",
            data.expression_type or "TAG",
            tuple(sorted(data.tags_set)),
            data.sub_version,
        )
