"""Where topics live, as name servers told it: queues to send to and to read from, and addresses of brokers.

Pure tables; the instance fills them. Queues to send to need a master that may be written; a topic with an order
configuration names its queues itself. Queues come sorted by broker and number, so that every client sees one order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rmq_core.protocol.bodies import TopicRouteData
from rmq_core.protocol.message import MessageQueue

MASTER: Final = 0
READABLE: Final = 4
WRITABLE: Final = 2


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's queues."""

    topic: str
    data: TopicRouteData
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    is_ordered: bool
    """Whether an order configuration fixes the queues."""
    is_default: bool = False
    """Whether this is the default topic's route, lent to a topic that does not exist yet."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One process of a broker."""

    broker_name: str
    broker_id: int
    address: str

    @property
    def is_slave(self) -> bool:
        return self.broker_id != MASTER


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Read a route."""
    return TopicRoute(
        topic=topic,
        data=data,
        write_queues=tuple(_ordered_queues(topic, data) if data.order_topic_conf else _write_queues(topic, data)),
        read_queues=tuple(_read_queues(topic, data)),
        is_ordered=bool(data.order_topic_conf),
    )


def default_route(topic: str, data: TopicRouteData, *, queues_max: int) -> TopicRoute:
    """The route of a topic that the first message will make, from that of the default topic."""
    queues = tuple(queue for queue in _write_queues(topic, data) if queue.queue_id < queues_max)
    return TopicRoute(topic, data, queues, (), is_ordered=False, is_default=True)


def _ordered_queues(topic: str, data: TopicRouteData) -> Iterable[MessageQueue]:
    for part in (data.order_topic_conf or "").split(";"):
        name, _, count = part.partition(":")
        if name and count.isdecimal():
            yield from (MessageQueue(topic, name, number) for number in range(int(count)))


def _write_queues(topic: str, data: TopicRouteData) -> Iterable[MessageQueue]:
    masters = {each.broker_name for each in data.broker_datas or () if MASTER in each.broker_addrs}
    for each in sorted(data.queue_datas, key=lambda queue_data: queue_data.broker_name):
        if each.perm & WRITABLE and each.broker_name in masters:
            yield from (MessageQueue(topic, each.broker_name, number) for number in range(each.write_queue_nums))


def _read_queues(topic: str, data: TopicRouteData) -> Iterable[MessageQueue]:
    for each in sorted(data.queue_datas, key=lambda queue_data: queue_data.broker_name):
        if each.perm & READABLE:
            yield from (MessageQueue(topic, each.broker_name, number) for number in range(each.read_queue_nums))


class RouteTable:
    """The routes that a client uses, and the brokers in them."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicRoute] = {}
        self._brokers: dict[str, dict[int, str]] = {}

    def put(self, route: TopicRoute) -> bool:
        """Take a route in. True where its queues, or the brokers that hold them, changed."""
        known = self.topics.get(route.topic)
        self.topics[route.topic] = route
        for each in route.data.broker_datas or ():
            self._brokers[each.broker_name] = dict(each.broker_addrs)
        return known is None or known.data != route.data

    def forget(self, topic: str) -> None:
        """The topic is gone, or nobody here uses it."""
        self.topics.pop(topic, None)

    def drop_unused_brokers(self) -> None:
        """Forget brokers that no route names any more."""
        used = {each.broker_name for route in self.topics.values() for each in route.data.broker_datas or ()}
        for name in self._brokers.keys() - used:
            del self._brokers[name]

    def brokers(self) -> list[BrokerAddress]:
        """Every process of every known broker."""
        return [
            BrokerAddress(name, broker_id, address)
            for name, addresses in sorted(self._brokers.items())
            for broker_id, address in sorted(addresses.items())
        ]

    def master(self, broker_name: str) -> str | None:
        """The announced address of a broker's master."""
        return self._brokers.get(broker_name, {}).get(MASTER)

    def find(self, broker_name: str, broker_id: int = MASTER, *, only_this: bool = False) -> BrokerAddress | None:
        """That process of a broker; unless only_this, another one where it is missing, slaves before none."""
        addresses = self._brokers.get(broker_name, {})
        if broker_id in addresses:
            return BrokerAddress(broker_name, broker_id, addresses[broker_id])
        if only_this or not addresses:
            return None
        other = min(addresses, key=lambda each: (each < broker_id, each))
        return BrokerAddress(broker_name, other, addresses[other])
