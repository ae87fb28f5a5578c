"""Who is connected: producers, consumers, and what their groups subscribe to.

Heartbeat Applied in the pass that reads it, so that a pull behind it on the same connection finds its group. What
          must be stored (a new group, its retry topic) follows behind.
Told      Members hear of one that comes, leaves or loses its connection, but not of one that expired: its
          connection is closed, and they find out by themselves.
Crash     Nothing here is kept: clients send their heartbeats again within 30 s.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from rmq_core.broker.filters import is_tag_type
from rmq_core.broker.members import ConsumerGroup, Member, ProducerGroup
from rmq_core.broker.notices import Notices
from rmq_core.net.connection import Connection
from rmq_core.protocol.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from rmq_core.protocol.filter import parse_tags
from rmq_core.protocol.message import retry_topic

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

log = logging.getLogger(__name__)

GATHERED_MS: Final = 15_000
"""With realTimeNotifyConsumerChange=false changes are told together so often."""


class Clients:
    """All connected clients of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, ProducerGroup] = {}
        self._consumer_groups_of: dict[Connection, set[str]] = {}
        self._producer_groups_of: dict[Connection, set[str]] = {}
        self._producer_ids: dict[str, Connection] = {}
        self._inferred: dict[tuple[str, str], tuple[str | None, str | None, float]] = {}
        """By group and topic: expression, its type, and when it came last."""
        self._retry_topics_made: set[str] = set()
        self._notices = Notices(broker.clock, self._connections)

    def _connections(self, group: str) -> list[Connection]:
        found = self._consumers.get(group)
        return [] if found is None else list(found.members)

    # Heartbeats

    def heartbeat(self, connection: Connection, command_version: int, language: str, data: HeartbeatData) -> bool:
        """Apply a heartbeat; whether the client has to send its subscriptions with the next one.

        Only heartbeats with a fingerprint may leave them out.
        """
        broker = self._broker
        clock = broker.clock
        member = Member(data.client_id, language, command_version, clock.monotonic_ms(), clock.now_ms())
        needs_subscriptions = not data.heartbeat_fingerprint
        for each in data.consumer_data_set:
            if broker.settings.reject_pull_consumer_enable and each.consume_type is ConsumeType.CONSUME_ACTIVELY:
                continue
            config = broker.groups.find_or_begin(each.group_name)
            if config is not None:
                needs_subscriptions |= self._register_consumer(connection, member, each, config, data)
        for producer in data.producer_data_set:
            self._register_producer(connection, member, producer.group_name)
        return needs_subscriptions

    def _register_consumer(
        self,
        connection: Connection,
        member: Member,
        data: ConsumerData,
        config: SubscriptionGroupConfig,
        heartbeat: HeartbeatData,
    ) -> bool:
        name = data.group_name
        group = self._consumers.get(name)
        if group is None:
            group = self._consumers[name] = ConsumerGroup(name)
        changed = group.join(connection, member, data)
        self._consumer_groups_of.setdefault(connection, set()).add(name)
        fingerprint, known = heartbeat.heartbeat_fingerprint or 0, group.fingerprint
        has_subscriptions = not (fingerprint and heartbeat.without_sub)
        if has_subscriptions:
            changed |= group.subscribe(data.subscription_data_set)
            self._broker.filters.register_group(name, data.subscription_data_set)
            if fingerprint:
                group.fingerprint = fingerprint
        self._make_retry_topic(group, config, unit_mode=bool(data.unit_mode))
        if changed and config.notify_consumer_ids_changed_enable and not group.is_broadcasting:
            self._tell(name)
        # Subscriptions that were left out and are not known (after a restart) must come again as well.
        return fingerprint != known if known is not None else not has_subscriptions

    def _make_retry_topic(self, group: ConsumerGroup, config: SubscriptionGroupConfig, *, unit_mode: bool) -> None:
        """Behind the heartbeat: a name server that does not answer must not hold it up."""
        topics = self._broker.topics
        order = any(each.order for topic in group.subscriptions if (each := topics.get(topic)) is not None)
        known = topics.get(retry_topic(group.name))
        is_there = known is not None and known.order == order and known.read_queue_nums >= config.retry_queue_nums
        if is_there or group.name in self._retry_topics_made:
            return
        self._retry_topics_made.add(group.name)
        making = topics.create_retry_topic(group.name, config.retry_queue_nums, order=order, unit_mode=unit_mode)
        self._broker.begin(self._make_behind(group.name, making))

    async def _make_behind(self, group: str, making: Coroutine[Any, Any, TopicConfig]) -> None:
        try:
            await making
        finally:
            self._retry_topics_made.discard(group)

    def _register_producer(self, connection: Connection, member: Member, name: str) -> None:
        members = self._producers.setdefault(name, ProducerGroup()).members
        before = members.get(connection)
        if before is not None and before.client_id != member.client_id:
            self._forget_producer_id(before.client_id, connection)
        members[connection] = member
        self._producer_groups_of.setdefault(connection, set()).add(name)
        self._producer_ids[member.client_id] = connection

    def _tell(self, group: str) -> None:
        settings = self._broker.settings
        if settings.notify_consumer_ids_changed_enable:
            self._notices.changed(group, delay_ms=0 if settings.real_time_notify_consumer_change else GATHERED_MS)

    # Leaving

    def unregister(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves groups."""
        if producer_group:
            self._leave_producers(connection, producer_group)
        group = self._consumers.get(consumer_group) if consumer_group else None
        if group is not None:
            config = self._broker.groups.find(group.name)
            self._leave_consumers(connection, group)
            if not group.is_broadcasting and (config is None or config.notify_consumer_ids_changed_enable):
                self._tell(group.name)

    def connection_closed(self, connection: Connection) -> None:
        """A connection is gone, and with it its client's membership."""
        for name in list(self._producer_groups_of.get(connection, ())):
            self._leave_producers(connection, name)
        for name in list(self._consumer_groups_of.get(connection, ())):
            group = self._consumers[name]
            self._leave_consumers(connection, group)
            if not group.is_broadcasting:
                self._tell(name)

    def _leave_producers(self, connection: Connection, name: str) -> None:
        group = self._producers.get(name)
        member = None if group is None else group.members.pop(connection, None)
        if group is None or member is None:
            return
        _discard(self._producer_groups_of, connection, name)
        if connection not in self._producer_groups_of:
            self._forget_producer_id(member.client_id, connection)
        if not group.members:
            del self._producers[name]

    def _forget_producer_id(self, client_id: str, connection: Connection) -> None:
        # The client may have come back on another connection before this one was closed.
        if self._producer_ids.get(client_id) is connection:
            del self._producer_ids[client_id]

    def _leave_consumers(self, connection: Connection, group: ConsumerGroup) -> None:
        group.leave(connection)
        _discard(self._consumer_groups_of, connection, group.name)
        if not group.members:
            del self._consumers[group.name]
            self._broker.filters.unregister_group(group.name)

    def expire(self) -> None:
        """Close the connections of clients that have not been heard of for too long."""
        clock, settings = self._broker.clock, self._broker.settings
        limit_ms = clock.monotonic_ms() - settings.channel_expired_timeout
        silent: dict[Connection, str] = {}
        for group in list(self._consumers.values()):
            for connection in [each for each, member in group.members.items() if member.last_ms < limit_ms]:
                self._leave_consumers(connection, group)
                silent[connection] = group.name
        for name, producers in list(self._producers.items()):
            for connection in [each for each, member in producers.members.items() if member.last_ms < limit_ms]:
                self._leave_producers(connection, name)
                silent[connection] = name
        for connection, name in silent.items():
            log.warning("closing %s: a client of group %s that sends no heartbeats", connection.peer, name)
            connection.close()
        self._notices.forget_old()
        inferred_ms = clock.monotonic_ms() - settings.subscription_expired_timeout
        for key in [key for key, (_, _, last_ms) in self._inferred.items() if last_ms < inferred_ms]:
            del self._inferred[key]

    # Who is there

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """A group that has members now."""
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        """All groups that have members now."""
        return list(self._consumers.values())

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """The groups whose members subscribe to a topic now."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def producer_group(self, name: str) -> dict[Connection, Member]:
        """The clients that produce for a group."""
        group = self._producers.get(name)
        return {} if group is None else group.members

    def producer_groups(self) -> dict[str, dict[Connection, Member]]:
        """All clients that produce, by group."""
        return {name: group.members for name, group in self._producers.items()}

    def pick_producer(self, name: str) -> Connection | None:
        """A connection to ask about a transaction of a group: each time the next one."""
        group = self._producers.get(name)
        return None if group is None else group.pick()

    def producer_by_client_id(self, client_id: str) -> Connection | None:
        """The connection of a client that produces."""
        return self._producer_ids.get(client_id)

    # Subscriptions

    def infer_subscription(self, group: str, topic: str, expression: str | None, kind: str | None) -> None:
        """Remember a subscription that a pull brought with it: such a consumer may send no heartbeats."""
        self._inferred[group, topic] = (expression, kind, self._broker.clock.monotonic_ms())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What a group wants of a topic: by its heartbeats, else by its pulls of late."""
        found = self._consumers.get(group)
        data = None if found is None else found.subscriptions.get(topic)
        if data is None and (inferred := self._inferred.get((group, topic))) is not None:
            expression, kind, last_ms = inferred
            version = int(self._broker.now_ms() - (self._broker.clock.monotonic_ms() - last_ms))
            return subscription_data(topic, expression, kind, version)
        return data


def subscription_data(topic: str, expression: str | None, kind: str | None, version: int) -> SubscriptionData:
    """A subscription as clients describe it. Raises RemoteProtocolError where the expression names no tag."""
    if not is_tag_type(kind):
        return SubscriptionData(
            topic, expression, sub_version=version, expression_type=kind, class_filter_mode=False
        )
    parsed = parse_tags(expression)
    tags, codes = tuple(sorted(parsed.tags)), tuple(sorted(parsed.codes))
    return SubscriptionData(topic, parsed.text, tags, codes, version, "TAG", class_filter_mode=False)


def _discard(index: dict[Connection, set[str]], connection: Connection, name: str) -> None:
    names = index.get(connection)
    if names is not None:
        names.discard(name)
        if not names:
            del index[connection]
