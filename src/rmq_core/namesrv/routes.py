"""The tables of a name server: brokers, clusters, topics, and who is alive. Pure: no sockets, no clock.

Nothing here is stored: after a restart the brokers register again. Times are handed in, in monotonic ms.
Encoded routes are cached per topic and form; whatever changes a table drops the entries it touches.
Queue data that are equal are one object: brokers of a cluster mostly have equal topics.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace

from rmq_core.protocol.bodies import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from rmq_core.protocol.codes import Permission

LIVENESS_MS = 120_000
MASTER_ID = 0
MEMBER_SYNC_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"

Address = tuple[str, str]
"""(cluster, ip:port) of one broker process."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What one broker process says of itself."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    topics: TopicConfigSerializeWrapper
    filter_servers: tuple[str, ...] | None = None
    enable_acting_master: bool | None = None
    """None where the broker is older than the field."""
    timeout_ms: int = LIVENESS_MS
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """For a replica: where its master is."""

    master_address: str = ""
    master_ha_address: str = ""


@dataclass(slots=True)
class Live:
    """A broker process that was heard of."""

    last_heard_ms: float
    timeout_ms: int
    data_version: DataVersion
    ha_address: str
    broker_name: str
    owner: Hashable
    """Who carried its latest registration; when that goes, the broker goes."""
    digest: bytes = b""
    """Of the latest registration; empty where something else has changed this broker's data since."""
    former: set[Hashable] = field(default_factory=set)
    """Who carried earlier ones and may still say goodbye: that comes too late to count."""

    def change_owner(self, owner: Hashable) -> None:
        if owner is not self.owner:
            self.former.add(self.owner)
            self.former.discard(owner)
            self.owner = owner


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None
    zone: str | None = None


