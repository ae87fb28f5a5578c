"""Pulls over loopback: how many a second of the usual 32 messages, and how many bytes where a reader asks for more.

Against fixed rates, and beside a copy of memory, which says how fast the machine is at the time.
"""

from __future__ import annotations

import time

from bench.broker_process import QUEUES, TOPIC, Process, Served, broker, load
from bench.measure import Ratio
from bench.requests import send_frame
from rmq_core.protocol.command import Command, encode_command
from rmq_core.protocol.requests import PullMessage

SMALL, LARGE = 128, 1024
MESSAGES = 64_000
"""Of each size, over all queues."""
PULLS, BULK_PULLS = 60_000, 1_500
ROUNDS = 3
COPY = 64 << 20
_SUBSCRIPTION_IN_PULL = 4


def pull_frame(queue_id: int, offset: int, count: int) -> bytes:
    """A pull as Java's consumers write it, that doesn't wait."""
    request = PullMessage(
        consumer_group="CG",
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=_SUBSCRIPTION_IN_PULL,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return encode_command(Command(request.code, opaque=1, ext=request.to_ext()))


def fill(process: Process, size: int) -> None:
    frames = b"".join(send_frame(b"x" * size, queue_id=queue_id) for queue_id in range(QUEUES))
    load(process, frames, connections=4, in_flight=16, total=MESSAGES)


def best(process: Process, frames: bytes, in_flight: int, total: int) -> Served:
    """The median of some rounds."""
    rounds = [load(process, frames, connections=8, in_flight=in_flight, total=total) for _ in range(ROUNDS)]
    if any(each.refused for each in rounds):
        raise RuntimeError("pulls of stored messages were answered with an error")
    return sorted(rounds, key=lambda each: each.rate)[ROUNDS // 2]


def copy_rate() -> float:
    """Bytes a second that one thread copies."""
    source = bytes(COPY)
    start = time.perf_counter()
    for _ in range(8):
        bytearray(source)
    return 8 * COPY / (time.perf_counter() - start)


def run() -> list[Ratio]:
    step = MESSAGES // QUEUES // 32
    usual = b"".join(pull_frame(n % QUEUES, 32 * (n * 7 % step), 32) for n in range(256))
    bulk = b"".join(pull_frame(n % QUEUES, 1000 * (n % 8), 8192) for n in range(64))
    with broker() as process:
        fill(process, SMALL)
        small = best(process, usual, 1, PULLS)
    with broker() as process:
        fill(process, LARGE)
        large = best(process, bulk, 1, BULK_PULLS)
    mega = 1 / (1 << 20)
    print(
        f"  a pull of 32: {small.cpu_us:.0f} µs of processor time; "
        f"a bulk pull: {large.bytes_rate / large.rate * mega:.1f} MiB"
    )
    return [
        Ratio("pulls of 32 messages, 8 connections", small.rate, 25_000, "pulls/s", goal=1),
        Ratio("bulk pulls of 1 KiB messages", large.bytes_rate * mega, 1e9 * mega, "MiB/s", goal=1),
        Ratio("bulk pulls against a copy of memory", large.bytes_rate * mega, copy_rate() * mega, "MiB/s"),
    ]
