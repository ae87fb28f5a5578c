"""Starting after a kill: records a second through CRC, queues and all, and the memory that stays in use after it.

`python -m bench.store_recovery --mib 4096` takes a larger log. There is no checkpoint, so that all of it is walked.
Each start is a process of its own. The baseline is the least Python that walks: sizes and CRCs, nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.baseline.append import FIXED, HOST
from bench.measure import Ratio, in_turn
from bench.store_append import BODY, BORN_MS, QUEUES, TOPIC, properties
from rmq_core.columnar import kernels
from rmq_core.config import StoreSettings
from rmq_core.protocol.record import encode_blank
from rmq_core.store.message_store import MessageStore
from rmq_core.store.segments import segment_name

SEGMENT_SIZE = 256 << 20
TOPIC_AT = FIXED.size + len(BODY) + 1
"""Where the topic stands in a record."""
DEFAULT_MIB = 512


def write_log(root: Path, size: int) -> int:
    """Files full of messages, as a killed broker leaves them; returns how many messages."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    one = record()
    per_file = (SEGMENT_SIZE - 8) // len(one)
    count = 0
    for start in range(0, size, SEGMENT_SIZE):
        rows = np.tile(np.frombuffer(one, np.uint8), (per_file, 1))
        numbers = np.arange(count, count + per_file)
        put(rows, 12, numbers % QUEUES, ">i4")
        put(rows, 20, numbers // QUEUES, ">i8")
        put(rows, 28, start + np.arange(per_file) * len(one), ">i8")
        data = rows.tobytes()
        blank = encode_blank(SEGMENT_SIZE - len(data))
        (folder / segment_name(start)).write_bytes((data + blank).ljust(SEGMENT_SIZE, b"\0"))
        count += per_file
    (root / "abort").write_bytes(b"1")
    return count


def put(rows: NDArray[np.uint8], at: int, values: NDArray[np.int64], kind: str) -> None:
    """Set one field of all records."""
    data = values.astype(kind)
    rows[:, at : at + data.itemsize] = data.view(np.uint8).reshape(len(rows), -1)


def record() -> bytes:
    own, topic = properties(12345), TOPIC.encode()
    size = FIXED.size + len(BODY) + 1 + len(topic) + 2 + len(own)
    crc = zlib.crc32(BODY) & 0x7FFFFFFF
    fixed = FIXED.pack(
        size, -626843481, crc, 0, 0, 0, 0, 0, BORN_MS, HOST, BORN_MS + 1, HOST, 0, 0, len(BODY)
    )  # fmt: skip
    return fixed + BODY + bytes((len(topic),)) + topic + struct.pack(">h", len(own)) + own


def resident_mib() -> float:
    """Memory of this process, without the pages of files: those of the log are the system's to take back."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1024


def start(root: Path) -> None:
    """What a start of a store takes, as JSON, and how much memory is resident behind it."""
    settings = StoreSettings(store_path_root_dir=str(root), mapped_file_size_commit_log=SEGMENT_SIZE)
    before_mib = resident_mib()
    begun = time.perf_counter()
    store = MessageStore(settings)
    found = store.open()
    seconds = time.perf_counter() - begun
    print(json.dumps({"records": found.records, "seconds": seconds, "mib": resident_mib(), "before": before_mib}))
    os._exit(0)  # killed again: the next start has as much to do


def measure(root: Path, count: int, *, with_loops: bool) -> tuple[float, float]:
    """Records a second, and MiB in use afterwards."""
    environment = {**os.environ, "RMQ_COMPILED": "1" if with_loops else "0"}
    for name in ("consumequeue", "checkpoint"):
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.store_recovery", "--start", str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["records"] == count, f"{result} instead of {count} records"
    return count / result["seconds"], result["mib"]


def bare_walk(root: Path) -> float:
    """Records a second of the baseline, over the first file."""
    data = (root / "commitlog" / segment_name(0)).read_bytes()
    view, unpack, crc32 = memoryview(data), struct.Struct(">iii").unpack_from, zlib.crc32
    body_end = FIXED.size + len(BODY)
    at = count = 0
    begun = time.perf_counter()
    while True:
        size, magic, crc = unpack(view, at)
        if magic != -626843481:
            break
        if crc32(view[at + FIXED.size : at + body_end]) & 0x7FFFFFFF != crc:
            raise AssertionError(f"bad record at {at}")
        at += size
        count += 1
    return count / (time.perf_counter() - begun)


def run(mib: int = DEFAULT_MIB) -> list[Ratio]:
    ratios = []
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=Path(__file__).parent) as folder:
        root = Path(folder)
        count = write_log(root, mib << 20)
        has_loops = kernels.load(root / ".cache") and bool(importlib.util.find_spec("numba"))
        kernels.unload()
        for with_loops, goal in ((True, 2.5), (False, 0.6)) if has_loops else ((False, 0.6),):
            name = f"recovery of {mib} MiB, {'compiled loops' if with_loops else 'numpy'}"
            memory: list[float] = []

            def ours(with_loops: bool = with_loops, memory: list[float] = memory) -> float:
                rate, used = measure(root, count, with_loops=with_loops)
                memory.append(used)
                return rate

            pair = in_turn(ours, lambda: bare_walk(root), rounds=3)
            ratios.append(Ratio(f"{name}, against a bare walk", *pair, "records/s", goal=goal))
            ratios.append(Ratio(f"{name}: 150 MiB against memory in use", 150, max(memory), "MiB", goal=1))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=DEFAULT_MIB)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        start(arguments.start)
    ratios = run(arguments.mib)
    width = max(len(ratio.name) for ratio in ratios)
    for ratio in ratios:
        print(ratio.line(width))


if __name__ == "__main__":
    main()
