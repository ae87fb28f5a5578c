"""Fetches one queue after the other for a push consumer: a loop per queue, with one pull in flight.

An answer moves the loop on, an error makes it wait and try again; nothing but the end of the queue's ownership ends
it. Where an answer says that our offset cannot be right, the queue is begun anew; where it only leads ahead, what
was fetched before is still consumed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rmq_core.client.concurrent import Consumption, Surroundings
from rmq_core.client.orderly import LOCK_RETRY_MS, OrderedConsumption
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.pulls import Pulled, PullRouter, PullStatus
from rmq_core.client.received import decode_messages
from rmq_core.client.subscriptions import matches
from rmq_core.errors import BrokerError, ConnectError, NoRouteError, RocketMQError
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)

SUSPEND_MS: Final = 15_000
SIZE_MAX_BYTES: Final = 256 << 10
RETRY_MS: Final = 3_000
FLOW_CONTROL_RETRY_MS: Final = 20
_FIRST_RETRY_MS: Final = 100
_LACKS_HEARTBEAT: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
_LACKS_ROUTE: Final = frozenset(
    {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER, ResponseCode.NOT_LEADER_FOR_QUEUE}
)


@dataclass(frozen=True, slots=True)
class PullSettings:
    """How a consumer pulls."""

    batch_size: int
    interval_ms: int = 0


class PullLoop:
    """The pull loops of one consumer."""

    def __init__(
        self,
        around: Surroundings,
        consumption: Consumption,
        settings: PullSettings,
        *,
        subscription_of: Callable[[str], SubscriptionData | None],
        restart: Callable[[ProcessQueue, int], None],
    ) -> None:
        """subscription_of gives what brokers know of a topic; restart begins a queue anew at an offset."""
        self._around = around
        self._consumption = consumption
        self._ordered = consumption if isinstance(consumption, OrderedConsumption) else None
        self._settings = settings
        self._subscription_of = subscription_of
        self._restart = restart
        self._router = PullRouter(around.instance, around.group)
        self._may_pull = asyncio.Event()
        self._may_pull.set()

    def suspend(self) -> None:
        """Pull no more until resume()."""
        self._may_pull.clear()

    def resume(self) -> None:
        """Go on."""
        self._may_pull.set()

    @property
    def is_suspended(self) -> bool:
        return not self._may_pull.is_set()

    def start(self, queue: ProcessQueue) -> None:
        """Begin to fetch a queue."""
        queue.pulling = asyncio.get_running_loop().create_task(self._run(queue))

    def stop(self, queue: ProcessQueue) -> None:
        """Fetch no more of it; what an unanswered pull brings is not taken."""
        if queue.pulling is not None:
            queue.pulling.cancel()
        self._router.forget(queue.queue)

    async def _run(self, queue: ProcessQueue) -> None:
        failures = 0
        while not queue.is_halted:
            try:
                await self._once(queue)
                failures = 0
            except RocketMQError as error:
                failures += 1
                await self._wait_after(queue, error, failures)
            except Exception:  # a defect must not end the loop: the queue would stand still without a word
                logger.exception("%s: pulling of %s failed", self._around.group, queue.queue)
                await self._around.instance.clock.sleep(RETRY_MS)

    async def _once(self, queue: ProcessQueue) -> None:
        around, clock = self._around, self._around.instance.clock
        if not self._may_pull.is_set():
            queue.is_waiting = True
            try:
                await self._may_pull.wait()
            finally:
                queue.is_waiting = False
        if self._ordered is not None and not queue.may_consume() and not await self._ordered.own_again(queue):
            await clock.sleep(LOCK_RETRY_MS)
            return
        await around.flow.room(queue)
        subscription = self._subscription_of(queue.queue.topic)
        if queue.is_halted or subscription is None:
            await clock.sleep(RETRY_MS)
            return
        queue.touch()
        committed = None if around.broadcasting else around.offsets.position(queue.queue)
        began_ms = clock.monotonic_ms()
        asked = queue.next_offset
        pulled = await self._router.pull(
            queue.queue,
            offset=asked,
            subscription=subscription,
            count_max=self._settings.batch_size,
            suspend_ms=SUSPEND_MS,
            commit_offset=committed or None,
            size_max_bytes=SIZE_MAX_BYTES,
        )
        if queue.is_halted:
            return
        if pulled.status is PullStatus.FOUND:
            totals = around.stats.of(queue.shown_queue.topic)
            totals.pulls += 1
            totals.pull_ms += clock.monotonic_ms() - began_ms
            totals.pulled += self._take(queue, pulled, subscription, asked)
            if self._settings.interval_ms:
                await clock.sleep(self._settings.interval_ms)
        else:
            await self._moved(queue, pulled, asked)

    def _take(self, queue: ProcessQueue, pulled: Pulled, subscription: SubscriptionData, asked: int) -> int:
        around = self._around
        messages = decode_messages(
            pulled.body,
            queue.shown_queue,
            around.namespace,
            min_offset=pulled.min_offset,
            max_offset=pulled.max_offset,
        )
        if subscription.tags_set:
            messages = [each for each in messages if matches(subscription, each)]
        if pulled.next_offset < asked or (messages and messages[0].queue_offset < asked):
            logger.warning(
                "%s: a pull of %s at %d led back to %d", around.group, queue.queue, asked, pulled.next_offset
            )
        queue.next_offset = pulled.next_offset
        if messages:
            around.flow.added(queue.put(messages))
            self._consumption.put(queue, messages)
        else:
            self._nothing_for_us(queue)
        return len(messages)

    def _nothing_for_us(self, queue: ProcessQueue) -> None:
        """Progress passes what is not wanted, once all before it is consumed."""
        if not queue.messages:
            self._around.offsets.update(queue.queue, queue.next_offset, increase_only=True)

    async def _moved(self, queue: ProcessQueue, pulled: Pulled, asked: int) -> None:
        if pulled.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.NO_MATCHED_MESSAGE):
            queue.next_offset = pulled.next_offset
            self._nothing_for_us(queue)
            return
        group, name = self._around.group, queue.queue
        if pulled.status is PullStatus.OFFSET_RESET:
            logger.info("%s: an administrator moves %s to %d", group, name, pulled.next_offset)
            self._restart(queue, pulled.next_offset)
        elif pulled.next_offset > asked:
            logger.warning("%s: messages %d to %d of %s are deleted", group, asked, pulled.next_offset - 1, name)
            queue.next_offset = pulled.next_offset
            self._nothing_for_us(queue)
            return
        else:
            logger.warning("%s: %s ends at %d, before %d", group, name, pulled.next_offset, asked)
            await self._around.instance.clock.sleep(_FIRST_RETRY_MS)
            self._restart(queue, pulled.next_offset)
        # restart() stops this loop; until it does, there is nothing to ask.
        await self._around.instance.clock.sleep(RETRY_MS)

    async def _wait_after(self, queue: ProcessQueue, error: RocketMQError, failures: int) -> None:
        around, clock = self._around, self._around.instance.clock
        delay_ms = min(_FIRST_RETRY_MS * 2 ** min(failures - 1, 10), RETRY_MS)
        if isinstance(error, BrokerError):
            if error.code == ResponseCode.FLOW_CONTROL:
                await clock.sleep(FLOW_CONTROL_RETRY_MS)
                return
            if error.code in _LACKS_HEARTBEAT:
                logger.info("%s: %s does not know our subscription yet: %s", around.group, queue.queue, error)
                await self._greet(queue.queue)
                await clock.sleep(delay_ms if failures > 1 else 0)
                return
            delay_ms = RETRY_MS
        if not (queue.is_retry and isinstance(error, NoRouteError)):
            logger.warning("%s: pulling of %s failed: %s", around.group, queue.queue, error)
        if isinstance(error, ConnectError) and self._ordered is not None and not around.broadcasting:
            # A broker that restarts has forgotten who holds which queue, and may let another member have ours.
            queue.is_locked = False
        await clock.sleep(delay_ms)
        if not isinstance(error, BrokerError) or error.code in _LACKS_ROUTE:
            await self._look_up(queue.queue)

    async def _greet(self, queue: MessageQueue) -> None:
        found = self._around.instance.routes.find(queue.broker_name, self._router.suggested(queue))
        if found is not None:
            await self._around.instance.heartbeat_to(found.address)

    async def _look_up(self, queue: MessageQueue) -> None:
        """Brokers may be back under other addresses."""
        try:
            await self._around.instance.route(queue.topic, refresh=True)
        except RocketMQError as error:
            logger.info("%s: the route of %s is not known: %s", self._around.group, queue.topic, error)
