"""Between brokers, clients and name servers: registration, routes, key-value settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class PutKvConfig(Request[NoFields]):
    """Store a value."""

    code: ClassVar = 100
    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class KvValue(Header):
    """A stored value."""

    value: str | None = None


@dataclass(frozen=True, slots=True)
class GetKvConfig(Request[KvValue]):
    """A stored value; 22 where there is none."""

    code: ClassVar = 101
    reply: ClassVar = KvValue
    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class DeleteKvConfig(Request[NoFields]):
    """Forget a value."""

    code: ClassVar = 102
    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class Registered(Header):
    """For a replica: where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True)
class RegisterBroker(Request[Registered]):
    """A broker and its topics; the answer holds the configuration of order topics."""

    code: ClassVar = 103
    reply: ClassVar = Registered
    body: ClassVar = bodies.RegisterBrokerBody
    reply_body: ClassVar = bodies.KVTable
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int
    ha_server_addr: str
    compressed: bool | None = None
    body_crc32: Int32 | None = None
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Request[NoFields]):
    """A broker is going."""

    code: ClassVar = 104
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class GetRouteinfoByTopic(Request[NoFields]):
    """The brokers and queues of a topic; 17 where there are none."""

    code: ClassVar = 105
    reply_body: ClassVar = bodies.TopicRouteData
    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True)
class GetBrokerClusterInfo(Request[NoFields]):
    """All brokers by cluster."""

    code: ClassVar = 106
    reply_body: ClassVar = bodies.ClusterInfo


@dataclass(frozen=True, slots=True)
class Wiped(Header):
    """How many topics lost their write permission."""

    wipe_topic_count: Int32


@dataclass(frozen=True, slots=True)
class WipeWritePermOfBroker(Request[Wiped]):
    """Take write permission from all topics of a broker."""

    code: ClassVar = 205
    reply: ClassVar = Wiped
    broker_name: str


@dataclass(frozen=True, slots=True)
class Added(Header):
    """How many topics got write permission."""

    add_topic_count: Int32


@dataclass(frozen=True, slots=True)
class AddWritePermOfBroker(Request[Added]):
    """Give write permission back to all topics of a broker."""

    code: ClassVar = 327
    reply: ClassVar = Added
    broker_name: str


@dataclass(frozen=True, slots=True)
class GetAllTopicListFromNameserver(Request[NoFields]):
    """All topic names."""

    code: ClassVar = 206
    reply_body: ClassVar = bodies.TopicList


@dataclass(frozen=True, slots=True)
class DeleteTopicInNamesrv(Request[NoFields]):
    """Forget the routes of a topic, of one cluster where it is named."""

    code: ClassVar = 216
    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True)
class RegisterTopicInNamesrv(Request[NoFields]):
    """The queues of one topic, 5.x."""

    code: ClassVar = 217
    body: ClassVar = bodies.TopicRouteData
    topic: str


@dataclass(frozen=True, slots=True)
class GetKvlistByNamespace(Request[NoFields]):
    """All values of a namespace; 22 where there are none."""

    code: ClassVar = 219
    reply_body: ClassVar = bodies.KVTable
    namespace: str


@dataclass(frozen=True, slots=True)
class GetTopicsByCluster(Request[NoFields]):
    """The topic names of a cluster."""

    code: ClassVar = 224
    reply_body: ClassVar = bodies.TopicList
    cluster: str


@dataclass(frozen=True, slots=True)
class GetSystemTopicListFromNs(Request[NoFields]):
    """Cluster and broker names, which are topics too."""

    code: ClassVar = 304
    reply_body: ClassVar = bodies.TopicList


@dataclass(frozen=True, slots=True)
class GetUnitTopicList(Request[NoFields]):
    """Topics of the unit kind."""

    code: ClassVar = 311
    reply_body: ClassVar = bodies.TopicList


@dataclass(frozen=True, slots=True)
class GetHasUnitSubTopicList(Request[NoFields]):
    """Topics that unit consumers subscribe to."""

    code: ClassVar = 312
    reply_body: ClassVar = bodies.TopicList


@dataclass(frozen=True, slots=True)
class GetHasUnitSubUnunitTopicList(Request[NoFields]):
    """Topics that unit consumers subscribe to and that are no unit topics."""

    code: ClassVar = 313
    reply_body: ClassVar = bodies.TopicList


@dataclass(frozen=True, slots=True)
class UpdateNamesrvConfig(Request[NoFields]):
    """Change settings; the body is `key=value` lines."""

    code: ClassVar = 318


@dataclass(frozen=True, slots=True)
class GetNamesrvConfig(Request[NoFields]):
    """All settings as `key=value` lines."""

    code: ClassVar = 319


@dataclass(frozen=True, slots=True)
class VersionChanged(Header):
    """Whether the name server knows another version."""

    changed: bool


@dataclass(frozen=True, slots=True)
class QueryDataVersion(Request[VersionChanged]):
    """Compare the version of a broker's topics; also a sign of life."""

    code: ClassVar = 322
    reply: ClassVar = VersionChanged
    body: ClassVar = bodies.DataVersion
    reply_body: ClassVar = bodies.DataVersion
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class GetBrokerMemberGroup(Request[NoFields]):
    """The living addresses of a broker name."""

    code: ClassVar = 901
    reply_body: ClassVar = bodies.GetBrokerMemberGroupResponseBody
    cluster_name: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat(Request[NoFields]):
    """A sign of life."""

    code: ClassVar = 904
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    epoch: Int32 | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    heartbeat_timeout_mills: int | None = None
    election_priority: Int32 | None = None


@dataclass(frozen=True, slots=True)
class NotifyMinBrokerIdChange(Request[NoFields]):
    """Told to brokers of one name: the smallest living id is another."""

    code: ClassVar = 905
    min_broker_id: int | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
