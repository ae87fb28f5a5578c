"""Who this client is: its address, its client id, and the unique keys of its messages.

The four hash bytes of unique keys, which stand for the class loader in Java, are random here and drawn again in a
forked child: two processes with the same address and the same low 16 bits of their ids never give the same key.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time

from rmq_core.protocol.message_id import UniqueKeyFactory, month_range_ms


@functools.cache
def local_ip() -> str:
    """The address by which this machine reaches others; 127.0.0.1 where it has none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: choosing a route sends no packet
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def make_client_id(instance_name: str | None, unit_name: str = "") -> str:
    """ip@instance, with the unit behind it. Without a name the process and the time make one."""
    name = instance_name or f"{os.getpid()}#{time.monotonic_ns()}"
    return f"{local_ip()}@{name}" + (f"@{unit_name}" if unit_name else "")


def new_unique_key(now_ms: int | None = None) -> str:
    """The identity of a message, as Apache's clients make it. Safe to call from many threads."""
    return _factory().next(time.time_ns() // 1_000_000 if now_ms is None else now_ms)


def _local_month_ms(moment_ms: int) -> tuple[int, int]:
    return month_range_ms(moment_ms, utc_offset_ms=time.localtime(moment_ms / 1000).tm_gmtoff * 1000)


_making = threading.Lock()
_made: UniqueKeyFactory | None = None


def _factory() -> UniqueKeyFactory:
    global _made  # noqa: PLW0603
    if _made is None:
        with _making:
            if _made is None:
                _made = UniqueKeyFactory(
                    ip=socket.inet_aton(local_ip()),
                    pid=os.getpid(),
                    hash_bytes=os.urandom(4),
                    month_range_ms=_local_month_ms,
                )
    return _made


def _forget() -> None:
    global _made, _making
    _made, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
