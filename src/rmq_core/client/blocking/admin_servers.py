"""Clients, brokers and name servers, blocking: see admin_clients, admin_brokers and admin_name_servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmq_core.client.admin_results import (
    BrokerInfo,
    ClusterMap,
    ConnectedClient,
    ConsumerGroup,
    Counter,
    DirectResult,
    ReplicationStatus,
    RunningInfo,
    RuntimeInfo,
)
from rmq_core.client.blocking.admin_progress import BlockingProgress
from rmq_core.protocol import bodies as b
from rmq_core.protocol.message import MessageQueue


class BlockingServers(BlockingProgress):
    """Connected clients, brokers and name servers."""

    def consumer_connections(self, group: str, *, broker: str | None = None) -> ConsumerGroup:
        """Who consumes for a group, and what. Raises BrokerError (206) where no member is connected."""
        return self._call(lambda admin: admin.consumer_connections(group, broker=broker))

    def producer_connections(self, group: str, topic: str) -> tuple[ConnectedClient, ...]:
        """Who produces for a group on a topic's brokers; nobody is an empty answer."""
        return self._call(lambda admin: admin.producer_connections(group, topic))

    def producers(self, broker: str) -> dict[str, tuple[ConnectedClient, ...]]:
        """Every client that produces, by group."""
        return self._call(lambda admin: admin.producers(broker))

    def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """A member of a group from inside. Raises BrokerError where no broker has it connected."""
        return self._call(lambda admin: admin.running_info(group, client_id, stacks=stacks))

    def member_positions(
        self, group: str, topic: str, *, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """How far the members of a group, or one of them, have consumed a topic, by client id.

        Members that do not tell are left out; nobody is an empty answer.
        """
        return self._call(lambda admin: admin.member_positions(group, topic, client_id=client_id))

    def consume_directly(
        self, group: str, client_id: str, msg_id: str, *, topic: str | None = None
    ) -> DirectResult:
        """Have a member consume one message now, and tell what came of it; its progress stays as it is.

        msg_id is the sender's, with the topic, or an offset message id.
        """
        return self._call(lambda admin: admin.consume_directly(group, client_id, msg_id, topic=topic))

    def cluster_info(self) -> ClusterMap:
        """All brokers, and the clusters that they are in."""
        return self._call(lambda admin: admin.cluster_info())

    def broker_members(self, broker: str, *, cluster: str) -> BrokerInfo:
        """The processes of a broker that are alive, as the name server tells its members, 5.x."""
        return self._call(lambda admin: admin.broker_members(broker, cluster=cluster))

    def runtime_info(self, broker: str) -> RuntimeInfo:
        """What a broker is doing."""
        return self._call(lambda admin: admin.runtime_info(broker))

    def stats(
        self, name: str, key: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, Counter]:
        """A counter such as TOPIC_PUT_NUMS of a topic, or GROUP_GET_NUMS of topic@group.

        Brokers that have not counted it are left out.
        """
        return self._call(lambda admin: admin.stats(name, key, broker=broker, cluster=cluster))

    def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a broker, by Java's names."""
        return self._call(lambda admin: admin.broker_config(broker))

    def update_broker_config(
        self, settings: Mapping[str, str | int | bool], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Change settings while brokers run; they write them into their files too."""
        self._call(lambda admin: admin.update_broker_config(settings, broker=broker, cluster=cluster))

    def clean_expired_queues(self, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Remove queue files that lie before the oldest message."""
        self._call(lambda admin: admin.clean_expired_queues(broker=broker, cluster=cluster))

    def delete_expired_log(self, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete segments that are old enough now, and not only at the hour that is set."""
        self._call(lambda admin: admin.delete_expired_log(broker=broker, cluster=cluster))

    def replication_status(self, broker: str) -> ReplicationStatus:
        """How a broker and its replicas stand."""
        return self._call(lambda admin: admin.replication_status(broker))

    def reset_master_flush_offset(self, broker: str, offset: int) -> None:
        """Tell a replica how far its master has flushed."""
        self._call(lambda admin: admin.reset_master_flush_offset(broker, offset))

    def epochs(self, broker: str) -> tuple[b.EpochEntry, ...]:
        """The stretches of a broker's log by master, where a controller elects them."""
        return self._call(lambda admin: admin.epochs(broker))

    def timer_checkpoint(self, broker: str) -> tuple[int, ...]:
        """The seven numbers of a broker's timer. Raises BrokerError where it has none."""
        return self._call(lambda admin: admin.timer_checkpoint(broker))

    def timer_counts(self, broker: str) -> dict[str, int]:
        """How many timed messages wait, by topic. Raises BrokerError where the broker has no timer."""
        return self._call(lambda admin: admin.timer_counts(broker))

    def cold_read_limits(self, broker: str) -> dict[str, Any]:
        """The limits of groups that read what has left the memory, as the broker shows them."""
        return self._call(lambda admin: admin.cold_read_limits(broker))

    def set_cold_read_limits(
        self, limits: Mapping[str, int], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Limit groups to so many bytes a second of old messages."""
        self._call(lambda admin: admin.set_cold_read_limits(limits, broker=broker, cluster=cluster))

    def remove_cold_read_limit(self, group: str, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Lift the limit of a group."""
        self._call(lambda admin: admin.remove_cold_read_limit(group, broker=broker, cluster=cluster))

    def set_read_ahead(self, enabled: bool, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Whether the system reads the log ahead."""
        self._call(lambda admin: admin.set_read_ahead(enabled, broker=broker, cluster=cluster))

    def export_rocksdb_config(self, *kinds: str, broker: str) -> None:
        """Have a broker write what it keeps in RocksDB as JSON: topics, subscriptionGroups, consumerOffsets."""
        self._call(lambda admin: admin.export_rocksdb_config(*kinds, broker=broker))

    def check_rocksdb_queues(
        self, broker: str, *, topic: str | None = None, since_ms: int = 0
    ) -> b.CheckRocksdbCqWriteResult:
        """Whether the copy of the consume queues in RocksDB agrees with the files."""
        return self._call(lambda admin: admin.check_rocksdb_queues(broker, topic=topic, since_ms=since_ms))

    def name_servers(self) -> tuple[str, ...]:
        """Their addresses."""
        return self._call(lambda admin: admin.name_servers())

    def name_server_config(self) -> dict[str, dict[str, str]]:
        """The settings of each name server, by Java's names."""
        return self._call(lambda admin: admin.name_server_config())

    def update_name_server_config(self, settings: Mapping[str, str | int | bool]) -> None:
        """Change settings of every name server while it runs; they write them into their files too."""
        self._call(lambda admin: admin.update_name_server_config(settings))

    def kv(self, namespace: str, key: str) -> str | None:
        """A value that name servers keep; None where there is none."""
        return self._call(lambda admin: admin.kv(namespace, key))

    def kv_namespace(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        return self._call(lambda admin: admin.kv_namespace(namespace))

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Keep a value on every name server."""
        self._call(lambda admin: admin.put_kv(namespace, key, value))

    def delete_kv(self, namespace: str, key: str) -> None:
        """Forget a value on every name server."""
        self._call(lambda admin: admin.delete_kv(namespace, key))

    def wipe_write_permission(self, broker: str) -> dict[str, int]:
        """Let nobody send to a broker any more; how many topics that concerns, by name server."""
        return self._call(lambda admin: admin.wipe_write_permission(broker))

    def add_write_permission(self, broker: str) -> dict[str, int]:
        """Let clients send to a broker again; how many topics that concerns, by name server."""
        return self._call(lambda admin: admin.add_write_permission(broker))
