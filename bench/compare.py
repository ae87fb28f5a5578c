"""Our broker beside Apache's, under the same loads in one run: frames of a C program, and Apache's Java client.

Each load goes to both in turn, on stores of their own, ASYNC_FLUSH. Processor time is that of the broker's process.
`make bench-compare` runs it; it needs Maven.
"""

from __future__ import annotations

import functools
import itertools
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.broker_process import QUEUES, TOPIC, Process, broker, create_topic, load
from bench.broker_send import frames
from bench.frames import FOLDER
from bench.measure import Ratio

sys.path.append(str(FOLDER.parent / "tests"))

from interop.apache import apache
from interop.artifacts import java_class_path

VERSION = "5.3.3"
RAW_SHAPES = ((64, 1), (1, 64), (8, 64))
RAW_TOTAL = 100_000
JAVA_THREADS = (16, 64)
JAVA_TOTAL = 100_000
BATCHES = (32, 16, 1_600_000)
"""Messages of a batch, threads, messages."""
BACKLOG = 1_000_000
ROUNDS = 3


class Cost(NamedTuple):
    """What a load came to."""

    rate: float
    cpu_us: float
    """Processor time of the broker for each message."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One of the two."""

    name_server: str
    process: Process


Load = Callable[[Broker], Cost]
_groups = itertools.count()


def raw(connections: int, in_flight: int) -> Load:
    """Frames of sends, written and counted by a C program."""
    sent = frames()

    def run(each: Broker) -> Cost:
        served = load(each.process, sent, connections=connections, in_flight=in_flight, total=RAW_TOTAL)
        if served.refused:
            raise RuntimeError(f"{served.refused} sends were refused")
        return Cost(served.rate, served.cpu_us)

    return run


def java_sends(threads: int, total: int, batch: int = 1) -> Load:
    """Apache's producer; it warms up with half as many messages, which cost the broker too."""

    def run(each: Broker) -> Cost:
        before = each.process.cpu_seconds()
        rate = float(java("Sends", each.name_server, threads, total, batch).split()[-2])
        return Cost(rate, (each.process.cpu_seconds() - before) / (total * 1.5) * 1e6)

    return run


def java_consumes(total: int) -> Load:
    """Apache's push consumer, as a group of its own, on what the other loads have left."""

    def run(each: Broker) -> Cost:
        before = each.process.cpu_seconds()
        rate = float(java("Consumes", each.name_server, f"CG{next(_groups)}", total).split()[-1])
        return Cost(rate, (each.process.cpu_seconds() - before) / total * 1e6)

    return run


def java(program: str, *arguments: object) -> str:
    """What a Java program prints."""
    command = ["java", "-Xmx512m", "-cp", _class_path(), program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@functools.cache
def _class_path() -> str:
    jars = java_class_path(VERSION)
    classes = FOLDER / "build"
    classes.mkdir(exist_ok=True)
    sources = [str(FOLDER / "baseline" / f"{name}.java") for name in ("Sends", "Consumes")]
    subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(classes), *sources], check=True)
    return f"{classes}:{jars}"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def compare(name: str, measure: Load, ours: Broker, theirs: Broker) -> list[Ratio]:
    """Both in turn; the ratios are those of the medians."""
    pairs = []
    for number in range(ROUNDS):
        if number % 2:
            second = measure(theirs)
            pairs.append((measure(ours), second))
        else:
            pairs.append((measure(ours), measure(theirs)))
    rate = [statistics.median(pair[side].rate for pair in pairs) for side in (0, 1)]
    cpu = [statistics.median(pair[side].cpu_us for pair in pairs) for side in (0, 1)]
    return [
        Ratio(name, rate[0], rate[1], "messages/s"),
        Ratio(f"{name}, by processor time", 1e6 / cpu[0], 1e6 / cpu[1], "messages per processor second"),
    ]


def run() -> list[Ratio]:
    loads = {f"raw sends, {a} × {b} in flight": raw(a, b) for a, b in RAW_SHAPES}
    loads |= {f"Java client, {threads} threads": java_sends(threads, JAVA_TOTAL) for threads in JAVA_THREADS}
    batch, threads, total = BATCHES
    loads[f"Java client, batches of {batch}, {threads} threads"] = java_sends(threads, total, batch)
    loads["Java push consumer, backlog"] = java_consumes(BACKLOG)
    ratios: list[Ratio] = []
    with (
        tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=FOLDER) as home,
        apache(VERSION, Path(home), mappedFileSizeCommitLog=str(1 << 30)) as pair,
        broker(namesrvPort=(name_port := free_port())) as process,
    ):
        theirs = Broker(pair.name_server, Process(int(pair.broker.rpartition(":")[2]), pair.pid))
        create_topic(theirs.process, TOPIC, QUEUES)
        ours = Broker(f"127.0.0.1:{name_port}", process)
        for name, measure in loads.items():
            print(f"{name} …", flush=True)
            ratios += compare(name, measure, ours, theirs)
    return ratios


def main() -> int:
    ratios = run()
    width = max(len(ratio.name) for ratio in ratios)
    for ratio in ratios:
        print(ratio.line(width))
    return 0


if __name__ == "__main__":
    sys.exit(main())
