"""Starting with 10,000 topics of 8 queues each: time, memory, descriptors and mappings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.measure import Ratio
from bench.store_recovery import TOPIC_AT, put, record, resident_mib
from rmq_core.config import StoreSettings
from rmq_core.protocol.record import encode_blank
from rmq_core.store.message_store import MessageStore
from rmq_core.store.segments import segment_name

TOPICS, QUEUES, ROUNDS = 10_000, 8, 2
SEGMENT_SIZE = 256 << 20
SECONDS_MAX, MIB_MAX, FILES_MAX = 20, 400, 2000


def settings(root: Path) -> StoreSettings:
    return StoreSettings(store_path_root_dir=str(root), mapped_file_size_commit_log=SEGMENT_SIZE)


def prepare(root: Path) -> None:
    """A log with two messages for each queue; recovery makes the queues, a clean stop keeps them."""
    one = record()
    count = TOPICS * QUEUES * ROUNDS
    numbers = np.arange(count)
    rows = np.tile(np.frombuffer(one, np.uint8), (count, 1))
    put(rows, 12, numbers % QUEUES, ">i4")
    put(rows, 20, numbers // (TOPICS * QUEUES), ">i8")
    put(rows, 28, numbers * len(one), ">i8")
    topics = b"".join(b"Topic%04d" % number for number in range(TOPICS))
    names = np.frombuffer(topics, np.uint8).reshape(TOPICS, -1)
    rows[:, TOPIC_AT : TOPIC_AT + names.shape[1]] = names[numbers // QUEUES % TOPICS]
    data = rows.tobytes()
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    data += encode_blank(SEGMENT_SIZE - len(data))
    (folder / segment_name(0)).write_bytes(data.ljust(SEGMENT_SIZE, b"\0"))
    (root / "abort").write_bytes(b"1")
    store = MessageStore(settings(root))
    store.open()
    store.close()


def start(root: Path) -> None:
    """Start, send one message to each of 2,000 queues and read another, and say what it took."""
    begun = time.perf_counter()
    store = MessageStore(settings(root))
    store.open()
    seconds = time.perf_counter() - begun
    for number in range(2000):
        topic = f"Topic{number * 5:04d}"
        store.put(topic, 0, b"x", b"", born_time_ms=1, born_host=bytes(8))
        store.get(topic, 1, 0, 32)
    store.end_pass()
    store.queues.write_out()
    maps = Path("/proc/self/maps")
    result = {
        "queues": len(store.queues.table),
        "seconds": seconds,
        "mib": resident_mib(),
        "descriptors": len(os.listdir("/dev/fd")),
        "mappings": len(maps.read_text().splitlines()) if maps.exists() else 0,
    }
    print(json.dumps(result))
    os._exit(0)


def run() -> list[Ratio]:
    # In memory where there is a file system for it: making so many files is not what is measured.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=memory) as folder:
        root = Path(folder)
        prepare(root)
        (root / "abort").unlink(missing_ok=True)
        command = [sys.executable, "-m", "bench.store_queues", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["queues"] == TOPICS * QUEUES
    name = f"{TOPICS * QUEUES:,} queues"
    return [
        Ratio(f"{name}: {SECONDS_MAX} s against the start", SECONDS_MAX, found["seconds"], "s", goal=1),
        Ratio(f"{name}: {MIB_MAX} MiB against memory", MIB_MAX, found["mib"], "MiB", goal=1),
        Ratio(f"{name}: {FILES_MAX} against open files", FILES_MAX, found["descriptors"], "files", goal=1),
        Ratio(f"{name}: {FILES_MAX} against mappings", FILES_MAX, found["mappings"], "mappings", goal=1),
    ]


if __name__ == "__main__":
    start(Path(sys.argv[1]))
