"""What all administrative calls share: the connection to the cluster, whom a call goes to, and what failed.

Whom      A broker that is named, by name or as host:port; else the masters of the cluster that is named; else those
          of the only cluster. What concerns a topic goes to the masters of the topic, what concerns a group to
          those of its retry topic, which every group that was ever online has.
Failures  Brokers are called at the same time, and one that fails does not stop the others. If all fail alike, that
          error is raised; otherwise SomeBrokersFailedError, with what failed where and what went well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

from rmq_core.client.arguments import whole_number
from rmq_core.client.instance import ClientInstance, acquire, release
from rmq_core.client.options import ClientArguments, ClientOptions, client_options, shows
from rmq_core.client.routes import MASTER, BrokerAddress
from rmq_core.errors import BrokerError, ClientClosedError, ClientError, NoRouteError, RocketMQError
from rmq_core.net.calls import Answer
from rmq_core.protocol.bodies import ClusterInfo, TopicRouteData
from rmq_core.protocol.message import (
    group_name_problem,
    retry_topic,
    topic_name_problem,
    unwrap_namespace,
    wrap_namespace,
)
from rmq_core.protocol.request import Header, Request
from rmq_core.protocol.requests import GetBrokerClusterInfo

TIMEOUT_MS: Final = 5_000
MEMBER_TIMEOUT_MS: Final = 15_000
"""For questions that a broker passes on to a member: it waits ten seconds itself."""

AT_ONCE: Final = 64

R = TypeVar("R", bound=Header)
S = TypeVar("S")
T = TypeVar("T")


def admin_options(timeout_ms: int, client: ClientArguments) -> ClientOptions:
    """Check the arguments of an Admin. Raises TypeError and ValueError naming the argument."""
    whole_number("timeout_ms", timeout_ms)
    return client_options(client)


class SomeBrokersFailedError(ClientError):
    """A call went well on some brokers and not on others."""

    def __init__(self, failed: Mapping[str, RocketMQError], done: Mapping[str, object]) -> None:
        super().__init__(dict(failed), dict(done))
        self.failed = dict(failed)
        """What was raised, by broker."""
        self.done = dict(done)
        """What the others gave, by broker."""

    def __str__(self) -> str:
        reasons = "; ".join(f"{name}: {error}" for name, error in self.failed.items())
        return f"{len(self.failed)} of {len(self.failed) + len(self.done)} brokers failed ({reasons})"


class AdminBase:
    """Opens at first use, and closes once."""

    @shows(ClientArguments)
    def __init__(self, *, timeout_ms: int = TIMEOUT_MS, **client: Unpack[ClientArguments]) -> None:
        self._options = admin_options(timeout_ms, client)
        self._timeout_ms = timeout_ms
        self._opening = asyncio.Lock()
        self._instance: ClientInstance | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        where = self._options.address_server or ";".join(self._options.name_servers)
        return f"<{type(self).__name__} of {where}>"

    async def start(self) -> Self:
        """Begin; the first use does the same. Idempotent."""
        await self._use()
        return self

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        async with self._opening:
            self._is_closed = True
            instance, self._instance = self._instance, None
        if instance is not None:
            await release(instance)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _use(self) -> ClientInstance:
        instance = self._instance
        if instance is not None:
            return instance
        async with self._opening:
            if self._is_closed:
                raise ClientClosedError("this Admin was closed; make a new one")
            if self._instance is None:
                self._instance = await acquire(self._options)
            return self._instance

    # Names

    def _topic(self, name: str) -> str:
        """A topic's name on the wire. Raises TypeError or ValueError where it cannot be one."""
        return wrap_namespace(self._options.namespace, _checked("topic", name, topic_name_problem))

    def _group(self, name: str, *, what: str = "group") -> str:
        return wrap_namespace(self._options.namespace, _checked(what, name, group_name_problem))

    def _bare(self, name: str) -> str:
        return unwrap_namespace(name) if self._options.namespace else name

    def _own(self, names: Iterable[str]) -> list[str]:
        """Those within our namespace, bare and sorted; all of them where we have none."""
        space = self._options.namespace
        return sorted(
            {self._bare(name) for name in names if not space or wrap_namespace(space, self._bare(name)) == name}
        )

    # Calls

    async def _call(
        self, address: str, request: Request[R], body: bytes = b"", *, timeout_ms: float | None = None
    ) -> Answer[R]:
        instance = await self._use()
        return await instance.call(
            instance.vip(address), request, body, timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms
        )

    async def _ask(self, request: Request[R], body: bytes = b"") -> Answer[R]:
        """Ask any name server."""
        instance = await self._use()
        return await instance.name_servers.call(request, body, timeout_ms=self._timeout_ms)

    async def _ask_all(self, request: Request[R], body: bytes = b"") -> dict[str, Answer[R]]:
        """Ask every name server; what each of them said, by address."""
        instance = await self._use()
        return await instance.name_servers.call_each(request, body, timeout_ms=self._timeout_ms)

    async def _each(
        self, targets: Sequence[BrokerAddress], work: Callable[[BrokerAddress], Awaitable[T]]
    ) -> dict[str, T]:
        """Do something with every broker at the same time; what it gave, by name."""
        results = await asyncio.gather(*(work(each) for each in targets), return_exceptions=True)
        done: dict[str, T] = {}
        failed: dict[str, RocketMQError] = {}
        for target, result in zip(targets, results, strict=True):
            if isinstance(result, RocketMQError):
                failed[target.broker_name] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                done[target.broker_name] = result
        if failed:
            first, *others = failed.values()
            if not done and all(_is_like(first, other) for other in others):
                raise first
            raise SomeBrokersFailedError(failed, done)
        return done

    async def _call_each(
        self, targets: Sequence[BrokerAddress], request: Request[R], body: bytes = b""
    ) -> dict[str, Answer[R]]:
        return await self._each(targets, lambda each: self._call(each.address, request, body))

    async def _call_some(
        self, targets: Sequence[BrokerAddress], request: Request[R], *, absent: Container[int]
    ) -> dict[str, Answer[R]]:
        """The same, where some brokers may have nothing to say: those that answer with one of these codes."""

        async def ask(target: BrokerAddress) -> Answer[R] | None:
            try:
                return await self._call(target.address, request)
            except BrokerError as error:
                if error.code not in absent:
                    raise
                return None

        answers = await self._each(targets, ask)
        return {name: answer for name, answer in answers.items() if answer is not None}

    async def _several(self, items: Iterable[S], work: Callable[[S], Awaitable[T]]) -> list[T]:
        """Do something with each of many items, some at a time: a topic may have thousands of queues."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(item: S) -> T:
            async with slots:
                return await work(item)

        return list(await asyncio.gather(*map(one, items)))

    async def _first(self, targets: Sequence[BrokerAddress], work: Callable[[BrokerAddress], Awaitable[T]]) -> T:
        """What the first broker gives that does not fail; the last one's error where all do."""
        for target in targets[:-1]:
            try:
                return await work(target)
            except RocketMQError:
                continue
        return await work(targets[-1])

    # Whom

    async def _cluster_info(self) -> ClusterInfo:
        return ClusterInfo.decode((await self._ask(GetBrokerClusterInfo())).body)

    async def _masters(self, broker: str | None, cluster: str | None) -> list[BrokerAddress]:
        """The brokers that a call goes to. Raises NoRouteError, and ValueError where it must be said which."""
        info = await self._cluster_info()
        table = info.broker_addr_table or {}
        clusters = info.cluster_addr_table or {}
        if broker is not None:
            return [_named(info, broker)]
        if cluster is None and len(clusters) > 1:
            raise ValueError(f"cluster: there are several, name one of {', '.join(sorted(clusters))}, or a broker")
        if cluster is not None and cluster not in clusters:
            raise NoRouteError(f"no cluster {cluster}; there {_are(clusters)}")
        names = clusters[cluster] if cluster is not None else tuple(table)
        found = [
            BrokerAddress(name, MASTER, table[name].broker_addrs[MASTER])
            for name in sorted(names)
            if name in table and MASTER in table[name].broker_addrs
        ]
        if not found:
            raise NoRouteError(
                "the name servers know no master of a broker" + (f" in {cluster}" if cluster else "")
            )
        return found

    async def _broker(self, broker: str) -> BrokerAddress:
        """A broker by name or address."""
        if not isinstance(broker, str) or not broker:
            raise TypeError(f"broker must be its name or host:port, not {broker!r}")
        return _named(await self._cluster_info(), broker)

    async def _route_data(self, topic: str) -> TopicRouteData:
        instance = await self._use()
        return (await instance.route(topic, refresh=True)).data

    async def _of_topic(self, topic: str, broker: str | None = None) -> list[BrokerAddress]:
        """The masters of a topic, or a broker of it that is named."""
        if broker is not None:
            return [await self._broker(broker)]
        return _masters_in(topic, await self._route_data(topic))

    async def _of_group(self, group: str, broker: str | None = None) -> list[BrokerAddress]:
        """The masters that know a group; one that was never online may be on any."""
        if broker is not None:
            return [await self._broker(broker)]
        try:
            return _masters_in(group, await self._route_data(retry_topic(group)))
        except NoRouteError:
            return all_masters(await self._cluster_info())

    async def _queue_address(self, broker_name: str, topic: str) -> str:
        """Where to ask about a queue: the broker's master, or a replica where there is none."""
        data = await self._route_data(topic)
        for each in data.broker_datas or ():
            if each.broker_name == broker_name and each.broker_addrs:
                return each.broker_addrs[min(each.broker_addrs)]
        raise NoRouteError(f"broker {broker_name} has no queues of topic {self._bare(topic)}")


