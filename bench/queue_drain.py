"""A backlog drained by ranges, as Spark's executors do: bytes a second that come out of QueueClient.

With large pulls, and with pulls of at most 32 messages, which is what Apache's brokers give; beside a copy of
memory, which says how fast the machine is at the time, and with what the broker itself costs for the same bytes.
"""

from __future__ import annotations

import statistics
import time

import rmq_core
from bench.broker_process import QUEUES, TOPIC, Process
from bench.broker_pull import copy_rate
from bench.measure import Ratio
from rmq_core.client.options import client_options
from rmq_core.client.queue_client import QueueClient
from rmq_core.client.queue_read import COUNT_MAX
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import BatchRecord, encode_batch
from rmq_core.protocol.requests import SendBatchMessage

SIZE = 1024
MESSAGES = 256_000
"""Over all queues."""
BATCH = 2_000
ROUNDS = 5
APACHE_COUNT = 32


def fill(address: str) -> None:
    """Messages of 1 KiB, spread over the queues in batches."""
    body = encode_batch([BatchRecord(0, b"x" * SIZE, b"TAGS\x01TagA\x02")] * BATCH)
    with BlockingChannel(address) as channel:
        for number in range(MESSAGES // BATCH):
            request = SendBatchMessage(
                producer_group="PG",
                topic=TOPIC,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=number % QUEUES,
                sys_flag=0,
                born_timestamp=1_700_000_000_000,
                flag=0,
                properties="",
                reconsume_times=0,
                unit_mode=False,
                batch=True,
            )
            channel.call(request, body, timeout_ms=30_000)


def drain(client: QueueClient, queues: dict[MessageQueue, int], count_max: int) -> float:
    """Bytes a second over all queues, one after the other."""
    start, size = time.perf_counter(), 0
    for queue, end in queues.items():
        covered = 0
        for piece in client.read(queue, 0, end, count_max=count_max):
            size += len(piece.buffer)
            covered += piece.end - piece.start
        if covered != end:
            raise RuntimeError(f"{covered} of {end} messages of {queue} were read")
    return size / (time.perf_counter() - start)


def run() -> list[Ratio]:
    mega = 1 / 1e6
    # A batch of ours is larger than the messages that a broker takes by default.
    with rmq_core.embedded(maxMessageSize=16 << 20, mappedFileSizeCommitLog=1 << 28) as mq:
        mq.create_topic(TOPIC, queues=QUEUES)
        fill(mq.address)
        process = Process(port=int(mq.address.rpartition(":")[2]), pid=mq.pid or 0)
        with QueueClient(client_options({"name_server": mq.name_server})) as client:
            queues = client.max_offsets(client.queues(TOPIC))
            large, small, copies, broker_share = [], [], [], []
            for _ in range(ROUNDS):
                copies.append(copy_rate())
                before, started = process.cpu_seconds(), time.perf_counter()
                large.append(drain(client, queues, COUNT_MAX))
                broker_share.append((process.cpu_seconds() - before) / (time.perf_counter() - started))
                small.append(drain(client, queues, APACHE_COUNT))
    median = statistics.median
    print(f"  the broker kept a processor busy for {median(broker_share):.0%} of a drain with large pulls")
    return [
        Ratio("drain of 1 KiB messages", median(large) * mega, 500, "MB/s", goal=1),
        Ratio("drain by 32 messages a pull", median(small) * mega, 250, "MB/s", goal=1),
        Ratio("drain against a copy of memory", median(large) * mega, median(copies) * mega, "MB/s"),
    ]
