"""A name server put together: tables, handlers, server and timers, started and stopped in one visible order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from rmq_core.clock import Clock, SystemClock, Timer
from rmq_core.config import NamesrvSettings, ServerSettings, expand_path, format_properties, read_properties
from rmq_core.errors import ConfigError
from rmq_core.files import replace_file
from rmq_core.namesrv import handlers
from rmq_core.namesrv.kv import KvSettings
from rmq_core.namesrv.routes import Routes
from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import Dispatcher, handlers_in
from rmq_core.net.server import Server, server_options, server_tls
from rmq_core.protocol.requests import NotifyMinBrokerIdChange

logger = logging.getLogger(__name__)


class NameServer:
    """Tells clients which brokers serve a topic. Several of them know nothing of each other."""

    def __init__(
        self,
        settings: NamesrvSettings | None = None,
        server_settings: ServerSettings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Raises ConfigError for settings that cannot be used, RocketMQError for unreadable stored ones."""
        self.settings = settings or NamesrvSettings()
        self.server_settings = server_settings or ServerSettings()
        self.clock = clock or SystemClock()
        self.kv = KvSettings(expand_path(self.settings.kv_config_path))
        self.routes = Routes(
            support_acting_master=lambda: self.settings.support_acting_master,
            delete_unlisted_topics=lambda: self.settings.delete_topic_with_broker_registration,
            on_min_id_changed=self._tell_min_id,
        )
        self.port = 0
        """The port it listens on, once started."""
        self._started_ms = self.clock.monotonic_ms()
        self._scan: Timer | None = None
        self._storing = asyncio.Lock()
        self._unstored: dict[str, str] = {}
        """Changes that the settings file does not have yet."""
        self._server = Server(
            Dispatcher(self, handlers_in(handlers), calls_served_max=self.server_settings.calls_in_flight_max),
            server_options(self.server_settings),
            clock=self.clock,
            tls=server_tls(self.server_settings),
            on_close=self._connection_closed,
        )

    @property
    def is_warming_up(self) -> bool:
        """Whether it still waits for brokers to register before it gives out routes."""
        wait_ms = self.settings.wait_seconds_for_service * 1000
        return self.settings.need_wait_for_service and self.clock.monotonic_ms() < self._started_ms + wait_ms

    def start(self) -> None:
        """Listen, and look for silent brokers from now on. Raises OSError where the port cannot be had."""
        self.port = self._server.listen(self.server_settings.bind_address, self.server_settings.listen_port)
        self._schedule_scan()

    async def close(self, *, drain_ms: float | None = None) -> None:
        """Stop accepting, let calls finish, close. Idempotent."""
        is_graceful = self.server_settings.enable_shutdown_gracefully
        if drain_ms is None:
            drain_ms = self.server_settings.shutdown_wait_time_seconds * 1000 if is_graceful else 3_000
        if self._scan is not None:
            self._scan.cancel()
        await self._server.close(drain_ms=drain_ms, tell_to_go_away=is_graceful)

    def settings_text(self) -> str:
        """All settings as properties text."""
        return format_properties(self.server_settings.to_properties() | self.settings.to_properties())

    async def store_settings(self, changes: dict[str, str]) -> None:
        """Write changed settings to the settings file, so that they hold after a restart. Raises OSError."""
        self._unstored |= changes
        async with self._storing:  # each change goes into the file that the one before left
            if self._unstored:
                waiting = dict(self._unstored)
                await asyncio.to_thread(self._store_settings, waiting)
                self._unstored = {key: each for key, each in self._unstored.items() if waiting.get(key) != each}

    def _store_settings(self, changes: dict[str, str]) -> None:
        path = Path(expand_path(self.settings.config_store_path))
        stored = {}
        with contextlib.suppress(ConfigError):
            stored = read_properties(path) if path.exists() else {}
        replace_file(path, format_properties(stored | changes).encode())

    def _schedule_scan(self) -> None:
        self._scan = self.clock.call_later(self.settings.scan_not_active_broker_interval, self._remove_silent)

    def _remove_silent(self) -> None:
        for (cluster, address), live in self.routes.expired(self.clock.monotonic_ms()):
            logger.warning("broker %s at %s is silent: removed", live.broker_name, address)
            self.routes.unregister(cluster, address)
            if isinstance(live.owner, Connection):
                live.owner.close()
        self._schedule_scan()

    def _connection_closed(self, connection: Connection) -> None:
        for cluster, address in self.routes.owner_gone(connection):
            logger.warning("the connection of the broker at %s closed: removed", address)
            self.routes.unregister(cluster, address)

    def _tell_min_id(self, broker_name: str, addresses: dict[int, str], gone_address: str | None) -> None:
        if not self.settings.notify_min_broker_id_changed:
            return
        min_id = min(addresses)
        notice = NotifyMinBrokerIdChange(
            min_broker_id=min_id,
            broker_name=broker_name,
            min_broker_addr=addresses[min_id],
            offline_broker_addr=gone_address,
            ha_broker_addr=self.routes.ha_address(broker_name, min_id),
        )
        for owner in self.routes.owners_of(broker_name):
            if isinstance(owner, Connection):
                owner.oneway(notice)
