"""The Bloom filter by which a consume-queue extension says which SQL92 subscriptions want a message.

Sizes   Follow from the error rate and the expected number of subscriptions, exactly as Apache computes them:
        a bitmap of another size was written under other settings and says nothing.
Bits    Bit i is byte i // 8, mask 1 << (i % 8).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from rmq_core.errors import ConfigError, RemoteProtocolError

_MASK_32 = 0xFFFF_FFFF
_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_C1 = 0x87C3_7B91_1142_53D5
_C2 = 0x4CF5_AD43_2745_937F


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Which bits stand for a text, among bit_count of them."""

    error_rate_percent: int = 20
    expected: int = 32
    hash_count: int = field(init=False)
    bit_count: int = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.error_rate_percent < 100:
            raise ConfigError("maxErrorRateOfBloomFilter", self.error_rate_percent, "must be within 1..99")
        if self.expected < 1:
            raise ConfigError("expectConsumerNumUseFilter", self.expected, "must be at least 1")
        error_rate = self.error_rate_percent / 100.0
        hash_count = math.ceil(math.log(error_rate) / math.log(0.5))
        log2_inverse = math.log(1 / error_rate) / math.log(2)
        log2_e = math.log(math.e) / math.log(2)
        bits = math.ceil(self.expected * log2_inverse * log2_e)
        object.__setattr__(self, "hash_count", hash_count)
        object.__setattr__(self, "bit_count", (bits + 7) // 8 * 8)

    def bits(self, text: str) -> tuple[int, ...]:
        """The bit positions of a text, usually `group#topic`; positions may repeat."""
        # Java writes what UTF-8 cannot carry as a question mark.
        hashed = murmur3_x64_64(text.encode("utf-8", "replace"))
        low, high = hashed & _MASK_32, hashed >> 32
        positions = []
        for i in range(1, self.hash_count + 1):
            combined = (low + i * high) & _MASK_32
            if combined >> 31:
                combined ^= _MASK_32
            positions.append(combined % self.bit_count)
        return tuple(positions)

    def set(self, bitmap: bytearray, positions: Iterable[int]) -> None:
        """Set these bits. Raises RemoteProtocolError if bitmap or positions are of another filter."""
        for position in self._checked(bitmap, positions):
            bitmap[position >> 3] |= 1 << (position & 7)

    def is_hit(self, bitmap: bytes | bytearray | memoryview, positions: Iterable[int]) -> bool:
        """Whether all these bits are set. Raises RemoteProtocolError as set() does."""
        return all(bitmap[p >> 3] >> (p & 7) & 1 for p in self._checked(bitmap, positions))

    def _checked(self, bitmap: bytes | bytearray | memoryview, positions: Iterable[int]) -> tuple[int, ...]:
        if len(bitmap) * 8 != self.bit_count:
            raise RemoteProtocolError(f"filter bitmap of {len(bitmap) * 8} bits, not {self.bit_count}")
        checked = tuple(positions)
        if checked and not (min(checked) >= 0 and max(checked) < self.bit_count):
            raise RemoteProtocolError(f"filter bits {checked} are not all within 0..{self.bit_count - 1}")
        return checked


def murmur3_x64_64(data: bytes) -> int:
    """The first 64 bits, unsigned, of MurmurHash3 x64 128 with seed 0."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 ^= _mix_first(k1)
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DC_E729) & _MASK_64
        h2 ^= _mix_second(k2)
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x3849_5AB5) & _MASK_64
    tail = data[whole:]
    h1 ^= _mix_first(int.from_bytes(tail[:8], "little")) ^ len(data)
    h2 ^= _mix_second(int.from_bytes(tail[8:], "little")) ^ len(data)
    h1 = (h1 + h2) & _MASK_64
    h2 = (h2 + h1) & _MASK_64
    return (_finish(h1) + _finish(h2)) & _MASK_64


def _rotate(value: int, count: int) -> int:
    return (value << count | value >> (64 - count)) & _MASK_64


def _mix_first(k1: int) -> int:
    return _rotate(k1 * _C1 & _MASK_64, 31) * _C2 & _MASK_64


def _mix_second(k2: int) -> int:
    return _rotate(k2 * _C2 & _MASK_64, 33) * _C1 & _MASK_64


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK_64
    value = (value ^ value >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK_64
    return value ^ value >> 33
