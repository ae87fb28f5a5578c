"""The lite pull consumer: messages are fetched ahead, and the application takes them when it likes.

Done      What poll() gave is done when poll() is called again; of an iteration, a message is done when the next one
          is asked for. So an exception in between leaves it undone, and it will be read again.
Commit    With auto_commit what is done is stored every five seconds, when a queue is given up, and at close().
          commit() counts what its caller holds as done, and returns when the brokers have acknowledged it.
Readers   poll() has one caller at a time; iterations in several tasks share the messages between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self, Unpack

from rmq_core.client import queue_offsets
from rmq_core.client.arguments import whole_number
from rmq_core.client.consumer_options import consumer_options
from rmq_core.client.instance import acquire, release
from rmq_core.client.lite_role import LiteRole, OnQueues
from rmq_core.client.options import shows
from rmq_core.client.pull_options import LiteArguments, LiteOptions
from rmq_core.client.pull_queue import Taken
from rmq_core.client.pull_role import checked_queues
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.subscriptions import subscription
from rmq_core.errors import ClientClosedError, ClientError, NoRouteError
from rmq_core.protocol.filter import ALL_TAGS
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)


class LitePullConsumer:
    """Reads topics as a member of a group, or the queues it is told to."""

    @shows(LiteArguments, LiteOptions)
    def __init__(self, group: str, **arguments: Unpack[LiteArguments]) -> None:
        own, options = consumer_options(LiteOptions, arguments)
        self._options = options
        self._role = LiteRole(group, options, own)
        self._group = group
        self._opening = asyncio.Lock()
        self._closing = asyncio.Lock()
        self._is_open = self._is_closed = False
        self._polled: list[Taken] = []
        self._iterators: weakref.WeakSet[_Messages] = weakref.WeakSet()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._is_open else "not started"
        return f"<LitePullConsumer {self._group!r}, {state}>"

    # Life

    async def start(self) -> Self:
        """Begin; the first use does the same. Idempotent."""
        await self._use()
        return self

    async def _use(self) -> LiteRole:
        if self._is_open and not self._is_closed:
            return self._role
        async with self._opening:
            self._check_open()
            if not self._is_open:
                instance = await acquire(self._options)
                try:
                    await self._role.open(instance)
                except BaseException:
                    await release(instance)
                    raise
                self._is_open = True
            return self._role

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(f"this LitePullConsumer of {self._group} was closed; make a new one")

    async def close(self, timeout_ms: int = 10_000) -> None:
        """Stop, store what is done with acknowledgement, and leave the group. Idempotent.

        What was given out last is not done: commit() before, if it is. After timeout_ms nothing is waited for.
        """
        async with self._closing:
            self._is_closed = True
            async with self._opening:
                was_open, self._is_open = self._is_open, False
            if not was_open:
                return
            role = self._role
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await role.close()
            except TimeoutError:
                logger.warning(
                    "%s: closing took more than %d ms; progress may be stored partly", role.group, timeout_ms
                )
            finally:
                await release(role.instance)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What to read

    async def subscribe(self, topic: str, *, tags: str = ALL_TAGS, sql: str | None = None) -> None:
        """Read a topic, as a member of the group. Its queues are divided anew before this returns.

        A topic that does not exist yet is read once it does. Raises BrokerError where a broker cannot filter by the
        SQL, and ClientError after assign().
        """
        wanted = subscription(self._role.wire_topic(topic), tags=tags, sql=sql)
        role = await self._use()
        if role.is_assigned:
            raise ClientError("this consumer was assigned queues; another one may subscribe")
        with contextlib.suppress(NoRouteError):
            await role.instance.route(wanted.topic)
            await role.check_filter(role.instance, wanted)
        role.is_assigned = False
        role.subscribe(wanted)
        await role.instance.heartbeat()
        await role.rebalance()

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer; what is done of it is stored."""
        role = await self._use()
        if role.subscriptions.pop(role.wire_topic(topic), None) is not None:
            await role.instance.heartbeat()
            await role.rebalance()

    async def assign(
        self, queues: Collection[MessageQueue], *, tags: str = ALL_TAGS, sql: str | None = None
    ) -> None:
        """Read these queues and no others, whoever else does; progress is still the group's.

        Raises ClientError after subscribe(), and NoRouteError where a topic does not exist.
        """
        wires = [self._role.wire(queue) for queue in checked_queues(queues)]
        wanted = [subscription(topic, tags=tags, sql=sql) for topic in sorted({queue.topic for queue in wires})]
        role = await self._use()
        if role.is_assigned is False:
            raise ClientError("this consumer has subscribed to topics; another one may be assigned queues")
        for each in wanted:
            await role.instance.route(each.topic)
            await role.check_filter(role.instance, each)
        role.is_assigned = True
        role.subscriptions.update((each.topic, each) for each in wanted)
        await role.instance.heartbeat()
        await role.assign(wires)
        for topic in role.subscriptions.keys() - {each.topic for each in wanted}:
            del role.subscriptions[topic]

    async def assigned(self) -> list[MessageQueue]:
        """The queues that are read now."""
        role = await self._use()
        return [loop.state.queue for loop in role.owned()]

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Every readable queue of a topic. Raises NoRouteError where it does not exist."""
        role = await self._use()
        route = await role.instance.route(role.wire_topic(topic), refresh=True)
        return [role.bare(queue) for queue in sorted(route.read_queues)]

    async def watch_queues(self, topic: str, call_back: OnQueues) -> list[MessageQueue]:
        """The same, and call_back(topic, queues) whenever they have changed: for those who assign by themselves."""
        if not callable(call_back):
            raise TypeError("call_back must be a function")
        role = await self._use()
        route = await role.instance.route(role.wire_topic(topic), refresh=True)
        role.watch(route.topic, call_back, route.read_queues)
        return [role.bare(queue) for queue in sorted(route.read_queues)]

    # Messages

    async def poll(self, timeout_ms: int = 5_000, *, count_max: int = 500) -> list[ReceivedMessage]:
        """Messages that were fetched, or the first that come within the time; empty where none did.

        What the last poll() gave is done now.
        """
        whole_number("timeout_ms", timeout_ms, low=0)
        whole_number("count_max", count_max)
        role = await self._readable()
        finished, self._polled = self._polled, []
        for each in finished:
            each.finish()
        self._polled = await role.wait_and_take(timeout_ms, count_max)
        return messages_of(self._polled)

    def __aiter__(self) -> _Messages:
        self._check_open()
        return _Messages(self)

    async def _take(self, finished: Iterable[Taken], timeout_ms: int | None, count_max: int) -> list[Taken]:
        """poll() for readers that keep what they hold themselves."""
        role = await self._readable()
        for each in finished:
            each.finish()
        return await role.wait_and_take(timeout_ms, count_max)

    async def _readable(self) -> LiteRole:
        role = await self._use()
        if role.is_assigned is None:
            raise ClientError("there is nothing to read; subscribe() to a topic or assign() queues first")
        return role

    # Progress

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress, and return when the brokers have it: what was given out counts as done, or these offsets.

        Raises ClientError for a queue that is not assigned, and what went wrong where it is not stored.
        """
        task = asyncio.current_task()
        iterated = [each.held for each in self._iterators if each.task is task and each.held is not None]
        await self._commit([(each, each.end) for each in (*self._polled, *iterated)], offsets)

    async def _commit(
        self, finished: Iterable[tuple[Taken, int]], offsets: Mapping[MessageQueue, int] | None
    ) -> None:
        """commit() for readers that keep what they hold themselves, and up to where it is done."""
        for queue, offset in (offsets or {}).items():
            whole_number(f"the offset of {queue}", offset, low=0)
        role = await self._use()
        if offsets is not None:
            places = {role.loop(queue).state.wire: offset for queue, offset in offsets.items()}
        else:
            for each, end in finished:
                each.advance(end)
            owned = {loop.state.wire: loop.state.progress for loop in role.owned()}
            places = {wire: offset for wire, offset in owned.items() if offset is not None}
        for wire, offset in places.items():
            role.store.update(wire, offset)
        await asyncio.gather(
            *(role.store.persist_one(wire, offset, acknowledged=True) for wire, offset in places.items())
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored progress of a queue; None where it has none."""
        wire = self._role.wire(queue)
        role = await self._use()
        return await role.store.fetch(wire, young_is_zero=False)

    async def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message that will be given out; None until it is known where the group is."""
        role = await self._use()
        return role.loop(queue).state.position

    # Places

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on there. Raises ValueError where the queue has no such offset, ClientError where it is not ours."""
        whole_number("offset", offset, low=0)
        role = await self._use()
        wire = role.loop(queue).state.wire
        lowest = await queue_offsets.min_offset(role.instance, wire)
        highest = await queue_offsets.max_offset(role.instance, wire)
        if not lowest <= offset <= highest:
            raise ValueError(f"offset must lie in [{lowest}, {highest}] of {queue}, and {offset} does not")
        await role.loop(queue).seek(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message."""
        role = await self._use()
        offset = await queue_offsets.min_offset(role.instance, role.loop(queue).state.wire)
        await role.loop(queue).seek(offset)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on at the next message that will be sent."""
        role = await self._use()
        offset = await queue_offsets.max_offset(role.instance, role.loop(queue).state.wire)
        await role.loop(queue).seek(offset)

    async def offset_for_time(self, queue: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored then or later."""
        time_ms = queue_offsets.milliseconds("moment", moment)
        wire = self._role.wire(queue)
        role = await self._use()
        return await queue_offsets.offset_by_time(role.instance, wire, time_ms)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        wire = self._role.wire(queue)
        role = await self._use()
        return await queue_offsets.min_offset(role.instance, wire)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        wire = self._role.wire(queue)
        role = await self._use()
        return await queue_offsets.max_offset(role.instance, wire)

    async def pause(self, *queues: MessageQueue) -> None:
        """Neither fetch nor give out messages of these queues. Raises ClientError where one is not assigned."""
        role = await self._use()
        for loop in [role.loop(queue) for queue in queues]:
            loop.state.pause()

    async def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues."""
        role = await self._use()
        for loop in [role.loop(queue) for queue in queues]:
            loop.state.is_paused = False
        role.cache.room.fire()
        role.cache.arrival.fire()  # an iteration may have put something back meanwhile


class _Messages:
    """One iteration. What it holds when it ends early will be given out again."""

    def __init__(self, consumer: LitePullConsumer) -> None:
        self._consumer = consumer
        self.held: Taken | None = None
        self.task: asyncio.Task[object] | None = None
        consumer._iterators.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        finished, self.held = [self.held] if self.held is not None else [], None
        self.task = asyncio.current_task()
        try:
            taken = await self._consumer._take(finished, None, 1)
        except ClientClosedError:
            raise StopAsyncIteration from None
        if not taken:  # closed while it waited
            raise StopAsyncIteration
        self.held = taken[0]
        return self.held.messages[0]

    def __del__(self) -> None:
        if self.held is not None:
            self.held.put_back()


def messages_of(taken: Iterable[Taken]) -> list[ReceivedMessage]:
    """Everything in it, queue by queue."""
    return [message for each in taken for message in each.messages]
