"""How far streaming queries are, as it happens: lag per queue, rows a second, age of the oldest unread message.

    from rmq_spark import monitor
    monitor.watch(spark, name_server="127.0.0.1:9876")                          # lines on the console
    monitor.watch(spark, name_server="127.0.0.1:9876", report=monitor.Prometheus(port=9404))

Lag   is what a query's own progress says: the end of each queue when the micro-batch was planned, less its offset.
Age   is asked from brokers, for the queues that are furthest behind: when the message was stored that the query
      reads next. Without a name server there are no ages.
Lost  Offsets that a micro-batch passed and that gave no row: lost to retention, or held back by a filter.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from pyspark.sql.streaming.listener import StreamingQueryListener

from rmq_core.client.options import ClientArguments, client_options
from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import RocketMQError
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import decode_pull_body
from rmq_spark.errors import SparkRocketMQError
from rmq_spark.offsets import QueueOffsets, from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

logger = logging.getLogger(__name__)

AGED_QUEUES_MAX: Final = 16
"""Ages are asked for so many queues of a micro-batch at most."""
_AGE_TIMEOUT_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of a query."""

    queue: MessageQueue
    position: int
    """The offset that the query reads next."""
    end: int
    """The offset that the next message gets."""
    oldest_unread_s: float | None = None

    @property
    def lag(self) -> int:
        """How many messages the query has not read."""
        return max(self.end - self.position, 0)


@dataclass(frozen=True, slots=True)
class QueryState:
    """A query after one micro-batch."""

    query_id: str
    name: str | None
    batch_id: int
    rows: int
    rows_per_second: float
    duration_ms: int
    passed_offsets: int
    """Offsets that the micro-batch went over, with or without a row."""
    queues: tuple[QueueState, ...]

    @property
    def shown_name(self) -> str:
        """The name of the query, or its id."""
        return self.name or self.query_id

    @property
    def lag(self) -> int:
        """How many messages the query has not read."""
        return sum(each.lag for each in self.queues)

    @property
    def lag_min(self) -> int:
        """That of the queue which is furthest."""
        return min((each.lag for each in self.queues), default=0)

    @property
    def lag_max(self) -> int:
        """That of the queue which is furthest behind."""
        return max((each.lag for each in self.queues), default=0)

    @property
    def lag_average(self) -> float:
        """The mean over all queues."""
        return self.lag / len(self.queues) if self.queues else 0.0

    @property
    def oldest_unread_s(self) -> float | None:
        """How long the oldest message waits that the query has not read; None where that is not known."""
        return max((each.oldest_unread_s for each in self.queues if each.oldest_unread_s is not None), default=None)

    @property
    def offsets_without_row(self) -> int:
        """Messages that were lost, or that a filter held back."""
        return max(self.passed_offsets - self.rows, 0)


Report = Callable[[QueryState], None]


class RocketMQListener(StreamingQueryListener):
    """Tells about every query of a session that reads from RocketMQ. What a report raises is logged."""

    def __init__(self, report: Report, client: QueueClient | None = None) -> None:
        """client: whom to ask for ages; closed by close()."""
        self._report = report
        self._client = client
        self._last: dict[str, QueryState] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is done."""
        try:
            state = state_of(event.progress)
            if state is None:
                return
            state = self._with_ages(state)
            self._last[state.query_id] = state
            self._report(state)
        except Exception:  # a look-on must not disturb the queries
            logger.exception("the progress of a query could not be reported")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing new has come for a while."""
        last = self._last.get(str(event.id))
        if last is not None and last.rows:
            self._last[last.query_id] = idle = replace(last, rows=0, rows_per_second=0.0, passed_offsets=0)
            if isinstance(self._report, Prometheus):
                self._report(idle)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The query is over: what was exported about it is not true any more."""
        last = self._last.pop(str(event.id), None)
        if last is not None and isinstance(self._report, Prometheus):
            self._report.forget(last)

    def close(self) -> None:
        """Ask brokers no more. Idempotent."""
        if self._client is not None:
            self._client.close()

    def _with_ages(self, state: QueryState) -> QueryState:
        if self._client is None:
            return state
        behind = sorted((each for each in state.queues if each.lag), key=lambda each: -each.lag)[:AGED_QUEUES_MAX]
        ages = {each.queue: _age_s(self._client, each.queue, each.position) for each in behind}
        queues = tuple(replace(each, oldest_unread_s=ages.get(each.queue)) for each in state.queues)
        return replace(state, queues=queues)


def watch(
    spark: SparkSession, *, report: Report | None = None, **client: Unpack[ClientArguments]
) -> RocketMQListener:
    """Report on all queries of a session, on the console unless told otherwise, until it is removed again.

    client: name_server and the other arguments that every client takes. Raises TypeError and ValueError.
    """
    asked = None
    if client:
        asked = QueueClient(
            client_options(client), pull_timeout_ms=_AGE_TIMEOUT_MS, retry_budget_ms=0, fetch_retries=1
        )
    listener = RocketMQListener(report or Console(), asked)
    spark.streams.addListener(listener)
    return listener


# From progress to state


def state_of(progress: StreamingQueryProgress) -> QueryState | None:
    """What a query's progress says; None for one that reads nothing from RocketMQ."""
    queues: list[QueueState] = []
    rows = passed = 0
    rate = 0.0
    for source in progress.sources:
        start, end, latest = (
            _offsets(text) for text in (source.startOffset, source.endOffset, source.latestOffset)
        )
        if end is None:
            continue
        rows += source.numInputRows
        rate += _number(source.processedRowsPerSecond)
        passed += _passed(source.startOffset, start or {}, end)
        ends = latest or end
        queues += [QueueState(queue, at, max(ends.get(queue, at), at)) for queue, at in sorted(end.items())]
    if not queues:
        return None
    return QueryState(
        str(progress.id),
        progress.name,
        progress.batchId,
        rows,
        rate,
        int(_number(progress.durationMs.get("triggerExecution", 0))),
        passed,
        tuple(queues),
    )


