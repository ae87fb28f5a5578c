"""What a broker counts, for Prometheus: metrics of the names that RocketMQ 5 uses, at http://host:metricsPort/metrics.

Cost      Nothing between two scrapes. A scrape reads counters on the loop, in steps, and what lies on disk in the
          pool; the text is made there, too.
Labels    A topic's message type is the one it was declared with: messages are not told apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rmq_core.broker.attributes import MESSAGE_TYPE
from rmq_core.broker.consume_stats import QUEUES_PER_STEP, stored_at_ms, stored_ms
from rmq_core.protocol.bodies import ConsumeType
from rmq_core.protocol.codes import version_name
from rmq_core.protocol.message import DLQ_PREFIX, is_retry_topic, is_system_group, is_system_topic
from rmq_core.store.message_store import MessageStore

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

log = logging.getLogger(__name__)

REQUEST_SIZE_MAX: Final = 8 << 10
CONNECTIONS_MAX: Final = 32
TIMEOUT_S: Final = 10.0
_NODE: Final = ("cluster", "node_type", "node_id")
_CONSUMER: Final = ("topic", "consumer_group", "is_retry", "is_system")


@dataclass(slots=True)
class Lag:
    """How far a group is behind on a topic."""

    waiting: int = 0
    """Messages that it has not committed."""
    under_way: int = 0
    """Those of them that it has been given."""
    oldest_ms: int = 0
    """Store time of the first that waits; 0 where none does."""


class Metrics:
    """Serves the metrics of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Serve, and return the port. Raises OSError where it cannot be had."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=REQUEST_SIZE_MAX)
        bound: int = self._server.sockets[0].getsockname()[1]
        log.info("metrics are served at http://%s:%d/metrics", host, bound)
        return bound

    async def stop(self) -> None:
        """Stop serving. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # HTTP: one request for each connection

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= CONNECTIONS_MAX:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a peer that is gone, is silent or sends anything
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        kind = "text/plain; charset=utf-8"
        if method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", b""
        elif path != b"/metrics":
            status, body = "404 Not Found", b"metrics are at /metrics\n"
        else:
            status, body, kind = "200 OK", await self.text(), CONTENT_TYPE_LATEST
        fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + (b"" if method == b"HEAD" else body))
        await writer.drain()

    # What is served

    async def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        families = [
            *self._traffic(),
            *self._clients(),
            *await self._lags(),
            *await self._storage(),
            *self._tables(),
        ]
        return await self._broker.run(generate_latest, _Families(families))

    def _node(self) -> tuple[str, ...]:
        settings = self._broker.settings
        return (settings.broker_cluster_name, "broker", settings.broker_name)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_NODE)
        family.add_metric(self._node(), value)
        return family

    def _traffic(self) -> list[Metric]:
        labels_in = (*_NODE, "topic", "message_type", "is_system")
        labels_out = (*_NODE, *_CONSUMER)
        messages_in = CounterMetricFamily("rocketmq_messages_in", "Messages received.", labels=labels_in)
        bytes_in = CounterMetricFamily("rocketmq_throughput_in", "Bytes received.", labels=labels_in)
        messages_out = CounterMetricFamily("rocketmq_messages_out", "Messages handed out.", labels=labels_out)
        bytes_out = CounterMetricFamily("rocketmq_throughput_out", "Bytes handed out.", labels=labels_out)
        dead = CounterMetricFamily("rocketmq_send_to_dlq_messages", "Dead letters.", labels=labels_out)
        node, stats = self._node(), self._broker.stats
        for topic, count, size in stats.puts():
            labels = (*node, topic, self._type_of(topic), _flag(is_system_topic(topic)))
            messages_in.add_metric(labels, count)
            bytes_in.add_metric(labels, size)
            if topic.startswith(DLQ_PREFIX):
                dead.add_metric((*node, *_consumer(topic, topic.removeprefix(DLQ_PREFIX))), count)
        for topic, group, count, size in stats.gets():
            labels = (*node, *_consumer(topic, group))
            messages_out.add_metric(labels, count)
            bytes_out.add_metric(labels, size)
        return [messages_in, bytes_in, messages_out, bytes_out, dead]

    def _type_of(self, topic: str) -> str:
        config = self._broker.topics.get(topic)
        declared = ((config.attributes if config is not None else None) or {}).get(MESSAGE_TYPE, "NORMAL")
        return "normal" if declared == "UNSPECIFIED" else declared.lower()

    def _clients(self) -> list[Metric]:
        clients, node = self._broker.clients, self._node()
        labels = [*_NODE, "language", "version"]
        producers = GaugeMetricFamily("rocketmq_producer_connections", "Producers online.", labels=labels)
        labels += ["consumer_group", "consume_mode", "is_system"]
        consumers = GaugeMetricFamily("rocketmq_consumer_connections", "Consumers online.", labels=labels)
        online = {
            (connection, member.language, member.version)
            for group in clients.producer_groups().values()
            for connection, member in group.items()
        }
        for (language, version), count in Counter((each[1], each[2]) for each in online).items():
            producers.add_metric((*node, language, version_name(version).lower()), count)
        for consumer in clients.consumer_groups():
            mode = "push" if consumer.consume_type is ConsumeType.CONSUME_PASSIVELY else "pull"
            of_group = (consumer.name, mode, _flag(is_system_group(consumer.name)))
            kinds = Counter((member.language, member.version) for member in consumer.members.values())
            for (language, version), count in kinds.items():
                consumers.add_metric((*node, language, version_name(version).lower(), *of_group), count)
        return [producers, consumers]

    async def _lags(self) -> list[Metric]:
        broker, node = self._broker, self._node()
        labels = (*_NODE, *_CONSUMER)
        families = [
            GaugeMetricFamily("rocketmq_consumer_lag_messages", "Messages not yet committed.", labels=labels),
            GaugeMetricFamily("rocketmq_consumer_inflight_messages", "Given, but not committed.", labels=labels),
            GaugeMetricFamily("rocketmq_consumer_ready_messages", "Messages not yet given.", labels=labels),
            GaugeMetricFamily("rocketmq_consumer_lag_latency", "Age in ms of the first that waits.", labels=labels),
        ]
        for group in list(broker.groups.table):
            for topic in broker.offsets.topics_of(group):
                lag = await self._lag(group, topic)
                latency_ms = max(broker.now_ms() - lag.oldest_ms, 0) if lag.oldest_ms else 0
                values = (lag.waiting, lag.under_way, lag.waiting - lag.under_way, latency_ms)
                for family, value in zip(families, values, strict=True):
                    family.add_metric((*node, *_consumer(topic, group)), value)
        return list(families)

    async def _lag(self, group: str, topic: str) -> Lag:
        offsets, store = self._broker.offsets, self._broker.store
        lag, waiting = Lag(), []
        for number, (queue_id, committed) in enumerate(list(offsets.of(group, topic).items()), 1):
            end = store.max_offset(topic, queue_id)
            start = max(committed, store.min_offset(topic, queue_id))
            if end > start:
                pulled = min(max(offsets.pull_offset(group, topic, queue_id), start), end)
                lag.waiting += end - start
                lag.under_way += pulled - start
                waiting.append((queue_id, start))
            if number % QUEUES_PER_STEP == 0:
                await asyncio.sleep(0)
        if waiting:
            lag.oldest_ms = await self._broker.run(_oldest_ms, store, topic, waiting)
        return lag

    async def _storage(self) -> list[Metric]:
        broker, store = self._broker, self._broker.store
        store_log = store.log
        index_lag = 0 if store.index is None else store.index.lag_bytes
        behind = max(store_log.end - store.confirmed_offset, index_lag)
        earliest_ms = await broker.run(stored_at_ms, store, store_log.start)
        age_ms = max(broker.now_ms() - earliest_ms, 0) if earliest_ms > 0 else 0
        return [
            self._gauge("rocketmq_storage_size", "Bytes of the log.", store_log.end - store_log.start),
            self._gauge(
                "rocketmq_storage_flush_behind_bytes", "Bytes not on disk yet.", store_log.end - store_log.flushed
            ),
            self._gauge("rocketmq_storage_dispatch_behind_bytes", "Bytes of messages not to be found yet.", behind),
            self._gauge("rocketmq_storage_message_reserve_time", "Age in ms of the first message.", age_ms),
        ]

    def _tables(self) -> list[Metric]:
        broker = self._broker
        return [
            self._gauge(
                "rocketmq_broker_permission",
                "6 read and write, 4 read, 2 write.",
                broker.settings.broker_permission,
            ),
            self._gauge("rocketmq_topic_number", "Topics.", len(broker.topics.table)),
            self._gauge("rocketmq_consumer_group_number", "Groups.", len(broker.groups.table)),
        ]


@dataclass(frozen=True, slots=True)
class _Families:
    """Metrics that have been collected already."""

    families: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _consumer(topic: str, group: str) -> tuple[str, ...]:
    is_system = is_system_topic(topic) or is_system_group(group)
    return (topic, group, _flag(is_retry_topic(topic)), _flag(is_system))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _oldest_ms(store: MessageStore, topic: str, waiting: list[tuple[int, int]]) -> int:
    found = (stored_ms(store, topic, queue_id, offset) for queue_id, offset in waiting)
    return min((each for each in found if each > 0), default=0)
