"""A broker's own state: configuration, statistics, cleaning, cold data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32, Wire
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class UpdateBrokerConfig(Request[NoFields]):
    """Change settings; the body is `key=value` lines."""

    code: ClassVar = 25


@dataclass(frozen=True, slots=True)
class ConfigVersion(Header):
    """The version of the configuration, as JSON text of a DataVersion."""

    version: str


@dataclass(frozen=True, slots=True)
class GetBrokerConfig(Request[ConfigVersion]):
    """All settings as `key=value` lines."""

    code: ClassVar = 26
    reply: ClassVar = ConfigVersion


@dataclass(frozen=True, slots=True)
class TriggerDeleteFiles(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 27


@dataclass(frozen=True, slots=True)
class GetBrokerRuntimeInfo(Request[NoFields]):
    """What a broker is doing."""

    code: ClassVar = 28
    reply_body: ClassVar = bodies.KVTable


@dataclass(frozen=True, slots=True)
class GetTimerCheckPoint(Request[NoFields]):
    """Progress of the timer: seven 64-bit integers."""

    code: ClassVar = 60


@dataclass(frozen=True, slots=True)
class GetTimerMetrics(Request[NoFields]):
    """How many timed messages wait."""

    code: ClassVar = 61
    reply_body: ClassVar = bodies.TimerMetrics


@dataclass(frozen=True, slots=True)
class RegisterFilterServer(Request[NoFields]):
    """Belongs to the filter server of 4.x, served by nobody."""

    code: ClassVar = 301
    filter_server_addr: str


@dataclass(frozen=True, slots=True)
class RegisterMessageFilterClass(Request[NoFields]):
    """Belongs to the filter server of 4.x, served by nobody."""

    code: ClassVar = 302
    consumer_group: str
    topic: str
    class_name: str
    class_crc: Annotated[Int32, Wire("classCRC")]


@dataclass(frozen=True, slots=True)
class CleanExpiredConsumequeue(Request[NoFields]):
    """Delete consume queue files behind the log."""

    code: ClassVar = 306


@dataclass(frozen=True, slots=True)
class ViewBrokerStatsData(Request[NoFields]):
    """A counter over the last minute, hour and day."""

    code: ClassVar = 315
    reply_body: ClassVar = bodies.BrokerStatsData
    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True)
class GetBrokerConsumeStats(Request[NoFields]):
    """How far all groups are behind."""

    code: ClassVar = 317
    reply_body: ClassVar = bodies.ConsumeStatsList
    is_order: bool


@dataclass(frozen=True, slots=True)
class DeleteExpiredCommitlog(Request[NoFields]):
    """Delete segments that are old enough."""

    code: ClassVar = 329


@dataclass(frozen=True, slots=True)
class CheckRocksdbCqWriteProgress(Request[NoFields]):
    """Compare a RocksDB copy of the consume queues with the files."""

    code: ClassVar = 354
    reply_body: ClassVar = bodies.CheckRocksdbCqWriteResult
    topic: str | None = None
    check_store_time: int | None = None


@dataclass(frozen=True, slots=True)
class ExportRocksdbConfigToJson(Request[NoFields]):
    """Write configuration kept in RocksDB as JSON files."""

    code: ClassVar = 355
    config_type: str


@dataclass(frozen=True, slots=True)
class UpdateColdDataFlowCtrConfig(Request[NoFields]):
    """Limit groups that read cold data; the body is `group=bytes` lines."""

    code: ClassVar = 2001


@dataclass(frozen=True, slots=True)
class RemoveColdDataFlowCtrConfig(Request[NoFields]):
    """Lift the limit of the group in the body."""

    code: ClassVar = 2002


@dataclass(frozen=True, slots=True)
class GetColdDataFlowCtrInfo(Request[NoFields]):
    """The limits as JSON text."""

    code: ClassVar = 2003


@dataclass(frozen=True, slots=True)
class SetCommitlogReadMode(Request[NoFields]):
    """How the log is read ahead."""

    code: ClassVar = 2004
    read_ahead_mode: Annotated[str | None, Wire("READ_AHEAD_MODE")] = None


@dataclass(frozen=True, slots=True)
class AddBroker(Request[NoFields]):
    """Start a broker in a container; the body is its configuration."""

    code: ClassVar = 902
    config_path: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveBroker(Request[NoFields]):
    """Stop a broker in a container."""

    code: ClassVar = 903
    broker_name: str | None = None
    broker_cluster_name: str | None = None
    broker_id: int | None = None
