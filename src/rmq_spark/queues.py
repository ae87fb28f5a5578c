"""Which queues a query reads: those of named topics, of topics that match a pattern, or named ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rmq_core.errors import NoRouteError
from rmq_core.protocol.message import (
    REPLY_TOPIC_SUFFIX,
    MessageQueue,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.offsets import queue_names

if TYPE_CHECKING:
    from rmq_core.client.queue_client import QueueClient
    from rmq_spark.options import Settings


def find_queues(client: QueueClient, settings: Settings, *, refresh: bool = False) -> tuple[MessageQueue, ...]:
    """Every queue to read, sorted. With refresh the name servers are asked again.

    Raises SparkRocketMQError: UNKNOWN_TOPIC for a topic that is named and not there, UNKNOWN_QUEUE for a queue of
    `assign`. A pattern that matches nothing is no error.
    """
    found: set[MessageQueue] = set()
    for topic in topics_to_read(client, settings):
        try:
            found.update(client.queues(topic, refresh=refresh))
        except NoRouteError as error:
            if settings.subscribe_pattern is None:
                raise SparkRocketMQError(
                    Condition.UNKNOWN_TOPIC,
                    f"no name server of {settings.name_server} knows a broker to read topic {topic} from: {error}",
                    topic=topic,
                ) from None
    if settings.assign:
        if missing := set(settings.assign) - found:
            raise SparkRocketMQError(
                Condition.UNKNOWN_QUEUE,
                f"option assign names {queue_names(missing)}, which no broker has; there are {queue_names(found)}",
                queues=queue_names(missing),
            )
        return settings.assign
    return tuple(sorted(found))


def topics_to_read(client: QueueClient, settings: Settings) -> tuple[str, ...]:
    """The topics that options name or match."""
    if settings.assign:
        return tuple(sorted({queue.topic for queue in settings.assign}))
    if settings.subscribe_pattern is not None:
        return matching_topics(client.topics(), settings.subscribe_pattern, system=system_names(client))
    return settings.subscribe or ((settings.topic,) if settings.topic is not None else ())


def matching_topics(names: Iterable[str], pattern: str, *, system: Collection[str] = ()) -> tuple[str, ...]:
    """The users' topics whose whole name matches, sorted; system holds names that brokers add."""
    wanted = re.compile(pattern)
    return tuple(
        sorted(
            name
            for name in names
            if wanted.fullmatch(name)
            and name not in system
            and not (is_system_topic(name) or is_retry_topic(name) or is_dlq_topic(name))
        )
    )


def system_names(client: QueueClient) -> frozenset[str]:
    """Topics that are named after clusters and brokers."""
    from rmq_core.protocol.bodies import ClusterInfo
    from rmq_core.protocol.requests import GetBrokerClusterInfo

    info = ClusterInfo.decode(client.routes.ask(GetBrokerClusterInfo()).body)
    clusters = list(info.cluster_addr_table or {})
    return frozenset(
        [*clusters, *(f"{name}{REPLY_TOPIC_SUFFIX}" for name in clusters), *(info.broker_addr_table or {})]
    )
