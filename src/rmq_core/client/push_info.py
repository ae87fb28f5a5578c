"""What administrators ask of a push consumer: a look inside, and that it consumes one message now."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping

from rmq_core.client.concurrent import Surroundings
from rmq_core.client.consumer_options import consume_from_where
from rmq_core.client.listeners import Piece, Report
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.push_options import PushOptions
from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeType,
    SubscriptionData,
)
from rmq_core.protocol.codes import CURRENT_VERSION, version_name
from rmq_core.protocol.message import MessageQueue, unwrap_namespace
from rmq_core.protocol.record import StoredRecord


def running_info(
    around: Surroundings,
    options: PushOptions,
    table: Mapping[MessageQueue, ProcessQueue],
    subscriptions: Iterable[SubscriptionData],
    *,
    started_time_ms: int,
    with_stacks: bool,
) -> ConsumerRunningInfo:
    """The consumer as mqadmin shows it."""
    limits = options.limits
    properties = {
        "PROP_NAMESERVER_ADDR": ";".join(around.instance.name_servers.addresses),
        "PROP_THREADPOOL_CORE_SIZE": str(around.crew.size),
        "PROP_CONSUMEORDERLY": str(options.ordered).lower(),
        "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.value,
        "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_time_ms),
        "consumerGroup": around.group,
        "messageModel": "BROADCASTING" if options.broadcasting else "CLUSTERING",
        "consumeFromWhere": consume_from_where(options.start_from).value,
        "consumeMessageBatchMaxSize": str(options.batch_size_max),
        "maxReconsumeTimes": str(options.tries_max),
        "pullBatchSize": str(options.pull_batch_size),
        "pullThresholdForQueue": str(limits.queue_count_max),
        "consumeTimeout": str(options.consume_timeout_ms // 60_000),
    }
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=tuple(sorted(subscriptions, key=lambda each: each.topic)),
        mq_table={name: queue.info(around.offsets.position(name)) for name, queue in sorted(table.items())},
        mq_pop_table={},
        status_table=around.stats.status(),
        user_consumer_info={},
        jstack=_stacks() if with_stacks else None,
    )


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


async def consume_directly(
    around: Surroundings, record: StoredRecord, broker_name: str, *, is_ordered: bool
) -> ConsumeMessageDirectlyResult:
    """Hand a message to its listener, past all queues; what comes of it changes no progress."""
    clock = around.instance.clock
    started_ms = clock.monotonic_ms()
    topic = unwrap_namespace(record.topic) if around.namespace else record.topic
    shown = MessageQueue(topic, broker_name, record.queue_id)
    message = ReceivedMessage(record, shown, namespace=around.namespace)
    listener = around.listener_of(message.topic)
    if listener is None:
        remark = f"nothing listens to topic {message.topic}"
        return ConsumeMessageDirectlyResult(is_ordered, True, ConsumeResult.CR_THROW_EXCEPTION, remark)
    queue = ProcessQueue(MessageQueue(record.topic, broker_name, record.queue_id), shown, 0, clock)
    queue.lock()
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Report] = loop.create_future()

    def deliver(report: Report) -> None:
        loop.call_soon_threadsafe(_tell, told, report)

    around.crew.put(Piece(queue, [message], listener, deliver))
    result, error = _result(await told)
    spent_ms = int(clock.monotonic_ms() - started_ms)
    return ConsumeMessageDirectlyResult(is_ordered, True, result, error, spent_ms)


def _tell(told: asyncio.Future[Report], report: Report) -> None:
    if not told.done() and (report.done or report.failures or report.is_last):
        told.set_result(report)


def _result(report: Report) -> tuple[ConsumeResult, str | None]:
    if report.done:
        return ConsumeResult.CR_SUCCESS, None
    if not report.failures:
        return ConsumeResult.CR_LATER, "the consumer is closing"
    failure = report.failures[0]
    if failure.error is not None:
        text = "".join(traceback.format_exception(failure.error))
        return ConsumeResult.CR_THROW_EXCEPTION, text
    return (ConsumeResult.CR_RETURN_NULL if failure.is_wrong_result else ConsumeResult.CR_LATER), None