def _passed(start_text: Any, start: QueueOffsets, end: QueueOffsets) -> int:
    # A queue that a batch is the first to name began at its minimum, which progress does not tell.
    return sum(max(end[queue] - at, 0) for queue, at in start.items() if queue in end) if start_text else 0


def _offsets(text: Any) -> QueueOffsets | None:
    """Offsets as progress has them; None for those of another source."""
    if not text:
        return None
    try:
        value = json.loads(text) if isinstance(text, str) else text
        return from_json(value).queues
    except (ValueError, SparkRocketMQError):
        return None


def _number(value: Any) -> float:
    found = float(value or 0)
    return found if found == found else 0.0  # noqa: PLR0124 - Spark says NaN where there was no time


def _age_s(client: QueueClient, queue: MessageQueue, offset: int) -> float | None:
    try:
        for piece in client.read(queue, offset, offset + 1, count_max=1):
            for record in decode_pull_body(bytes(piece.buffer)):
                return max(time.time() - record.store_time_ms / 1000, 0.0)
    except RocketMQError as error:
        logger.info("no age of %s at %d: %s", queue, offset, error)
    return None


# Where it is told


class Console:
    """A line for each micro-batch, and with `queues` one for each queue that is behind."""

    def __init__(self, *, queues: bool = False, write: Callable[[str], object] | None = None) -> None:
        self._queues = queues
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201

    def __call__(self, state: QueryState) -> None:
        for line in lines(state, queues=self._queues):
            self._write(line)


def lines(state: QueryState, *, queues: bool = False) -> Iterator[str]:
    """A query in words."""
    age = state.oldest_unread_s
    waits = "" if age is None else f", oldest unread {age:,.1f} s"
    lost = f", {state.offsets_without_row:,} offsets without a row" if state.offsets_without_row else ""
    yield (
        f"{state.shown_name} micro-batch {state.batch_id}: {state.rows:,} rows, "
        f"{state.rows_per_second:,.0f} rows/s, lag {state.lag:,}{waits}{lost}"
    )
    if queues:
        for each in state.queues:
            if each.lag:
                waits = "" if each.oldest_unread_s is None else f", oldest unread {each.oldest_unread_s:,.1f} s"
                queue = each.queue
                yield f"  {queue.topic} {queue.broker_name} {queue.queue_id}: lag {each.lag:,}{waits}"


_QUEUE_LABELS: Final = ("query", "topic", "broker", "queue")


class Prometheus:
    """Serves the figures on a port for Prometheus to fetch; close() ends that."""

    def __init__(self, *, port: int = 9404, address: str = "127.0.0.1") -> None:
        """port 0 takes any that is free. Raises OSError where the port is taken."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, labels: Sequence[str] = ("query",)) -> Gauge:
            return Gauge(f"rmq_spark_{name}", text, labels, registry=self.registry)

        self._queue_lag = gauge("queue_lag", "Messages of a queue that the query has not read.", _QUEUE_LABELS)
        self._queue_age = gauge(
            "queue_oldest_unread_seconds", "How long the next message of a queue has been waiting.", _QUEUE_LABELS
        )
        self._lag = gauge("lag", "Messages that the query has not read.")
        self._age = gauge("oldest_unread_seconds", "How long its oldest unread message has been waiting.")
        self._rate = gauge("rows_per_second", "Rows a second of the last micro-batch.")
        self._batch = gauge("batch_id", "Number of the last micro-batch.")
        self._rows = Counter("rmq_spark_rows", "Rows that were read.", ("query",), registry=self.registry)
        self._missing = Counter(
            "rmq_spark_offsets_without_row",
            "Offsets that gave no row: lost, or held back by a filter.",
            ("query",),
            registry=self.registry,
        )
        self._server, self._thread = start_http_server(port, address, self.registry)
        self.port = int(self._server.server_port)

    def __call__(self, state: QueryState) -> None:
        name = state.shown_name
        self._lag.labels(name).set(state.lag)
        self._rate.labels(name).set(state.rows_per_second)
        self._batch.labels(name).set(state.batch_id)
        self._rows.labels(name).inc(state.rows)
        self._missing.labels(name).inc(state.offsets_without_row)
        self._age.labels(name).set(state.oldest_unread_s or 0.0)
        for each in state.queues:
            labels = self._labels(name, each.queue)
            self._queue_lag.labels(*labels).set(each.lag)
            self._queue_age.labels(*labels).set(each.oldest_unread_s or 0.0)

    def forget(self, state: QueryState) -> None:
        """Serve nothing more about a query that is over."""
        name = state.shown_name
        for metric in (self._lag, self._rate, self._batch, self._rows, self._missing, self._age):
            metric.remove(name)
        for each in state.queues:
            labels = self._labels(name, each.queue)
            self._queue_lag.remove(*labels)
            self._queue_age.remove(*labels)

    @staticmethod
    def _labels(name: str, queue: MessageQueue) -> tuple[str, str, str, str]:
        return name, queue.topic, queue.broker_name, str(queue.queue_id)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
