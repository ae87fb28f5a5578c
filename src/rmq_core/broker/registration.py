"""Keeps the name servers informed: who this broker is, where, and which topics it has.

Each        Every name server has a channel, a state and a task of its own: one that is silent delays nobody else.
Whole       The full table goes out at the start, each period, and at once after a reconnect or a refusal: a name
            server that came back empty knows everything a second later.
One         A created topic is told alone; who waits for that waits a second at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from rmq_core.clock import Clock
from rmq_core.config import BrokerSettings
from rmq_core.errors import BrokerError, ConnectError, RocketMQError
from rmq_core.net.calls import Answer
from rmq_core.net.channel import Channel
from rmq_core.protocol.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
)
from rmq_core.protocol.codes import CURRENT_VERSION
from rmq_core.protocol.request import Header, Request
from rmq_core.protocol.requests import QueryDataVersion, RegisterBroker, Registered, UnregisterBroker

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Header)

TOPIC_WAIT_S: Final = 1.0
"""So long an answer waits until name servers know a new topic."""
START_WAIT_S: Final = 3.0
"""So long a start waits for name servers that do not answer."""
RECONNECT_MS: Final = 1000
UNREGISTER_MS: Final = 1000


@dataclass(slots=True)
class _NameServer:
    channel: Channel
    is_registered: bool = False
    """Whether it took the full table on the present connection."""
    is_reported: bool = False
    """Whether its silence has been logged."""
    is_due: bool = False
    """Whether it has to be given the table again, once what it is being given has been answered."""
    task: asyncio.Task[None] | None = None
    """Gives it the table."""


class Registration:
    """What name servers know of this broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        *,
        address: str,
        ha_address: str,
        table: Callable[[], TopicConfigSerializeWrapper],
        on_ordered: Callable[[list[str]], None],
        connect_timeout_ms: float = 3_000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """table() gives all topics; on_ordered() hears of topics that name servers call ordered."""
        self._settings = settings
        self._clock = clock
        self._address = address
        self._ha_address = ha_address
        self._table = table
        self._on_ordered = on_ordered
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._servers: dict[str, _NameServer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    @property
    def addresses(self) -> list[str]:
        """The name servers, as set."""
        text = self._settings.namesrv_addr or ""
        return [each.strip() for each in text.split(";") if each.strip()]

    @property
    def period_ms(self) -> int:
        return min(max(self._settings.register_name_server_period, 10_000), 60_000)

    def _name_servers(self) -> list[_NameServer]:
        """Those that are set now: the list may change while the broker runs."""
        wanted = self.addresses
        for address in [each for each in self._servers if each not in wanted]:
            self._begin(self._servers.pop(address).channel.close())
        for address in wanted:
            if address not in self._servers:
                channel = Channel(
                    address, connect_timeout_ms=self._connect_timeout_ms, tls=self._tls, clock=self._clock
                )
                self._servers[address] = _NameServer(channel)
        return list(self._servers.values())

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Registering

    async def register_all(self) -> None:
        """Give every name server the full table; returns when each has answered or failed, or after 3 s."""
        tasks = self.begin_all()
        if tasks:
            await asyncio.wait(tasks, timeout=START_WAIT_S)

    def begin_all(self) -> list[asyncio.Task[None]]:
        """Have every name server given the full table as it is now."""
        return [] if self._is_stopped else [self._begin_one(server) for server in self._name_servers()]

    def begin_missing(self) -> None:
        """Have it given to those whose connection ended, or who never took it."""
        for server in [] if self._is_stopped else self._name_servers():
            if server.task is None and not (server.is_registered and server.channel.is_connected):
                self._begin_one(server)

    def _begin_one(self, server: _NameServer) -> asyncio.Task[None]:
        server.is_due = True
        if server.task is None:
            server.task = self._begin(self._register_while_due(server))
        return server.task

    async def _register_while_due(self, server: _NameServer) -> None:
        try:
            while server.is_due:
                server.is_due = False
                await self._register(server)
        finally:
            server.task = None

    async def register_topics(self, changed: TopicConfigSerializeWrapper) -> None:
        """Tell of changed topics; returns when all name servers know, or after a second."""
        if self._is_stopped:
            return
        tasks = [self._begin(self._register_topics(server, changed)) for server in self._name_servers()]
        if tasks:
            await asyncio.wait(tasks, timeout=TOPIC_WAIT_S)

    async def _register_topics(self, server: _NameServer, changed: TopicConfigSerializeWrapper) -> None:
        if not server.is_registered or not server.channel.is_connected:
            await self._begin_one(server)  # one topic alone would be refused
            return
        try:
            await self._send(server, changed)
        except RocketMQError:
            server.is_registered = False
            await self._begin_one(server)

    async def _register(self, server: _NameServer) -> None:
        try:
            if not self._settings.force_register and server.is_registered and not await self._has_changed(server):
                return
            answer = await self._send(server, self._table())
        except RocketMQError as error:
            server.is_registered = False
            if not server.is_reported:
                server.is_reported = True
                log.warning("the name server %s did not take the registration: %s", server.channel.address, error)
            return
        if not server.is_registered:
            log.info("registered with the name server %s", server.channel.address)
        server.is_registered, server.is_reported = True, False
        if answer.body:
            with contextlib.suppress(RocketMQError):
                self._on_ordered(list(KVTable.decode(answer.body).table))

    async def _has_changed(self, server: _NameServer) -> bool:
        version = self._table().data_version or DataVersion()
        request = QueryDataVersion(
            broker_name=self._settings.broker_name,
            broker_addr=self._address,
            cluster_name=self._settings.broker_cluster_name,
            broker_id=self._settings.broker_id,
        )
        answer = await server.channel.call(request, version.encode())
        return bool(answer.header.changed)

    async def _send(self, server: _NameServer, table: TopicConfigSerializeWrapper) -> Answer[Registered]:
        settings = self._settings
        body = RegisterBrokerBody(self._masked(table), ())
        is_compressed = settings.compressed_register
        data = body.encode_compressed(version=CURRENT_VERSION) if is_compressed else body.encode(standard=True)
        request = RegisterBroker(
            broker_name=settings.broker_name,
            broker_addr=self._address,
            cluster_name=settings.broker_cluster_name,
            broker_id=settings.broker_id,
            ha_server_addr=self._ha_address,
            compressed=is_compressed,
            body_crc32=zlib.crc32(data) & 0x7FFFFFFF,
            enable_acting_master=False,
        )
        return await server.channel.call(request, data, timeout_ms=settings.register_broker_timeout_mills)

    def _masked(self, table: TopicConfigSerializeWrapper) -> TopicConfigSerializeWrapper:
        """What the broker itself does not permit, its topics do not permit either."""
        perm = self._settings.broker_permission
        if perm & 6 == 6:
            return table
        configs = {name: replace(each, perm=each.perm & perm) for name, each in table.topic_config_table.items()}
        return replace(table, topic_config_table=configs)

    async def ask(self, request: Request[R]) -> Answer[R]:
        """The answer of the first name server that gives one.

        Raises BrokerError where it is an error, ConnectError or CallTimeoutError where none answers.
        """
        problem: RocketMQError = ConnectError("no name server is set")
        for server in sorted(self._name_servers(), key=lambda each: not each.channel.is_connected):
            try:
                return await server.channel.call(request)
            except BrokerError:
                raise
            except RocketMQError as error:
                problem = error
        raise problem

    async def stop(self) -> None:
        """Say goodbye to every name server, and let them go."""
        self._is_stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        goodbye = UnregisterBroker(
            broker_name=self._settings.broker_name,
            broker_addr=self._address,
            cluster_name=self._settings.broker_cluster_name,
            broker_id=self._settings.broker_id,
        )
        connected = [each for each in self._servers.values() if each.channel.is_connected]
        calls = (each.channel.call(goodbye, timeout_ms=UNREGISTER_MS) for each in connected)
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*(server.channel.close() for server in self._servers.values()))
        self._servers.clear()
