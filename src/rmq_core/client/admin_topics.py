"""Administration of topics: create, change, delete, list, and what their queues hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import orjson

from rmq_core.client.admin_base import AdminBase, all_masters
from rmq_core.client.admin_results import (
    READ_WRITE,
    QueueRange,
    TopicSettings,
    TopicStatus,
    moment,
)
from rmq_core.client.routes import BrokerAddress, TopicRoute, topic_route
from rmq_core.errors import BrokerError, NoRouteError
from rmq_core.protocol import bodies as b
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import Permission, ResponseCode
from rmq_core.protocol.message import (
    AUTO_CREATE_TOPIC,
    REPLY_TOPIC_SUFFIX,
    MessageQueue,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from rmq_core.protocol.request import Request

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Where name servers keep the fixed queues of ordered topics."""
_SYS_FLAG_UNIT: Final = 1
_QUEUES_MAX: Final = 1 << 16
_UNIT_LISTS: Final[Mapping[str, Request[Any]]] = {
    "unit": r.GetUnitTopicList(),
    "subscribed": r.GetHasUnitSubTopicList(),
    "subscribed_from_other": r.GetHasUnitSubUnunitTopicList(),
}


class AdminTopics(AdminBase):
    """Topics."""

    async def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: Permission = READ_WRITE,
        ordered: bool = False,
        multi_tag: bool = False,
        unit: bool = False,
        attributes: Mapping[str, str | None] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic with so many queues on each broker, or change it.

        attributes: None takes one away. ordered: its queues are fixed, those of a broker that is away included.
        """
        topic = self._topic(name)
        reads = _count("read_queues", queues if read_queues is None else read_queues)
        writes = _count("write_queues", queues if write_queues is None else write_queues)
        request = r.UpdateAndCreateTopic(
            topic=topic,
            read_queue_nums=reads,
            write_queue_nums=writes,
            perm=int(Permission(permission)),
            topic_filter_type=_filter_type(multi_tag).value,
            default_topic=AUTO_CREATE_TOPIC,
            topic_sys_flag=_SYS_FLAG_UNIT if unit else 0,
            order=ordered,
            attributes=_signed(attributes),
        )
        done = await self._call_each(await self._masters(broker, cluster), request)
        if ordered:
            await self._add_ordered_queues(topic, dict.fromkeys(done, writes))

    async def create_topics(
        self, topics: Sequence[TopicSettings], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Create or change many topics by one request to each broker, 5.3. All are checked before one is made."""
        configs = tuple(self._topic_config(each) for each in topics)
        body = b.CreateTopicListRequestBody(configs).encode()
        await self._call_each(await self._masters(broker, cluster), r.UpdateAndCreateTopicList(), body)

    async def set_topic_permission(
        self, name: str, permission: Permission, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Allow reading, writing, both or nothing. Everything else of the topic stays."""
        topic, wanted = self._topic(name), int(Permission(permission))
        targets = await self._masters(broker, cluster) if broker or cluster else await self._of_topic(topic)

        async def change(target: BrokerAddress) -> None:
            known = await self._config_at(target, topic)
            request = r.UpdateAndCreateTopic(
                topic=topic,
                read_queue_nums=known.read_queue_nums,
                write_queue_nums=known.write_queue_nums,
                perm=wanted,
                topic_filter_type=known.topic_filter_type.value,
                default_topic=AUTO_CREATE_TOPIC,
                topic_sys_flag=known.topic_sys_flag,
                order=known.order,
            )
            await self._call(target.address, request)

        await self._each(targets, change)

    async def delete_topic(self, name: str, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete a topic with its messages and offsets, and its route where no single broker is named.

        Without broker and cluster it goes from every broker that has it. Raises NoRouteError where none has.
        """
        topic = self._topic(name)
        if broker is None and cluster is None:
            targets = await self._of_topic(topic)
        else:
            targets = await self._masters(broker, cluster)
        await self._call_each(targets, r.DeleteTopicInBroker(topic))
        if broker is None:
            await self.delete_topic_route(name, cluster=cluster)
            if cluster is None:
                await self._ask_all(r.DeleteKvConfig(ORDER_NAMESPACE, topic))

    async def delete_topic_route(self, name: str, *, cluster: str | None = None) -> None:
        """Have every name server forget a topic's route; a broker that still has the topic registers it again."""
        await self._ask_all(r.DeleteTopicInNamesrv(self._topic(name), cluster))

    # Look

    async def topics(self, *, cluster: str | None = None, internal: bool = False) -> tuple[str, ...]:
        """The names of all topics. internal: with those for retries, dead letters and RocketMQ itself."""
        request: Request[Any] = (
            r.GetAllTopicListFromNameserver() if cluster is None else r.GetTopicsByCluster(cluster)
        )
        names = self._own(b.TopicList.decode((await self._ask(request)).body).topic_list)
        if internal:
            return tuple(names)
        info = await self._cluster_info()
        clusters = info.cluster_addr_table or {}
        own_names = {*(info.broker_addr_table or {}), *clusters, *(name + REPLY_TOPIC_SUFFIX for name in clusters)}
        return tuple(
            name
            for name in names
            if not (is_retry_topic(name) or is_dlq_topic(name) or is_system_topic(name) or name in own_names)
        )

    async def system_topics(self, *, broker: str | None = None) -> tuple[str, ...]:
        """The topics that the cluster keeps for itself: as name servers know them, or as a broker does."""
        if broker is None:
            answer = await self._ask(r.GetSystemTopicListFromNs())
        else:
            answer = await self._call((await self._broker(broker)).address, r.GetSystemTopicListFromBroker())
        return tuple(sorted(b.TopicList.decode(answer.body).topic_list))

    async def unit_topics(
        self, kind: Literal["unit", "subscribed", "subscribed_from_other"] = "unit"
    ) -> tuple[str, ...]:
        """Topics of the unit kind; those that unit consumers read; those of them that are no unit topics."""
        if kind not in _UNIT_LISTS:
            raise ValueError(f"kind must be one of {', '.join(_UNIT_LISTS)}, not {kind!r}")
        return tuple(self._own(b.TopicList.decode((await self._ask(_UNIT_LISTS[kind])).body).topic_list))

    async def topic_route(self, name: str) -> TopicRoute:
        """Its brokers and queues. Raises NoRouteError where no name server knows any."""
        return topic_route(name, await self._route_data(self._topic(name)))

    async def topic_clusters(self, name: str) -> tuple[str, ...]:
        """The clusters that have the topic."""
        data = await self._route_data(self._topic(name))
        return tuple(sorted({each.cluster for each in data.broker_datas or () if each.cluster}))

    async def topic_settings(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, TopicSettings]:
        """The topic as each of its brokers keeps it. Raises BrokerError (17) where a named broker has it not."""
        topic = self._topic(name)
        targets = await self._masters(broker, cluster) if broker or cluster else await self._of_topic(topic)

        async def look(target: BrokerAddress) -> TopicSettings:
            return self._settings(await self._config_at(target, topic))

        return await self._each(targets, look)

    async def all_topic_settings(self, broker: str) -> dict[str, TopicSettings]:
        """Every topic of a broker, by name; those of other namespaces left out where we have one."""
        address = (await self._broker(broker)).address
        table: dict[str, b.TopicConfig] = {}
        version: b.DataVersion | None = None
        total = 1
        while len(table) < total:
            text = None if version is None else orjson.dumps(version.to_json()).decode()
            answer = await self._call(address, r.GetAllTopicConfig(topic_seq=len(table), data_version=text))
            page = b.TopicConfigSerializeWrapper.decode(answer.body)
            if page.data_version != version and version is not None:
                table.clear()  # it changed meanwhile, and the broker began again
            version = page.data_version
            table |= page.topic_config_table
            total = answer.header.total_topic_num or 0
            if not page.topic_config_table:
                break
        wanted = set(self._own(table))
        found = {self._bare(name): self._settings(config) for name, config in table.items()}
        return {name: found[name] for name in sorted(wanted)}

    async def topic_status(self, name: str, *, broker: str | None = None) -> TopicStatus:
        """What each queue of the topic holds."""
        topic = self._topic(name)
        answers = await self._call_each(await self._of_topic(topic, broker), r.GetTopicStatsInfo(topic))
        tables = [b.TopicStatsTable.decode(answer.body) for answer in answers.values()]
        queues = {
            self._bare_queue(queue): QueueRange(
                each.min_offset, each.max_offset, moment(each.last_update_timestamp)
            )
            for table in tables
            for queue, each in table.offset_table.items()
        }
        tps = sum(table.topic_put_tps or 0.0 for table in tables)
        return TopicStatus(name, dict(sorted(queues.items(), key=_place)), tps)

    async def clean_unused_topics(self, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Remove queues of topics that are not in the tables any more."""
        await self._call_each(await self._masters(broker, cluster), r.CleanUnusedTopic())

    # Ordered topics

    async def ordered_queues(self, name: str) -> dict[str, int]:
        """How many queues of an ordered topic each broker has for good; empty where nothing is fixed."""
        return _parse_order(await self._order_text(self._topic(name)))

    async def set_ordered_queues(self, name: str, queues: Mapping[str, int]) -> None:
        """Fix the queues of a topic: broker name → number. With none, nothing is fixed any more."""
        topic = self._topic(name)
        if not queues:
            await self._ask_all(r.DeleteKvConfig(ORDER_NAMESPACE, topic))
            return
        counts = {each: _count("queues", count) for each, count in queues.items()}
        await self._ask_all(r.PutKvConfig(ORDER_NAMESPACE, topic, _order_text(counts)))

    async def _add_ordered_queues(self, topic: str, queues: Mapping[str, int]) -> None:
        known = _parse_order(await self._order_text(topic))
        await self._ask_all(r.PutKvConfig(ORDER_NAMESPACE, topic, _order_text({**known, **queues})))

    async def _order_text(self, topic: str) -> str:
        try:
            return (await self._ask(r.GetKvConfig(ORDER_NAMESPACE, topic))).header.value or ""
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return ""

    # Between our values and those on the wire

    async def _config_at(self, target: BrokerAddress, topic: str) -> b.TopicConfig:
        try:
            answer = await self._call(target.address, r.GetTopicConfig(topic))
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return await self._config_of_table(target, topic)
        found = b.TopicConfigAndQueueMapping.decode(answer.body)
        return b.TopicConfig(
            found.topic_name,
            found.read_queue_nums,
            found.write_queue_nums,
            found.perm,
            found.topic_filter_type,
            found.topic_sys_flag,
            found.order,
            found.attributes,
        )

    async def _config_of_table(self, target: BrokerAddress, topic: str) -> b.TopicConfig:
        """Brokers of 4.9 tell of one topic only among all."""
        answer = await self._call(target.address, r.GetAllTopicConfig())
        found = b.TopicConfigSerializeWrapper.decode(answer.body).topic_config_table.get(topic)
        if found is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return found

    def _settings(self, config: b.TopicConfig) -> TopicSettings:
        return TopicSettings(
            name=self._bare(config.topic_name),
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            permission=Permission(config.perm & 7),
            is_ordered=config.order,
            is_multi_tag=config.topic_filter_type is b.TopicFilterType.MULTI_TAG,
            sys_flag=config.topic_sys_flag,
            attributes=dict(config.attributes or {}),
        )

    def _topic_config(self, settings: TopicSettings) -> b.TopicConfig:
        return b.TopicConfig(
            self._topic(settings.name),
            _count("read_queues", settings.read_queues),
            _count("write_queues", settings.write_queues),
            int(settings.permission),
            _filter_type(settings.is_multi_tag),
            settings.sys_flag,
            settings.is_ordered,
            # The request changes attributes, and a change to a value carries a sign.
            {f"+{key}": value for key, value in settings.attributes.items()} or None,
        )

    def _bare_queue(self, queue: MessageQueue) -> MessageQueue:
        return replace(queue, topic=self._bare(queue.topic)) if self._options.namespace else queue

    async def _any_of_topic(self, topic: str) -> list[BrokerAddress]:
        """The masters of a topic, or every master where the topic has no route."""
        try:
            return await self._of_topic(topic)
        except NoRouteError:
            return all_masters(await self._cluster_info())


def _count(what: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be int, not {type(value).__name__}")
    if not 0 <= value <= _QUEUES_MAX:
        raise ValueError(f"{what} must be 0 to {_QUEUES_MAX}, not {value}")
    return value


def _filter_type(multi_tag: bool) -> b.TopicFilterType:
    return b.TopicFilterType.MULTI_TAG if multi_tag else b.TopicFilterType.SINGLE_TAG


def _signed(attributes: Mapping[str, str | None] | None) -> str | None:
    """Attributes as a change: `+key=value,-key`."""
    parts = []
    for key, value in (attributes or {}).items():
        if not key or set(f"{key}{value or ''}") & set(",="):
            raise ValueError(f"attributes: {key!r}={value!r} has a comma or an equals sign, or no name")
        parts.append(f"-{key}" if value is None else f"+{key}={value}")
    return ",".join(parts) or None


def _place(item: tuple[MessageQueue, object]) -> tuple[str, str, int]:
    queue = item[0]
    return queue.topic, queue.broker_name, queue.queue_id


def _order_text(queues: Mapping[str, int]) -> str:
    return ";".join(f"{name}:{count}" for name, count in queues.items())


def _parse_order(text: str) -> dict[str, int]:
    found = {}
    for part in text.split(";"):
        name, _, count = part.partition(":")
        if name and count.isdecimal():
            found[name] = int(count)
    return found
