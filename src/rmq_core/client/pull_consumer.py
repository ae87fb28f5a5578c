"""The pull consumer: the application says which queue it wants to read, from where, and how far it is.

Pulling    Any queue of any topic, whoever owns it. What went wrong is raised, and nothing is tried again.
Progress   update_offset() is stored within five seconds, commit() at once; both are the group's.
Ownership  Topics that are registered are divided between the members of the group: owned_queues() and on_assignment
           tell what is ours. Who pulls a queue of another member reads the same messages once more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self, Unpack

from rmq_core.client import queue_offsets
from rmq_core.client.arguments import whole_number
from rmq_core.client.consumer_options import consumer_options
from rmq_core.client.instance import acquire, release
from rmq_core.client.options import shows
from rmq_core.client.pull_member import PullMember
from rmq_core.client.pull_options import PullArguments, PullOptions
from rmq_core.client.pulls import PLAIN_TIMEOUT_MS, PullStatus
from rmq_core.client.received import ReceivedMessage, bare_name, decode_messages
from rmq_core.client.send_back import SendBack
from rmq_core.client.subscriptions import matches, subscription
from rmq_core.errors import ClientClosedError, ClientError
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.filter import ALL_TAGS
from rmq_core.protocol.message import MessageQueue

logger = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FILTERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull gave."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    """Where to go on, whatever the status."""
    min_offset: int
    max_offset: int


class PullConsumer:
    """Asks for messages queue by queue."""

    @shows(PullArguments, PullOptions)
    def __init__(self, group: str, **arguments: Unpack[PullArguments]) -> None:
        self._own, self._options = consumer_options(PullOptions, arguments)
        self._member = PullMember(group, self._options, self._own, self._own.on_assignment)
        self._topics = [self._member.wire_topic(topic) for topic in self._own.topics]
        self._group = group
        self._filters: dict[tuple[str, str, str | None], SubscriptionData] = {}
        self._opening = asyncio.Lock()
        self._closing = asyncio.Lock()
        self._is_open = self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._is_open else "not started"
        return f"<PullConsumer {self._group!r}, {state}>"

    # Life

    async def start(self) -> Self:
        """Begin; the first use does the same. Idempotent."""
        await self._use()
        return self

    async def _use(self) -> PullMember:
        if self._is_open and not self._is_closed:
            return self._member
        async with self._opening:
            if self._is_closed:
                raise ClientClosedError(f"this PullConsumer of {self._group} was closed; make a new one")
            if not self._is_open:
                instance = await acquire(self._options)
                try:
                    await self._member.open(instance)
                    for topic in self._topics:
                        await self._member.register(topic)
                except BaseException:
                    await instance.remove_consumer(self._member)
                    await release(instance)
                    raise
                self._is_open = True
            return self._member

    async def close(self, timeout_ms: int = 10_000) -> None:
        """Store progress with acknowledgement, and leave the group. Idempotent."""
        async with self._closing:
            self._is_closed = True
            async with self._opening:
                was_open, self._is_open = self._is_open, False
            if not was_open:
                return
            member = self._member
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await member.close()
            except TimeoutError:
                logger.warning("%s: closing took more than %d ms", member.group, timeout_ms)
            finally:
                await release(member.instance)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Queues

    def _bare_topic(self, topic: str) -> str:
        """The topic's name without the namespace, whichever way it is given. Raises where it can be no topic."""
        return bare_name(self._options.namespace, self._member.wire_topic(topic))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Every readable queue of a topic. Raises NoRouteError where it does not exist."""
        wire = self._member.wire_topic(topic)
        member = await self._use()
        route = await member.instance.route(wire, refresh=True)
        return [member.bare(queue) for queue in sorted(route.read_queues)]

    async def register(self, topic: str) -> None:
        """Have the group's members divide the queues of a topic, from now on."""
        wire = self._member.wire_topic(topic)
        member = await self._use()
        await member.register(wire)

    async def owned_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that are ours; registers the topic."""
        wire = self._member.wire_topic(topic)
        member = await self._use()
        await member.register(wire)
        return [member.bare(queue) for queue in sorted(member.owned(wire))]

    # Messages

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str = ALL_TAGS,
        sql: str | None = None,
        count_max: int = 32,
        timeout_ms: int = PLAIN_TIMEOUT_MS,
    ) -> PullResult:
        """What there is now. Raises BrokerError, ConnectError, CallTimeoutError."""
        return await self._pull(queue, offset, (tags, sql), count_max, suspend_ms=0, timeout_ms=timeout_ms)

    async def pull_blocking(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str = ALL_TAGS,
        sql: str | None = None,
        count_max: int = 32,
    ) -> PullResult:
        """The same; where there is nothing the broker waits for a message, suspend_ms at most."""
        return await self._pull(
            queue, offset, (tags, sql), count_max, suspend_ms=self._own.suspend_ms, timeout_ms=None
        )

    async def _pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: tuple[str, str | None],
        count_max: int,
        *,
        suspend_ms: int,
        timeout_ms: float | None,
    ) -> PullResult:
        whole_number("offset", offset, low=0)
        whole_number("count_max", count_max)
        wire = self._member.wire(queue)
        filter_ = self._filter(wire.topic, *wanted)
        member = await self._use()
        member.reads(wire.topic)
        pulled = await member.router.pull(
            wire,
            offset=offset,
            subscription=filter_,
            count_max=count_max,
            suspend_ms=suspend_ms,
            send_expression=True,
            timeout_ms=timeout_ms,
        )
        found = decode_messages(
            pulled.body, wire, self._options.namespace, min_offset=pulled.min_offset, max_offset=pulled.max_offset
        )
        messages = [message for message in found if matches(filter_, message)]
        status = PullStatus.NO_MATCHED_MESSAGE if found and not messages else pulled.status
        return PullResult(status, messages, pulled.next_offset, pulled.min_offset, pulled.max_offset)

    def _filter(self, topic: str, tags: str, sql: str | None) -> SubscriptionData:
        key = (topic, tags, sql)
        known = self._filters.get(key)
        if known is None:
            if len(self._filters) >= _FILTERS_MAX:
                self._filters.clear()
            known = self._filters[key] = subscription(topic, tags=tags, sql=sql)
        return known

    async def send_back(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Have a message delivered to the group again, on its retry topic %RETRY%group.

        delay_level 0 leaves the delay to the broker, -1 puts it among the dead letters. Raises ClientError where no
        broker takes it.
        """
        if not isinstance(message, ReceivedMessage):
            raise TypeError(f"message must be a ReceivedMessage, not {type(message).__name__}")
        whole_number("delay_level", delay_level, low=-1)
        member = await self._use()
        if not await SendBack(member.instance, member.group, self._own.reconsume_times_max).send(
            message, delay_level
        ):
            raise ClientError(f"no broker takes {message!r} back; the log says why")

    # Progress

    async def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """The group's progress: the next offset it will read. Stored within five seconds, and at close()."""
        whole_number("offset", offset, low=0)
        wire = self._member.wire(queue)
        (await self._use()).update(wire, offset)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """The same, stored when this returns. Raises what went wrong."""
        whole_number("offset", offset, low=0)
        wire = self._member.wire(queue)
        await (await self._use()).commit(wire, offset)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored progress; None where it has none."""
        wire = self._member.wire(queue)
        return await (await self._use()).store.fetch(wire, young_is_zero=False)

    async def progress(self, queue: MessageQueue) -> int | None:
        """What update_offset() and commit() said last, else the stored progress."""
        wire = self._member.wire(queue)
        store = (await self._use()).store
        known = store.position(wire)
        return known if known is not None else await store.fetch(wire, young_is_zero=False)

    # Places

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        wire = self._member.wire(queue)
        return await queue_offsets.min_offset((await self._use()).instance, wire)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        wire = self._member.wire(queue)
        return await queue_offsets.max_offset((await self._use()).instance, wire)

    async def offset_for_time(self, queue: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored then or later."""
        time_ms = queue_offsets.milliseconds("moment", moment)
        wire = self._member.wire(queue)
        return await queue_offsets.offset_by_time((await self._use()).instance, wire, time_ms)

    async def oldest_stored_at(self, queue: MessageQueue) -> datetime | None:
        """When the oldest message was stored; None where there is none."""
        wire = self._member.wire(queue)
        time_ms = await queue_offsets.earliest_store_time_ms((await self._use()).instance, wire)
        return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)
