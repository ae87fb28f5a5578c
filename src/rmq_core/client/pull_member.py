"""The membership of a pull consumer: which queues of its topics are its own, and how far the group is on each.

It fetches nothing by itself. Progress is what the application says it is, and is stored every five seconds, when a
queue goes to another member, and at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from rmq_core.client.consumer_options import ConsumerOptions
from rmq_core.client.instance import ClientInstance
from rmq_core.client.offset_store import OffsetStore
from rmq_core.client.options import ClientOptions
from rmq_core.client.pull_options import OnAssignment
from rmq_core.client.pull_role import PullRole, queue_info, tell
from rmq_core.client.pulls import PullRouter
from rmq_core.client.rebalance import owned_queues
from rmq_core.client.routes import TopicRoute
from rmq_core.client.subscriptions import subscription
from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.protocol.bodies import ConsumerRunningInfo
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)


class PullMember(PullRole):
    """A member that pulls when it is told to."""

    def __init__(
        self, group: str, options: ClientOptions, settings: ConsumerOptions, on_assignment: OnAssignment | None
    ) -> None:
        super().__init__(group, options, broadcasting=settings.broadcasting)
        self._settings = settings
        self._on_assignment = on_assignment
        self._owned: dict[str, frozenset[MessageQueue]] = {}
        """By registered topic; empty until the members have divided its queues."""
        self._touched: set[MessageQueue] = set()
        """The queues whose progress we were told."""
        self._balancing = asyncio.Lock()
        self.store: OffsetStore
        self.router: PullRouter

    async def open(self, instance: ClientInstance) -> None:
        """Join the instance. Raises ClientError where the group is in it already."""
        self.instance = instance
        self.router = PullRouter(instance, self.group)
        self.store = self.offset_store(instance, self._settings.offset_dir)
        await self.store.load()
        instance.add_consumer(self)

    async def close(self) -> None:
        """Store progress, and leave."""
        self.is_closed = True
        await asyncio.gather(*map(self._store_progress, list(self._touched)))
        await self.instance.remove_consumer(self)

    # What the instance asks

    def topics(self) -> Collection[str]:
        return self.subscriptions.keys()

    def topic_changed(self, route: TopicRoute) -> None:
        if route.topic in self._owned:
            self.instance.rebalance_soon()

    async def persist_offsets(self) -> None:
        await self.store.persist(list(self._touched))

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            self.update(queue, offset)
            await self._store_progress(queue)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        return self.store.positions(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        owned = {queue for queues in self._owned.values() for queue in queues}
        return self.info(
            {
                queue: queue_info(
                    progress=self.store.position(queue) or 0,
                    offsets=(),
                    size_bytes=0,
                    pulled_time_ms=0,
                    is_dropped=False,
                )
                for queue in sorted(owned | self._touched)
            }
        )

    async def rebalance(self) -> None:
        async with self._balancing:
            for topic in sorted(self._owned):
                if self.is_closed:
                    return
                owned = await owned_queues(
                    self.instance,
                    self.group,
                    topic,
                    strategy=self._settings.strategy,
                    broadcasting=self._settings.broadcasting,
                )
                if owned is None:
                    self.try_again_soon()
                else:
                    await self._own(topic, owned)

    async def _own(self, topic: str, owned: frozenset[MessageQueue]) -> None:
        had = self._owned[topic]
        given, taken = owned - had, had - owned
        if not given and not taken:
            return
        self._owned[topic] = owned
        if self._on_assignment is not None:
            await tell(self._on_assignment, self.assignment(topic, owned, given=given, taken=taken))
        for queue in taken:
            await self._store_progress(queue)
            self._touched.discard(queue)
            self.store.forget(queue)
            self.router.forget(queue)
        logger.info(
            "%s owns %d queues of %s: %d more, %d less", self.group, len(owned), topic, len(given), len(taken)
        )

    # For the application

    def reads(self, topic: str) -> None:
        """Heartbeats say from now on that we read a wire topic."""
        if topic not in self.subscriptions:
            self.subscriptions[topic] = subscription(topic)

    async def register(self, topic: str) -> None:
        """Have the members divide the queues of a wire topic, now and whenever they change. Raises NoRouteError."""
        if topic not in self._owned:
            await self.instance.route(topic)
            self.reads(topic)
            self._owned.setdefault(topic, frozenset())
            await self.instance.heartbeat()
            await self.rebalance()

    def owned(self, topic: str) -> frozenset[MessageQueue]:
        """Our queues of a registered wire topic."""
        return self._owned.get(topic, frozenset())

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Progress, to be stored later."""
        self._touched.add(queue)
        self.store.update(queue, offset)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Progress, stored when this returns. Raises what went wrong."""
        try:
            await self.store.persist_one(queue, offset, acknowledged=True)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            # A group that has neither pulled nor said that it is there: a heartbeat makes it.
            self.reads(queue.topic)
            await self.instance.heartbeat()
            await self.store.persist_one(queue, offset, acknowledged=True)
        self.update(queue, offset)

    async def _store_progress(self, queue: MessageQueue) -> None:
        try:
            await self.store.persist_one(queue, acknowledged=True)
        except RocketMQError as error:
            logger.warning("%s: progress of %s is not stored: %s", self.group, queue, error)
