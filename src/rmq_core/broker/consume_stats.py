"""How many messages queues hold, and how far groups are behind.

Offsets are taken on the loop; store times come from the disk, so a thread of the pool reads them, some queues at a
time. Between two such steps anything may have changed: what is gone by then is left out, and nothing goes on for
a caller who is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from rmq_core.errors import BrokerError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueueTimeSpan,
    TopicConfig,
    TopicOffset,
    TopicStatsTable,
)
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import RECORD_SIZE_MIN
from rmq_core.store.message_store import MessageStore

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker
    from rmq_core.net.connection import Connection

QUEUES_PER_STEP: Final = 256
_HEAD_SIZE: Final = 76
"""The store time of a record lies within its first bytes, whatever its hosts."""


def stored_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """When the message at a queue offset was stored, read from the device; 0 where there is none."""
    queue = store.queues.table.get((topic, queue_id))
    entry = None if queue is None or offset < 0 else queue.entry(offset)
    if entry is None or entry.is_blank:
        return 0
    return stored_at_ms(store, entry.log_offset)


def stored_at_ms(store: MessageStore, log_offset: int) -> int:
    """The same for the message at a log offset."""
    head = store.log.read(log_offset, _HEAD_SIZE)
    if head is None or struct.unpack_from(">i", head)[0] < RECORD_SIZE_MIN:
        return 0
    (sys_flag,) = struct.unpack_from(">i", head, 36)
    (time_ms,) = struct.unpack_from(">q", head, 68 if sys_flag & flags.BORN_HOST_V6 else 56)
    return int(time_ms)


# A topic's queues


async def topic_stats(broker: Broker, topic: str, connection: Connection) -> TopicStatsTable | None:
    """The ranges of a topic's queues; None for a caller who is gone. Raises BrokerError where the topic is."""
    table: dict[MessageQueue, TopicOffset] = {}
    queue_id = 0
    while True:
        config = broker.topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        if not connection.is_open:
            return None
        step = range(
            queue_id, min(max(config.read_queue_nums, config.write_queue_nums), queue_id + QUEUES_PER_STEP)
        )
        if not step:
            return TopicStatsTable(table, broker.stats.topic_put_tps(topic))
        for number, found in zip(step, await broker.run(_ranges, broker.store, topic, step), strict=True):
            table[MessageQueue(topic, broker.settings.broker_name, number)] = found
        queue_id = step.stop


def _ranges(store: MessageStore, topic: str, queue_ids: Iterable[int]) -> list[TopicOffset]:
    found = []
    for queue_id in queue_ids:
        end = store.max_offset(topic, queue_id)
        found.append(
            TopicOffset(store.min_offset(topic, queue_id), end, stored_ms(store, topic, queue_id, end - 1))
        )
    return found


# A group's progress


@dataclass(frozen=True, slots=True)
class Progress:
    """What a group has read of a queue."""

    topic: str
    queue_id: int
    consumed: int
    pulled: int


async def consume_stats(
    broker: Broker, group: str, connection: Connection, *, topic: str | None = None, topics: Iterable[str] = ()
) -> ConsumeStats | None:
    """How far a group is behind on the given topics, or on all that it has offsets of.

    Of a group that is online, topics that it does not subscribe to are left out, unless they are listed.
    None for a caller who is gone.
    """
    names = list(topics)
    is_listed = bool(names)
    if not names:
        names = [topic] if topic is not None else broker.offsets.topics_of(group)
    table: dict[MessageQueue, OffsetWrapper] = {}
    tps = 0.0
    for name in names:
        if not connection.is_open:
            return None
        config = broker.topics.get(name)
        if config is None or not (is_listed or _is_subscribed(broker, group, name)):
            continue
        part = await _progress(broker, group, name, config.read_queue_nums, connection)
        if part is None:
            return None
        table.update(part)
        tps += broker.stats.consume_tps(group, name)
    return ConsumeStats(table, round(tps, 3))


def _is_subscribed(broker: Broker, group: str, topic: str) -> bool:
    """Whether a topic counts for a group: it is subscribed to, or nobody of the group is there to ask."""
    members = broker.clients.consumer_group(group)
    return members is None or not members.subscriptions or topic in members.subscriptions


async def _progress(
    broker: Broker, group: str, topic: str, queue_count: int, connection: Connection
) -> dict[MessageQueue, OffsetWrapper] | None:
    table = {}
    for start in range(0, queue_count, QUEUES_PER_STEP):
        step = range(start, min(queue_count, start + QUEUES_PER_STEP))
        if not connection.is_open:
            return None
        read = [_read_of(broker, group, topic, queue_id) for queue_id in step]
        for each, wrapper in zip(read, await broker.run(_lags, broker.store, read), strict=True):
            table[MessageQueue(topic, broker.settings.broker_name, each.queue_id)] = wrapper
    return table


