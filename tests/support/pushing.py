"""Push consumers in tests: made for a cluster, fed in batches, waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from rmq_core.client.push_consumer import PushConsumer
from rmq_core.protocol import requests as r
from rmq_core.protocol.record import BatchRecord, encode_batch
from support.brokers import Cluster
from support.cluster import address_of

SHORT_LEVELS = " ".join(["1s"] * 18)
"""Delay levels of a broker whose retries tests wait for."""
BATCH = 1_000


def push_consumer(cluster: Cluster, group: str, **arguments: Any) -> PushConsumer:
    """A consumer of a cluster that begins with the first message unless it is told otherwise."""
    names = [address_of(each) for each in cluster.name_servers]
    return PushConsumer(group, **{"start_from": "earliest", "name_server": names, **arguments})


async def until(condition: Callable[..., object], timeout_s: float = 30) -> None:
    """Return when something has become true. Raises AssertionError where it has not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so in {timeout_s} s: {condition.__code__.co_names}"
        await asyncio.sleep(0.01)


async def create_topic(cluster: Cluster, topic: str, queues: int = 4) -> None:
    """The topic on every broker."""
    for number in range(len(cluster.apps)):
        request = r.UpdateAndCreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        await cluster.client(number).call(request)


async def fill(
    cluster: Cluster, topic: str, bodies: Iterable[bytes], *, queue_id: int = 0, broker: int = 0, tags: str = "TagA"
) -> None:
    """Many messages to one queue."""
    client = cluster.client(broker)
    records = [BatchRecord(0, body, f"TAGS\x01{tags}\x02".encode()) for body in bodies]
    for start in range(0, len(records), BATCH):
        request = r.SendBatchMessage(
            producer_group="PG",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=True,
        )
        await client.call(request, encode_batch(records[start : start + BATCH]))


async def committed(cluster: Cluster, group: str, topic: str, queue_id: int = 0, *, broker: int = 0) -> int:
    """How far a group is in a queue by the broker's word."""
    answer = await cluster.client(broker).call(r.QueryConsumerOffset(group, topic, queue_id))
    return int(answer.header.queue_offset)
