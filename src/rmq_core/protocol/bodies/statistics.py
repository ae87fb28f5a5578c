"""Figures that brokers give to administrators."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_core.protocol.bodies.clients import SubscriptionData
from rmq_core.protocol.bodies.topics import DataVersion
from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.message import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicOffset(Body):
    """The range of a queue and the store time of its last message."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStatsTable(Body):
    """The ranges of a topic's queues."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None


@dataclass(frozen=True, slots=True)
class OffsetWrapper(Body):
    """How far a group is behind on a queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int | None = None
    last_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStats(Body):
    """How far a group is behind."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(Body):
    """ConsumeStats of every group of a broker, one per topic."""

    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(Body):
    """A counter over some time: sum, per second, and mean of one event."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData(Body):
    """A counter over the last minute, hour and day."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


@dataclass(frozen=True, slots=True)
class ConsumeQueueData(Body):
    """One entry of a consume queue."""

    physic_offset: int = 0
    physic_size: Int32 = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponseBody(Body):
    """A stretch of a consume queue, and how a group's filter sees it."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: tuple[ConsumeQueueData, ...] | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0


@dataclass(frozen=True, slots=True)
class QuerySubscriptionResponseBody(Body):
    """What a group subscribes to on a topic."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class TimerMetric(Body):
    """How many timed messages of a topic are waiting."""

    count: int = 0
    time_stamp: int = 0


@dataclass(frozen=True, slots=True)
class TimerMetrics(Body):
    """Timed messages that wait, by topic."""

    timing_count: dict[str, TimerMetric] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class CheckRocksdbCqWriteResult(Body):
    """How far the RocksDB copy of the consume queues agrees with the files."""

    check_result: str | None = None
    check_status: Int32 | None = None
