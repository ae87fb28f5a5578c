"""The queues of a lite pull consumer: which are ours, how they are fetched, and how they come and go.

Ours    By subscription the group's members divide the queues between them; by assignment we read what we were told.
Comes   A queue begins at the group's progress, or where new groups start; the call-back may seek before the first
        pull goes out.
Goes    Nothing more is given out; the call-back may commit; then what is finished is stored with acknowledgement,
        and comes again where a new owner asked before that. What was given out and is not finished is the next
        owner's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rmq_core.client.instance import ClientInstance
from rmq_core.client.offset_store import OffsetStore
from rmq_core.client.options import ClientOptions
from rmq_core.client.pull_loop import PullLoop
from rmq_core.client.pull_options import LiteOptions
from rmq_core.client.pull_queue import Cache, PulledQueue, Taken, take_in_turn
from rmq_core.client.pull_role import PullRole, queue_info, tell
from rmq_core.client.pulls import PullRouter
from rmq_core.client.queue_offsets import start_offset
from rmq_core.client.rebalance import owned_queues
from rmq_core.client.received import bare_name
from rmq_core.client.routes import TopicRoute
from rmq_core.errors import ClientError, RocketMQError
from rmq_core.protocol.bodies import ConsumerRunningInfo, SubscriptionData
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)

OnQueues: TypeAlias = Callable[[str, list[MessageQueue]], Awaitable[None] | None]


@dataclass(slots=True)
class _Watch:
    call_backs: list[OnQueues] = field(default_factory=list)
    seen: tuple[MessageQueue, ...] | None = None


class LiteRole(PullRole):
    """A member that fetches ahead of its reader."""

    def __init__(self, group: str, options: ClientOptions, settings: LiteOptions) -> None:
        super().__init__(group, options, broadcasting=settings.broadcasting, start_from=settings.start_from)
        self.settings = settings
        self.cache = Cache(settings.limits)
        self.is_assigned: bool | None = None
        """Whether we were told what to read; None until we read anything."""
        self.store: OffsetStore
        self._router: PullRouter
        self._loops: dict[MessageQueue, PullLoop] = {}
        self._watched: dict[str, _Watch] = {}
        self._balancing = asyncio.Lock()

    async def open(self, instance: ClientInstance) -> None:
        """Join the instance. Raises ClientError where the group is in it already."""
        self.instance = instance
        self._router = PullRouter(instance, self.group)
        self.store = self.offset_store(instance, self.settings.offset_dir)
        await self.store.load()
        instance.add_consumer(self)

    async def close(self) -> None:
        """Stop pulling, store what is finished, and leave."""
        self.is_closed = True
        self.cache.arrival.fire()
        await asyncio.gather(*(loop.stop() for loop in self._loops.values()))
        await asyncio.gather(*map(self._store_progress, list(self._loops)))
        await self.instance.remove_consumer(self)

    # What the instance asks

    def topics(self) -> Collection[str]:
        return {*self.subscriptions, *self._watched, *(queue.topic for queue in self._loops)}

    def topic_changed(self, route: TopicRoute) -> None:
        if self.is_assigned is False and route.topic in self.subscriptions:
            self.instance.rebalance_soon()
        watch = self._watched.get(route.topic)
        if watch is not None and watch.seen != route.read_queues:
            watch.seen = route.read_queues
            queues = [self.bare(queue) for queue in sorted(route.read_queues)]
            topic = bare_name(self.options.namespace, route.topic)
            for call_back in watch.call_backs:
                self.instance.spawn(tell(call_back, topic, queues))

    async def persist_offsets(self) -> None:
        await self.store.persist(list(self._loops))

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        moved = [(self._loops[queue], offset) for queue, offset in offsets.items() if queue in self._loops]
        logger.info("%s: an administrator moves %d queues of %s", self.group, len(moved), topic)
        await asyncio.gather(*(loop.reset(offset) for loop, offset in moved))

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        return self.store.positions(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return self.info(
            {
                loop.state.wire: queue_info(
                    progress=loop.state.progress or 0,
                    offsets=[message.queue_offset for message in loop.state.waiting],
                    size_bytes=loop.state.size_bytes,
                    pulled_time_ms=loop.state.pulled_time_ms,
                    is_dropped=loop.state.is_leaving,
                )
                for loop in self._loops.values()
            }
        )

    async def rebalance(self) -> None:
        if self.is_assigned is not False or self.is_closed:
            return
        async with self._balancing:
            for topic in sorted(self.subscriptions):
                owned = await owned_queues(
                    self.instance,
                    self.group,
                    topic,
                    strategy=self.settings.strategy,
                    broadcasting=self.settings.broadcasting,
                )
                if owned is None:
                    self.try_again_soon()
                elif topic in self.subscriptions:
                    await self._own(topic, owned)
            for topic in {queue.topic for queue in self._loops} - self.subscriptions.keys():
                await self._own(topic, ())

    # What is ours

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read these queues, and no others."""
        async with self._balancing:
            for topic in sorted({queue.topic for queue in (*self._loops, *queues)}):
                await self._own(topic, [queue for queue in queues if queue.topic == topic])

    async def _own(self, topic: str, owned: Collection[MessageQueue]) -> None:
        if self.is_closed:
            return
        had = {queue for queue in self._loops if queue.topic == topic}
        given, taken = set(owned) - had, had - set(owned)
        if not given and not taken:
            return
        for queue in taken:
            self._loops[queue].state.is_leaving = True
        await asyncio.gather(*(self._loops[queue].stop() for queue in taken))
        for queue in sorted(given):
            self.store.forget(queue)
            self._loops[queue] = self._make_loop(queue)
        if self.settings.on_assignment is not None:
            await tell(self.settings.on_assignment, self.assignment(topic, owned, given=given, taken=taken))
        await asyncio.gather(*map(self._give_up, taken))
        if not self.is_closed:
            for queue in sorted(given):
                self._loops[queue].start()
        logger.info(
            "%s reads %d queues of %s: %d more, %d less", self.group, len(owned), topic, len(given), len(taken)
        )

    def _make_loop(self, queue: MessageQueue) -> PullLoop:
        return PullLoop(
            PulledQueue(self.bare(queue), queue, self.cache, self._progressed),
            self.instance,
            self._router,
            self.store,
            self.cache,
            subscription=lambda: self.subscriptions.get(queue.topic),
            first_offset=self._first_offset,
            count_max=self.settings.pull_batch_size,
            suspend_ms=self.settings.suspend_ms,
            namespace=self.options.namespace,
        )

    async def _first_offset(self, state: PulledQueue) -> int:
        # For "latest" a young topic is read from its first message, as in Java: else what is sent while a group
        # starts for the first time would be lost. Who names a moment means it.
        is_moment = not isinstance(self.settings.start_from, str)
        stored = await self.store.fetch(state.wire, young_is_zero=not is_moment)
        if stored is not None and stored >= 0:
            return stored
        return await start_offset(self.instance, state.wire, self.settings.start_from)

    async def _give_up(self, queue: MessageQueue) -> None:
        await self._store_progress(queue)
        self.store.forget(queue)
        self._router.forget(queue)
        self._loops.pop(queue).state.discard()

    async def _store_progress(self, queue: MessageQueue) -> None:
        try:
            await self.store.persist_one(queue, acknowledged=True)
        except RocketMQError as error:
            logger.warning("%s: progress of %s is not stored: %s", self.group, queue, error)

    def _progressed(self, state: PulledQueue) -> None:
        progress = state.progress
        if self.settings.auto_commit and progress is not None and state.wire in self._loops:
            self.store.update(state.wire, progress)

    # For the reader

    def loop(self, queue: MessageQueue) -> PullLoop:
        """Raises ClientError where the queue is not ours."""
        loop = self._loops.get(self.wire(queue))
        if loop is None:
            raise ClientError(f"{queue} is not assigned to this consumer; see on_assignment")
        return loop

    def owned(self) -> list[PullLoop]:
        """Everything that is ours now."""
        return [loop for _, loop in sorted(self._loops.items())]

    async def wait_and_take(self, timeout_ms: float | None, count_max: int) -> list[Taken]:
        """Give out what waits once there is something; nothing after the time-out or after close()."""
        clock = self.options.clock
        deadline_ms = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
        while not self.is_closed:
            if taken := take_in_turn((loop.state for loop in self._loops.values()), count_max):
                return taken
            remaining_ms = None if deadline_ms is None else deadline_ms - clock.monotonic_ms()
            if remaining_ms is not None and remaining_ms <= 0:
                break
            try:
                async with asyncio.timeout(None if remaining_ms is None else remaining_ms / 1000):
                    await self.cache.arrival.wait()
            except TimeoutError:
                break
        return []

    def subscribe(self, wanted: SubscriptionData) -> None:
        """From the next heartbeat and rebalance on."""
        self.subscriptions[wanted.topic] = wanted

    def watch(self, topic: str, call_back: OnQueues, seen: tuple[MessageQueue, ...]) -> None:
        """Call back when the queues of a wire topic are no longer those."""
        watch = self._watched.setdefault(topic, _Watch(seen=seen))
        watch.call_backs.append(call_back)
