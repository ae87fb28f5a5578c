"""Builds a broker's parts, starts and stops them, in one visible order.

Start     Tables, then the store with all its queues, then the doors, then the name servers. A table that cannot be
          read stops the start: a broker that has forgotten its topics or offsets must not take the place of one
          that knew them.
Stop      Name servers first, so that clients go elsewhere; then the doors, once the calls under way are answered;
          then the tables and the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from rmq_core.broker import handlers
from rmq_core.broker.assignments import Assignments
from rmq_core.broker.broker import Broker
from rmq_core.broker.clients import Clients
from rmq_core.broker.configuration import Configuration
from rmq_core.broker.consumer_offsets import ConsumerOffsetManager
from rmq_core.broker.filters import ConsumerFilterManager
from rmq_core.broker.groups import Groups
from rmq_core.broker.hosts import from_here, joined, own_address, packed_host, resolved
from rmq_core.broker.load import Load
from rmq_core.broker.longpoll import SWEEP_MS, LongPolls
from rmq_core.broker.loop_cache import STEP_MS as LOOP_CACHE_MS
from rmq_core.broker.loop_cache import LoopCache
from rmq_core.broker.metrics import Metrics
from rmq_core.broker.queue_locks import QueueLocks
from rmq_core.broker.registration import RECONNECT_MS, Registration
from rmq_core.broker.schedule import Schedule
from rmq_core.broker.stats import Stats
from rmq_core.broker.topics import Topics
from rmq_core.broker.transactions import Transactions
from rmq_core.clock import Clock, SystemClock
from rmq_core.config import (
    BrokerSettings,
    ClientSettings,
    NamesrvSettings,
    ServerSettings,
    StoreSettings,
    expand_path,
)
from rmq_core.errors import StoreError
from rmq_core.namesrv.app import NameServer
from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import Dispatcher
from rmq_core.net.server import Server, server_options, server_tls
from rmq_core.net.tls import TlsMode, client_tls
from rmq_core.protocol.bodies import TopicConfigSerializeWrapper
from rmq_core.store.disk import Disk
from rmq_core.store.dispatcher import Appended
from rmq_core.store.message_store import MessageStore
from rmq_core.store.recovery import Recovered

log = logging.getLogger(__name__)

VIP_DISTANCE: Final = 2
"""The VIP port is so much lower than the other one."""
HA_DISTANCE: Final = 1
EXPIRE_MS: Final = 10_000
DRAIN_MS: Final = 3_000


class BrokerApp:
    """One broker, with its name server where it brings its own."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        store_settings: StoreSettings | None = None,
        server_settings: ServerSettings | None = None,
        *,
        client_settings: ClientSettings | None = None,
        name_server: NameServer | None = None,
        with_vip_port: bool = True,
        clock: Clock | None = None,
        disk: Disk | None = None,
        memory_size: int | None = None,
    ) -> None:
        """name_server is started and stopped with the broker, which registers with it.

        Raises ConfigError for settings that cannot be used.
        """
        self.settings = settings or BrokerSettings()
        self.store_settings = store_settings or StoreSettings()
        self.server_settings = server_settings or ServerSettings()
        self.client_settings = client_settings or ClientSettings()
        self.name_server = name_server
        self._name_server_tls = self._tls_to_name_servers()
        self._with_vip_port = with_vip_port
        self.store_settings.store_path_root_dir = str(expand_path(self.store_settings.store_path_root_dir))
        clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll_is_due = False
        self._opening: asyncio.Future[Recovered] | None = None
        self.dispatcher = Dispatcher(calls_served_max=self.server_settings.calls_in_flight_max)
        self._server = Server(
            self.dispatcher,
            server_options(self.server_settings),
            clock=clock,
            tls=server_tls(self.server_settings),
            on_pass_end=self._end_pass,
            on_close=self._connection_closed,
            last_answers=self._all_durable,
        )
        store = MessageStore(
            self.store_settings,
            clock=clock,
            disk=disk,
            on_arrival=self._arrived,
            notify=self._notify,
            filter_bits=self._filter_bits,
            memory_size=memory_size,
        )
        self.broker = Broker(
            self.settings,
            self.store_settings,
            self.server_settings,
            self.client_settings,
            clock=clock,
            store=store,
            pass_end_soon=self._server.pass_end_soon,
        )
        self._build_parts()
        self.dispatcher.context = self.broker
        self.dispatcher.handlers.update(handlers.all_handlers())
        self.dispatcher.hot.update(handlers.hot_handlers(self.broker, self.dispatcher))
        self.port = 0
        self._is_started = False

    def _tls_to_name_servers(self) -> ssl.SSLContext | None:
        """As in Java, a broker that takes nothing but TLS asks others for it; its own name server takes both."""
        settings = self.client_settings
        is_wanted = settings.use_tls or self.server_settings.tls_server_mode == TlsMode.ENFORCING
        return client_tls(settings) if is_wanted and self.name_server is None else None

    def _build_parts(self) -> None:
        broker, settings = self.broker, self.settings
        config = Path(self.store_settings.store_path_root_dir, "config")
        broker.topics = Topics(
            settings,
            config / "topics.json",
            run=broker.run,
            register=self._register_topics,
            delay_levels=len(broker.store.delay_levels_ms),
        )
        broker.groups = Groups(settings, config / "subscriptionGroup.json", run=broker.run)
        broker.offsets = ConsumerOffsetManager(
            config / "consumerOffset.json",
            with_light_queues=self.store_settings.enable_lmq,
            version_step=settings.consumer_offset_update_version_step,
        )
        broker.clients = Clients(broker)
        broker.filters = ConsumerFilterManager(settings, config / "consumerFilter.json", clock=broker.clock)
        broker.queue_locks = QueueLocks(broker.clock)
        broker.long_polls = LongPolls(broker.clock, count_max=settings.long_polls_max)
        broker.schedule = Schedule(broker, config / "delayOffset.json")
        broker.transactions = Transactions(broker)
        broker.stats = Stats(broker.clock, cluster=settings.broker_cluster_name, settings=settings)
        broker.configuration = Configuration(broker)
        broker.assignments = Assignments(broker)
        self._metrics = Metrics(broker)
        self._loop_cache = LoopCache(Path(self.store_settings.store_path_root_dir, ".cache"))

    # What the parts below tell; the broker is there only when they are.

    def _end_pass(self) -> None:
        self.broker.end_pass()

    def _arrived(self, appended: list[Appended]) -> None:
        self.broker.arrived(appended)

    def _filter_bits(self, topic: str, properties: bytes) -> bytes:
        return self.broker.filters.filter_bits(topic, properties)

    async def _register_topics(self, changed: TopicConfigSerializeWrapper) -> None:
        await self.broker.registration.register_topics(changed)

    def _connection_closed(self, connection: Connection) -> None:
        self.broker.long_polls.connection_closed(connection)
        self.broker.clients.connection_closed(connection)

    async def _all_durable(self) -> None:
        """With SYNC_FLUSH senders are answered when the disk has what they sent."""
        store = self.broker.store
        if store.flusher.is_sync:
            await self.broker.durable(store.log.end)

    def _notify(self) -> None:
        """Have the store polled on the loop's thread; called in any thread."""
        if not self._poll_is_due and self._loop is not None:
            self._poll_is_due = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
                self._loop.call_soon_threadsafe(self._poll)

    def _poll(self) -> None:
        self._poll_is_due = False
        self.broker.store.poll()

    # Start

    async def start(self) -> None:
        """Start everything, and return when clients are served and the name servers have been told.

        Raises RocketMQError or OSError with the reason where that cannot be; nothing is left running then.
        """
        self._loop = asyncio.get_running_loop()
        self._is_started = True
        try:
            await self._start()
        except BaseException:
            await self.close(drain_ms=0)
            raise

    async def _start(self) -> None:
        broker, settings = self.broker, self.settings
        for table in (broker.topics, broker.groups, broker.offsets, broker.filters, broker.schedule):
            table.load()
        was_clean = self._was_stopped_cleanly()
        self._opening = asyncio.ensure_future(broker.run(broker.store.open))
        found = await asyncio.shield(self._opening)
        self._recovered(found, was_clean=was_clean)
        broker.store.start()
        await broker.transactions.start()
        if self.name_server is not None:
            self.name_server.start()
            host = from_here(self.name_server.server_settings.bind_address)
            settings.namesrv_addr = joined(host, self.name_server.port)
        self.port = self._listen()
        self._announce()
        broker.schedule.start()
        await broker.registration.register_all()
        if settings.metrics_port:
            await self._metrics.start(settings.metrics_bind_address, settings.metrics_port)
        self._start_timers()

    def _was_stopped_cleanly(self) -> bool:
        return not Path(self.store_settings.store_path_root_dir, "abort").exists()

    def _recovered(self, found: Recovered, *, was_clean: bool) -> None:
        for damage in found.damages:
            log.error("messages between %d and %d of the log are lost: %s", damage.start, damage.end, damage.reason)
        lowered = 0 if was_clean else self.broker.offsets.lower_to_queue_ends(self.broker.store)
        if lowered:
            log.warning("%d committed offsets were above the ends of their queues and were lowered", lowered)
        log.info("the store is open: %d bytes of log, %d queues", found.end, len(self.broker.store.queues.table))

    def _listen(self) -> int:
        host, wanted = self.server_settings.bind_address, self.server_settings.listen_port
        port = self._server.listen(host, wanted)
        if self._with_vip_port and wanted > VIP_DISTANCE:
            self._server.listen(host, wanted - VIP_DISTANCE)
        return port

    def _announce(self) -> None:
        broker, settings = self.broker, self.settings
        settings.broker_ip1 = resolved(settings.broker_ip1 or own_address(), "brokerIP1")
        ha_host = resolved(settings.broker_ip2 or settings.broker_ip1, "brokerIP2")
        broker.address = f"{settings.broker_ip1}:{self.port}"
        broker.store_host = packed_host(broker.address)
        broker.store.log.store_host = broker.store_host
        broker.registration = Registration(
            settings,
            broker.clock,
            address=broker.address,
            ha_address=f"{ha_host}:{self.port + HA_DISTANCE}",
            table=broker.topics.wrapper,
            on_ordered=broker.topics.mark_ordered,
            connect_timeout_ms=self.client_settings.connect_timeout_millis,
            tls=self._name_server_tls,
        )

    def _start_timers(self) -> None:
        broker, settings = self.broker, self.settings
        load = Load(broker)
        repeated: list[tuple[float | Callable[[], float], Callable[[], object]]] = [
            (load.interval_ms, load.measure),
            (SWEEP_MS, broker.long_polls.sweep),
            (RECONNECT_MS, broker.registration.begin_missing),
            (lambda: broker.registration.period_ms, broker.registration.begin_all),
            (EXPIRE_MS, broker.clients.expire),
            (settings.flush_consumer_offset_interval, lambda: broker.run(_persist, broker.offsets)),
            (EXPIRE_MS, lambda: broker.run(_persist, broker.filters)),
            (broker.stats.interval_ms, broker.stats.sample),
            (LOOP_CACHE_MS, self._fill_loop_cache),
        ]
        for interval_ms, action in repeated:
            broker.every(interval_ms, action)

    async def _fill_loop_cache(self) -> None:
        if not self._loop_cache.is_done:
            log_ = self.broker.store.log
            await self.broker.run(self._loop_cache.step, log_.end - log_.start)

    # Stop

    async def close(self, *, drain_ms: float = DRAIN_MS) -> None:
        """Say goodbye, let calls finish, write everything. Idempotent."""
        if not self._is_started:
            return
        self._is_started = False
        broker = self.broker
        if self._opening is not None:
            await asyncio.wait([self._opening])  # a start that was given up: its thread is still at it
        is_graceful = self.server_settings.enable_shutdown_gracefully
        if hasattr(broker, "registration"):
            await broker.registration.stop()
        await self._server.close(drain_ms=drain_ms, tell_to_go_away=is_graceful)
        await self._metrics.stop()
        await broker.transactions.stop()
        await broker.schedule.stop()
        await broker.stop_work()
        if self.port:  # it has served: what it knows is worth keeping
            await self._settle()
            for each in (broker.offsets, broker.filters, broker.schedule):
                await broker.run(_persist, each)
        await broker.run(broker.store.close)
        await broker.run(self._loop_cache.stop)
        broker.close_pool()
        if self.name_server is not None:
            await self.name_server.close(drain_ms=drain_ms)

    async def _settle(self) -> None:
        """Groups that heartbeats made are still being written, and what could not be written is tried again."""
        for table in (self.broker.topics, self.broker.groups):
            try:
                await table.settled()
            except OSError as error:
                log.error("%s cannot be saved: %s", type(table).__name__, error)


def _persist(table: ConsumerOffsetManager | ConsumerFilterManager | Schedule) -> None:
    try:
        table.persist()
    except (OSError, StoreError) as error:  # it is tried again the next time
        log.error("%s cannot be saved: %s", type(table).__name__, error)


def own_name_server(
    store_root: str, port: int, broker_server: ServerSettings, *, clock: Clock | None = None
) -> NameServer:
    """A name server for a broker that was given none; it keeps its files beside the store.

    It listens where the broker does, with the broker's certificate. Plain connections it always takes: the broker
    registers over one.
    """
    home = Path(expand_path(store_root)) / "namesrv"
    settings = NamesrvSettings(
        kv_config_path=str(home / "kvConfig.json"), config_store_path=str(home / "namesrv.properties")
    )
    mode = "permissive" if broker_server.tls_server_mode == "enforcing" else broker_server.tls_server_mode
    tls = {each.name: getattr(broker_server, each.name) for each in fields(broker_server) if "tls_" in each.name}
    server = replace(
        ServerSettings(),
        **tls | {"bind_address": broker_server.bind_address, "listen_port": port, "tls_server_mode": mode},
    )
    return NameServer(settings, server, clock=clock)
