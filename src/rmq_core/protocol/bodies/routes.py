"""Where topics live: routes, clusters, and the lists and tables a name server keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_core.protocol.bodies.topics import TopicQueueMappingInfo
from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """The queues that one broker has of a topic."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


@dataclass(frozen=True, slots=True)
class BrokerData(Body):
    """The addresses of one broker name by broker id; 0 is the master."""

    cluster: str | None = None
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None
    zone_name: str | None = None


@dataclass(frozen=True, slots=True)
class TopicRouteData(Body):
    """Which brokers hold which queues of a topic."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] | None = ()
    filter_server_table: dict[str, tuple[str, ...]] | None = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body):
    """All brokers, and which cluster each belongs to."""

    broker_addr_table: dict[str, BrokerData] | None = field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup(Body):
    """The living addresses of one broker name."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetBrokerMemberGroupResponseBody(Body):
    """Answer to GetBrokerMemberGroup."""

    broker_member_group: BrokerMemberGroup | None = None


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Names of topics."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """Text by text."""

    table: dict[str, str] = field(default_factory=dict)
