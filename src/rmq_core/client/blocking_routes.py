"""Where queues live and the connections to them, for clients on plain threads.

Name servers  One is asked until it does not answer, then the next. Routes are kept for a while; whoever meets a
              broker that does not answer, or does not know a queue, asks anew.
Connections   One for each address, shared by all threads. In a forked child they are left to the parent, untouched.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from rmq_core.client.hooks import CallHook, Hooks
from rmq_core.client.name_servers import fetch_name_servers
from rmq_core.client.options import ClientOptions
from rmq_core.client.routes import MASTER, BrokerAddress, TopicRoute, topic_route
from rmq_core.errors import BrokerError, CallTimeoutError, ClientClosedError, ConnectError, NoRouteError
from rmq_core.net.blocking import BlockingChannel, OnRequest
from rmq_core.net.calls import Answer
from rmq_core.protocol.bodies import ClusterInfo, TopicRouteData
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.request import Header, Request
from rmq_core.protocol.requests import GetBrokerClusterInfo, GetRouteinfoByTopic

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Header)
T = TypeVar("T")

BUSY: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY}
)
"""Answers of a broker that will serve the same call a little later."""
AWAY: Final = (ConnectError, CallTimeoutError)
"""How a call ends that did not reach a broker, or whose answer did not come."""


class Connections:
    """Connections by the address that a broker announces."""

    def __init__(self, options: ClientOptions, *, on_request: OnRequest | None = None) -> None:
        """on_request answers what brokers ask on these connections."""
        self._options = options
        self._on_request = on_request
        hook = CallHook(Hooks(options.hooks), options.credentials)
        self._hooks = (hook,) if hook.is_needed else ()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._channels: dict[str, BlockingChannel] = {}
        self._is_closed = False

    def to(self, address: str) -> BlockingChannel:
        """The connection to an address; it connects when it is first used, and again after a loss."""
        used = self._options.reachable(address)
        self._begin_anew_after_fork()
        with self._lock:
            if self._is_closed:
                raise ClientClosedError("the client was closed")
            channel = self._channels.get(used)
            if channel is None:
                channel = self._channels[used] = BlockingChannel(
                    used,
                    connect_timeout_ms=self._options.connect_timeout_ms,
                    tls=self._options.tls,
                    hooks=self._hooks,
                    on_request=self._on_request,
                )
            return channel

    def _begin_anew_after_fork(self) -> None:
        if self._pid != os.getpid():
            # The sockets are the parent's too: shutting one down here would end the parent's connection.
            self._lock, self._channels, self._pid = threading.Lock(), {}, os.getpid()

    def close(self) -> None:
        """Close them all; calls in flight end with ConnectError. Idempotent."""
        self._begin_anew_after_fork()
        with self._lock:
            self._is_closed = True
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()


class BlockingRoutes:
    """Routes by topic, as the wire names it, and what is asked of name servers."""

    def __init__(
        self, options: ClientOptions, connections: Connections, *, tries: int = 3, pause_ms: int = 1_000
    ) -> None:
        """A look-up that no name server answers is tried so often, with a pause between."""
        self._options = options
        self._connections = connections
        self._tries = tries
        self._pause_s = pause_ms / 1000
        self._addresses = options.name_servers
        self._fetch_again_at = 0.0
        self._chosen = random.choice(options.name_servers) if options.name_servers else ""
        self._routes: dict[str, tuple[TopicRoute, float]] = {}

    def ask(self, request: Request[R], *, tries: int | None = None) -> Answer[R]:
        """Ask name servers, one after the other, several times. Raises BrokerError and ConnectError."""
        return self.patiently(lambda: self._ask_once(request), tries=tries)

    def patiently(self, work: Callable[[], T], *, tries: int | None = None) -> T:
        """Do something that may fail for a moment, as often as was agreed; the last failure is raised."""
        for left in reversed(range(tries or self._tries)):
            try:
                return work()
            except AWAY as error:
                if not left:
                    raise
                logger.info("will try again in %.1f s: %s", self._pause_s, error)
            except BrokerError as error:
                if not left or error.code not in BUSY:
                    raise
            time.sleep(self._pause_s)
        raise AssertionError("unreachable: the last try returns or raises")

    def _ask_once(self, request: Request[R]) -> Answer[R]:
        addresses = self._known()
        first = addresses.index(self._chosen) if self._chosen in addresses else 0
        deadline = time.monotonic() + self._options.call_timeout_ms / 1000
        failures = []
        for number in range(len(addresses)):
            address = addresses[(first + number) % len(addresses)]
            share_ms = (deadline - time.monotonic()) * 1000 / (len(addresses) - number)
            if share_ms <= 0:
                break
            try:
                answer = self._connections.to(address).call(request, timeout_ms=share_ms)
            except AWAY as error:
                failures.append(f"{address}: {error}")
                continue
            self._chosen = address
            return answer
        raise ConnectError(f"no name server answers ({'; '.join(failures)})")

    def _known(self) -> tuple[str, ...]:
        url = self._options.address_server
        if url is not None and time.monotonic() >= self._fetch_again_at:
            try:
                self._addresses = fetch_name_servers(url, self._options.unit_name)
            except (OSError, ValueError) as error:
                if not self._addresses:
                    raise ConnectError(f"the address server {url} fails: {error}") from error
                logger.warning("the address server %s does not answer: %s", url, error)
            self._fetch_again_at = time.monotonic() + self._options.intervals.address_refresh_ms / 1000
        if not self._addresses:
            raise ConnectError("no name server is known")
        return self._addresses

    def route(
        self, topic: str, *, refresh: bool = False, age_max_s: float = 30, tries: int | None = None
    ) -> TopicRoute:
        """A topic's route. Raises NoRouteError where no name server knows it, ConnectError where none answers."""
        known = self._routes.get(topic)
        if known is not None and not refresh and time.monotonic() - known[1] < age_max_s:
            return known[0]
        try:
            answer = self.ask(GetRouteinfoByTopic(topic), tries=tries)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            self._routes.pop(topic, None)
            raise NoRouteError(f"no name server knows a broker for topic {topic}") from error
        route = topic_route(topic, TopicRouteData.decode(answer.body))
        self._routes[topic] = (route, time.monotonic())
        return route

    def broker(self, topic: str, broker_name: str, broker_id: int = MASTER) -> BrokerAddress | None:
        """That process of a broker as the topic's last route names it, None where it does not."""
        known = self._routes.get(topic)
        route = known[0] if known is not None else self.route(topic)
        for data in route.data.broker_datas or ():
            if data.broker_name == broker_name and broker_id in data.broker_addrs:
                return BrokerAddress(broker_name, broker_id, data.broker_addrs[broker_id])
        return None

    def alive(self) -> dict[str, dict[int, str]]:
        """The brokers that name servers know to be alive, whatever their topics: addresses by id, by name."""
        info = ClusterInfo.decode(self.ask(GetBrokerClusterInfo()).body)
        return {name: dict(data.broker_addrs) for name, data in (info.broker_addr_table or {}).items()}

    def replicas(self, topic: str, broker_name: str) -> list[BrokerAddress]:
        """Every process of a broker, the master first, as the topic's last route names them."""
        return [each for each in self.brokers(topic) if each.broker_name == broker_name]

    def brokers(self, topic: str) -> list[BrokerAddress]:
        """Every process of every broker of a topic, as its last route names them; none without one."""
        known = self._routes.get(topic)
        datas = (known[0].data.broker_datas or ()) if known is not None else ()
        return [
            BrokerAddress(data.broker_name, broker_id, address)
            for data in sorted(datas, key=lambda each: each.broker_name)
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
