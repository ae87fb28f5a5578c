"""Compressed bodies."""

from __future__ import annotations

import contextlib
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.compression import (
    CompressionType,
    compress,
    compression_type,
    decompress,
    decompress_body,
)

kinds = st.sampled_from(CompressionType)
MIB = 1024 * 1024


@given(st.binary(max_size=2000), kinds, st.integers(1, 9))
def test_bodies_survive_the_round_trip(body: bytes, kind: CompressionType, level: int) -> None:
    """Every type, at exactly its limit and one byte below it."""
    compressed = compress(body, kind, level)
    assert decompress(compressed, kind, size_max=len(body)) == body
    assert decompress_body(compressed, kind.sys_flag) == body
    if body:
        with pytest.raises(RemoteProtocolError):
            decompress(compressed, kind, size_max=len(body) - 1)


def test_the_bits_of_the_system_flag_tell_the_type() -> None:
    """Old clients set no type; without the compressed bit the type does not count."""
    assert compression_type(0x1) is CompressionType.ZLIB
    assert compression_type(0x301) is CompressionType.ZLIB
    assert compression_type(0x101) is CompressionType.LZ4
    assert compression_type(0x205) is CompressionType.ZSTD
    assert compression_type(0x300) is None
    assert CompressionType.ZLIB.sys_flag == 0x301
    assert decompress_body(b"plain", 0x300) == b"plain"


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_an_unknown_type_is_refused(kind: int) -> None:
    """The bits have room for four more."""
    with pytest.raises(RemoteProtocolError, match="type"):
        decompress_body(b"", 1 | kind << 8)


def streamed_zstd(body: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(body) + stream.flush()


BOMBS = {
    "zlib": (zlib.compress(bytes(64 * MIB)), CompressionType.ZLIB),
    "lz4": (lz4.frame.compress(bytes(64 * MIB), store_size=False), CompressionType.LZ4),
    "lz4 that says its size": (lz4.frame.compress(bytes(64 * MIB)), CompressionType.LZ4),
    "zstd": (streamed_zstd(bytes(64 * MIB)), CompressionType.ZSTD),
    "zstd that says its size": (zstandard.compress(bytes(64 * MIB)), CompressionType.ZSTD),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_body_cannot_claim_much_memory(name: str) -> None:
    """64 MiB of zeros against a limit of 1 MiB."""
    bomb, kind = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decompress(bomb, kind, size_max=MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_zstd_without_its_size_is_read() -> None:
    """Java's stream writer does not know the size when it writes the header."""
    assert decompress(streamed_zstd(b"abc" * 100), CompressionType.ZSTD) == b"abc" * 100


@pytest.mark.parametrize("kind", CompressionType)
def test_a_body_cut_anywhere_is_refused(kind: CompressionType) -> None:
    """Every length from nothing to one byte less."""
    whole = [compress(b"hello" * 20 + bytes(range(256)), kind)]
    if kind is CompressionType.ZSTD:
        whole.append(streamed_zstd(b"hello" * 20 + bytes(range(256))))
    for compressed in whole:
        for size in range(len(compressed)):
            with pytest.raises(RemoteProtocolError):
                decompress(compressed[:size], kind)


@given(st.binary(min_size=1, max_size=200), kinds, st.integers(0), st.integers(1, 255), st.binary(max_size=60))
def test_damaged_bodies_give_a_value_or_the_named_error(
    body: bytes, kind: CompressionType, where: int, change: int, noise: bytes
) -> None:
    """One changed byte, and bytes that never were compressed."""
    damaged = bytearray(compress(body, kind))
    damaged[where % len(damaged)] ^= change
    for candidate in (bytes(damaged), noise):
        with contextlib.suppress(RemoteProtocolError):
            decompress(candidate, kind, size_max=MIB)
