"""The sink: rows of a DataFrame or of a streaming query become messages, at least once.

Task      Every send is acknowledged before the task ends; the first one that fails for good ends it, and Spark
          tries the task again. What was acknowledged is then sent once more, with the same SPARK_DEDUP_ID.
Order     Rows of a task that go to the same queue keep their order, and so do rows with one sharding key.
Travel    Writers are pickled to executors, and commit() runs on another copy: what it shall know travels in the
          messages of the tasks. Connections are opened by write(), and kept for the next task of the process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmq_core.client.queue_sender import QueueSender, QueueSendError
from rmq_core.client.sending import SendRules
from rmq_core.errors import BrokerError, ConnectError, NoRouteError, RocketMQError, UnsupportedError
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import wrap_namespace
from rmq_spark.errors import Condition, SparkRocketMQError, bad_option
from rmq_spark.options import Settings
from rmq_spark.queue_reader import freeze_once
from rmq_spark.shipping import Shippable
from rmq_spark.sink_columns import SinkPlan, sink_plan
from rmq_spark.sink_dedup import RowIdentities, context_of
from rmq_spark.sink_rows import RowEncoder

_log: Final = logging.getLogger(__name__)
_IDLE_MAX: Final = 4
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(Shippable, WriterCommitMessage):
    """What one task has sent."""

    partition: int
    rows: int
    requests: int


class _Writer(Shippable):
    """What batches and streams have in common."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        for name in ("tags", "keys"):
            value = getattr(settings, name)
            if value is not None and ("\x01" in value or "\x02" in value):
                raise bad_option(name, value, "it holds U+0001 or U+0002, which separate properties")
        self._settings = settings
        self._plan: SinkPlan = sink_plan(schema, settings)
        self._write_id = uuid.uuid4().hex
        """Made on the driver, and so the same in all attempts of a task."""

    def _identity(self, context: TaskContext | None) -> tuple[object, ...]:
        return (self._write_id,)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of one task and wait until brokers have all of them. Raises SparkRocketMQError."""
        freeze_once()
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Written(partition, 0, 0)
        identities = RowIdentities(context_of(*self._identity(context)))
        with _sending(self._settings) as sender:
            before = sender.requests_acknowledged
            encoder = RowEncoder(
                self._plan,
                self._settings,
                _rules(self._settings),
                queues=sender.queues,
                identities=identities,
                first_turn=partition,
                now_ms=lambda: time.time_ns() // 1_000_000,
            )
            for batch in itertools.chain([first], batches):
                for queue, request in encoder.requests(batch):
                    sender.send(queue, request)
            sender.flush()
            return Written(partition, encoder.rows, sender.requests_acknowledged - before)


class RocketMQBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        """Raises SparkRocketMQError where the columns cannot become messages."""
        if overwrite:
            raise SparkRocketMQError(
                Condition.UNSUPPORTED, 'messages of a topic cannot be overwritten; write with .mode("append")'
            )
        super().__init__(settings, schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have sent their rows."""
        _log.info("%d messages written", _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed; what was sent stays sent."""
        _log.warning("the write failed; at least %d messages were sent and stay", _rows(messages))


class RocketMQStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query, in append and in complete mode."""

    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        """overwrite: complete mode, where each micro-batch sends the whole result again."""
        super().__init__(settings, schema)

    def _identity(self, context: TaskContext | None) -> tuple[object, ...]:
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        batch = None if context is None else context.getLocalProperty(_BATCH_ID)
        # A micro-batch that is run again, even after a restart, gives its rows the same identities.
        return (self._write_id,) if query is None or batch is None else (query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a micro-batch have sent their rows."""
        _log.info("micro-batch %d: %d messages written", batchId, _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task has failed; what was sent stays sent, and the micro-batch is run again."""
        _log.warning("micro-batch %d failed; at least %d messages were sent and stay", batchId, _rows(messages))


def _rows(messages: list[WriterCommitMessage | None]) -> int:
    return sum(each.rows for each in messages if isinstance(each, Written))


def _rules(settings: Settings) -> SendRules:
    return SendRules(
        group=wrap_namespace(settings.namespace, settings.producer_group), namespace=settings.namespace
    )


# Senders are kept between the tasks of a process


_idle: dict[tuple[Any, ...], list[QueueSender]] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def _sending(settings: Settings) -> Iterator[QueueSender]:
    """A sender for one task. One that failed is not used again. Raises SparkRocketMQError."""
    key = (
        os.getpid(),
        settings.connection_key(),
        settings.producer_group,
        settings.send_timeout_ms,
        settings.retries,
    )
    with _lock:
        known = _idle.get(key)
        sender = known.pop() if known else None
    if sender is None:
        sender = QueueSender(
            settings.client_options(),
            _rules(settings),
            timeout_ms=settings.send_timeout_ms,
            retries=settings.retries,
        )
    try:
        yield sender
    except RocketMQError as error:
        sender.close()
        raise _told(error, settings) from error
    except BaseException:
        sender.close()
        raise
    with _lock:
        kept = _idle.setdefault(key, [])
        if len(kept) < _IDLE_MAX:
            kept.append(sender)
            return
    sender.close()


def _told(error: RocketMQError, settings: Settings) -> SparkRocketMQError:
    if isinstance(error, SparkRocketMQError):
        return error
    if isinstance(error, NoRouteError):
        return SparkRocketMQError(Condition.UNKNOWN_TOPIC, str(error), topic=settings.topic)
    if isinstance(error, ConnectError):
        return SparkRocketMQError(Condition.UNREACHABLE, str(error), name_server=settings.name_server)
    if isinstance(error, UnsupportedError):
        return SparkRocketMQError(Condition.UNSUPPORTED, str(error))
    code = error.code if isinstance(error, QueueSendError | BrokerError) else None
    advice = "messages that were acknowledged before stay"
    if code == ResponseCode.MESSAGE_ILLEGAL:
        advice = "the broker refuses it for good: if it is too large, raise maxMessageSize there or send less"
    elif code is None:
        advice = "no answer came, so they may be stored all the same; the task is to be tried again"
    return SparkRocketMQError(Condition.SEND_FAILED, f"{error}; {advice}", code=code)
