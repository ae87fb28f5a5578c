"""Servers as processes of their own, what they cost while they serve, and the load that they serve."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.frames import FOLDER, load_generator
from bench.measure import Ratio
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.requests import UpdateAndCreateTopic

TOPIC, QUEUES = "TopicTest", 4
_READY = re.compile(r"The broker\[[^,]+, [^\]]+:(\d+)\] boot success\.")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A server that runs."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time that it has taken so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def own_memory(self) -> float:
        """MiB of memory that is its own: what is mapped from files belongs to the page cache."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        found = re.search(r"^Anonymous:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024


@contextlib.contextmanager
def started(command: Sequence[str], ready: Callable[[str], int | None]) -> Iterator[Process]:
    """A process that ends with its standard input, once a line of its output says on which port it serves."""
    arguments = [sys.executable, "-m", *command]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = next((port for line in process.stdout if (port := ready(line)) is not None), None)
        if port is None:
            raise RuntimeError(f"{' '.join(arguments)} did not start")
        yield Process(port, process.pid)
        process.communicate("")


@contextlib.contextmanager
def broker(**settings: object) -> Iterator[Process]:
    """A broker with a temporary store and one topic."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=FOLDER) as folder:
        given = {
            "listenPort": 0,
            "namesrvPort": 0,
            "stopWithStdin": "true",
            "storePathRootDir": folder,
            "diskSpaceWarningLevelRatio": 100,
            "diskSpaceCleanForciblyRatio": 100,
            "diskMaxUsedSpaceRatio": 99,
            **settings,
        }
        command = ["rmq_core.broker", *(f"{name}={value}" for name, value in given.items())]
        with started(command, _broker_port) as process:
            create_topic(process, TOPIC, QUEUES)
            yield process


def _broker_port(line: str) -> int | None:
    found = _READY.match(line)
    return None if found is None else int(found[1])


def create_topic(process: Process, name: str, queues: int) -> None:
    request = UpdateAndCreateTopic(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    with contextlib.closing(BlockingChannel(f"127.0.0.1:{process.port}")) as channel:
        channel.call(request, timeout_ms=5_000)


class Served(NamedTuple):
    """How a server coped with a load."""

    rate: float
    """Answers a second."""
    refused: int
    """Answers with a code that is not 0."""
    bytes_rate: float
    median_us: float
    p99_us: float
    longest_us: float
    cpu_us: float
    """Processor time for each answer."""


def load(
    process: Process, frames: bytes, *, connections: int, in_flight: int, total: int, rate: float | None = None
) -> Served:
    """Send frames round and round, as fast as they are answered or so many a second."""
    path = FOLDER / "build" / f"frames-{os.getpid()}.bin"
    program = load_generator()
    path.write_bytes(frames)
    command = [str(program), str(process.port), str(connections), str(in_flight), str(total), str(path)]
    before = process.cpu_seconds()
    try:
        done = subprocess.run(
            command + ([] if rate is None else [f"{rate:.0f}"]), capture_output=True, text=True, check=True
        )
    finally:
        path.unlink()
    figures = [float(each) for each in done.stdout.split()]
    cpu_us = (process.cpu_seconds() - before) / total * 1e6
    rate_, refused, bytes_rate, median_us, p99_us, longest_us = figures
    return Served(rate_, int(refused), bytes_rate, median_us, p99_us, longest_us, cpu_us)


def in_turn(
    name: str, ours: Callable[[], Served], baseline: Callable[[], Served], *, goal: float, rounds: int = 5
) -> list[Ratio]:
    """Rates and processor time of both, round by round; the ratio is the median of the rounds' ratios."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            second = baseline()
            pairs.append((ours(), second))
        else:
            pairs.append((ours(), baseline()))
    refused = sum(one.refused for one, _ in pairs)
    if refused:
        raise RuntimeError(f"{name}: {refused} answers were refusals")
    middle = sorted(pairs, key=lambda pair: pair[0].rate / pair[1].rate)[rounds // 2]
    cpu = sorted(pairs, key=lambda pair: pair[1].cpu_us / pair[0].cpu_us)[rounds // 2]
    print(f"  {name}: p99 {statistics.median(one.p99_us for one, _ in pairs):,.0f} µs", flush=True)
    return [
        Ratio(name, middle[0].rate, middle[1].rate, "requests/s", goal=goal),
        Ratio(
            f"{name}, by processor time", 1e6 / cpu[0].cpu_us, 1e6 / cpu[1].cpu_us, "requests per processor second"
        ),
    ]
