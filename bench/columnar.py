"""Records to columns, positions and checks against the least that does it, with compiled loops and without.

200-byte bodies and four properties, as clients of Apache send them. What recovery does is measured against a rate.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from bench.baseline import columnar_numpy
from bench.measure import Ratio, in_turn
from rmq_core.columnar import decode_records, dispatch_columns, find_records, kernels, valid_records
from rmq_core.protocol.record import encode_record_into

COUNT, BATCH = 100_000, 5_000
_NUMBERS = ("queueId", "flag", "sysFlag", "reconsumeTimes", "queueOffset", "commitLogOffset", "bornTimestamp",
            "storeTimestamp", "preparedTransactionOffset")  # fmt: skip
_MORE_NUMBERS = ("bodyCrc", "storeSize")
_HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))


def log_bytes() -> bytes:
    """A log of plain records."""
    buffer, end = bytearray(COUNT * 400), 0
    for number in range(COUNT):
        properties = b"UNIQ_KEY\x017F000001123418B4AAC2%012d\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k%d\x02"
        end = encode_record_into(
            buffer,
            end,
            topic=b"TopicTest",
            queue_id=number & 3,
            queue_offset=number >> 2,
            log_offset=end,
            body=b"x" * 200,
            properties=properties % (number, number),
            born_time_ms=1_700_000_000_000 + number,
            born_host=_HOST,
            store_time_ms=1_700_000_000_001 + number,
            store_host=_HOST,
        )
    return bytes(buffer[:end])


def rate(action: Callable[[], object]) -> Callable[[], float]:
    """Records in a second of the processor, of an action on the whole log: other work here counts less so."""

    def measure() -> float:
        start = time.process_time()
        action()
        return COUNT / (time.process_time() - start)

    return measure


def each_batch(action: Callable[..., object], positions: Any) -> None:
    """Do it for every batch of the log."""
    for low in range(0, len(positions), BATCH):
        action(positions=positions[low : low + BATCH])


def compare(name: str, log: bytes, baseline: Any, columns: tuple[str, ...]) -> list[Ratio]:
    """Positions and columns against a baseline that has the same ones."""
    positions = find_records(log).positions
    assert (positions == baseline.find(log)).all()
    ratios = [Ratio(f"positions, {name}", *in_turn(
        rate(lambda: find_records(log)), rate(lambda: baseline.find(log))
    ), "records/s", goal=0.8)]  # fmt: skip
    for with_map in (False, True):
        names = (*columns, "body", "properties") if with_map else (*columns, "body")
        ours = functools.partial(decode_records, log, columns=names)
        theirs = functools.partial(baseline.decode, log, with_map=with_map)
        figures = in_turn(
            rate(functools.partial(each_batch, ours, positions)),
            rate(functools.partial(each_batch, theirs, positions)),
            rounds=7,
        )
        kind = "with the map" if with_map else "without the map"
        ratios.append(Ratio(f"columns, {name}, {kind}", *figures, "rows/s", goal=0.8))
    return ratios


def recovery(name: str, log: bytes, *, goal: float) -> Ratio:
    """What recovery and verification do with each record, in records a second, against a fixed rate."""
    found = find_records(log)

    def check() -> None:
        for low in range(0, COUNT, BATCH):
            positions, sizes = found.positions[low : low + BATCH], found.sizes[low : low + BATCH]
            assert valid_records(log, positions, sizes).all()
            dispatch_columns(log, positions)

    measured = sorted(rate(check)() for _ in range(5))[2]
    return Ratio(f"CRC and dispatch, {name}", measured, goal, "records/s", goal=1.0)


def run() -> list[Ratio]:
    log = log_bytes()
    kernels.unload()
    ratios = compare("numpy", log, columnar_numpy, _NUMBERS)
    ratios.append(recovery("numpy", log, goal=500_000))
    if not kernels.load():
        print("  numba is not there: nothing compiled is measured")
        return ratios
    try:
        from bench.baseline import columnar_compiled

        ratios += compare("compiled", log, columnar_compiled, (*_NUMBERS, *_MORE_NUMBERS))
        ratios.append(recovery("compiled", log, goal=2_000_000))
    finally:
        kernels.unload()
    return ratios
