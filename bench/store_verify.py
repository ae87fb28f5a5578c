"""`store verify` over a store of a million messages, in messages a second: every record, queue entry and key.

200-byte bodies, four properties, two keys each. The log is written as a killed broker leaves it, and queues and
index are built by repair, so that all of it is clean. File pages are in memory. Measured by processor time, since
machines are shared; with compiled loops two threads share the work, and the one that has more of it counts. What
one core does with all of it is told beside that.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.baseline.append import FIXED, HOST
from bench.measure import Ratio
from rmq_core.columnar import kernels
from rmq_core.protocol.record import MAGIC_V1, encode_blank
from rmq_core.store.repair import RepairOptions, repair
from rmq_core.store.segments import segment_name
from rmq_core.store.verify import verify

COUNT = 1_000_000
ROUNDS = 5
SEGMENT_SIZE = 128 << 20
QUEUES = 16
BORN_MS = 1_700_000_000_000
_BODY = bytes(range(200))
_TOPIC = b"TopicTest"
_PROPERTIES = b"UNIQ_KEY\x017F000001123418B4%016d\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01order-%010d\x02"


def write_log(root: Path, count: int) -> None:
    """Files full of messages that differ in their numbers and keys."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    own = _PROPERTIES % (0, 0)
    size = FIXED.size + len(_BODY) + 1 + len(_TOPIC) + 2 + len(own)
    crc = zlib.crc32(_BODY) & 0x7FFFFFFF
    fixed = FIXED.pack(size, MAGIC_V1, crc, 0, 0, 0, 0, 0, BORN_MS, HOST, 0, HOST, 0, 0, len(_BODY))
    one = fixed + _BODY + bytes((len(_TOPIC),)) + _TOPIC + struct.pack(">h", len(own)) + own
    per_file = (SEGMENT_SIZE - 8) // size
    first_key_end, second_key_end = one.index(b"\x02WAIT"), len(one) - 1
    for start, first in zip(range(0, count * size, SEGMENT_SIZE), range(0, count, per_file), strict=False):
        numbers = np.arange(first, min(first + per_file, count))
        rows = np.tile(np.frombuffer(one, np.uint8), (len(numbers), 1))
        _put(rows, 12, numbers % QUEUES, ">i4")
        _put(rows, 20, numbers // QUEUES, ">i8")
        _put(rows, 28, start + np.arange(len(numbers)) * size, ">i8")
        _put(rows, 56, BORN_MS + numbers // 100, ">i8")
        for place in range(7):
            digits = 48 + numbers // 10**place % 10
            rows[:, first_key_end - 1 - place] = rows[:, second_key_end - 1 - place] = digits
        data = rows.tobytes()
        if len(numbers) == per_file:
            data += encode_blank(SEGMENT_SIZE - len(data))
        (folder / segment_name(start)).write_bytes(data.ljust(SEGMENT_SIZE, b"\0"))


def _put(rows: NDArray[np.uint8], at: int, values: NDArray[np.int64], kind: str) -> None:
    data = values.astype(kind)
    rows[:, at : at + data.itemsize] = data.view(np.uint8).reshape(len(rows), -1)


def rates(root: Path) -> tuple[float, float]:
    """Messages verified in a second with a core for each thread, and with one for all."""
    all_begun, main_begun = time.process_time(), time.thread_time()
    found = verify(root)
    main_s = time.thread_time() - main_begun
    all_s = time.process_time() - all_begun
    assert found.is_clean, found.problems[:5]
    assert (found.records, found.entries, found.index_entries) == (COUNT, COUNT, 2 * COUNT)
    return COUNT / max(main_s, all_s - main_s), COUNT / all_s


def measure(root: Path, way: str, *, goal: float) -> list[Ratio]:
    """The medians of some rounds."""
    measured = [rates(root) for _ in range(ROUNDS)]
    threads, one = (statistics.median(each) for each in zip(*measured, strict=True))
    name = f"verify of a million messages, {way}"
    return [
        Ratio(name, threads, goal, "messages/s", goal=1.0),
        Ratio(f"{name}, one core", one, goal, "messages/s"),
    ]


def run() -> list[Ratio]:
    kernels.unload()
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=Path(__file__).parent) as folder:
        root = Path(folder)
        write_log(root, COUNT)
        repair(root, options=RepairOptions(index_shape=(1_000_000, 4_000_000)))
        ratios = measure(root, "numpy", goal=500_000)
        if not kernels.load():
            print("  numba is not there: nothing compiled is measured")
            return ratios
        try:
            ratios += measure(root, "compiled", goal=2_000_000)
        finally:
            kernels.unload()
    return ratios
