"""The queues that a push consumer owns: how it gets them, where it begins, how it gives them up.

Gained    An ordered consumer needs the broker's lock first. Then it asks where the group stands; where it stands
          nowhere, start_from decides. What fails is tried again a second later.
Lost      Unordered: listeners that return at once still count, then progress is stored and the queue is forgotten,
          because its next owner begins without waiting for us. Ordered: we keep it until the listener has returned,
          however long that takes, store progress, and only then unlock it.
Begun     anew, at an offset that an administrator or a broker names: what was fetched is forgotten, and what
          listeners still make of it counts nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime
from typing import Any, Final

from rmq_core.client.allocate import Allocate
from rmq_core.client.concurrent import Consumption, Surroundings
from rmq_core.client.orderly import LOCK_RETRY_MS, OrderedConsumption
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.pulls import broker_of
from rmq_core.client.push_pulls import PullLoop, PullSettings
from rmq_core.client.queue_offsets import StartFrom
from rmq_core.client.rebalance import owned_queues
from rmq_core.clock import Timer
from rmq_core.errors import RocketMQError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.message import MessageQueue, is_retry_topic, unwrap_namespace

logger = logging.getLogger(__name__)

RELEASE_WAIT_MS: Final = 200
"""How long an unordered queue that was lost waits for listeners that are about to return."""
_AGAIN_MS: Final = 1_000


class OwnedQueues:
    """The queues of one consumer. Lives on its loop."""

    def __init__(
        self,
        around: Surroundings,
        consumption: Consumption,
        pulling: PullSettings,
        *,
        strategy: Allocate,
        start_from: StartFrom,
        subscription_of: Callable[[str], SubscriptionData | None],
    ) -> None:
        self._around = around
        self._consumption = consumption
        self._ordered = consumption if isinstance(consumption, OrderedConsumption) else None
        self._strategy = strategy
        self._start_from = start_from
        self.pulls = PullLoop(
            around, consumption, pulling, subscription_of=subscription_of, restart=self._restart_soon
        )
        self.table: dict[MessageQueue, ProcessQueue] = {}
        self._wanted: dict[str, frozenset[MessageQueue]] = {}
        """By topic, what was ours when we last could be told."""
        self._changing: dict[ProcessQueue, asyncio.Task[None]] = {}
        """Being given up or begun anew."""
        self._again: Timer | None = None
        self._is_closed = False

    # Rebalancing

    async def divide(self, topics: Collection[str]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Find out which queues of these wire-named topics are ours: those to gain and those to lose."""
        around = self._around
        gained: set[MessageQueue] = set()
        lost = {queue for queue in self.table if queue.topic not in topics}
        for topic in sorted(topics):
            owned = await owned_queues(
                around.instance, around.group, topic, strategy=self._strategy, broadcasting=around.broadcasting
            )
            if owned is not None:
                self._wanted[topic] = owned
                gained |= owned - self.table.keys()
                lost |= {queue for queue in self.table if queue.topic == topic and queue not in owned}
        return gained, lost

    def lose(self, queues: Collection[MessageQueue]) -> None:
        """Give these up, each in its time."""
        for name in queues:
            queue = self.table[name]
            if queue not in self._changing:
                logger.info("%s: giving up %s", self._around.group, name)
                self._change(queue, self._give_up(queue))

    async def gain(self, queues: Collection[MessageQueue]) -> None:
        """Begin with these; what cannot be begun now is tried again soon."""
        if self._ordered is not None and not self._around.broadcasting:
            locked = await self._ordered.locks.lock(queues)
            if len(locked) < len(queues):
                self._rebalance_in(LOCK_RETRY_MS)
            queues = locked
        await asyncio.gather(*map(self._begin, sorted(queues)))

    async def _begin(self, name: MessageQueue) -> None:
        around = self._around
        around.offsets.forget(name)
        try:
            offset = await self.first_offset(name)
        except RocketMQError as error:
            logger.warning("%s: %s cannot be begun yet: %s", around.group, name, error)
            self._rebalance_in(_AGAIN_MS)
            return
        if not self._is_closed and name not in self.table:
            # Stored soon, so that a group that is new begins at the same place if we crash now.
            around.offsets.update(name, offset)
            self._start(name, offset)

    def _start(self, name: MessageQueue, offset: int) -> ProcessQueue:
        shown = MessageQueue(self._shown(name.topic), name.broker_name, name.queue_id)
        queue = self.table[name] = ProcessQueue(name, shown, offset, self._around.instance.clock)
        if self._ordered is not None:
            queue.lock()
        logger.info("%s: consuming %s from %d", self._around.group, name, offset)
        self.pulls.start(queue)
        return queue

    def _shown(self, topic: str) -> str:
        return unwrap_namespace(topic) if self._around.namespace else topic

    async def first_offset(self, name: MessageQueue) -> int:
        """Where the group stands, or where a new one begins."""
        stored = await self._around.offsets.fetch(name)
        if stored is not None:
            return stored
        start_from = self._start_from
        instance = self._around.instance
        broker = await broker_of(instance, name)
        # Retries of a new group are all its own, whenever they came.
        if start_from == "earliest" or is_retry_topic(name.topic):
            earliest = await instance.call(broker.address, r.GetMinOffset(name.topic, name.queue_id))
            return max(earliest.header.queue_offset, 0)
        if isinstance(start_from, datetime):
            request = r.SearchOffsetByTimestamp(name.topic, name.queue_id, int(start_from.timestamp() * 1000))
            found = await instance.call(broker.address, request)
            return max(found.header.queue_offset, 0)
        latest = await instance.call(broker.address, r.GetMaxOffset(name.topic, name.queue_id))
        return latest.header.queue_offset

    def mend(self) -> None:
        """Begin queues anew whose pull loop stands still without a reason."""
        for queue in list(self.table.values()):
            if queue not in self._changing and not queue.is_halted and queue.is_stalled():
                logger.error("%s: pulling of %s stands still; it is begun anew", self._around.group, queue.queue)
                self.pulls.stop(queue)
                queue.touch()
                self.pulls.start(queue)

    def _rebalance_in(self, delay_ms: float) -> None:
        instance = self._around.instance
        if self._again is not None:
            self._again.cancel()
        self._again = instance.clock.call_later(delay_ms, instance.rebalance_soon)

    # Giving up and beginning anew

    def _change(self, queue: ProcessQueue, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._changing[queue] = task
        task.add_done_callback(functools.partial(self._changed, queue))

    def _changed(self, queue: ProcessQueue, task: asyncio.Task[None]) -> None:
        del self._changing[queue]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: %s was not given up cleanly", self._around.group, queue.queue, exc_info=error)
        name = queue.queue
        is_wanted = name in self._wanted.get(name.topic, ())
        if is_wanted != (name in self.table) and not self._is_closed:
            self._around.instance.rebalance_soon()

    async def _give_up(self, queue: ProcessQueue) -> None:
        try:
            await self._end(queue)
            if self._has_lock(queue):
                await self._store(queue, queue.progress())
            await self._unlock([queue])
        finally:
            self._forget(queue)
            del self.table[queue.queue]
            self._around.offsets.forget(queue.queue)

    def _restart_soon(self, queue: ProcessQueue, offset: int) -> None:
        if queue not in self._changing and not self._is_closed:
            self._change(queue, self._begin_anew(queue, offset))

    async def _begin_anew(self, queue: ProcessQueue, offset: int) -> None:
        try:
            await self._end(queue)
        finally:
            self._forget(queue)
            del self.table[queue.queue]
        self._around.offsets.update(queue.queue, offset)
        await self._store(queue, offset)
        if not self._is_closed:
            again = self._start(queue.queue, offset)
            again.is_locked, again.lock_ms, again.lock_time_ms = queue.is_locked, queue.lock_ms, queue.lock_time_ms

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moves the group: go on at these offsets."""
        for name, offset in offsets.items():
            queue = self.table.get(name)
            if queue in self._changing:
                await asyncio.wait([self._changing[queue]])
                queue = self.table.get(name)
            if queue is not None:
                logger.info("%s: an administrator moves %s to %d", self._around.group, name, offset)
                self._restart_soon(queue, offset)

    async def _end(self, queue: ProcessQueue) -> None:
        """Stop a queue; an ordered one has no running listener afterwards."""
        self.pulls.stop(queue)
        if self._ordered is None:
            await self._consumption.halted(queue, RELEASE_WAIT_MS)
        elif not await self._consumption.halted(queue, RELEASE_WAIT_MS):
            queue.release_attempts += 1
            await self._consumption.halted(queue, None)

    def _has_lock(self, queue: ProcessQueue) -> bool:
        """Whether nobody but us can have consumed the queue: only then its progress is ours to store."""
        return self._ordered is None or self._around.broadcasting or queue.may_consume()

    async def _store(self, queue: ProcessQueue, offset: int) -> None:
        around = self._around
        try:
            await around.offsets.persist_one(queue.queue, offset, acknowledged=True)
        except RocketMQError as error:
            logger.warning("%s: progress of %s is not stored: %s", around.group, queue.queue, error)

    async def _unlock(self, queues: Collection[ProcessQueue]) -> None:
        if self._ordered is not None and not self._around.broadcasting and queues:
            await self._ordered.locks.unlock([each.queue for each in queues])

    def _forget(self, queue: ProcessQueue) -> None:
        queue.is_dropped = True
        self._around.flow.freed(queue, queue.clear())

    # Locks and progress

    async def renew_locks(self) -> None:
        """Tell brokers that we still hold our queues."""
        if self._ordered is None:
            return
        if self._around.broadcasting:
            for queue in self.table.values():
                queue.lock()
            return
        held = [each for each in self.table.values() if each.may_consume() or each.running]
        for queue in await self._ordered.locks.renew(held):
            logger.warning("%s: the broker has given %s to another member", self._around.group, queue.queue)
            queue.is_locked = False
        for queue in list(self.table.values()):
            if queue in self._changing:
                continue
            if queue.may_consume():
                self._ordered.go_on(queue)
            elif not queue.is_halted and not queue.is_waiting:
                self.pulls.stop(queue)  # its next loop asks for the lock, instead of waiting for messages
                self.pulls.start(queue)

    async def persist(self) -> None:
        """Store progress."""
        await self._around.offsets.persist([name for name, queue in self.table.items() if self._has_lock(queue)])

    # The end

    async def halt(self, timeout_ms: float) -> bool:
        """Fetch no more and wait for the listeners that run. False where some have not returned."""
        self._is_closed = True
        if self._again is not None:
            self._again.cancel()
        for queue in self.table.values():
            self.pulls.stop(queue)
        ended = await asyncio.gather(
            *(self._consumption.halted(queue, timeout_ms) for queue in list(self.table.values()))
        )
        return all(ended)

    async def leave(self) -> None:
        """Store how far we came and let others have the queues."""
        ours = [queue for queue in self.table.values() if self._has_lock(queue) and not queue.is_dropped]
        await asyncio.gather(*(self._store(queue, queue.progress()) for queue in ours))
        await self._unlock([queue for queue in ours if not queue.running])
        for queue in list(self.table.values()):
            self._forget(queue)
        for task in list(self._changing.values()):
            task.cancel()