def _checked(what: str, name: str, problem: Callable[[str], str | None]) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be str, not {type(name).__name__}")
    found = problem(name)
    if found is not None:
        raise ValueError(found)
    return name


def _named(info: ClusterInfo, broker: str) -> BrokerAddress:
    table = info.broker_addr_table or {}
    if broker in table:
        addresses = table[broker].broker_addrs
        if MASTER not in addresses:
            raise NoRouteError(f"broker {broker} has no master now; give the address of a replica to ask that one")
        return BrokerAddress(broker, MASTER, addresses[MASTER])
    if ":" not in broker:
        raise NoRouteError(f"no broker {broker}; there {_are(table)}")
    for name, data in table.items():
        for broker_id, address in data.broker_addrs.items():
            if address == broker:
                return BrokerAddress(name, broker_id, address)
    return BrokerAddress(broker, MASTER, broker)


def _are(names: Iterable[str]) -> str:
    known = sorted(names)
    return f"are {', '.join(known[:20])}" if known else "are none"


def _masters_in(what: str, data: TopicRouteData) -> list[BrokerAddress]:
    found = [
        BrokerAddress(each.broker_name, MASTER, each.broker_addrs[MASTER])
        for each in sorted(data.broker_datas or (), key=lambda each: each.broker_name)
        if MASTER in each.broker_addrs
    ]
    if not found:
        raise NoRouteError(f"no broker of {what} has a master now")
    return found


def all_masters(info: ClusterInfo) -> list[BrokerAddress]:
    """Every master that the name servers know. Raises NoRouteError where there is none."""
    found = [
        BrokerAddress(name, MASTER, data.broker_addrs[MASTER])
        for name, data in sorted((info.broker_addr_table or {}).items())
        if MASTER in data.broker_addrs
    ]
    if not found:
        raise NoRouteError("the name servers know no master of a broker")
    return found


def _is_like(one: RocketMQError, other: RocketMQError) -> bool:
    if isinstance(one, BrokerError) and isinstance(other, BrokerError):
        return one.code == other.code
    return type(one) is type(other)
