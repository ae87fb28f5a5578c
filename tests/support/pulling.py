"""Pulling consumers in tests: made for a cluster, and read from until there is enough."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from rmq_core.client.lite_pull import LitePullConsumer
from rmq_core.client.pull_consumer import PullConsumer
from rmq_core.client.received import ReceivedMessage
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.message import MessageQueue
from support.brokers import Cluster
from support.producing import names_of

TOPIC = "Orders"
GROUP = "audit"


def queue(number: int = 0, *, broker: str = "broker-a", topic: str = TOPIC) -> MessageQueue:
    return MessageQueue(topic, broker, number)


def lite(cluster: Cluster, group: str = GROUP, **arguments: Any) -> LitePullConsumer:
    """A consumer that begins with the first message unless it is told otherwise."""
    return LitePullConsumer(group, **{"start_from": "earliest", "name_server": names_of(cluster), **arguments})


def puller(cluster: Cluster, group: str = GROUP, **arguments: Any) -> PullConsumer:
    return PullConsumer(group, **{"name_server": names_of(cluster), **arguments})


async def read(consumer: LitePullConsumer, count: int, *, timeout_s: float = 30) -> list[ReceivedMessage]:
    """So many messages by poll(). Raises AssertionError where they do not come in time."""
    found: list[ReceivedMessage] = []
    deadline = asyncio.get_running_loop().time() + timeout_s
    while len(found) < count:
        assert asyncio.get_running_loop().time() < deadline, f"{len(found)} of {count} messages came"
        found += await consumer.poll(timeout_ms=200, count_max=count - len(found))
    return found


def bodies(messages: Iterable[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def numbered(count: int, prefix: str = "") -> list[bytes]:
    """Bodies that tell their order."""
    return [b"%b%05d" % (prefix.encode(), number) for number in range(count)]


async def stored_progress(
    cluster: Cluster, number: int = 0, *, group: str = GROUP, topic: str = TOPIC, broker: int = 0
) -> int | None:
    """How far a group is by the broker's word; None where the broker has none."""
    request = r.QueryConsumerOffset(group, topic, number, set_zero_if_not_found=False)
    try:
        answer = await cluster.client(broker).call(request)
    except BrokerError as error:
        assert error.code == 22
        return None
    return int(answer.header.queue_offset)


async def members_of(cluster: Cluster, group: str = GROUP) -> int:
    """How many members the first broker knows."""
    try:
        answer = await cluster.client().call(r.GetConsumerConnectionList(group))
    except BrokerError as error:
        assert error.code == 206
        return 0
    from rmq_core.protocol.bodies import ConsumerConnection

    return len(ConsumerConnection.decode(answer.body).connection_set)
