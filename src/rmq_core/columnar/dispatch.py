"""What queues and index need to know of records, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.apart import take_apart
from rmq_core.columnar.hashes import hash_inside
from rmq_core.columnar.parts import Bools, Buffer, Bytes, Fields, Longs, byte_array, measure, position_array
from rmq_core.columnar.properties import Properties
from rmq_core.columnar.texts import number_texts
from rmq_core.errors import CorruptRecordError
from rmq_core.protocol.filter import java_string_hash


@dataclass(slots=True)
class DispatchColumns:
    """What queues and index need of records, one row for each."""

    log_offsets: Longs
    sizes: NDArray[np.int32]
    queue_ids: NDArray[np.int32]
    queue_offsets: Longs
    sys_flags: NDArray[np.int32]
    store_times_ms: Longs
    topic_ids: NDArray[np.int32]
    topics: list[bytes]
    """By topic id."""
    tags_codes: Longs
    uniq_key_starts: Longs
    uniq_key_sizes: NDArray[np.int32]
    keys_starts: Longs
    keys_sizes: NDArray[np.int32]
    is_special: Bools
    """Has a delay level, light queues or inner messages: look at its properties."""


def dispatch_columns(buffer: Buffer, positions: Longs) -> DispatchColumns:
    """The columns of records that valid_records() accepted. Raises CorruptRecordError where one is not whole."""
    data, starts = byte_array(buffer), position_array(positions)
    if kernels.is_loaded():
        apart = take_apart(data, starts, with_known=True)
        parts, cut = apart.parts, apart.cut
    else:
        parts, cut = measure(data, starts), None
    if not parts.is_whole.all():
        raise CorruptRecordError(int(starts[np.argmin(parts.is_whole)]), "no whole record stands there")
    fields = Fields(data, starts, parts)
    properties = Properties(data, parts.property_starts, parts.property_sizes, cut)
    topic_ids, topics = number_texts(data, parts.topic_starts, parts.topic_sizes)
    uniq_key_starts, uniq_key_sizes = properties.values(b"UNIQ_KEY")
    keys_starts, keys_sizes = properties.values(b"KEYS")
    return DispatchColumns(
        log_offsets=fields["log_offset"],
        sizes=fields["size"],
        queue_ids=fields["queue_id"],
        queue_offsets=fields["queue_offset"],
        sys_flags=fields["sys_flag"],
        store_times_ms=fields["store_time_ms"],
        topic_ids=topic_ids,
        topics=topics,
        tags_codes=_text_hashes(data, *properties.values(b"TAGS")),
        uniq_key_starts=uniq_key_starts,
        uniq_key_sizes=uniq_key_sizes.astype(np.int32),
        keys_starts=keys_starts,
        keys_sizes=keys_sizes.astype(np.int32),
        is_special=properties.is_special,
    )


def _text_hashes(data: Bytes, starts: Longs, sizes: Longs) -> Longs:
    """Java's hash of each text, 0 where there is none."""
    hashes = np.zeros(len(starts), np.int32)
    is_other = hash_inside(data, starts, sizes, hashes)
    for row in np.flatnonzero(is_other).tolist():
        text = data[starts[row] : starts[row] + sizes[row]].tobytes()
        hashes[row] = java_string_hash(str(text, "utf-8", "replace"))
    return hashes.astype(np.int64)
