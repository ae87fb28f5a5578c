"""The Bloom filter of the consume-queue extension."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import ConfigError, RemoteProtocolError
from rmq_core.protocol.bloom import BloomFilter, murmur3_x64_64


@pytest.mark.parametrize(
    ("text", "positions"),
    [("GroupA#TopicA", (29, 107, 11)), ("CID_abc#TopicTest", (103, 61, 29))],
)
def test_positions_are_the_ones_apache_computes(text: str, positions: tuple[int, ...]) -> None:
    """Positions that Apache's filter printed under its default settings, below and above one hash block."""
    bloom = BloomFilter(error_rate_percent=20, expected=32)
    assert (bloom.hash_count, bloom.bit_count) == (3, 112)
    assert bloom.bits(text) == positions
    assert bloom == BloomFilter()


MORE_POSITIONS: list[tuple[BloomFilter, int, int, str, tuple[int, ...]]] = [
    (BloomFilter(20, 32), 3, 112, "", (0, 0, 0)),
    (BloomFilter(10, 128), 4, 616, "a", (262, 603, 287, 365)),
    (BloomFilter(1, 1), 7, 16, "abcdefg", (8, 7, 9, 5, 4, 12, 2)),
    (BloomFilter(50, 7), 1, 16, "abcdefgh", (2,)),
    (BloomFilter(99, 32), 1, 8, "abcdefghi", (4,)),
    (BloomFilter(25, 64), 2, 192, "abcdefghijklmno", (12, 98)),
    (BloomFilter(20, 32), 3, 112, "abcdefghijklmnop", (105, 86, 76)),
    (BloomFilter(10, 128), 4, 616, "abcdefghijklmnopq", (49, 557, 379, 227)),
    (BloomFilter(1, 1), 7, 16, "\u8ba2\u5355#\U0001f600", (9, 9, 12, 0, 13, 5, 8)),
    (BloomFilter(50, 7), 1, 16, "G\u8ba2\u5355_0123456789abcdefghijklmnop#Topic\U0001f600xyz", (9,)),
    (BloomFilter(99, 32), 1, 8, "x\ud800y", (4,)),
]


@pytest.mark.parametrize(("bloom", "count", "bits", "text", "positions"), MORE_POSITIONS)
def test_sizes_and_positions_follow_the_settings(
    bloom: BloomFilter, count: int, bits: int, text: str, positions: tuple[int, ...]
) -> None:
    """Other settings, other scripts and every length of the last block, as Apache's filter printed them."""
    assert (bloom.hash_count, bloom.bit_count) == (count, bits)
    assert bloom.bits(text) == positions


def test_bit_order_is_low_bit_first() -> None:
    """One bit at a time: byte i // 8, mask 1 << (i % 8)."""
    bloom = BloomFilter()
    for position in range(bloom.bit_count):
        bitmap = bytearray(14)
        bloom.set(bitmap, (position,))
        assert int.from_bytes(bitmap, "little") == 1 << position
        assert [p for p in range(bloom.bit_count) if bloom.is_hit(bitmap, (p,))] == [position]


def test_a_hit_needs_every_bit() -> None:
    """Each bit of an entry is left out once."""
    bloom = BloomFilter()
    positions = bloom.bits("GroupA#TopicA")
    for missing in positions:
        bitmap = bytearray(14)
        bloom.set(bitmap, [p for p in positions if p != missing])
        assert not bloom.is_hit(bytes(bitmap), positions)
        bloom.set(bitmap, [missing])
        assert bloom.is_hit(memoryview(bitmap), positions)


@given(st.lists(st.text(max_size=40), max_size=40), st.integers(1, 99), st.integers(1, 500))
def test_what_was_set_is_always_hit(texts: list[str], rate: int, expected: int) -> None:
    """Any texts under any settings: false hits may happen, false misses may not."""
    bloom = BloomFilter(error_rate_percent=rate, expected=expected)
    assert bloom.bit_count % 8 == 0
    bitmap = bytearray(bloom.bit_count // 8)
    for text in texts:
        bloom.set(bitmap, bloom.bits(text))
    for text in texts:
        assert len(bloom.bits(text)) == bloom.hash_count
        assert bloom.is_hit(bitmap, bloom.bits(text))


@pytest.mark.parametrize("size", [0, 8, 13, 15])
def test_a_bitmap_of_other_settings_is_refused(size: int) -> None:
    """Bitmaps that are too short and too long, read and written."""
    bloom = BloomFilter()
    with pytest.raises(RemoteProtocolError, match="not 112"):
        bloom.is_hit(bytes(size), (0, 1, 2))
    with pytest.raises(RemoteProtocolError, match="not 112"):
        bloom.set(bytearray(size), (0, 1, 2))


@pytest.mark.parametrize("positions", [(-1, 0, 1), (0, 112, 1)])
def test_positions_of_other_settings_are_refused(positions: tuple[int, ...]) -> None:
    """One below and one beyond the map; nothing may be set then."""
    bloom = BloomFilter()
    bitmap = bytearray(14)
    with pytest.raises(RemoteProtocolError, match="not all within"):
        bloom.set(bitmap, positions)
    with pytest.raises(RemoteProtocolError, match="not all within"):
        bloom.is_hit(bitmap, positions)
    assert bitmap == bytes(14)


@pytest.mark.parametrize(("rate", "expected"), [(0, 32), (100, 32), (-5, 32), (20, 0)])
def test_impossible_settings_are_refused_by_name(rate: int, expected: int) -> None:
    """Just outside the ranges that Apache accepts."""
    with pytest.raises(ConfigError, match=r"maxErrorRateOfBloomFilter|expectConsumerNumUseFilter"):
        BloomFilter(error_rate_percent=rate, expected=expected)


@given(st.binary(max_size=100))
def test_hash_takes_any_bytes(data: bytes) -> None:
    """Every block count and tail length stays within 64 bits."""
    assert 0 <= murmur3_x64_64(data) < 1 << 64