class Routes:
    """Who serves which topic."""

    def __init__(
        self,
        *,
        support_acting_master: Callable[[], bool] = lambda: False,
        delete_unlisted_topics: Callable[[], bool] = lambda: False,
        on_min_id_changed: Callable[[str, dict[int, str], str | None], None] | None = None,
    ) -> None:
        """on_min_id_changed(broker_name, addresses, gone_address) hears when the smallest living id changes."""
        self._support_acting_master = support_acting_master
        self._delete_unlisted_topics = delete_unlisted_topics
        self._on_min_id_changed = on_min_id_changed
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[Address, Live] = {}
        self._filter_servers: dict[Address, tuple[str, ...]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self._encoded: dict[tuple[str, bool], bytes] = {}
        self._shared: dict[QueueData, QueueData] = {}

    # Brokers come and go

    def live(self, cluster: str, address: str) -> Live | None:
        return self._live.get((cluster, address))

    def refresh(self, cluster: str, address: str, now_ms: float, owner: Hashable = None) -> bool:
        """A sign of life; False where the broker is not known."""
        live = self._live.get((cluster, address))
        if live is None:
            return False
        live.last_heard_ms = now_ms
        if owner is not None:
            live.change_owner(owner)
        return True

    def register(
        self, broker: Registration, now_ms: float, *, owner: Hashable = None, digest: bytes = b""
    ) -> Registered | None:
        """Enter what a broker says. None where it is refused: a broker not known yet must bring all its topics."""
        entry = self._brokers.get(broker.broker_name) or _Broker(broker.cluster)
        holder = entry.addresses.get(broker.broker_id)
        if holder is not None and holder != broker.address and self._is_older(broker, holder):
            self._live.pop((broker.cluster, broker.address), None)
            return Registered()
        if holder is None and len(broker.topics.topic_config_table) == 1:
            return None
        min_id_before = min(entry.addresses, default=None)
        self._enter(broker, entry)
        known = self._live.get((broker.cluster, broker.address))
        version = broker.topics.data_version or DataVersion()
        is_news = holder is None or known is None or known.data_version != version
        self._enter_topics(broker, entry, is_news=is_news)
        key = (broker.cluster, broker.address)
        live = Live(now_ms, broker.timeout_ms, version, broker.ha_address, broker.broker_name, owner, digest)
        if known is not None:
            known.change_owner(owner)
            live.former = known.former
        self._live[key] = live
        if broker.filter_servers is not None:
            self._filter_servers.pop(key, None)
            if broker.filter_servers:
                self._filter_servers[key] = broker.filter_servers
        if min_id_before is not None and min(entry.addresses) != min_id_before:
            self._announce_min_id(broker.broker_name, None)
        return self._master_of(broker, entry)

    def _is_older(self, broker: Registration, holder: str) -> bool:
        live = self._live.get((broker.cluster, holder))
        version = broker.topics.data_version or DataVersion()
        return live is not None and (live.data_version.state_version or 0) > (version.state_version or 0)

    def _enter(self, broker: Registration, entry: _Broker) -> None:
        self._clusters.setdefault(broker.cluster, set()).add(broker.broker_name)
        self._brokers[broker.broker_name] = entry
        # One process has one id: under its old one it is gone.
        addresses = {id_: each for id_, each in entry.addresses.items() if each != broker.address}
        addresses[broker.broker_id] = broker.address
        acting = bool(broker.enable_acting_master)
        if (addresses, acting, broker.zone) != (entry.addresses, entry.enable_acting_master, entry.zone):
            entry.addresses, entry.enable_acting_master, entry.zone = addresses, acting, broker.zone
            self._encoded.clear()

    def _enter_topics(self, broker: Registration, entry: _Broker, *, is_news: bool) -> None:
        is_prime_slave = (
            broker.enable_acting_master is not None
            and broker.broker_id != MASTER_ID
            and broker.broker_id == min(entry.addresses)
        )
        if broker.broker_id != MASTER_ID and not is_prime_slave:
            return
        table = broker.topics.topic_config_table
        if self._delete_unlisted_topics() and len(table) > 1:
            self._drop_unlisted(broker.broker_name, table)
        mask = ~0
        if is_prime_slave and broker.enable_acting_master:
            mask = ~Permission.WRITE
        for topic, config in table.items():
            if is_news or broker.broker_name not in self._topics.get(topic, ()):
                self._enter_queues(topic, _queue_data(broker.broker_name, config, mask))
        if is_news:
            for topic, mapping in (broker.topics.topic_queue_mapping_info_map or {}).items():
                self._mappings.setdefault(topic, {})[broker.broker_name] = mapping
                self._forget_encoded(topic)

    def _drop_unlisted(self, broker_name: str, table: dict[str, TopicConfig]) -> None:
        for topic, queues in list(self._topics.items()):
            if broker_name in queues and topic not in table:
                self._drop_queues(topic, broker_name)

    def _enter_queues(self, topic: str, queues: QueueData) -> None:
        queues = self._shared.setdefault(queues, queues)
        of_topic = self._topics.setdefault(topic, {})
        if of_topic.get(queues.broker_name) != queues:
            of_topic[queues.broker_name] = queues
            self._forget_encoded(topic)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic, {})
        if queues.pop(broker_name, None) is not None:
            self._forget_encoded(topic)
            if not queues:
                del self._topics[topic]
                self._mappings.pop(topic, None)

    def _forget_encoded(self, topic: str) -> None:
        self._encoded.pop((topic, True), None)
        self._encoded.pop((topic, False), None)

    def _master_of(self, broker: Registration, entry: _Broker) -> Registered:
        master = entry.addresses.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master is None:
            return Registered()
        live = self._live.get((broker.cluster, master))
        return Registered(master, live.ha_address) if live is not None else Registered()

    def goodbye(self, cluster: str, address: str, owner: Hashable) -> bool:
        """A broker process says that it goes; False where it has come back meanwhile, over another connection."""
        live = self._live.get((cluster, address))
        if live is not None and owner in live.former:
            return False
        self.unregister(cluster, address)
        return True

    def unregister(self, cluster: str, address: str) -> None:
        """Forget a broker process, and its broker name, topics and cluster where it was the last of them."""
        live = self._live.pop((cluster, address), None)
        self._filter_servers.pop((cluster, address), None)
        for name, entry in list(self._brokers.items()):
            if entry.cluster == cluster and address in entry.addresses.values():
                self._drop_address(name, entry, address)
        if live is not None:
            self._encoded.clear()

    def _drop_address(self, name: str, entry: _Broker, address: str) -> None:
        min_id_before = min(entry.addresses)
        entry.addresses = {id_: each for id_, each in entry.addresses.items() if each != address}
        self._encoded.clear()
        if not entry.addresses:
            del self._brokers[name]
            members = self._clusters.get(entry.cluster, set())
            members.discard(name)
            if not members:
                self._clusters.pop(entry.cluster, None)
            for topic in list(self._topics):
                self._drop_queues(topic, name)
            return
        if entry.enable_acting_master and MASTER_ID not in entry.addresses:
            self._change_permission(name, lambda perm: perm & ~Permission.WRITE)
        if min(entry.addresses) != min_id_before:
            self._announce_min_id(name, address)

    def _announce_min_id(self, broker_name: str, gone_address: str | None) -> None:
        if self._on_min_id_changed is not None:
            self._on_min_id_changed(broker_name, dict(self._brokers[broker_name].addresses), gone_address)

    def owner_gone(self, owner: Hashable) -> list[Address]:
        """The brokers whose latest registration this owner carried, which is forgotten."""
        for live in self._live.values():
            live.former.discard(owner)
        return [key for key, live in self._live.items() if live.owner is owner]

    def expired(self, now_ms: float) -> list[tuple[Address, Live]]:
        """The brokers that have not been heard of for longer than they said."""
        return [(key, live) for key, live in self._live.items() if live.last_heard_ms + live.timeout_ms < now_ms]

    # Topics change otherwise

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Enter the queues of one topic on brokers that are known."""
        for each in queues:
            if each.broker_name in self._brokers:
                self._enter_queues(topic, each)
                self._touch(each.broker_name)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, on the brokers of one cluster where it is named."""
        members = self._clusters.get(cluster, set()) if cluster else None
        for name in list(self._topics.get(topic, ())):
            if members is None or name in members:
                self._drop_queues(topic, name)
                self._touch(name)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take write permission from all topics of a broker; how many they are."""
        self._touch(broker_name)
        return self._change_permission(broker_name, lambda perm: perm & ~Permission.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Make all topics of a broker readable and writable; how many they are."""
        self._touch(broker_name)
        return self._change_permission(broker_name, lambda perm: Permission.READ | Permission.WRITE)

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for topic, queues in self._topics.items():
            if broker_name in queues:
                old = queues[broker_name]
                self._enter_queues(topic, replace(old, perm=int(change(old.perm))))
                count += 1
        return count

    def _touch(self, broker_name: str) -> None:
        """The next registration of this broker counts even if it is equal to the last."""
        for live in self._live.values():
            if live.broker_name == broker_name:
                live.digest = b""

    # Questions

    def encoded_route(self, topic: str, *, standard: bool) -> bytes | None:
        """The route of a topic as JSON, or None where there is none."""
        encoded = self._encoded.get((topic, standard))
        if encoded is None:
            route = self.route(topic)
            if route is None:
                return None
            encoded = self._encoded[topic, standard] = route.encode(standard=standard)
        return encoded

    def route(self, topic: str) -> TopicRouteData | None:
        """The brokers and queues of a topic, or None where there are none."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = [name for name in queues if name in self._brokers]
        if not names:
            return None
        filters = {
            address: servers
            for name in names
            for address in self._brokers[name].addresses.values()
            if (servers := self._filter_servers.get((self._brokers[name].cluster, address)))
        }
        return TopicRouteData(
            queue_datas=tuple(queues.values()),
            broker_datas=tuple(self._broker_data(name, topic, queues[name]) for name in names),
            filter_server_table=filters,
            topic_queue_mapping_by_broker=self._mappings.get(topic) or None,
        )

    def _broker_data(self, name: str, topic: str, queues: QueueData) -> BrokerData:
        entry = self._brokers[name]
        addresses = dict(sorted(entry.addresses.items()))
        if (
            self._support_acting_master()
            and entry.enable_acting_master
            and MASTER_ID not in addresses
            and not topic.startswith(MEMBER_SYNC_TOPIC_PREFIX)
            and not queues.perm & Permission.WRITE
        ):
            addresses = {MASTER_ID: addresses.pop(min(addresses)), **addresses}
        return BrokerData(entry.cluster, name, addresses, entry.enable_acting_master, entry.zone)

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        brokers = {
            name: BrokerData(
                entry.cluster, name, dict(sorted(entry.addresses.items())), entry.enable_acting_master, entry.zone
            )
            for name, entry in self._brokers.items()
        }
        return ClusterInfo(brokers, {name: tuple(sorted(members)) for name, members in self._clusters.items()})

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """The living addresses of a broker name; none where it is not known."""
        entry = self._brokers.get(broker_name)
        addresses = {} if entry is None or entry.cluster != cluster else dict(sorted(entry.addresses.items()))
        return BrokerMemberGroup(cluster, broker_name, addresses)

    def owners_of(self, broker_name: str) -> list[Hashable]:
        """Who carried the registrations of a broker name."""
        return [live.owner for live in self._live.values() if live.broker_name == broker_name]

    def ha_address(self, broker_name: str, broker_id: int) -> str | None:
        entry = self._brokers.get(broker_name)
        address = None if entry is None else entry.addresses.get(broker_id)
        live = None if entry is None or address is None else self._live.get((entry.cluster, address))
        return None if live is None else live.ha_address

    def topics(self) -> tuple[str, ...]:
        """All topic names."""
        return tuple(self._topics)

    def topics_of_cluster(self, cluster: str) -> tuple[str, ...]:
        members = self._clusters.get(cluster, set())
        return tuple(topic for topic, queues in self._topics.items() if not members.isdisjoint(queues))

    def topics_by_flag(self, accept: Callable[[int], bool]) -> tuple[str, ...]:
        """Topics by their system flag, as the first broker that has them says it."""
        return tuple(
            topic for topic, queues in self._topics.items() if accept(next(iter(queues.values())).topic_sys_flag)
        )

    def names(self) -> tuple[tuple[str, ...], str | None]:
        """Cluster and broker names, which are topics too, and the address of some broker."""
        names = tuple(self._clusters) + tuple(self._brokers)
        addresses = (address for entry in self._brokers.values() for address in entry.addresses.values())
        return names, next(addresses, None)


def _queue_data(broker_name: str, config: TopicConfig, mask: int) -> QueueData:
    return QueueData(
        broker_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm & mask,
        config.topic_sys_flag,
    )
