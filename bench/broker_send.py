"""Sends of 128 bytes over loopback, to a whole broker and to the least server that stores them."""

from __future__ import annotations

import functools

from bench.broker_process import QUEUES, Process, Served, broker, in_turn, load, started
from bench.measure import Ratio
from bench.requests import send_frame
from bench.store_append import properties

SHAPES = ((64, 1), (1, 64))
TOTAL = 60_000
LATENCY_S = 3
MESSAGES = 256
"""Different ones, sent round and round."""


def frames() -> bytes:
    """Messages with ids and keys of their own, for all queues."""
    return b"".join(
        send_frame(
            queue_id=number % QUEUES,
            properties=properties(number).decode(),
        )
        for number in range(MESSAGES)
    )


def run() -> list[Ratio]:
    ratios: list[Ratio] = []
    sent = frames()
    with broker() as ours, started(["bench.baseline.send_server"], int) as plain:
        for connections, in_flight in SHAPES:
            shape = functools.partial(load, frames=sent, connections=connections, in_flight=in_flight, total=TOTAL)
            name = f"sends {connections} × {in_flight} in flight"
            found = in_turn(name, functools.partial(shape, ours), functools.partial(shape, plain), goal=0.5)
            ratios += [*found, latency(name, ours, sent, connections, found[0].ours / 2)]
    return ratios


def latency(name: str, process: Process, sent: bytes, connections: int, rate: float) -> Ratio:
    """The 99th percentile at half of the load, against what it may be."""
    total = int(rate * LATENCY_S)
    served = [half_load(process, sent, connections, total, rate) for _ in range(3)]
    p99_us = sorted(each.p99_us for each in served)[1]
    return Ratio(f"{name}, at half of that: 5 ms against p99", 5_000, p99_us, "µs", goal=1)


def half_load(process: Process, sent: bytes, connections: int, total: int, rate: float) -> Served:
    served = load(process, sent, connections=connections, in_flight=4096, total=total, rate=rate)
    if served.refused:
        raise RuntimeError(f"{served.refused} of {total} sends were refused at half of the load")
    return served
