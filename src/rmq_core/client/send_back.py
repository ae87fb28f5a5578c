"""Has the broker deliver a message again, after a delay that grows from time to time, or never again.

The broker that stored the message makes the copy for the group's retry topic, or for its dead letters when it was
tried often enough. Where that broker fails, we send the copy ourselves, to whichever broker takes it.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from rmq_core.client.instance import ClientInstance
from rmq_core.client.listen_results import DEAD_LETTER_LEVEL
from rmq_core.client.received import ReceivedMessage
from rmq_core.errors import ClientError, RocketMQError
from rmq_core.protocol import requests as r
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.message import (
    AUTO_CREATE_TOPIC,
    INNER_PRODUCER_GROUP,
    Property,
    encode_properties,
    retry_topic,
    wrap_namespace,
)

logger = logging.getLogger(__name__)

TIMEOUT_MS: Final = 5_000
RECONSUME_TIMES_MAX: Final = 16
"""How often an unordered message is tried again where the user does not say."""
RECONSUME_FOR_EVER: Final = 2**31 - 1
_FIRST_LEVEL: Final = 3
_BODY_FLAGS: Final = flags.COMPRESSED | flags.COMPRESSION_TYPE_MASK
_STORED: Final = 0
# Of the delivery that failed; the copy gets its own.
_NOT_COPIED: Final = (
    Property.TRANSACTION_PREPARED,
    Property.RECONSUME_TIME,
    Property.MAX_RECONSUME_TIMES,
    Property.REAL_TOPIC,
    Property.REAL_QUEUE_ID,
    Property.DELAY,
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.START_DELIVER_TIME,
)


class SendBack:
    """Sends back what a group could not consume."""

    def __init__(self, instance: ClientInstance, group: str, reconsume_times_max: int) -> None:
        self._instance = instance
        self._group = group
        self._times_max = reconsume_times_max
        self._retry_topic = retry_topic(group)

    async def send(self, message: ReceivedMessage, delay_level: int | None) -> bool:
        """Deliver it again later. False, and a log line, where no broker takes it."""
        level = delay_level or 0
        record = message.record
        broker_name = message.queue.broker_name
        address = self._instance.routes.master(broker_name) or str(record.store_host)
        request = r.ConsumerSendMsgBack(
            log_offset=record.log_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.offset_msg_id,
            origin_topic=wrap_namespace(self._instance.options.namespace, message.topic),
            unit_mode=False,
            max_reconsume_times=self._times_max,
        )
        try:
            await self._instance.call(address, request, timeout_ms=TIMEOUT_MS)
        except RocketMQError as error:
            logger.warning("%s: broker %s does not take %r back: %s", self._group, broker_name, message, error)
        else:
            return True
        is_last = level == DEAD_LETTER_LEVEL or record.reconsume_times >= self._times_max
        return await self.send_copy(message, level=0 if is_last else level, is_last=is_last)

    async def send_copy(self, message: ReceivedMessage, *, level: int = 0, is_last: bool) -> bool:
        """Send it to the group's retry topic as a message of our own; with is_last to the dead letters."""
        record = message.record
        properties = {name: value for name, value in record.properties.items() if name not in _NOT_COPIED}
        properties.setdefault(Property.RETRY_TOPIC, wrap_namespace(self._instance.options.namespace, message.topic))
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        times = record.reconsume_times + 1
        if is_last:
            # Brokers of 5.x put among the dead letters what was tried more often than the maximum.
            times = max(times, self._times_max + 1) if self._times_max < RECONSUME_FOR_EVER else times
        else:
            properties[Property.DELAY.value] = str(level or _FIRST_LEVEL + record.reconsume_times)
        try:
            request = r.SendMessageV2(
                producer_group=INNER_PRODUCER_GROUP,
                topic=self._retry_topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=1,
                queue_id=0,
                sys_flag=record.sys_flag & _BODY_FLAGS,
                born_timestamp=self._instance.clock.now_ms(),
                flag=record.flag,
                properties=encode_properties(properties).decode(),
                reconsume_times=times,
                unit_mode=False,
                max_reconsume_times=0 if is_last and self._times_max == RECONSUME_FOR_EVER else self._times_max,
                batch=False,
            )
            await self._send(request, record.body, avoided=message.queue.broker_name)
        except RocketMQError as error:
            logger.warning("%s: no broker takes a copy of %r: %s", self._group, message, error)
            return False
        return True

    async def _send(self, request: r.SendMessageV2, body: bytes, *, avoided: str) -> None:
        """To one broker after another, that which has just failed last. Raises what the last one raised."""
        route = await self._instance.route(self._retry_topic)
        brokers = {queue.broker_name: queue.queue_id for queue in reversed(route.write_queues)}
        failure: RocketMQError = ClientError(f"no broker holds a queue of {self._retry_topic} to write to")
        for name in sorted(brokers, key=lambda each: (each == avoided, each)):
            try:
                answer = await self._instance.call(
                    self._instance.vip(self._instance.broker(name).address),
                    dataclasses.replace(request, queue_id=brokers[name], broker_name=name),
                    body,
                    timeout_ms=TIMEOUT_MS,
                )
            except RocketMQError as error:
                failure = error
                continue
            if answer.code != _STORED:
                logger.info("%s: a copy is stored, but %s", self._group, answer.remark)
            return
        raise failure


def tried_again(message: ReceivedMessage, namespace: str) -> ReceivedMessage:
    """The same message, once more failed, for a delivery that no broker has part in."""
    record = dataclasses.replace(message.record, reconsume_times=message.record.reconsume_times + 1)
    return ReceivedMessage(
        record,
        message.queue,
        namespace=namespace,
        min_offset=message.min_offset,
        max_offset=message.max_offset,
    )
