"""Consumes topics by calling listeners: as a member of a group that shares the work, or alone with every message.

Life       start() finds routes, greets the brokers and divides the queues; close() fetches no more, waits for
           running listeners, stores progress, unlocks and leaves the group. Both may be called again.
Delivery   At least once. What a listener did not consume comes again; what it consumed may, after a crash or when
           the queue went to another member.
Versions   Pulls name the subscription that brokers were last told of; a new one counts from the next heartbeat on.
Threads    Everything here is on the loop that start() ran on. Listeners are called by workers elsewhere, but for
           coroutine functions, which run on this loop too, unless a subclass says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload

from rmq_core.client import push_info
from rmq_core.client.arguments import whole_number
from rmq_core.client.concurrent import ConcurrentConsumption, Surroundings
from rmq_core.client.consume_stats import SAMPLE_MS, ConsumeStats
from rmq_core.client.consumer_options import consume_from_where, consumer_group, consumer_options
from rmq_core.client.flow import Flow
from rmq_core.client.hooks import Hooks
from rmq_core.client.instance import ClientInstance, acquire, release
from rmq_core.client.listeners import Handler, Listener, Report
from rmq_core.client.offset_store import FileOffsets, OffsetStore, RemoteOffsets, offset_file
from rmq_core.client.options import shows
from rmq_core.client.orderly import OrderedConsumption
from rmq_core.client.push_options import PushArguments, PushOptions, checked_concurrency
from rmq_core.client.push_pulls import PullSettings
from rmq_core.client.push_queues import OwnedQueues
from rmq_core.client.routes import TopicRoute
from rmq_core.client.send_back import SendBack
from rmq_core.client.signals import on_interrupt
from rmq_core.client.subscriptions import is_by_tags, renewed, subscription
from rmq_core.client.workers import Crew, Mailbox, TaskWorkers
from rmq_core.errors import ClientClosedError, ConnectError, ForkedError, NoRouteError, RocketMQError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    CheckClientRequestBody,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rmq_core.protocol.filter import ALL_TAGS
from rmq_core.protocol.message import MessageQueue, retry_topic, wrap_namespace
from rmq_core.protocol.record import StoredRecord

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)
_WORKERS_STOP_S: Final = 0.2
_RETRY_TOPIC_MS: Final = 50
_CLOSE_MS: Final = 10_000


def _own_retries(group: str) -> dict[str, SubscriptionData]:
    wanted = subscription(retry_topic(group))
    return {wanted.topic: wanted}


class PushConsumer:
    """A consumer that calls your functions with the messages of the topics they subscribe to.

    Members of a group share the work; subscribe all of them to the same.
    """

    @shows(PushArguments, PushOptions)
    def __init__(self, group: str, **arguments: Unpack[PushArguments]) -> None:
        self.options, self._client = consumer_options(PushOptions, arguments)
        namespace = self._client.namespace
        self.group = wrap_namespace(namespace, consumer_group(group))
        self._hooks = Hooks(self._client.hooks)
        self._listeners: dict[str, Listener] = {}
        self._subscriptions = {} if self.options.broadcasting else _own_retries(self.group)
        self._announced: dict[str, SubscriptionData] = {}
        """What brokers were told of."""
        self._crew = Crew(f"rmq-listener-{group}", self.options.concurrency, self, self._listener_loop)
        self._starting = asyncio.Lock()
        self._duties: list[asyncio.Task[None]] = []
        """What happens by itself; ends with this consumer, and not with the client that others may share."""
        self._closing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closed = asyncio.Event()
        self._is_suspended = False
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._instance: ClientInstance | None = None
        self._around: Surroundings
        self._queues: OwnedQueues
        self.started_time_ms = 0

    def __repr__(self) -> str:
        state = "closed" if self._closing else "running" if self._instance else "not started"
        return f"{type(self).__name__}({self.group!r}, {', '.join(self._listeners) or 'no topic'}, {state})"

    # Subscriptions

    @overload
    def subscribe(
        self, topic: str, handler: None = None, *, tags: str | None = None, sql: str | None = None
    ) -> Callable[[H], H]: ...

    @overload
    def subscribe(
        self, topic: str, handler: Handler, *, tags: str | None = None, sql: str | None = None
    ) -> None: ...

    def subscribe(
        self, topic: str, handler: Handler | None = None, *, tags: str | None = None, sql: str | None = None
    ) -> Callable[[H], H] | None:
        """Have a function called with a topic's messages: those with one of the tags, or those that sql is true of.

        Without handler it is a decorator. A topic has one handler; a later one takes its place. May be called at
        any time. Raises TypeError and ValueError.
        """
        wanted = self.checked_subscription(topic, tags=tags, sql=sql)
        if handler is not None:
            self.listen(topic, handler, wanted)
            return None

        def decorate(function: H) -> H:
            self.listen(topic, function, wanted)
            return function

        return decorate

    def checked_subscription(self, topic: str, *, tags: str | None, sql: str | None) -> SubscriptionData:
        """What subscribe() was asked for, as brokers are told. Raises TypeError and ValueError."""
        self._check_process()
        subscription(topic, tags=ALL_TAGS if tags is None else tags, sql=sql)  # as the user wrote it
        topic = wrap_namespace(self._client.namespace, topic)
        return subscription(topic, tags=ALL_TAGS if tags is None else tags, sql=sql)

    def listen(self, topic: str, handler: Handler, wanted: SubscriptionData) -> None:
        """Take in a checked subscription. Raises TypeError where the handler cannot be called."""
        if not callable(handler):
            raise TypeError(f"handler must be a function, not {type(handler).__name__}")
        self._listeners[topic] = Listener(
            handler,
            self.group,
            self._hooks,
            batch_size_max=self.options.batch_size_max,
            is_ordered=self.options.ordered,
            timeout_ms=self.options.consume_timeout_ms,
            finish_awaitable=self._finish_awaitable,
        )
        self._subscriptions[wanted.topic] = wanted
        if self._instance is not None:
            self._instance.spawn(self._subscribed(wanted))

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more. What was fetched of it and not begun stays for the group."""
        self._check_process()
        self._listeners.pop(topic, None)
        self._subscriptions.pop(wrap_namespace(self._client.namespace, topic), None)
        if self._instance is not None:
            self._instance.spawn(self._unsubscribed())

    async def _subscribed(self, wanted: SubscriptionData) -> None:
        assert self._instance is not None
        try:
            await self._find(wanted)
        except RocketMQError as error:
            logger.error("%s: the subscription of %s is refused: %s", self.group, wanted.topic, error)
        await self._announce()
        self._instance.rebalance_soon()

    async def _unsubscribed(self) -> None:
        assert self._instance is not None
        await self._instance.rebalance()  # what we own of it is given up before brokers forget that we wanted it
        await self._announce()

    # Life

    async def start(self) -> Self:
        """Join the group and begin. Idempotent.

        Raises ConnectError where no name server answers, ClientError where this group is in the client already, and
        BrokerError where the brokers cannot filter as asked. A topic that does not exist yet is waited for.
        """
        self._check_process()
        async with self._starting:
            if self._closing is not None:
                raise ClientClosedError(f"the consumer of {self.group} was closed")
            if self._instance is None:
                await self._start()
        return self

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        instance = await acquire(self._client)
        try:
            self._build(instance)
            await self._around.offsets.load()
            instance.add_consumer(self)
            for wanted in list(self._subscriptions.values()):
                await self._find(wanted)
            self._instance = instance
            await self._announce()
            await instance.rebalance()
        except BaseException:
            self._instance = None
            await self._abandon(instance)
            raise
        self.started_time_ms = instance.clock.now_ms()
        consumption = self._consumption
        duties = [self._repeat(SAMPLE_MS, self._sample)]
        if isinstance(consumption, ConcurrentConsumption):
            duties.append(consumption.watch_timeouts())
        else:
            duties.append(self._repeat(instance.options.intervals.lock_renewal_ms, self._queues.renew_locks))
        if not self.options.broadcasting:
            duties.append(self._find_retries())
        self._duties = [instance.spawn(each) for each in duties]

    def _build(self, instance: ClientInstance) -> None:
        options = self.options
        self._around = Surroundings(
            instance=instance,
            group=self.group,
            namespace=self._client.namespace,
            broadcasting=options.broadcasting,
            offsets=self._offset_store(instance),
            flow=Flow(options.limits),
            stats=ConsumeStats(instance.clock),
            crew=self._crew,
            listener_of=self._listeners.get,
            post=Mailbox(self._loop, self._finished).post,
            send_back=SendBack(instance, self.group, options.tries_max),
            consume_timeout_ms=options.consume_timeout_ms,
            suspend_ms=options.suspend_ms,
        )
        self._consumption: ConcurrentConsumption | OrderedConsumption = (
            OrderedConsumption(self._around, reconsume_times_max=options.tries_max)
            if options.ordered
            else ConcurrentConsumption(self._around)
        )
        self._queues = OwnedQueues(
            self._around,
            self._consumption,
            PullSettings(options.pull_batch_size, options.pull_interval_ms),
            strategy=options.strategy,
            start_from=options.start_from,
            subscription_of=self._announced_of,
        )
        if self._is_suspended:
            self._queues.pulls.suspend()

    def _offset_store(self, instance: ClientInstance) -> OffsetStore:
        name = self._client.instance_name
        if self.options.broadcasting and name is not None:
            return FileOffsets(offset_file(self.options.offset_dir, instance_name=name, group=self.group))
        return RemoteOffsets(instance, self.group)

    async def _abandon(self, instance: ClientInstance) -> None:
        with contextlib.suppress(RocketMQError):
            await self._queues.halt(0)
            await self._queues.leave()
        await instance.remove_consumer(self)
        await self._crew.stop(_WORKERS_STOP_S)
        await release(instance)

    async def _find(self, wanted: SubscriptionData) -> None:
        """Look up a topic's route, and ask a broker of it whether it can filter by SQL."""
        instance = self._around.instance
        try:
            route = await instance.route(wanted.topic, refresh=True)
        except NoRouteError as error:
            if wanted.topic != retry_topic(self.group):
                logger.warning("%s: %s; it is waited for", self.group, error)
            return
        if is_by_tags(wanted):
            return
        body = CheckClientRequestBody(instance.client_id, self.group, wanted, self._client.namespace or None)
        for name in sorted({queue.broker_name for queue in route.read_queues}):
            try:
                address = instance.broker(name).address
                await instance.call(address, r.CheckClientConfig(), body.encode())
            except (ConnectError, NoRouteError, TimeoutError) as error:
                logger.warning("%s: broker %s was not asked whether it filters by SQL: %s", self.group, name, error)

    async def _find_retries(self) -> None:
        """The first heartbeat makes each broker's retry topic; name servers hear of it a little later."""
        instance, own = self._around.instance, retry_topic(self.group)
        delay_ms = _RETRY_TOPIC_MS
        while True:
            try:
                found = {queue.broker_name for queue in (await instance.route(own, refresh=True)).read_queues}
            except RocketMQError as error:
                logger.debug("%s: %s", self.group, error)
            else:
                routes = [instance.routes.topics.get(topic) for topic in self._subscriptions]
                if found >= {queue.broker_name for route in routes if route for queue in route.read_queues}:
                    return
            await instance.clock.sleep(delay_ms)
            delay_ms = min(2 * delay_ms, instance.options.intervals.route_refresh_ms)

    async def _announce(self) -> None:
        """Tell the brokers what we want; only then pulls may name it."""
        told = dict(self._subscriptions)
        await self._around.instance.heartbeat()
        self._announced = told

    def _announced_of(self, topic: str) -> SubscriptionData | None:
        return self._announced.get(topic)

    async def close(self, timeout_ms: int = _CLOSE_MS) -> None:
        """Fetch no more, wait up to timeout_ms for running listeners, store progress and leave. Idempotent.

        Called by a coroutine listener of this consumer it asks for all that and returns.
        """
        whole_number("timeout_ms", timeout_ms, low=0)
        if self._pid != os.getpid():
            return  # everything belongs to the parent
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(timeout_ms))
        if TaskWorkers.owner_here() is not self:
            await asyncio.shield(self._closing)

    async def _close(self, timeout_ms: int) -> None:
        async with self._starting:  # a start that is under way comes to its end first
            instance = self._instance
            try:
                if instance is not None:
                    await self._leave(instance, timeout_ms)
            finally:
                self._closed.set()

    async def _leave(self, instance: ClientInstance, timeout_ms: int) -> None:
        deadline_ms = instance.clock.monotonic_ms() + timeout_ms
        try:
            if not await self._unless_hurried(self._queues.halt(timeout_ms)):
                logger.warning("%s: listeners have not returned; their messages will come again", self.group)
            if isinstance(self._consumption, ConcurrentConsumption):
                await self._unless_hurried(self._consumption.sent(deadline_ms - instance.clock.monotonic_ms()))
            self._consumption.cancel()
            for duty in self._duties:
                duty.cancel()
            await self._queues.leave()
            await instance.remove_consumer(self)
        finally:
            await self._crew.stop(_WORKERS_STOP_S)
            await release(instance)
            self._end_listener_loop()

    async def _unless_hurried(self, waiting: Awaitable[bool | None]) -> bool:
        """Wait for it unless somebody is in a hurry. What it gives, False where it was not waited for."""
        wait = asyncio.ensure_future(waiting)
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait([wait, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not wait.done():
            wait.cancel()
            return False
        return bool(wait.result())

    def hurry(self) -> None:
        """Let a close() that is under way wait no more."""
        self._hurry.set()

    async def run(self) -> None:
        """Consume until SIGINT or SIGTERM, or until close(). A second signal does not wait for listeners."""
        with on_interrupt(self._interrupted, asyncio.get_running_loop()):
            await self.start()
            await self._closed.wait()

    def _interrupted(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(_CLOSE_MS))
        else:
            self.hurry()

    async def closed(self) -> None:
        """Return once close() has done all that it does."""
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # While it runs

    def suspend(self) -> None:
        """Call no listener and fetch nothing until resume(); queues stay ours, running calls come to their end."""
        self._is_suspended = True
        self._crew.pause()
        if self._instance is not None:
            self._queues.pulls.suspend()

    def resume(self) -> None:
        """Go on after suspend()."""
        self._is_suspended = False
        self._crew.resume()
        if self._instance is not None:
            self._queues.pulls.resume()
            self._instance.rebalance_soon()

    @property
    def is_suspended(self) -> bool:
        return self._is_suspended

    @property
    def concurrency(self) -> int:
        """How many listeners run at once. After a change running calls come to their end."""
        return self._crew.size

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._crew.resize(checked_concurrency(concurrency))

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are ours now, those of the retry topic included."""
        if self._instance is None:
            return ()
        return tuple(self._queues.table[each].shown_queue for each in sorted(self._queues.table))

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(f"this {type(self).__name__} belongs to the process that made it; make a new one")

    def _finished(self, report: Report) -> None:
        self._consumption.finished(report)

    async def _sample(self) -> None:
        self._around.stats.sample()

    async def _repeat(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._around.instance.clock.sleep(interval_ms)
            try:
                await work()
            except Exception:  # one round's defect must not end all later ones
                logger.exception("%s: a periodic duty failed", self.group)

    # Where coroutine listeners run

    def _listener_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def _end_listener_loop(self) -> None:
        """Ours is the caller's."""

    def _finish_awaitable(self, awaitable: Awaitable[Any]) -> Any:
        async def finish() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(finish(), self._listener_loop()).result()

    # What the client instance asks

    def topics(self) -> Collection[str]:
        """Topics whose routes are to be kept fresh."""
        return list(self._subscriptions)

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say of it."""
        options = self.options
        return ConsumerData(
            self.group,
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.BROADCASTING if options.broadcasting else MessageModel.CLUSTERING,
            consume_from_where(options.start_from),
            tuple(each for _, each in sorted(self._subscriptions.items())),
            False,
        )

    def topic_changed(self, route: TopicRoute) -> None:
        """A topic's queues or brokers changed."""
        if self._instance is not None:
            self._instance.rebalance_soon()

    async def rebalance(self) -> None:
        """Find out which queues are ours now."""
        if self._instance is None or self._closing is not None:
            return
        queues = self._queues
        gained, lost = await queues.divide(self.topics())
        if gained or lost:
            queues.lose(lost)
            self._around.flow.share(len(queues.table) + len(gained) - len(lost))
            self._subscriptions.update({each.topic: renewed(each) for each in self._subscriptions.values()})
            await self._announce()
            await queues.gain(gained)
        queues.mend()

    async def persist_offsets(self) -> None:
        """Store progress."""
        if self._instance is not None and self._closing is None:
            await self._queues.persist()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moves the group."""
        if self._instance is not None:
            await self._queues.reset({queue: offset for queue, offset in offsets.items() if queue.topic == topic})

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """How far each of our queues is."""
        return self._around.offsets.positions(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """A look inside."""
        return push_info.running_info(
            self._around,
            self.options,
            self._queues.table,
            self._subscriptions.values(),
            started_time_ms=self.started_time_ms,
            with_stacks=with_stacks,
        )

    async def consume_directly(self, record: StoredRecord, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        """Consume one message now, because an administrator asks for it."""
        return await push_info.consume_directly(
            self._around, record, broker_name or "", is_ordered=self.options.ordered
        )
