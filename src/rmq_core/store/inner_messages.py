"""Records that hold several messages (batch topics), as one row for each message."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar import decode_records
from rmq_core.errors import RocketMQError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.compression import decompress_body
from rmq_core.protocol.record import CRC_MASK, StoredRecord, decode_batch, decode_record, encode_record

_STORED_BITS = flags.COMPRESSED | flags.NEED_UNWRAP | flags.INNER_BATCH | flags.COMPRESSION_TYPE_MASK


def sys_flags(buffer: memoryview, positions: NDArray[np.int64]) -> NDArray[np.int32]:
    """The system flags of whole records."""
    every = np.ndarray((max(len(buffer) - 3, 0),), ">i4", buffer=buffer, strides=(1,))
    return every[positions + 36].astype(np.int32)


def inner_messages(record: StoredRecord) -> list[StoredRecord]:
    """The messages of a record as records of their own; the record itself where it holds no batch.

    They have its times, hosts and place in the log. What tells how a batch is stored is no longer in their flags.
    """
    if not record.sys_flag & flags.INNER_BATCH:
        return [record]
    try:
        body = record.body
        if record.sys_flag & flags.COMPRESSED:
            body = decompress_body(body, record.sys_flag)
        inner = decode_batch(body)
    except RocketMQError:
        return [record]
    return [
        replace(
            record,
            queue_offset=record.queue_offset + number,
            body=each.body,
            property_bytes=each.properties,
            flag=each.flag,
            sys_flag=record.sys_flag & ~_STORED_BITS,
            body_crc=zlib.crc32(each.body) & CRC_MASK,
        )
        for number, each in enumerate(inner)
    ]


def decode_messages(
    buffer: memoryview,
    positions: NDArray[np.int64],
    *,
    columns: Sequence[str] | str | None,
    include_properties: bool,
    broker: str | None,
    base: int,
    offsets: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Records as rows, inner messages as rows of their own; `offsets` cuts those to a range of queue offsets."""

    def decode(source: memoryview | bytes, at: NDArray[np.int64], first: int) -> pa.RecordBatch:
        return decode_records(
            source, at, columns=columns, include_properties=include_properties, broker=broker, base=first
        )

    is_batch = sys_flags(buffer, positions) & flags.INNER_BATCH != 0
    bounds = [0, *(np.flatnonzero(np.diff(is_batch)) + 1).tolist(), len(positions)]
    for low, high in itertools.pairwise(bounds):
        if low == high or not is_batch[low]:
            yield decode(buffer, positions[low:high], base)
            continue
        records = [decode_record(buffer, at) for at in positions[low:high].tolist()]
        pairs = [(record, inner) for record in records for inner in inner_messages(record)]
        if offsets is not None:
            pairs = [pair for pair in pairs if offsets[0] <= pair[1].queue_offset < offsets[1]]
        encoded = [encode_record(inner) for _, inner in pairs]
        ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
        rows = decode(b"".join(encoded), np.append(0, ends)[: len(encoded)].astype(np.int64), 0)
        yield _as_stored(rows, [record for record, _ in pairs])


def _as_stored(rows: pa.RecordBatch, records: list[StoredRecord]) -> pa.RecordBatch:
    """Inner messages with the size and flags of the records that hold them."""
    for name, values in (
        ("storeSize", [record.size for record in records]),
        ("sysFlag", [record.sys_flag for record in records]),
    ):
        if name in rows.schema.names:
            rows = rows.set_column(
                rows.schema.names.index(name), rows.schema.field(name), pa.array(values, pa.int32())
            )
    return rows
