"""Records to Arrow columns.

Text      What is not UTF-8 gets U+FFFD; of equal property names the last counts.
Others    Compressed bodies and hosts of IPv6 are done one by one and put in their places.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.apart import take_apart
from rmq_core.columnar.gather import check_column_size, gather, gather_text
from rmq_core.columnar.parts import (
    HOST_SIZE,
    HOST_SIZE_V6,
    INT_FIELDS,
    Buffer,
    Fields,
    Longs,
    byte_array,
    measure,
    position_array,
    strided,
)
from rmq_core.columnar.properties import Properties
from rmq_core.columnar.room import room_for
from rmq_core.columnar.schema import TIMESTAMP, row_schema
from rmq_core.columnar.texts import repeated, text_column
from rmq_core.errors import CorruptRecordError, RocketMQError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.compression import decompress_body

_FROM_PROPERTIES: Final = ("tags", "keys", "msgId")
_HEX: Final = np.array([b"%02X" % byte for byte in range(256)], "S2").view(np.uint16)
_YEAR_1_MS, _YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000


def decode_records(
    buffer: Buffer,
    positions: Longs | Sequence[int],
    *,
    columns: Sequence[str] | str | None = None,
    include_properties: bool = False,
    broker: str | None = None,
    base: int | None = None,
) -> pa.RecordBatch:
    """One row for the record at each position, in their order.

    Raises CorruptRecordError where a record is not whole (its log offset counts from base), and ValueError where
    a column is more than one batch can hold.
    """
    schema = row_schema(columns, include_properties=include_properties)
    rows = _Rows(buffer, position_array(positions), broker, base or 0, frozenset(schema.names))
    return pa.RecordBatch.from_arrays([_MAKERS[name](rows) for name in schema.names], schema=schema)


class _Rows:
    """Some records, taken apart as far as columns ask."""

    def __init__(
        self, buffer: Buffer, positions: Longs, broker: str | None, base: int, columns: frozenset[str]
    ) -> None:
        self.broker = broker
        self.positions = positions
        self.data = byte_array(buffer)
        self.bodies: pa.Array | None = None
        cut = None
        if kernels.is_loaded():
            apart = take_apart(
                self.data,
                positions,
                with_bodies="body" in columns,
                with_known=not columns.isdisjoint(_FROM_PROPERTIES),
                with_map="properties" in columns,
            )
            self.parts, self.bodies, cut = apart.parts, apart.bodies, apart.cut
        else:
            self.parts = measure(self.data, positions)
        whole = self.parts.is_whole
        if not whole.all():
            at = base + int(positions[np.argmin(whole)])
            raise CorruptRecordError(at, "its lengths disagree or it is cut off")
        self.fields = Fields(self.data, positions, self.parts)
        self.properties = Properties(self.data, self.parts.property_starts, self.parts.property_sizes, cut)


# Columns


def _topic(rows: _Rows) -> pa.Array:
    return text_column(rows.data, rows.parts.topic_starts, rows.parts.topic_sizes, _text)


def _text(text: bytes) -> str:
    return str(text, "utf-8", "replace")


def _broker(rows: _Rows) -> pa.Array:
    count = len(rows.positions)
    return pa.nulls(count, pa.string()) if rows.broker is None else repeated(rows.broker, count)


def _body(rows: _Rows) -> pa.Array:
    starts, sizes = rows.parts.body_starts, rows.parts.body_sizes
    bodies = gather(rows.data, starts, sizes) if rows.bodies is None else rows.bodies
    sys_flags = rows.fields["sys_flag"]
    if not np.bitwise_or.reduce(sys_flags) & flags.COMPRESSED:
        return bodies
    compressed = np.flatnonzero(sys_flags & flags.COMPRESSED)
    inflated, total = [], int(sizes.sum())
    for row in compressed.tolist():
        stored: bytes = bodies[row].as_py()
        try:
            inflated.append(decompress_body(stored, int(sys_flags[row])))
        except RocketMQError:  # it stays as it is stored
            inflated.append(stored)
        total += len(inflated[-1]) - len(stored)
        check_column_size(total)
    return _put(bodies, compressed, pa.array(inflated, pa.binary()))


def _put(column: pa.Array, rows: Longs, values: pa.Array) -> pa.Array:
    """The column with other values in some rows."""
    mask = np.zeros(len(column), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(column, pa.array(mask), values)


def _property(name: bytes) -> Callable[[_Rows], pa.Array]:
    return lambda rows: gather_text(rows.data, *rows.properties.values(name), is_ascii=rows.properties.is_ascii)


def _msg_id(rows: _Rows) -> pa.Array:
    ids = _property(b"UNIQ_KEY")(rows)
    return pc.coalesce(ids, _offset_msg_id(rows)) if ids.null_count else ids


def _offset_msg_id(rows: _Rows) -> pa.Array:
    starts = rows.fields.store_host_starts
    hosts = strided(rows.data, f"V{HOST_SIZE}")[starts].view(np.uint8).reshape(-1, HOST_SIZE)
    offsets = strided(rows.data, "V8")[rows.positions + 28].view(np.uint8).reshape(-1, 8)
    ids = _hex(np.concatenate((hosts, offsets), axis=1))
    others = np.flatnonzero(rows.fields.store_host_sizes == HOST_SIZE_V6)
    if not len(others):
        return ids
    texts = []
    for row in others.tolist():
        host = rows.data[starts[row] : starts[row] + HOST_SIZE_V6]
        texts.append((host.tobytes() + offsets[row].tobytes()).hex().upper())
    return _put(ids, others, pa.array(texts, pa.string()))


def _hex(data: NDArray[np.uint8]) -> pa.Array:
    count, size = data.shape
    digits = _HEX[data]
    offsets = np.arange(count + 1, dtype=np.int32) * (2 * size)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def _host_text(host: bytes) -> str:
    address, port = ipaddress.ip_address(host[:-4]), int.from_bytes(host[-4:], "big", signed=True)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def _born_host(rows: _Rows) -> pa.Array:
    return text_column(rows.data, rows.fields.born_host_starts, rows.fields.born_host_sizes, _host_text)


def _store_host(rows: _Rows) -> pa.Array:
    return text_column(rows.data, rows.fields.store_host_starts, rows.fields.store_host_sizes, _host_text)


def _time(field: str) -> Callable[[_Rows], pa.Array]:
    def make(rows: _Rows) -> pa.Array:
        times_ms = rows.fields[field]
        if (loops := kernels.active()) is not None:
            buffer, times_us = room_for(len(times_ms), np.int64)
            if loops.to_microseconds(times_ms, _YEAR_1_MS, _YEAR_10000_MS, times_us):
                return pa.Array.from_buffers(TIMESTAMP, len(times_ms), [None, buffer], 0)
        if not len(times_ms) or (times_ms.min() >= _YEAR_1_MS and times_ms.max() < _YEAR_10000_MS):
            return _column(TIMESTAMP, times_ms * 1000)
        is_null = (times_ms < _YEAR_1_MS) | (times_ms >= _YEAR_10000_MS)
        return pa.array(np.where(is_null, 0, times_ms) * 1000, mask=is_null).view(TIMESTAMP)

    return make


def _number(field: str) -> Callable[[_Rows], pa.Array]:
    kind = pa.int32() if field in INT_FIELDS else pa.int64()

    def make(rows: _Rows) -> pa.Array:
        taken = rows.parts.fields
        return _column(kind, rows.fields[field]) if taken is None else taken.column(field)

    return make


def _column(kind: pa.DataType, values: NDArray[np.integer]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


_MAKERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "topic": _topic,
    "broker": _broker,
    "queueId": _number("queue_id"),
    "queueOffset": _number("queue_offset"),
    "body": _body,
    "tags": _property(b"TAGS"),
    "keys": _property(b"KEYS"),
    "msgId": _msg_id,
    "bornTimestamp": _time("born_time_ms"),
    "storeTimestamp": _time("store_time_ms"),
    "properties": lambda rows: rows.properties.map_column(),
    "offsetMsgId": _offset_msg_id,
    "bornHost": _born_host,
    "storeHost": _store_host,
    "sysFlag": _number("sys_flag"),
    "flag": _number("flag"),
    "reconsumeTimes": _number("reconsume_times"),
    "bodyCrc": _number("body_crc"),
    "commitLogOffset": _number("log_offset"),
    "storeSize": _number("size"),
    "preparedTransactionOffset": _number("prepared_transaction_offset"),
}
