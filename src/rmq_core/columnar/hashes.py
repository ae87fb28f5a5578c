"""Java's String.hashCode of many texts at once."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.parts import Bools, Buffer, Bytes, Longs, byte_array, position_array, strided
from rmq_core.protocol.filter import java_string_hash

_UNITS_MAX: Final = 1 << 18
"""Bytes hashed in one step: four times as many are needed for it."""


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


def hash_inside(
    data: Bytes, starts: Longs, sizes: Longs, hashes: NDArray[np.int32], *, only_words: bool = False
) -> Bools:
    """Go on with each hash over a span that is inside the data or empty; returns which spans were left out.

    Those are the ones that are not ASCII, and with only_words the ones that contain a blank.
    """
    is_other = np.zeros(len(starts), np.bool_)
    if (loops := kernels.active()) is not None:
        loops.hash_spans(data, starts, sizes, hashes, is_other, only_words)
    else:
        _hash_by_size(data, starts, sizes, hashes.view(np.uint32), is_other, only_words)
    return is_other


def _hash_by_size(
    data: Bytes, starts: Longs, sizes: Longs, hashes: NDArray[np.uint32], is_other: Bools, only_words: bool
) -> None:
    if len(sizes) and (sizes == sizes[0]).all():
        order, bounds = np.arange(len(sizes)), [0, len(sizes)]
    else:
        order = np.argsort(sizes.astype(np.uint16) if sizes.max(initial=0) <= 0xFFFF else sizes, kind="stable")
        bounds = [0, *(np.flatnonzero(np.diff(sizes[order])) + 1).tolist(), len(order)]
    for low, high in itertools.pairwise(bounds):
        size = int(sizes[order[low]]) if high > low else 0
        for start in range(low, high if size else low, step := max(_UNITS_MAX // max(size, 1), 1)):
            rows = order[start : min(start + step, high)]
            _hash_units(data, starts, size, rows, hashes, is_other, only_words)


def _hash_units(
    data: Bytes,
    starts: Longs,
    size: int,
    rows: Longs,
    hashes: NDArray[np.uint32],
    is_other: Bools,
    only_words: bool,
) -> None:
    """The same for some spans of one size."""
    units = strided(data, f"V{size}")[starts[rows]].view(np.uint8).reshape(len(rows), size)
    powers = np.array([pow(31, exponent, 1 << 32) for exponent in range(size, -1, -1)], np.uint32)
    hashed = hashes[rows] * powers[0] + np.einsum("ij,j->i", units.astype(np.uint32), powers[1:])
    if units.max() >= 0x80 or (only_words and (units == 0x20).any()):
        is_other[rows] = (units >= 0x80).any(axis=1) | (only_words & (units == 0x20).any(axis=1))
        hashed = np.where(is_other[rows], hashes[rows], hashed)
    hashes[rows] = hashed
