"""Our server against the least asyncio server, both answering the same small request to the same load."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Ratio, in_turn
from bench.requests import send_frame

FOLDER = Path(__file__).parent
SHAPES = ((64, 1), (1, 64))
TOTAL = 120_000


@contextlib.contextmanager
def server(module: str) -> Iterator[str]:
    """A server process; it ends with its standard input."""
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("")


def load_generator() -> Path:
    """Compiled when it is older than its source."""
    source, program = FOLDER / "load.c", FOLDER / "build" / "load"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def run() -> list[Ratio]:
    program = load_generator()
    frame = FOLDER / "build" / "frame.bin"
    frame.write_bytes(send_frame())
    ratios = []
    with server("bench.serve") as ours, server("bench.baseline.frame_server") as plain:

        def load(port: str, connections: int, in_flight: int) -> float:
            command = [str(program), port, str(connections), str(in_flight), str(TOTAL), str(frame)]
            return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])

        for connections, in_flight in SHAPES:
            shape = connections, in_flight
            pair = in_turn(functools.partial(load, ours, *shape), functools.partial(load, plain, *shape))
            ratios.append(Ratio(f"frames {connections} × {in_flight} in flight", *pair, "requests/s", goal=0.85))
    return ratios
