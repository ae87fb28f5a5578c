"""Producers sending messages of 128 bytes to a program that only answers: threads, futures and coroutines.

Beside Apache's Java producer with as many threads where its jars are there (`make interop` fetches them), and
beside the rates that are promised. Each message is made anew, as users do it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.frames import FOLDER
from bench.measure import Ratio
from rmq_core.client.blocking.producer import Producer
from rmq_core.client.producer import Producer as AsyncProducer
from rmq_core.client.send_results import SendResult
from rmq_core.protocol.message import Message

TOPIC, BODY = "TopicTest", b"x" * 128
THREADS, IN_FLIGHT = 16, 64
PROMISED = 40_000
ROUNDS = 5
JARS = Path(os.environ.get("RMQ_INTEROP_CACHE", FOLDER.parent / ".interop")) / "rocketmq-5.3.3" / "lib"


@contextlib.contextmanager
def sink() -> Iterator[str]:
    """The address of the program that answers."""
    source, program = FOLDER / "sink.c", FOLDER / "build" / "sink"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
        process.communicate("")


def message() -> Message:
    return Message(TOPIC, BODY)


class Sent(NamedTuple):
    """How fast it went."""

    rate: float
    """Sends a second."""
    cpu_us: float
    """Processor time for each."""


def by_threads(name_server: str, *, threads: int = THREADS, total: int = 32_000) -> Sent:
    """Threads that wait for each answer."""
    with Producer("PG", name_server=name_server) as producer:
        producer.send(message())

        def work() -> None:
            for _ in range(total // threads):
                producer.send(message())

        workers = [threading.Thread(target=work) for _ in range(threads)]
        start, before = time.perf_counter(), time.process_time()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - start
        return Sent(total / took, (time.process_time() - before) / total * 1e6)


def by_futures(name_server: str, *, in_flight: int = IN_FLIGHT, total: int = 80_000) -> float:
    """Sends a second of one thread that waits for the oldest of so many."""
    with Producer("PG", name_server=name_server) as producer:
        producer.send(message())
        open_sends: deque[Future[SendResult]] = deque()
        start = time.perf_counter()
        for _ in range(total):
            if len(open_sends) == in_flight:
                open_sends.popleft().result()
            open_sends.append(producer.send_async(message()))
        while open_sends:
            open_sends.popleft().result()
        return total / (time.perf_counter() - start)


def by_coroutines(name_server: str, *, in_flight: int = IN_FLIGHT, total: int = 80_000) -> float:
    """Sends a second of so many tasks that wait for each answer."""

    async def main() -> float:
        async with AsyncProducer("PG", name_server=name_server) as producer:
            await producer.send(message())

            async def work() -> None:
                for _ in range(total // in_flight):
                    await producer.send(message())

            start = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(in_flight)))
            return total / (time.perf_counter() - start)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def java_program() -> list[str] | None:
    """The command of Apache's producer, compiled when it is older than its source; None where its jars are not."""
    if shutil.which("javac") is None or not JARS.exists():
        return None
    source, classes = FOLDER / "baseline" / "Sends.java", FOLDER / "build"
    compiled = classes / "Sends.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        classes.mkdir(exist_ok=True)
        command = ["javac", "-nowarn", "-cp", f"{JARS}/*", "-d", str(classes), str(source)]
        subprocess.run(command, check=True)
    return ["java", "-cp", f"{classes}:{JARS}/*", "Sends"]


def by_java(program: list[str], name_server: str, *, threads: int = THREADS, total: int = 64_000) -> Sent:
    """The same of Apache's producer."""
    command = [*program, name_server, str(threads), str(total)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rate, cpu_us = done.stdout.split()[-2:]
    return Sent(float(rate), float(cpu_us))


def beside_java(name_server: str, program: list[str]) -> list[Ratio]:
    """Both in turn; the ratio is the median of the rounds' ratios."""
    pairs = []
    for number in range(ROUNDS):
        if number % 2:
            second = by_java(program, name_server)
            pairs.append((by_threads(name_server), second))
        else:
            pairs.append((by_threads(name_server), by_java(program, name_server)))
    middle = sorted(pairs, key=lambda pair: pair[0].rate / pair[1].rate)[ROUNDS // 2]
    cpu = sorted(pairs, key=lambda pair: pair[1].cpu_us / pair[0].cpu_us)[ROUNDS // 2]
    name = f"blocking sends of {THREADS} threads, beside Java"
    per_second = (1e6 / cpu[0].cpu_us, 1e6 / cpu[1].cpu_us)
    return [
        Ratio(name, middle[0].rate, middle[1].rate, "sends/s", goal=1),
        Ratio(f"{name}, by processor time", *per_second, "sends per processor second"),
    ]


def run() -> list[Ratio]:
    ratios: list[Ratio] = []
    with sink() as name_server:
        program = java_program()
        if program is None:
            print("  no Java client here: `make interop` fetches it")
        else:
            ratios += beside_java(name_server, program)
        for name, measure in (
            (f"sends by futures, {IN_FLIGHT} in flight", by_futures),
            (f"sends by coroutines, {IN_FLIGHT} in flight", by_coroutines),
        ):
            rate = statistics.median(measure(name_server) for _ in range(ROUNDS))
            ratios.append(Ratio(f"{name}, against what is promised", rate, PROMISED, "sends/s", goal=1))
    return ratios
