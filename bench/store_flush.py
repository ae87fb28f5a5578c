"""SYNC_FLUSH with many waiters, who share syncs: how many messages one sync makes durable.

64 clients have one message each in flight. What a second brings depends on the device: it stands beside bare writes
that are each made durable, and has no goal.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
from pathlib import Path

from bench.baseline.append import HOST
from bench.measure import Ratio, in_turn
from bench.store_append import BODY, BORN_MS, QUEUES, TOPIC, properties
from rmq_core.config import StoreSettings
from rmq_core.store.disk import Disk
from rmq_core.store.message_store import MessageStore, PutStatus

CLIENTS = 64
COUNT = 20_000
SYNCS = 400
ROUNDS = 5


class CountingDisk(Disk):
    """Counts how often the log is synced."""

    syncs = 0

    def sync(self, path: Path) -> None:
        self.syncs += path.parent.name == "commitlog"
        super().sync(path)


class Clients:
    """Put a message as soon as the one before it is durable."""

    def __init__(self, root: Path) -> None:
        self._wake = threading.Event()
        self.disk = CountingDisk()
        settings = StoreSettings(
            store_path_root_dir=str(root), flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=256 << 20
        )
        self.store = MessageStore(settings, store_host=HOST, disk=self.disk, notify=self._wake.set)
        self.store.open()
        self.store.start()
        self._messages = [properties(number) for number in range(COUNT)]
        self._ready: list[int] = []
        self._done = 0

    def rate(self) -> float:
        """Durable messages a second."""
        start = time.perf_counter()
        self._ready, self._done = list(range(CLIENTS)), 0
        sent = 0
        while self._done < COUNT:
            ready, self._ready = self._ready, []
            ends = []
            for client in ready[: COUNT - sent]:
                put = self.store.put(
                    TOPIC, client % QUEUES, BODY, self._messages[sent], born_time_ms=BORN_MS, born_host=HOST
                )
                sent += 1
                ends.append((put.end, client))
            self.store.end_pass()
            for end, client in ends:
                self.store.when_durable(end, functools.partial(self._durable, client))
            if not self._ready and self._done < COUNT:
                self._wake.wait()
                self._wake.clear()
                self.store.poll()
        return COUNT / (time.perf_counter() - start)

    def _durable(self, client: int, status: PutStatus) -> None:
        assert status is PutStatus.PUT_OK
        self._done += 1
        self._ready.append(client)


def syncs(path: Path) -> float:
    """Bare writes a second, each made durable on its own."""
    record = bytes(310)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, SYNCS * len(record))
    os.fsync(fd)
    start = time.perf_counter()
    for number in range(SYNCS):
        os.pwrite(fd, record, number * len(record))
        os.fdatasync(fd)
    rate = SYNCS / (time.perf_counter() - start)
    os.close(fd)
    path.unlink()
    return rate


def run() -> list[Ratio]:
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=Path(__file__).parent) as folder:
        clients = Clients(Path(folder) / "store")
        pair = in_turn(clients.rate, lambda: syncs(Path(folder) / "bare"), rounds=ROUNDS)
        count = clients.disk.syncs
        clients.store.close()
    return [
        Ratio(
            "messages of 64 waiters for each sync of the log", ROUNDS * COUNT, count, "messages and syncs", goal=16
        ),
        Ratio("durable messages of 64 waiters against bare writes with a sync each", *pair, "/s"),
    ]
