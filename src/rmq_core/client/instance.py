"""One client of a cluster: connections, routes, heartbeats and timers, shared by the producers and consumers that
have its client id. Everything here runs on one event loop.

Routes      are refreshed every 30 s for the topics in use; an unknown one is asked for once, however many wait.
Heartbeats  go to every broker in the routes: to slaves only while something consumes. A connection that was opened
            again says who we are before anything else, so that a broker that came back knows its members at once.
Rebalance   every 20 s and when a broker says that members came or left; one round at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from rmq_core.client import handlers
from rmq_core.client.hooks import CallHook, Hooks
from rmq_core.client.identity import make_client_id
from rmq_core.client.name_servers import NameServers
from rmq_core.client.options import ClientOptions
from rmq_core.client.replies import ReplyTable
from rmq_core.client.roles import ConsumerRole, ProducerRole
from rmq_core.client.routes import MASTER, BrokerAddress, RouteTable, TopicRoute, default_route, topic_route
from rmq_core.errors import BrokerError, ClientClosedError, ClientError, NoRouteError, RocketMQError
from rmq_core.net.calls import Answer
from rmq_core.net.channel import Channel
from rmq_core.net.connection import Connection, format_address, parse_address
from rmq_core.net.dispatch import Dispatcher, handlers_in
from rmq_core.protocol.bodies import HeartbeatData, ProducerData, TopicRouteData
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import AUTO_CREATE_TOPIC
from rmq_core.protocol.request import Header, Request
from rmq_core.protocol.requests import GetRouteinfoByTopic, HeartBeat, UnregisterClient

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Header)
_HANDLERS: Final = handlers_in(handlers)
_VIP_DISTANCE: Final = 2


class ClientInstance:
    """A client; open it with acquire(), which shares it, or start() it alone."""

    def __init__(self, options: ClientOptions, *, client_id: str | None = None) -> None:
        self.options = options
        self.client_id = client_id or make_client_id(options.instance_name, options.unit_name)
        self.hooks = Hooks(options.hooks)
        self.routes = RouteTable()
        self.producers: dict[str, ProducerRole] = {}
        self.consumers: dict[str, ConsumerRole] = {}
        self.replies = ReplyTable()
        self.versions: dict[str, int] = {}
        """The protocol version of brokers by announced address, as heartbeats found it."""
        self.clock = options.clock
        call_hook = CallHook(self.hooks, options.credentials)
        self.call_hooks = (call_hook,) if call_hook.is_needed else ()
        self._dispatcher = Dispatcher(self, _HANDLERS)
        self._channels: dict[str, Channel] = {}
        self.name_servers = NameServers(
            options.name_servers,
            self._plain_channel,
            self.clock,
            address_server=options.address_server,
            unit_name=options.unit_name,
        )
        self._routed: set[str] = set()
        """The brokers that routes named when they were last refreshed."""
        self._greetings: dict[str, asyncio.Task[None]] = {}
        """The last heartbeat that a new connection began with, by address."""
        self._fetches: dict[tuple[str, int], asyncio.Task[TopicRoute]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._rebalance_wanted = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._is_running = self._is_closed = False
        self.loop: asyncio.AbstractEventLoop

    def __repr__(self) -> str:
        return f"ClientInstance({self.client_id!r})"

    # Life

    async def start(self) -> None:
        """Begin with what happens by itself. Idempotent."""
        if self._is_closed:
            raise ClientClosedError(f"{self.client_id} was closed")
        if self._is_running:
            return
        self._is_running = True
        self.loop = asyncio.get_running_loop()
        intervals = self.options.intervals
        self._every(intervals.route_refresh_ms, self.refresh_routes)
        self._every(intervals.heartbeat_ms, self.heartbeat)
        self._every(intervals.persist_ms, self._persist_offsets)
        if self.options.address_server is not None:
            self._every(intervals.address_refresh_ms, self.name_servers.refresh)
        self.spawn(self._live())

    async def close(self) -> None:
        """Stop and close all connections. Producers and consumers have left before. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.replies.close()
        tasks = [*self._tasks, *self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._dispatcher.drain(0)
        await self._close_channels()

    async def _close_channels(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside; what it raises is logged, and close() ends it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: background work failed", self.client_id, exc_info=error)

    def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        self.spawn(self._repeat(interval_ms, work))

    async def _repeat(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self.clock.sleep(interval_ms)
            try:
                await work()
            except RocketMQError as error:
                logger.warning("%s: %s", self.client_id, error)
            except Exception:  # a defect in one round must not end all later ones
                logger.exception("%s: a periodic duty failed", self.client_id)

    # Who shares it

    def add_producer(self, producer: ProducerRole) -> None:
        """Raises ClientError where its group is here already."""
        if self.producers.setdefault(producer.group, producer) is not producer:
            raise ClientError(
                f"the producer group {producer.group} exists already in client {self.client_id}; "
                "give the second one another group or instance_name"
            )

    def add_consumer(self, consumer: ConsumerRole) -> None:
        """Raises ClientError where its group is here already."""
        if self.consumers.setdefault(consumer.group, consumer) is not consumer:
            raise ClientError(
                f"the consumer group {consumer.group} exists already in client {self.client_id}; "
                "give the second one another group or instance_name"
            )

    async def remove_producer(self, producer: ProducerRole) -> None:
        """Leave the group on every broker."""
        if self.producers.get(producer.group) is producer:
            del self.producers[producer.group]
            await self._unregister(UnregisterClient(self.client_id, producer_group=producer.group))

    async def remove_consumer(self, consumer: ConsumerRole) -> None:
        """Leave the group on every broker."""
        if self.consumers.get(consumer.group) is consumer:
            del self.consumers[consumer.group]
            await self._unregister(UnregisterClient(self.client_id, consumer_group=consumer.group))

    async def _unregister(self, request: UnregisterClient) -> None:
        async def tell(broker: BrokerAddress) -> None:
            with contextlib.suppress(RocketMQError):  # who is away forgets us without being told
                await self.call(broker.address, request, timeout_ms=1_000)

        connected = [each for each in self.routes.brokers() if self.is_connected(each.address)]
        await asyncio.gather(*map(tell, connected))

    # Connections and calls

    def channel(self, address: str) -> Channel:
        """The connection to an announced address."""
        used = self.options.reachable(address)
        channel = self._channels.get(used)
        if channel is None:
            channel = self._channels[used] = self._open_channel(used, lambda it: self._greet(address, it))
        return channel

    def _plain_channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address, None)
        return channel

    def _open_channel(self, address: str, on_open: Callable[[Connection], None] | None) -> Channel:
        if self._is_closed:
            raise ClientClosedError(f"{self.client_id} was closed")
        return Channel(
            address,
            dispatcher=self._dispatcher,
            connect_timeout_ms=self.options.connect_timeout_ms,
            tls=self.options.tls,
            hooks=self.call_hooks,
            clock=self.clock,
            on_open=on_open,
        )

    def is_connected(self, address: str) -> bool:
        """Whether a connection to an announced address is open."""
        channel = self._channels.get(self.options.reachable(address))
        return channel is not None and channel.is_connected

    async def call(
        self, address: str, request: Request[R], body: bytes = b"", *, timeout_ms: float | None = None
    ) -> Answer[R]:
        """Ask a broker by its announced address. Raises BrokerError, CallTimeoutError, ConnectError."""
        return await self.channel(address).call(
            request, body, timeout_ms=self.options.call_timeout_ms if timeout_ms is None else timeout_ms
        )

    def vip(self, address: str) -> str:
        """Where to send and administrate: the broker's second port if the options say so."""
        if not self.options.vip_channel:
            return address
        host, port = parse_address(address)
        return format_address((host, port - _VIP_DISTANCE))

    # Routes

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """A topic's route. Raises NoRouteError where no name server knows it, ConnectError where none answers."""
        known = self.routes.topics.get(topic)
        if known is not None and not refresh:
            return known
        return await self._fetch(topic, 0)

    async def route_or_default(self, topic: str, *, queues: int, refresh: bool = False) -> TopicRoute:
        """The same for a topic that a first message may make: then the default topic's brokers take it."""
        known = self.routes.topics.get(topic)
        if known is not None and not refresh:
            return known
        return await self._fetch(topic, queues)

    async def _fetch(self, topic: str, default_queues: int) -> TopicRoute:
        key = (topic, default_queues)
        fetch = self._fetches.get(key)
        if fetch is None:
            fetch = self._fetches[key] = asyncio.get_running_loop().create_task(self._ask(topic, default_queues))
            fetch.add_done_callback(lambda done: self._fetched(key, done))
        # Shielded: one caller that gives up does not take the answer from the others.
        return await asyncio.shield(fetch)

    def _fetched(self, key: tuple[str, int], fetch: asyncio.Task[TopicRoute]) -> None:
        self._fetches.pop(key, None)
        if not fetch.cancelled():
            fetch.exception()  # looked at: everyone who asked may have given up meanwhile

    async def _ask(self, topic: str, default_queues: int) -> TopicRoute:
        try:
            route = topic_route(topic, await self._route_data(topic))
        except NoRouteError:
            if not default_queues:
                raise
            try:
                data = await self._route_data(AUTO_CREATE_TOPIC)
            except NoRouteError:
                raise NoRouteError(
                    f"topic {topic} does not exist and no broker creates topics by themselves; create it first"
                ) from None
            route = default_route(topic, data, queues_max=default_queues)
        self._take(route)
        return route

    async def _route_data(self, topic: str) -> TopicRouteData:
        try:
            answer = await self.name_servers.call(
                GetRouteinfoByTopic(topic), timeout_ms=self.options.call_timeout_ms
            )
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise NoRouteError(f"no name server knows a broker for topic {topic}") from error
        return TopicRouteData.decode(answer.body)

    def _take(self, route: TopicRoute) -> None:
        if self.routes.put(route):
            for consumer in list(self.consumers.values()):
                if route.topic in consumer.topics():
                    consumer.topic_changed(route)

    async def refresh_routes(self) -> None:
        """Ask for the route of every topic in use, and drop brokers that no route names any more."""
        roles: list[ProducerRole | ConsumerRole] = [*self.producers.values(), *self.consumers.values()]
        used = {topic for role in roles for topic in role.topics()}
        for topic in self.routes.topics.keys() - used:
            self.routes.forget(topic)
        for topic in sorted(used):
            known = self.routes.topics.get(topic)
            queues = len({each.queue_id for each in known.write_queues}) if known and known.is_default else 0
            with contextlib.suppress(NoRouteError):  # not there yet, or deleted: its last route stays
                await self._fetch(topic, queues)
        self.routes.drop_unused_brokers()
        await self._close_unused_channels()

    async def _close_unused_channels(self) -> None:
        addresses = {each.address for each in self.routes.brokers()}
        gone, self._routed = self._routed - addresses, addresses
        for address in gone:
            self.versions.pop(address, None)
            for announced in (address, self.vip(address)):
                channel = self._channels.pop(self.options.reachable(announced), None)
                if channel is not None:
                    await channel.close()

    def broker(self, broker_name: str, broker_id: int = MASTER, *, only_this: bool = False) -> BrokerAddress:
        """A process of a broker. Raises NoRouteError where no route names one."""
        found = self.routes.find(broker_name, broker_id, only_this=only_this)
        if found is None:
            raise NoRouteError(f"no route names an address of broker {broker_name}")
        return found

    # Heartbeats

    async def heartbeat(self) -> None:
        """Tell every broker who we are; one that is away is logged and asked again next time."""
        await asyncio.gather(*(self.heartbeat_to(each.address) for each in self._heartbeat_brokers()))

    def _heartbeat_brokers(self) -> list[BrokerAddress]:
        if not self.producers and not self.consumers:
            return []
        return [each for each in self.routes.brokers() if self.consumers or not each.is_slave]

    async def heartbeat_to(self, address: str) -> bool:
        """Tell one broker who we are. False, and a log line, where it could not be told."""
        try:
            channel = self.channel(address)
            was_connected = channel.is_connected
            connection = await channel.connect()
            greeting = self._greetings.get(address)
            if was_connected or greeting is None:
                await self._heartbeat_on(address, connection)
            else:  # opening the connection says who we are
                await asyncio.shield(greeting)
        except RocketMQError as error:
            logger.warning("%s: heartbeat to %s failed: %s", self.client_id, address, error)
            return False
        return True

    def _greet(self, address: str, connection: Connection) -> None:
        if self.producers or self.consumers:
            self._greetings[address] = self.spawn(self._greeting(address, connection))

    async def _greeting(self, address: str, connection: Connection) -> None:
        try:
            await self._heartbeat_on(address, connection)
        except RocketMQError as error:
            logger.warning("%s: heartbeat to %s failed: %s", self.client_id, address, error)
        finally:
            if self._greetings.get(address) is asyncio.current_task():
                del self._greetings[address]

    async def _heartbeat_on(self, address: str, connection: Connection) -> None:
        answer = await connection.call(
            HeartBeat(), self._heartbeat_data().encode(), timeout_ms=self.options.call_timeout_ms
        )
        self.versions[address] = answer.version

    def _heartbeat_data(self) -> HeartbeatData:
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=tuple(ProducerData(group) for group in sorted(self.producers)),
            consumer_data_set=tuple(each.consumer_data() for _, each in sorted(self.consumers.items())),
        )

    # What consumers need done

    def rebalance_soon(self) -> None:
        """Divide queues anew now; the 20 s to the next time begin again."""
        self._rebalance_wanted.set()

    async def rebalance(self) -> None:
        """Let every consumer find out which queues are its own."""
        async with self._rebalancing:
            for consumer in list(self.consumers.values()):
                try:
                    await consumer.rebalance()
                except RocketMQError as error:
                    logger.warning("rebalancing %s failed: %s", consumer.group, error)
                except Exception:  # one consumer's defect must not stop the others
                    logger.exception("rebalancing %s failed", consumer.group)

    async def _live(self) -> None:
        try:
            await self._keep_balanced()
        finally:
            # Where nobody closed us this loop is ending, and no socket may outlive it.
            await self._close_channels()

    async def _keep_balanced(self) -> None:
        while True:
            timer = self.clock.call_later(self.options.intervals.rebalance_ms, self._rebalance_wanted.set)
            try:
                await self._rebalance_wanted.wait()
            finally:
                timer.cancel()
            self._rebalance_wanted.clear()
            await self.rebalance()

    async def _persist_offsets(self) -> None:
        for consumer in list(self.consumers.values()):
            await consumer.persist_offsets()


_shared: dict[tuple[int, str], tuple[ClientInstance, int]] = {}


async def acquire(options: ClientOptions) -> ClientInstance:
    """The running instance of this loop for these options: an instance name of its own means a shared one.

    Raises ClientError where the name is in use with other options. Give it back with release().
    """
    if options.instance_name is None:
        instance = ClientInstance(options)
        await instance.start()
        return instance
    loop = asyncio.get_running_loop()
    key = (id(loop), make_client_id(options.instance_name, options.unit_name))
    instance, users = _shared.get(key) or (ClientInstance(options), 0)
    if users and instance.loop is not loop:  # left behind on a loop that is gone, whose id is this one's now
        instance, users = ClientInstance(options), 0
    if instance.options != options:
        raise ClientError(f"client {instance.client_id} is in use with other settings; give another instance_name")
    _shared[key] = (instance, users + 1)
    await instance.start()
    return instance


async def release(instance: ClientInstance) -> None:
    """Give an instance back; the last user closes it."""
    key = (id(asyncio.get_running_loop()), instance.client_id)
    shared = _shared.get(key)
    if shared is not None and shared[0] is instance:
        if shared[1] > 1:
            _shared[key] = (instance, shared[1] - 1)
            return
        del _shared[key]
    await instance.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.clear)
