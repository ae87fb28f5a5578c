"""What a broker costs that has nothing to do: alone, and with 10,000 consumers that wait for a message."""

from __future__ import annotations

import asyncio
import contextlib
import time

from bench.broker_process import QUEUES, TOPIC, Process, broker
from bench.measure import Ratio
from rmq_core.protocol.command import Command, encode_command
from rmq_core.protocol.requests import PullMessage

POLLS = 10_000
SETTLE_S, IDLE_S = 3, 10
_SUSPEND, _SUBSCRIPTION_IN_PULL = 2, 4


def waiting_pull(queue_id: int) -> bytes:
    """A pull at the end of an empty queue, that waits longer than the measurement."""
    request = PullMessage(
        consumer_group="CG",
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=_SUSPEND | _SUBSCRIPTION_IN_PULL,
        commit_offset=0,
        suspend_timeout_millis=60_000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return encode_command(Command(request.code, opaque=1, ext=request.to_ext()))


def idle_share(process: Process) -> float:
    """The part of a core that it takes."""
    before, start = process.cpu_seconds(), time.perf_counter()
    time.sleep(IDLE_S)
    return (process.cpu_seconds() - before) / (time.perf_counter() - start)


async def with_polls(process: Process) -> tuple[float, float]:
    """Memory and share of a core while every connection has a pull that waits. Raises where one is answered."""
    async with contextlib.AsyncExitStack() as connections:
        readers = []
        for number in range(POLLS):
            reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
            connections.callback(writer.close)
            writer.write(waiting_pull(number % QUEUES))
            readers.append(reader)
        await asyncio.sleep(SETTLE_S)
        share = await asyncio.to_thread(idle_share, process)
        answered = sum(bool(reader._buffer) or reader.at_eof() for reader in readers)  # type: ignore[attr-defined]
        if answered:
            raise RuntimeError(f"{answered} of {POLLS} pulls did not wait")
        return process.own_memory(), share


def run() -> list[Ratio]:
    with broker() as process:
        time.sleep(SETTLE_S)
        memory, share = process.own_memory(), idle_share(process)
        with_all, share_with_all = asyncio.run(with_polls(process))
    print(f"  an idle broker takes {share:.1%} of a core, with {POLLS:,} waiting pulls {share_with_all:.1%}")
    return [
        Ratio("an idle broker: 150 MiB against its own memory", 150, memory, "MiB", goal=1),
        Ratio(
            f"{POLLS:,} waiting pulls: 200 MB against what they add",
            200,
            (with_all - memory) * 1.048576,
            "MB",
            goal=1,
        ),
        Ratio(
            f"{POLLS:,} waiting pulls: 5 % of a core against what it takes", 5, share_with_all * 100, "%", goal=1
        ),
    ]
