"""Random and damaged frames through the decoders: a value, a wish for more bytes, or RemoteProtocolError.

`python -m support.fuzz --count 1000000 --seed 1` prints how often each came. Anything else ends it, with the
seed and the bytes in the message.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import rmq_core.protocol.requests  # noqa: F401  fills REQUESTS
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.command import Command, FrameDecoder, decode_command
from rmq_core.protocol.request import REQUESTS, Request
from support.golden import exchanges

Sample = tuple[bytes, type[Request[Any]] | None]
Mutation = Callable[[random.Random, bytearray], None]


def fuzz(count: int, seed: int) -> Counter[str]:
    """Decode count frames and say what became of them."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    samples = _samples()
    for number in range(count):
        data, request = chance.choice(samples)
        damaged = _random_frame(chance) if chance.random() < 0.1 else _damage(chance, data)
        try:
            counts.update(_decode(chance, damaged, request))
        except Exception as error:
            raise AssertionError(f"seed {seed}, frame {number}, {damaged.hex()}: {error!r}") from error
    return counts


@functools.cache
def _samples() -> tuple[Sample, ...]:
    """Recorded frames with the request they belong to; one per frame length and code is enough."""
    samples: dict[tuple[int, int, bool], Sample] = {}
    for exchange in exchanges():
        request = REQUESTS.get(exchange.code)
        samples.setdefault((exchange.code, len(exchange.request.frame), False), (exchange.request.frame, request))
        if exchange.response is not None:
            frame = exchange.response.frame
            samples.setdefault((exchange.code, len(frame), True), (frame, request))
    return tuple(samples.values())


def _random_frame(chance: random.Random) -> bytes:
    """Random bytes, three times in four behind lengths that fit them."""
    data = chance.randbytes(chance.randrange(64))
    if chance.random() < 0.25:
        return data
    header_size = chance.randrange(len(data) + 1)
    return _with_lengths(data, header_size, encoding=chance.choice((0, 1, 1, 2)))


def _with_lengths(content: bytes, header_size: int, *, encoding: int) -> bytes:
    return (len(content) + 4).to_bytes(4, "big") + (encoding << 24 | header_size).to_bytes(4, "big") + content


def _damage(chance: random.Random, frame: bytes) -> bytes:
    """Half of the time only behind the lengths, which are then made to fit."""
    if chance.random() < 0.5:
        data = bytearray(frame)
        _mutate(chance, data)
        return bytes(data)
    header_size = int.from_bytes(frame[5:8], "big")
    header, body = bytearray(frame[8 : 8 + header_size]), bytearray(frame[8 + header_size :])
    _mutate(chance, body if body and chance.random() < 0.5 else header)
    return _with_lengths(bytes(header + body), len(header), encoding=frame[4])


def _mutate(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if data:
            chance.choice(_MUTATIONS)(chance, data)


def _flip_bit(chance: random.Random, data: bytearray) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set_byte(chance: random.Random, data: bytearray) -> None:
    data[chance.randrange(len(data))] = chance.choice(b'\x00\x7f\x80\xff{}[]":,\\-0123456789')


def _cut(chance: random.Random, data: bytearray) -> None:
    start = chance.randrange(len(data))
    del data[start : start + chance.randrange(1, 9)]


def _insert(chance: random.Random, data: bytearray) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = chance.choice((chance.randbytes(4), b"{", b"[" * 80, b"null", b"-1", b'{"$ref":"$"}'))


def _repeat(chance: random.Random, data: bytearray) -> None:
    start, end = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
    data[start:start] = data[start : min(end, start + 40)]


def _truncate(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(len(data)) :]


_MUTATIONS: tuple[Mutation, ...] = (_flip_bit, _set_byte, _cut, _insert, _repeat, _truncate)


def _decode(chance: random.Random, data: bytes, request: type[Request[Any]] | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    decoder = FrameDecoder()
    split = chance.randrange(len(data) + 1)
    try:
        decoder.feed(data[:split])
        decoder.feed(data[split:])
    except RemoteProtocolError:
        counts["streams refused"] += 1
    while (frame := decoder.next()) is not None:
        try:
            command = decode_command(frame)
        except RemoteProtocolError:
            counts["frames refused"] += 1
            continue
        counts["commands"] += 1
        counts.update(_decode_parts(command, request))
    if not counts:
        counts["more bytes wanted"] += 1
    return counts


def _decode_parts(command: Command, request: type[Request[Any]] | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    request = request if command.is_response else REQUESTS.get(command.code)
    if request is None:
        counts["unknown codes"] += 1
        return counts
    header = request.reply if command.is_response else request
    try:
        header.from_ext(command.ext or {})
        counts["headers"] += 1
    except RemoteProtocolError:
        counts["headers refused"] += 1
    body = request.reply_body if command.is_response else request.body
    if body is not None and command.body:
        try:
            body.decode(command.body)
            counts["bodies"] += 1
        except RemoteProtocolError:
            counts["bodies refused"] += 1
    return counts


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts = fuzz(arguments.count, arguments.seed)
    sys.stdout.writelines(f"{name:20}{number:>10}\n" for name, number in sorted(counts.items()))


if __name__ == "__main__":
    main()
