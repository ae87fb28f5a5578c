"""The hot decoder of a send request against bare orjson and the same look-ups."""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson

from bench.measure import Ratio, in_turn
from bench.requests import send_frame
from rmq_core.protocol.requests.send import decode_send_v2

COUNT = 100_000


def bare(header: bytes) -> tuple[object, ...]:
    value = orjson.loads(header)
    ext = value["extFields"]
    return (
        value["opaque"],
        ext["a"],
        ext["b"],
        ext["c"],
        int(ext["d"]),
        int(ext["e"]),
        int(ext["f"]),
        int(ext["g"]),
        int(ext["h"]),
        ext.get("i"),
        ext.get("j"),
        ext.get("l"),
        ext.get("m"),
    )


def hot(header: bytes) -> tuple[object, ...]:
    value = orjson.loads(header)
    return decode_send_v2(value)


def rate(function: Callable[[bytes], object], header: bytes) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        for _ in range(COUNT):
            function(header)
        return COUNT / (time.perf_counter() - start)

    return measure


def run() -> list[Ratio]:
    frame = send_frame()
    header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
    ours, baseline = in_turn(rate(hot, header), rate(bare, header), rounds=7)
    return [Ratio("send decoder", ours, baseline, "headers/s", goal=0.9)]
