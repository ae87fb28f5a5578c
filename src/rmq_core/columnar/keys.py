"""The keys of messages as hashes: what the index holds of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar.dispatch import DispatchColumns
from rmq_core.columnar.hashes import hash_inside, hash_keys
from rmq_core.columnar.parts import Bools, Buffer, Longs, byte_array


def hash_record_keys(buffer: Buffer, columns: DispatchColumns, wanted: Bools) -> tuple[Longs, NDArray[np.int32]]:
    """Row and hash of `topic#key` for each key of wanted records: the client's id first, then each own key.

    buffer: the one that the columns were made of.
    """
    data = byte_array(buffer)
    prefixes = hash_keys([topic + b"#" for topic in columns.topics])[columns.topic_ids]
    count = len(prefixes)
    hashes = np.empty((count, 2), np.int32)
    counts = np.zeros((count, 2), np.int64)
    others: dict[int, list[bytes]] = {}
    for number, (starts, sizes) in enumerate(
        ((columns.uniq_key_starts, columns.uniq_key_sizes), (columns.keys_starts, columns.keys_sizes))
    ):
        lengths = np.where(wanted, sizes, 0).astype(np.int64)
        hashed = prefixes.copy()
        is_other = hash_inside(data, starts, lengths, hashed, only_words=number == 1)
        hashes[:, number], counts[:, number] = hashed, lengths > 0
        for row in np.flatnonzero(is_other).tolist():
            text = data[starts[row] : starts[row] + sizes[row]].tobytes()
            keys = [key for key in text.split(b" ") if key] if number else [text]
            others[2 * row + number] = [columns.topics[columns.topic_ids[row]] + b"#" + key for key in keys]
            counts[row, number] = len(keys)
    places = counts.ravel()
    if not others and (places == 1).all():
        return np.repeat(np.arange(count), 2), hashes.ravel()
    rows, spread = np.repeat(np.arange(count), counts.sum(axis=1)), np.repeat(hashes.ravel(), places)
    ends = np.cumsum(places)
    for place, keys in others.items():
        spread[ends[place] - len(keys) : ends[place]] = hash_keys(keys)
    return rows, spread
