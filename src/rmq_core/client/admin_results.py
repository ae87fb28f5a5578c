"""What administrative calls give back: frozen values with names from the domain and aware times.

A time that the broker does not know (it sends 0 or -1) is None. Names are bare, without the client's namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from rmq_core.protocol.bodies import (
    ConsumeFromWhere,
    ConsumeResult,
    ConsumeStatus,
    ConsumeType,
    GroupRetryPolicy,
    MessageModel,
)
from rmq_core.protocol.codes import Permission, version_name
from rmq_core.protocol.message import MessageQueue

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LATEST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND

READ_WRITE: Final = Permission.READ | Permission.WRITE


def moment(time_ms: int) -> datetime | None:
    """The time of so many milliseconds since 1970; None where there is none, or no year for it."""
    return _EPOCH + time_ms * _MILLISECOND if 0 < time_ms <= _LATEST_MS else None


def milliseconds(what: str, when: datetime) -> int:
    """Milliseconds since 1970. Raises TypeError and ValueError naming the argument."""
    if not isinstance(when, datetime):
        raise TypeError(f"{what} must be a datetime, not {type(when).__name__}")
    if when.utcoffset() is None:
        raise ValueError(f"{what} has no time zone; give one, as in datetime(..., tzinfo=UTC)")
    if when < _EPOCH:
        raise ValueError(f"{what} lies before 1970")
    return (when - _EPOCH) // _MILLISECOND


# Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic as a broker keeps it."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    permission: Permission = READ_WRITE
    is_ordered: bool = False
    is_multi_tag: bool = False
    sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Such as `message.type`."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages that a queue holds: [start, end)."""

    start: int
    end: int
    last_stored_at: datetime | None

    @property
    def count(self) -> int:
        """How many there are."""
        return max(self.end - self.start, 0)


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """What the queues of a topic hold."""

    topic: str
    queues: Mapping[MessageQueue, QueueRange]
    put_tps: float
    """Messages a second, where the brokers tell (5.x)."""

    @property
    def count(self) -> int:
        """How many messages there are in all queues."""
        return sum(each.count for each in self.queues.values())


# Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """A consumer group as a broker keeps it."""

    name: str
    consume_enabled: bool = True
    broadcast_enabled: bool = True
    starts_from_earliest: bool = True
    """Whether a group that is new here may begin at the oldest message."""
    is_ordered: bool = False
    retry_queues: int = 1
    retries_max: int = 16
    broker_id: int = 0
    """Which process of a broker to read from."""
    slow_broker_id: int = 1
    """Which one where the group reads what has left the master's memory."""
    notifies_members: bool = True
    """Whether members hear at once when one comes or leaves."""
    consume_timeout_minutes: int | None = None
    retry_policy: GroupRetryPolicy | None = None
    sys_flag: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind on a queue."""

    queue: MessageQueue
    end: int
    """The offset that the next message gets."""
    committed: int
    """The offset that the group reads next."""
    pulled: int
    """Up to where its members have fetched."""
    last_consumed_at: datetime | None
    """When the last message that the group consumed was stored."""
    oldest_unread_age: timedelta | None
    """How long the oldest message that it has not consumed has been waiting; None where there is none."""

    @property
    def count(self) -> int:
        """How many messages it has not consumed."""
        return max(self.end - self.committed, 0)

    @property
    def in_flight(self) -> int:
        """How many of them its members have already."""
        return max(self.pulled - self.committed, 0)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, queue by queue."""

    group: str
    queues: tuple[QueueLag, ...]
    consume_tps: float

    def __iter__(self) -> Iterator[QueueLag]:
        return iter(self.queues)

    @property
    def count(self) -> int:
        """How many messages it has not consumed."""
        return sum(each.count for each in self.queues)

    @property
    def in_flight(self) -> int:
        """How many of them its members have already."""
        return sum(each.in_flight for each in self.queues)

    @property
    def oldest_unread_age(self) -> timedelta | None:
        """How long its oldest message has been waiting."""
        return max(
            (each.oldest_unread_age for each in self.queues if each.oldest_unread_age is not None), default=None
        )


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group in one line."""

    group: str
    member_count: int
    version: str | None
    """The lowest among its members."""
    consume_type: ConsumeType | None
    message_model: MessageModel | None
    consume_tps: float
    lag: int


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """When the messages of a queue were stored."""

    queue: MessageQueue
    first_at: datetime | None
    last_at: datetime | None
    consumed_at: datetime | None
    """That of the last message which the group consumed."""
    waiting: timedelta
    """How long the next one has been waiting."""


# Clients


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client that is connected."""

    client_id: str
    address: str
    language: str
    version: int
    last_seen_at: datetime | None = None

    @property
    def version_name(self) -> str:
        """Such as V5_3_3."""
        return version_name(self.version)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of a topic."""

    topic: str
    expression: str
    expression_type: str
    tags: tuple[str, ...]
    version: int
    """The highest of several holds; clients take the time for it."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """Who consumes for a group, and what."""

    group: str
    members: tuple[ConnectedClient, ...]
    subscriptions: Mapping[str, Subscription]
    consume_type: ConsumeType | None
    message_model: MessageModel | None
    start_from: ConsumeFromWhere | None


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """A queue as the member that reads it sees it."""

    committed: int
    cached_start: int
    cached_end: int
    """The lowest and the highest offset in its memory."""
    cached_count: int
    cached_size_mib: int
    is_locked: bool
    is_dropped: bool
    last_locked_at: datetime | None
    last_pulled_at: datetime | None
    last_consumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """A member of a group from inside."""

    client_id: str
    properties: Mapping[str, str]
    subscriptions: Mapping[str, Subscription]
    queues: Mapping[MessageQueue, HeldQueue]
    rates: Mapping[str, ConsumeStatus]
    """By topic."""
    user_info: Mapping[str, str]
    stacks: str | None
    """What its threads are doing, where asked for."""


@dataclass(frozen=True, slots=True)
class DirectResult:
    """What a member made of one message that it was handed."""

    result: ConsumeResult | None
    remark: str | None
    spent: timedelta
    is_ordered: bool
    auto_commit: bool


# Messages


class TrackStatus(StrEnum):
    """What a group has done with a message."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    PULL = "PULL"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """What one group has done with a message."""

    group: str
    status: TrackStatus
    reason: str | None = None
    """Why it is not known."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One entry of a consume queue."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    is_wanted: bool
    """Whether the group's filter lets it through."""
    extension: str | None
    filter_bits: str | None


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """Entries of a consume queue, and its range."""

    queue: MessageQueue
    start: int
    end: int
    entries: tuple[QueueEntry, ...]
    subscription: Subscription | None
    filter: str | None


# Brokers


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker and the addresses of its processes; 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """Where its master is."""
        return self.addresses.get(0)


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """All brokers, and the clusters that they are in."""

    brokers: Mapping[str, BrokerInfo]
    clusters: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """What a broker is doing. The table has everything under the names that brokers give."""

    broker: str
    table: Mapping[str, str]

    @property
    def version(self) -> str:
        """Such as V5_3_3."""
        return self.table.get("brokerVersionDesc", "")

    @property
    def started_at(self) -> datetime | None:
        """When it started."""
        text = self.table.get("bootTimestamp", "")
        return moment(int(text)) if text.isdecimal() else None

    @property
    def put_tps(self) -> tuple[float, ...]:
        """Messages taken a second, over the last 10 s, minute and 10 minutes."""
        return _rates(self.table.get("putTps", ""))

    @property
    def transferred_tps(self) -> tuple[float, ...]:
        """Messages given a second, over the same spans."""
        return _rates(self.table.get("getTransferredTps") or self.table.get("getTransferedTps", ""))


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split()))
    except ValueError:
        return ()


@dataclass(frozen=True, slots=True)
class CounterSpan:
    """A counter over some time."""

    sum: int
    per_second: float
    mean: float
    """What one event counted for."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter over the last minute, hour and day."""

    minute: CounterSpan
    hour: CounterSpan
    day: CounterSpan


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as its master sees it."""

    address: str
    acknowledged: int
    behind: int
    is_in_sync: bool
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """How a broker and its replicas stand."""

    is_master: bool
    log_end: int
    in_sync_replicas: int
    replicas: tuple[Replica, ...]
