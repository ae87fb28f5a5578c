"""Topics and consumer groups, blocking: see admin_topics and admin_groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rmq_core.client.admin import Admin
from rmq_core.client.admin_results import (
    READ_WRITE,
    GroupSettings,
    Subscription,
    TopicSettings,
    TopicStatus,
)
from rmq_core.client.blocking.base import BlockingClient
from rmq_core.client.routes import TopicRoute
from rmq_core.protocol.bodies import GroupRetryPolicy
from rmq_core.protocol.codes import Permission


class BlockingTopics(BlockingClient[Admin]):
    """Topics and consumer groups."""

    def create_topic(
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
        self._call(
            lambda admin: admin.create_topic(
                name,
                queues,
                read_queues=read_queues,
                write_queues=write_queues,
                permission=permission,
                ordered=ordered,
                multi_tag=multi_tag,
                unit=unit,
                attributes=attributes,
                broker=broker,
                cluster=cluster,
            )
        )

    def create_topics(
        self, topics: Sequence[TopicSettings], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Create or change many topics by one request to each broker, 5.3. All are checked before one is made."""
        self._call(lambda admin: admin.create_topics(topics, broker=broker, cluster=cluster))

    def set_topic_permission(
        self, name: str, permission: Permission, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Allow reading, writing, both or nothing. Everything else of the topic stays."""
        self._call(lambda admin: admin.set_topic_permission(name, permission, broker=broker, cluster=cluster))

    def delete_topic(self, name: str, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete a topic with its messages and offsets, and its route where no single broker is named.

        Without broker and cluster it goes from every broker that has it. Raises NoRouteError where none has.
        """
        self._call(lambda admin: admin.delete_topic(name, broker=broker, cluster=cluster))

    def delete_topic_route(self, name: str, *, cluster: str | None = None) -> None:
        """Have every name server forget a topic's route; a broker that still has the topic registers it again."""
        self._call(lambda admin: admin.delete_topic_route(name, cluster=cluster))

    def topics(self, *, cluster: str | None = None, internal: bool = False) -> tuple[str, ...]:
        """The names of all topics. internal: with those for retries, dead letters and RocketMQ itself."""
        return self._call(lambda admin: admin.topics(cluster=cluster, internal=internal))

    def system_topics(self, *, broker: str | None = None) -> tuple[str, ...]:
        """The topics that the cluster keeps for itself: as name servers know them, or as a broker does."""
        return self._call(lambda admin: admin.system_topics(broker=broker))

    def unit_topics(self, kind: Literal["unit", "subscribed", "subscribed_from_other"] = "unit") -> tuple[str, ...]:
        """Topics of the unit kind; those that unit consumers read; those of them that are no unit topics."""
        return self._call(lambda admin: admin.unit_topics(kind))

    def topic_route(self, name: str) -> TopicRoute:
        """Its brokers and queues. Raises NoRouteError where no name server knows any."""
        return self._call(lambda admin: admin.topic_route(name))

    def topic_clusters(self, name: str) -> tuple[str, ...]:
        """The clusters that have the topic."""
        return self._call(lambda admin: admin.topic_clusters(name))

    def topic_settings(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, TopicSettings]:
        """The topic as each of its brokers keeps it. Raises BrokerError (17) where a named broker has it not."""
        return self._call(lambda admin: admin.topic_settings(name, broker=broker, cluster=cluster))

    def all_topic_settings(self, broker: str) -> dict[str, TopicSettings]:
        """Every topic of a broker, by name; those of other namespaces left out where we have one."""
        return self._call(lambda admin: admin.all_topic_settings(broker))

    def topic_status(self, name: str, *, broker: str | None = None) -> TopicStatus:
        """What each queue of the topic holds."""
        return self._call(lambda admin: admin.topic_status(name, broker=broker))

    def clean_unused_topics(self, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Remove queues of topics that are not in the tables any more."""
        self._call(lambda admin: admin.clean_unused_topics(broker=broker, cluster=cluster))

    def ordered_queues(self, name: str) -> dict[str, int]:
        """How many queues of an ordered topic each broker has for good; empty where nothing is fixed."""
        return self._call(lambda admin: admin.ordered_queues(name))

    def set_ordered_queues(self, name: str, queues: Mapping[str, int]) -> None:
        """Fix the queues of a topic: broker name → number. With none, nothing is fixed any more."""
        self._call(lambda admin: admin.set_ordered_queues(name, queues))

    def create_group(
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
        self._call(
            lambda admin: admin.create_group(
                name,
                consume_enabled=consume_enabled,
                broadcast_enabled=broadcast_enabled,
                starts_from_earliest=starts_from_earliest,
                ordered=ordered,
                retry_queues=retry_queues,
                retries_max=retries_max,
                broker_id=broker_id,
                slow_broker_id=slow_broker_id,
                notifies_members=notifies_members,
                consume_timeout_minutes=consume_timeout_minutes,
                retry_policy=retry_policy,
                attributes=attributes,
                broker=broker,
                cluster=cluster,
            )
        )

    def create_groups(
        self, groups: Sequence[GroupSettings], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Create or change many groups by one request to each broker, 5.3. All are checked before one is made."""
        self._call(lambda admin: admin.create_groups(groups, broker=broker, cluster=cluster))

    def delete_group(
        self,
        name: str,
        *,
        with_offsets: bool = False,
        keep_topics: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Delete a group, and its retry and dead-letter topics unless one broker is named or they are kept."""
        self._call(
            lambda admin: admin.delete_group(
                name, with_offsets=with_offsets, keep_topics=keep_topics, broker=broker, cluster=cluster
            )
        )

    def groups(
        self, *, broker: str | None = None, cluster: str | None = None, internal: bool = False
    ) -> tuple[str, ...]:
        """The names of all groups. internal: with those that RocketMQ needs itself."""
        return self._call(lambda admin: admin.groups(broker=broker, cluster=cluster, internal=internal))

    def group_settings(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, GroupSettings]:
        """The group as each broker keeps it; brokers that do not know it are left out.

        Raises BrokerError (26) where none knows it.
        """
        return self._call(lambda admin: admin.group_settings(name, broker=broker, cluster=cluster))

    def all_group_settings(self, broker: str) -> dict[str, GroupSettings]:
        """Every group of a broker, by name; those of other namespaces left out where we have one."""
        return self._call(lambda admin: admin.all_group_settings(broker))

    def consumers_of(self, topic: str) -> tuple[str, ...]:
        """The groups that consume a topic, or have consumed it."""
        return self._call(lambda admin: admin.consumers_of(topic))

    def topics_of(self, group: str) -> tuple[str, ...]:
        """The topics that a group has offsets of."""
        return self._call(lambda admin: admin.topics_of(group))

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What a group wants of a topic; None where none of its members is connected, or it wants nothing."""
        return self._call(lambda admin: admin.subscription(group, topic))

    def may_read(self, group: str, topic: str) -> dict[str, bool]:
        """Whether each broker of a topic lets a group read it."""
        return self._call(lambda admin: admin.may_read(group, topic))

    def set_may_read(self, group: str, topic: str, allowed: bool) -> dict[str, bool]:
        """Let a group read a topic, or forbid it; what holds on each broker now."""
        return self._call(lambda admin: admin.set_may_read(group, topic, allowed))
