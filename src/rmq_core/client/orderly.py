"""Consumption in the order of each queue, by one listener call at a time and one member of the group at a time.

Locks    of three kinds. The broker's lock, of a group and a queue, says which member may consume; it is renewed,
         and a worker asks before each call whether it still counts. One piece of a queue at most is in a worker's
         hands. And who gives a queue up first waits for that piece, then stores progress, then unlocks.
Failed   The same message again after a pause, before any other of its queue, until it was tried too often: then it
         goes to the dead letters and the queue goes on.
Lost     A lock that the broker gave to another member, or forgot because it restarted, stops the queue at once.
         When we have it again, the group's progress tells whether somebody else was there meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from rmq_core.client.concurrent import Consumption, Surroundings
from rmq_core.client.listen_results import DEAD_LETTER_LEVEL
from rmq_core.client.listeners import PIECE_COUNT_MAX, Failure, Piece, Report
from rmq_core.client.process_queue import ProcessQueue
from rmq_core.client.pulls import broker_of
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_back import tried_again
from rmq_core.errors import RocketMQError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 1_000
LOCK_RETRY_MS: Final = 1_000
"""How soon we ask again for a lock that another member has."""


class BrokerLocks:
    """The brokers' locks of one group, for one client."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Those of the queues that are ours now; none of a broker that cannot be asked."""
        granted = await asyncio.gather(*(self._lock(same) for same in _by_broker(queues)))
        return {queue for each in granted for queue in each or ()}

    async def renew(self, queues: Collection[ProcessQueue]) -> list[ProcessQueue]:
        """Renew the locks of these; returns those that the broker has given to somebody else."""
        by_name = {each.queue: each for each in queues}
        same_broker = _by_broker(by_name)
        granted = await asyncio.gather(*(self._lock(same) for same in same_broker))
        lost = []
        for asked, ours in zip(same_broker, granted, strict=True):
            if ours is None:
                continue  # the broker did not answer: our lock ends by itself when it is too old
            for queue in asked:
                if queue in ours:
                    by_name[queue].lock()
                else:
                    lost.append(by_name[queue])
        return lost

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Let other members have them."""
        around = self._around
        for same in _by_broker(queues):
            body = UnlockBatchRequestBody(around.group, around.instance.client_id, tuple(same), False)
            try:
                broker = await broker_of(around.instance, same[0], only_master=True)
                await around.instance.call(
                    broker.address, r.UnlockBatchMq(), body.encode(), timeout_ms=LOCK_TIMEOUT_MS
                )
            except RocketMQError as error:
                logger.warning("%s: queues of %s stay locked: %s", around.group, same[0].broker_name, error)

    async def _lock(self, queues: Sequence[MessageQueue]) -> set[MessageQueue] | None:
        around = self._around
        body = LockBatchRequestBody(around.group, around.instance.client_id, tuple(queues), False)
        try:
            broker = await broker_of(around.instance, queues[0], only_master=True)
            answer = await around.instance.call(
                broker.address, r.LockBatchMq(), body.encode(), timeout_ms=LOCK_TIMEOUT_MS
            )
            return set(LockBatchResponseBody.decode(answer.body).locked)
        except RocketMQError as error:
            logger.warning(
                "%s: broker %s cannot be asked for locks: %s", around.group, queues[0].broker_name, error
            )
            return None


class OrderedConsumption(Consumption):
    """Ordered."""

    def __init__(self, around: Surroundings, *, reconsume_times_max: int) -> None:
        super().__init__(around)
        self._times_max = reconsume_times_max
        self._suspended: dict[ProcessQueue, asyncio.Task[None]] = {}
        self.locks = BrokerLocks(around)

    def put(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        queue.untaken.extend(messages)
        self.go_on(queue)

    def go_on(self, queue: ProcessQueue) -> None:
        """Give the next messages of a queue to a worker, if it is free for it."""
        if queue.running or queue.is_halted or not queue.untaken or queue in self._suspended:
            return
        if not queue.may_consume():
            return  # its pull loop asks for the lock, and calls again
        around = self._around
        topic = queue.untaken[0].topic if queue.is_retry else queue.shown_queue.topic
        listener = around.listener_of(topic)
        if listener is None:
            logger.error("%s: %r came, and nothing listens to its topic", around.group, queue.untaken[0])
            self._suspend(queue, around.suspend_ms)
            return
        count = max(PIECE_COUNT_MAX, listener.batch_size_max)
        if queue.is_retry:
            count = _count_of_topic(queue, topic, count)
        taken = queue.take(count)
        queue.running = len(taken)
        around.crew.put(Piece(queue, taken, listener, around.post))

    def finished(self, report: Report) -> None:
        queue = report.piece.queue
        self._done(queue, report.done)
        if not report.failures:
            self._ended(report)
            return
        failure = report.failures[0]
        self._spawn(asyncio.get_running_loop().create_task(self._failed(report, failure)))

    def _ended(self, report: Report) -> None:
        if not report.is_last:
            self._count(report, returned=0)  # the queue is its worker's until the piece has ended
            return
        queue = report.piece.queue
        queue.put_back()
        self._count(report, returned=queue.running)
        self.go_on(queue)

    async def _failed(self, report: Report, failure: Failure) -> None:
        """The queue counts as being consumed until it is settled what becomes of these messages."""
        queue = report.piece.queue
        pause_ms = self._around.suspend_ms if failure.suspend_ms is None else failure.suspend_ms
        try:
            if not queue.is_dropped and failure.suspend_ms is None:
                given_up = [await self._give_up(message, failure) for message in failure.messages]
                self._done(
                    queue, [m.queue_offset for m, gone in zip(failure.messages, given_up, strict=True) if gone]
                )
                self._count_failures(queue, failure.messages)
                pause_ms = 0 if all(given_up) else pause_ms
        finally:
            queue.put_back()
            self._suspend(queue, pause_ms)
            self._count(report, returned=queue.running)
        if not pause_ms:
            self.go_on(queue)

    async def _give_up(self, message: ReceivedMessage, failure: Failure) -> bool:
        """Whether the queue goes on without this message."""
        is_last = failure.delay_level == DEAD_LETTER_LEVEL or message.reconsume_times >= self._times_max
        if not is_last:
            return False
        if self._around.broadcasting:
            logger.error("%s: %r failed too often; broadcasts have no dead letters", self._around.group, message)
            return True
        return await self._around.send_back.send_copy(message, is_last=True)

    def _count_failures(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """What comes again knows how often it failed."""
        again = {}
        for message in messages:
            if message.queue_offset in queue.messages:
                again[message] = tried_again(message, self._around.namespace)
                queue.messages[message.queue_offset] = again[message]
        queue.taken = tuple(again.get(message, message) for message in queue.taken)

    def _suspend(self, queue: ProcessQueue, pause_ms: int) -> None:
        if pause_ms > 0 and not queue.is_halted:
            task = asyncio.get_running_loop().create_task(self._resume_after(queue, pause_ms))
            self._suspended[queue] = task
            self._spawn(task)

    async def _resume_after(self, queue: ProcessQueue, pause_ms: int) -> None:
        await self._around.instance.clock.sleep(pause_ms)
        self._suspended.pop(queue, None)
        self.go_on(queue)

    async def own_again(self, queue: ProcessQueue) -> bool:
        """Get back a lock that was lost. A queue that others have advanced then goes on where they stopped."""
        around = self._around
        if around.broadcasting:
            queue.lock()
            return True
        if queue.queue not in await self.locks.lock([queue.queue]):
            return False
        while queue.running and not queue.is_halted:  # a listener of ours that was called before
            await around.instance.clock.sleep(10)
        try:
            stored = await around.offsets.fetch(queue.queue)
        except RocketMQError as error:
            logger.warning("%s: progress of %s cannot be read: %s", around.group, queue.queue, error)
            return False
        if queue.is_halted:
            return False
        queue.lock()
        if stored is not None and stored > queue.progress():
            logger.info("%s: others consumed %s up to %d meanwhile", around.group, queue.queue, stored)
            around.flow.freed(queue, queue.clear())
            if (pause := self._suspended.pop(queue, None)) is not None:
                pause.cancel()  # the message that it was for has been consumed by somebody else
            queue.next_offset = stored
            around.offsets.update(queue.queue, stored)
        self.go_on(queue)
        return True


def _by_broker(queues: Collection[MessageQueue]) -> list[list[MessageQueue]]:
    same: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        same.setdefault(queue.broker_name, []).append(queue)
    return list(same.values())


def _count_of_topic(queue: ProcessQueue, topic: str, count_max: int) -> int:
    """How many messages at the front of a retry queue have this topic."""
    count = 0
    for message in queue.untaken:
        if count == count_max or message.topic != topic:
            break
        count += 1
    return count