def _read_of(broker: Broker, group: str, topic: str, queue_id: int) -> Progress:
    offsets = broker.offsets
    consumed = max(offsets.query(group, topic, queue_id), 0)
    return Progress(topic, queue_id, consumed, max(offsets.pull_offset(group, topic, queue_id), consumed))


def _lags(store: MessageStore, read: list[Progress]) -> list[OffsetWrapper]:
    return [
        OffsetWrapper(
            store.max_offset(each.topic, each.queue_id),
            each.consumed,
            each.pulled,
            stored_ms(store, each.topic, each.queue_id, each.consumed - 1),
        )
        for each in read
    ]


async def broker_consume_stats(
    broker: Broker, connection: Connection, *, is_order: bool
) -> ConsumeStatsList | None:
    """How far all groups are behind, topic by topic; is_order: on ordered topics only."""
    found: list[dict[str, tuple[ConsumeStats, ...]]] = []
    behind = under_way = 0
    for group in list(broker.groups.table):
        of_group: list[ConsumeStats] = []
        for topic in broker.offsets.topics_of(group):
            config = broker.topics.get(topic)
            if config is None or (is_order and not config.order) or not _is_subscribed(broker, group, topic):
                continue
            table = await _progress(broker, group, topic, config.write_queue_nums, connection)
            if table is None:
                return None
            of_group.append(ConsumeStats(table, broker.stats.consume_tps(group, topic)))
            behind += sum(each.broker_offset - each.consumer_offset for each in table.values())
            under_way += sum((each.pull_offset or 0) - each.consumer_offset for each in table.values())
        found.append({group: tuple(of_group)})
    return ConsumeStatsList(tuple(found), broker.address, behind, under_way)


async def fall_behind(broker: Broker, group: str, topic: str, queue_id: int) -> tuple[int, int] | None:
    """Bytes of the log and milliseconds between what a group reads next and now; None where it has read nothing."""
    if queue_id not in broker.offsets.of(group, topic) and broker.offsets.pull_offset(group, topic, queue_id) < 0:
        return None
    read = _read_of(broker, group, topic, queue_id)
    place, time_ms = await broker.run(_next_of, broker.store, read)
    return (broker.store.log.end - place, max(broker.now_ms() - time_ms, 0)) if time_ms else (0, 0)


def _next_of(store: MessageStore, read: Progress) -> tuple[int, int]:
    """Log offset and store time of the message that comes next; zeros where none does."""
    queue = store.queues.table.get((read.topic, read.queue_id))
    offset = 0 if queue is None else max(read.pulled, queue.min_offset)
    entry = None if queue is None else queue.entry(offset)
    return (0, 0) if entry is None else (entry.log_offset, stored_ms(store, read.topic, read.queue_id, offset))


# Times of what a group has read


async def time_spans(broker: Broker, topic: str, group: str, connection: Connection) -> list[QueueTimeSpan] | None:
    """For each queue the times of its first, its last and the consumed message. Raises BrokerError."""
    spans: list[QueueTimeSpan] = []
    while True:
        config: TopicConfig | None = broker.topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        if not connection.is_open:
            return None
        step = range(len(spans), min(config.write_queue_nums, len(spans) + QUEUES_PER_STEP))
        if not step:
            return spans
        read = [_read_of(broker, group, topic, queue_id) for queue_id in step]
        spans += await broker.run(_spans, broker.store, broker.settings.broker_name, read, broker.now_ms())


def _spans(store: MessageStore, broker_name: str, read: list[Progress], now_ms: int) -> list[QueueTimeSpan]:
    spans = []
    for each in read:
        topic, queue_id = each.topic, each.queue_id
        start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        first_ms, last_ms = (stored_ms(store, topic, queue_id, offset) for offset in (start, end - 1))
        consumed_ms = stored_ms(store, topic, queue_id, each.consumed - 1) if each.consumed > 0 else first_ms
        next_ms = stored_ms(store, topic, queue_id, max(each.consumed, start)) if each.consumed < end else 0
        spans.append(
            QueueTimeSpan(
                MessageQueue(topic, broker_name, queue_id),
                first_ms,
                last_ms,
                consumed_ms,
                max(now_ms - next_ms, 0) if next_ms else 0,
                *(_readable(time_ms) for time_ms in (first_ms, last_ms, consumed_ms)),
            )
        )
    return spans


def _readable(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms // 1000).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
