"""Java's String.hashCode of many texts at once."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.parts import Bools, Buffer, Bytes, Longs, byte_array, position_array, strided
from rmq_core.protocol.filter import java_string_hash

_MANY: Final = 16


def hash_keys(texts: list[bytes]) -> NDArray[np.int32]:
    """The hash of each UTF-8 text, over its UTF-16 code units."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    starts = np.cumsum(sizes) - sizes
    hashes, is_other = hash_spans(b"".join(texts), starts, sizes, np.zeros(len(texts), np.int32))
    for row in np.flatnonzero(is_other).tolist():
        hashes[row] = java_string_hash(str(texts[row], "utf-8", "replace"))
    return hashes


def hash_spans(
    buffer: Buffer, starts: NDArray[np.integer], sizes: NDArray[np.integer], prefix_hash: NDArray[np.int32]
) -> tuple[NDArray[np.int32], Bools]:
    """The hash of each span as if it followed a text whose hash is given; and which spans are not ASCII.

    Those are not hashed. Raises ValueError for a span that is not inside the buffer.
    """
    data, at, lengths = byte_array(buffer), position_array(starts), position_array(sizes)
    hashes = np.ascontiguousarray(prefix_hash, np.int32).copy()
    if not len(at) == len(lengths) == len(hashes):
        raise ValueError("each span needs a start, a size and the hash of what stands before it")
    if ((lengths < 0) | ((lengths > 0) & ((at < 0) | (at > len(data) - lengths)))).any():
        raise ValueError("a span to be hashed is not inside its buffer")
    return hashes, hash_inside(data, at, lengths, hashes)


def hash_inside(data: Bytes, starts: Longs, sizes: Longs, hashes: NDArray[np.int32]) -> Bools:
    """Go on with each hash over a span that is inside the data or empty; returns which spans are not ASCII."""
    is_other = np.zeros(len(starts), np.bool_)
    if (loops := kernels.active()) is not None:
        loops.hash_spans(data, starts, sizes, hashes, is_other)
    else:
        _hash_by_size(data, starts, sizes, hashes.view(np.uint32), is_other)
    return is_other


def _hash_by_size(data: Bytes, starts: Longs, sizes: Longs, hashes: NDArray[np.uint32], is_other: Bools) -> None:
    order = np.argsort(sizes, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(sizes[order])) + 1).tolist(), len(order)]
    for low, high in itertools.pairwise(bounds):
        rows = order[low:high]
        size = int(sizes[rows[0]]) if len(rows) else 0
        if not size:
            continue
        units = strided(data, f"V{size}")[starts[rows]].view(np.uint8).reshape(len(rows), size)
        is_other[rows] = units.max(axis=1) >= 0x80
        hashed = hashes[rows]
        if len(rows) >= _MANY:
            for column in units.T:
                hashed = hashed * np.uint32(31) + column
        else:
            powers = np.array([pow(31, exponent, 1 << 32) for exponent in range(size, -1, -1)], np.uint32)
            hashed = hashed * powers[0] + (units * powers[1:]).sum(axis=1, dtype=np.uint32)
        hashes[rows] = np.where(is_other[rows], hashes[rows], hashed)
