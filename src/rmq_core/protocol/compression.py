"""Message bodies, compressed and inflated.

Types    zlib streams, LZ4 frames and zstd frames. Clients before 4.9.4 set no type bits: those bodies are zlib.
Limits   Inflation stops at size_max, so a small body cannot claim much memory.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import sys_flag as flags

DECOMPRESSED_SIZE_MAX: Final = 64 * 1024 * 1024


class CompressionType(IntEnum):
    """The type as the system flag carries it in bits 8 to 10."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits a sender sets for a body compressed this way."""
        return flags.COMPRESSED | self << flags.COMPRESSION_TYPE_SHIFT


def compression_type(sys_flag: int) -> CompressionType | None:
    """How the body was compressed; None where it was not. Raises RemoteProtocolError for an unknown type."""
    if not sys_flag & flags.COMPRESSED:
        return None
    kind = (sys_flag & flags.COMPRESSION_TYPE_MASK) >> flags.COMPRESSION_TYPE_SHIFT
    if kind == 0:
        return CompressionType.ZLIB
    try:
        return CompressionType(kind)
    except ValueError:
        raise RemoteProtocolError(f"unknown compression type {kind}") from None


def compress(body: bytes, kind: CompressionType, level: int = 5) -> bytes:
    """The compressed body. LZ4 has one level only, as in Apache's clients."""
    match kind:
        case CompressionType.ZLIB:
            return zlib.compress(body, level)
        case CompressionType.LZ4:
            compressed: bytes = lz4.frame.compress(body)
            return compressed
        case CompressionType.ZSTD:
            return zstandard.ZstdCompressor(level=level).compress(body)


def decompress_body(body: bytes, sys_flag: int, *, size_max: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """The body as its sender had it, by the bits of its system flag. Raises as decompress() does."""
    kind = compression_type(sys_flag)
    return body if kind is None else decompress(body, kind, size_max=size_max)


def decompress(body: bytes, kind: CompressionType, *, size_max: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """The inflated body. Raises RemoteProtocolError if it is damaged, cut short or larger than size_max."""
    try:
        match kind:
            case CompressionType.ZLIB:
                inflated, is_whole = _inflate_zlib(body, size_max)
            case CompressionType.LZ4:
                inflated, is_whole = _inflate_lz4(body, size_max)
            case CompressionType.ZSTD:
                inflated, is_whole = _inflate_zstd(body, size_max)
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise RemoteProtocolError(f"{kind.name} body cannot be inflated: {error}") from error
    if len(inflated) > size_max:
        raise RemoteProtocolError(f"{kind.name} body inflates to more than {size_max} bytes")
    if not is_whole:
        raise RemoteProtocolError(f"{kind.name} body is cut short")
    return inflated


def _inflate_zlib(body: bytes, size_max: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    inflated = stream.decompress(body, size_max + 1)
    return inflated, stream.eof


def _inflate_lz4(body: bytes, size_max: int) -> tuple[bytes, bool]:
    stream = lz4.frame.LZ4FrameDecompressor()
    inflated: bytes = stream.decompress(body, max_length=size_max + 1)
    return inflated, stream.eof


def _inflate_zstd(body: bytes, size_max: int) -> tuple[bytes, bool]:
    # An announced size is allocated as it stands, whatever max_output_size says, so it is judged first.
    announced = zstandard.frame_content_size(body)
    if announced > size_max:
        raise RemoteProtocolError(f"ZSTD body announces {announced} bytes, more than {size_max}")
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=size_max), True
