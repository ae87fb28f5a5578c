"""Producers of a cluster's brokers, its topics, and what they hold."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rmq_core.client.producer import Producer
from rmq_core.protocol.record import StoredRecord
from rmq_core.protocol.requests import UpdateAndCreateTopic
from support.brokers import Cluster
from support.cluster import address_of


def names_of(cluster: Cluster) -> list[str]:
    """The addresses of the name servers."""
    return [address_of(each) for each in cluster.name_servers]


@contextlib.asynccontextmanager
async def producing(cluster: Cluster, group: str = "PG", **arguments: Any) -> AsyncIterator[Producer]:
    """A producer, closed at the end."""
    async with Producer(group, **{"name_server": names_of(cluster), **arguments}) as producer:
        yield producer


async def create(cluster: Cluster, topic: str, *, queues: int = 4) -> None:
    """A topic on every broker."""
    for number in range(len(cluster.apps)):
        await cluster.client(number).call(
            UpdateAndCreateTopic(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
                order=False,
            )
        )


async def stored(cluster: Cluster, topic: str, *, queues: int = 4) -> dict[tuple[str, int], list[StoredRecord]]:
    """Every message of a topic, by broker and queue."""
    return {
        (app.settings.broker_name, queue_id): await cluster.client(number).messages(topic, queue_id)
        for number, app in enumerate(cluster.apps)
        for queue_id in range(queues)
    }
