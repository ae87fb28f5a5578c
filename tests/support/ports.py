"""Ports for servers that come back on the same one.

A port that the system chooses belongs to nobody while its server is away, and may be the next one that it chooses.
These lie below those, and every test process has its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

_FIRST: Final = 12_000
_END: Final = 32_000
_STEP: Final = 4  # a broker's second port is two below its first
_PROCESSES: Final = 16

_turns = itertools.count()


def steady_port() -> int:
    """A port that nobody listens on, and that nobody else is given soon."""
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
    ports = range(_FIRST + mine * _STEP, _END, _PROCESSES * _STEP)
    while True:
        port = ports[next(_turns) % len(ports)]
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port - 2)):
                return port
        except OSError:
            continue  # a program of this machine has it
