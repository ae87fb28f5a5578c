"""Sends at a fixed rate while 2,000 consumers join one group within a second, and how late the slowest answers are.

Each consumer writes its heartbeat and asks for the members of its group, as clients do when they start, and reads
what it is told of the others that come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from bench.broker_process import TOPIC, Process, Served, broker, load
from bench.broker_send import frames
from bench.measure import Ratio
from rmq_core.protocol import bodies
from rmq_core.protocol.command import Command, encode_command
from rmq_core.protocol.requests import GetConsumerListByGroup, HeartBeat

CONSUMERS, GROUP = 2_000, "CG-join"
RATE, SECONDS = 5_000, 3
JOIN_AFTER_S, STEP_S = 1.0, 0.01
ROUNDS = 3


class Consumer(asyncio.Protocol):
    """Reads, and counts bytes."""

    received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += len(data)


def joining(number: int) -> bytes:
    """What a consumer writes when it starts."""
    data = bodies.HeartbeatData(
        f"127.0.0.1@{number}",
        consumer_data_set=(
            bodies.ConsumerData(GROUP, subscription_data_set=(bodies.SubscriptionData(TOPIC, "*", sub_version=1),)),
        ),
    )
    members = GetConsumerListByGroup(consumer_group=GROUP)
    heartbeat = encode_command(Command(HeartBeat.code, opaque=1, ext=HeartBeat().to_ext(), body=data.encode()))
    return heartbeat + encode_command(Command(members.code, opaque=2, ext=members.to_ext()))


async def join(process: Process, during: Callable[[], Served]) -> Served:
    """Let all of them join within a second while sends go on. Raises where one was told nothing."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        consumers = []
        for _ in range(CONSUMERS):
            _, consumer = await loop.create_connection(Consumer, "127.0.0.1", process.port)
            stack.callback(consumer.transport.close)
            consumers.append(consumer)
        sends = loop.run_in_executor(None, during)
        await asyncio.sleep(JOIN_AFTER_S)
        start, each = loop.time(), round(CONSUMERS * STEP_S)
        for step in range(0, CONSUMERS, each):
            for number in range(step, step + each):
                consumers[number].transport.write(joining(number))
            await asyncio.sleep(max(start + (step + each) / CONSUMERS - loop.time(), 0))
        served = await sends
        deaf = sum(not consumer.received for consumer in consumers)
        if deaf:
            raise RuntimeError(f"{deaf} of {CONSUMERS} consumers were not answered")
        return served


def run() -> list[Ratio]:
    sent = frames()
    alone, joined = [], []
    with broker() as process:

        def sends() -> Served:
            served = load(process, sent, connections=16, in_flight=4096, total=RATE * SECONDS, rate=RATE)
            if served.refused:
                raise RuntimeError(f"{served.refused} sends were refused")
            return served

        for _ in range(ROUNDS):
            alone.append(sends())
            joined.append(asyncio.run(join(process, sends)))
    quiet, busy = (sorted(each, key=lambda served: served.p99_us)[ROUNDS // 2] for each in (alone, joined))
    print(
        f"  {RATE:,} sends a second: median {quiet.median_us:,.0f} µs, p99 {quiet.p99_us:,.0f} µs; "
        f"while {CONSUMERS:,} join: median {busy.median_us:,.0f} µs, p99 {busy.p99_us:,.0f} µs, "
        f"longest {busy.longest_us:,.0f} µs"
    )
    return [Ratio(f"sends while {CONSUMERS:,} consumers join: 5 ms against p99", 5_000, busy.p99_us, "µs", goal=1)]
