"""Where the parts of records stand in a buffer: every length is judged before it is used.

Whole     A record is whole when all its lengths agree with each other and with the buffer: what
          protocol.record.check_record() says of it, CRC aside.
"""

from __future__ import annotations

import functools
import mmap
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar import kernels
from rmq_core.columnar.room import rows_for
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, TOPIC_SIZE_MAX_V1

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
Bytes: TypeAlias = NDArray[np.uint8]
Longs: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

FIXED_SIZE: Final = 88
FIXED: Final = np.dtype(
    [
        ("size", ">i4"), ("magic", ">i4"), ("body_crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("log_offset", ">i8"), ("sys_flag", ">i4"), ("born_time_ms", ">i8"),
        ("born_host", ">i8"), ("store_time_ms", ">i8"), ("store_host", ">i8"), ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"), ("body_size", ">i4"),
    ]
)  # fmt: skip
HOST_SIZE, HOST_SIZE_V6 = 8, 20
_BORN_HOST, _STORE_HOST = 48, 64
_FIELDS: Final = {name: (kind.itemsize, offset) for name, (kind, offset, *_) in (FIXED.fields or {}).items()}

INT_FIELDS: Final = ("size", "body_crc", "queue_id", "flag", "sys_flag", "reconsume_times")
LONG_FIELDS: Final = ("queue_offset", "log_offset", "born_time_ms", "store_time_ms", "prepared_transaction_offset")
_ROWS: Final = {name: (np.int32, row) for row, name in enumerate(INT_FIELDS)} | {
    name: (np.int64, row) for row, name in enumerate(LONG_FIELDS)
}
_SPANS: Final = 6
_V6: Final = flags.BORN_HOST_V6 | flags.STORE_HOST_V6
_NO_ROWS: Final = np.zeros(0, np.int64)


def byte_array(buffer: Buffer) -> Bytes:
    """The buffer's bytes, not copied and read-only."""
    data: Bytes = np.frombuffer(buffer, np.uint8) if len(buffer) else np.zeros(0, np.uint8)
    data.setflags(write=False)
    return data


def position_array(positions: Any) -> Longs:
    """Positions in the one form that compiled loops take."""
    return np.ascontiguousarray(positions, np.int64)


def strided(data: Bytes, kind: str | np.dtype[Any]) -> NDArray[Any]:
    """A view with an item of this kind at every byte. Indexing copies items; nothing else may be done with it."""
    itemsize = np.dtype(kind).itemsize
    return np.ndarray((max(len(data) - itemsize + 1, 0),), kind, buffer=data, strides=(1,))


class FixedParts:
    """The fixed parts of records by numpy, field by field. Each position has at least 88 bytes behind it.

    Of a record with an IPv6 host only the fields before its first host are right.
    """

    __slots__ = ("_data", "_positions", "_rows")

    def __init__(self, data: Bytes, positions: Longs) -> None:
        self._data = data
        self._positions = positions
        self._rows: NDArray[np.void] | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One field of every record, in native order."""
        if self._rows is None:
            # Copied as one opaque item each: three times as fast as an item with fields.
            self._rows = strided(self._data, f"V{FIXED_SIZE}")[self._positions].view(FIXED)
        field: NDArray[Any] = self._rows[name]
        return field.astype(field.dtype.newbyteorder("="))


class Fields:
    """The fixed fields of whole records, wherever their hosts put them."""

    def __init__(self, data: Bytes, positions: Longs, parts: Parts) -> None:
        """parts: those of the same records, measured with fields."""
        self._data = data
        self._positions = positions
        self._read: dict[str, NDArray[Any]] = {}
        self._given = parts.fields
        self._fixed = parts.fixed or FixedParts(data, positions)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One field of every record, in native order: one of INT_FIELDS or LONG_FIELDS."""
        if self._given is not None:
            return self._given.field(name)
        if name not in self._read:
            self._read[name] = values = self._fixed[name]
            width, offset = _FIELDS[name]
            if offset > _BORN_HOST and len(rows := self._long_hosts):
                hosts = self.born_host_sizes[rows] - HOST_SIZE
                if offset > _STORE_HOST:
                    hosts = hosts + self.store_host_sizes[rows] - HOST_SIZE
                values[rows] = strided(self._data, f">i{width}")[self._positions[rows] + offset + hosts]
        return self._read[name]

    @functools.cached_property
    def _long_hosts(self) -> Longs:
        """The records with an address of IPv6."""
        sys_flags = self["sys_flag"]
        if not np.bitwise_or.reduce(sys_flags) & _V6:
            return _NO_ROWS
        return np.flatnonzero(sys_flags & _V6)

    @property
    def born_host_sizes(self) -> Longs:
        return np.where(self["sys_flag"] & flags.BORN_HOST_V6, HOST_SIZE_V6, HOST_SIZE)

    @property
    def store_host_sizes(self) -> Longs:
        return np.where(self["sys_flag"] & flags.STORE_HOST_V6, HOST_SIZE_V6, HOST_SIZE)

    @property
    def born_host_starts(self) -> Longs:
        return self._positions + _BORN_HOST

    @property
    def store_host_starts(self) -> Longs:
        return self._positions + _BORN_HOST + self.born_host_sizes + HOST_SIZE


@dataclass(frozen=True, slots=True)
class Parts:
    """Where body, topic and properties of each record are. Without meaning where it is not whole."""

    body_starts: Longs
    body_sizes: Longs
    topic_starts: Longs
    topic_sizes: Longs
    property_starts: Longs
    property_sizes: Longs
    is_whole: Bools
    fixed: FixedParts | None
    """What numpy has read to find them."""
    fields: RoomForParts | None
    """What compiled loops have read along with them."""

    @property
    def ends(self) -> Longs:
        """Where each record ends."""
        return self.property_starts + self.property_sizes


def measure(data: Bytes, positions: Longs, *, with_fields: bool = False) -> Parts:
    """Find the parts of the record at each position, whatever the bytes and positions are.

    with_fields: the fixed fields of whole records will be asked for too.
    """
    count = len(positions)
    if (loops := kernels.active()) is not None:
        rows = RoomForParts(count, with_fields=with_fields)
        loops.measure(data, positions, 0, count, rows.spans, rows.is_whole, with_fields, rows.ints, rows.longs)
        return rows.parts()
    if len(data) < RECORD_SIZE_MIN or not count:
        nothing = np.zeros(count, np.int64)
        return Parts(nothing, nothing, nothing, nothing, nothing, nothing, np.zeros(count, np.bool_), None, None)
    return _measure(data, positions)


class RoomForParts:
    """Arrays that compiled loops fill with the parts and fields of records."""

    __slots__ = ("_int_buffer", "_long_buffer", "ints", "is_whole", "longs", "spans")

    def __init__(self, count: int, *, with_fields: bool) -> None:
        self.is_whole = np.zeros(count, np.bool_)
        self.spans = rows_for(_SPANS, count, np.int64)[1]
        self._long_buffer, self.longs = rows_for(len(LONG_FIELDS) if with_fields else 0, count, np.int64)
        self._int_buffer, self.ints = rows_for(len(INT_FIELDS) if with_fields else 0, count, np.int32)

    def parts(self) -> Parts:
        """What is in them."""
        return Parts(*self.spans, self.is_whole, None, self if len(self.ints) else None)  # type: ignore[call-arg]

    def field(self, name: str) -> NDArray[Any]:
        """One field of every record."""
        kind, row = _ROWS[name]
        values: NDArray[Any] = self.ints[row] if kind is np.int32 else self.longs[row]
        return values

    def column(self, name: str) -> pa.Array:
        """One field of every record, where it is."""
        kind, row = _ROWS[name]
        count = len(self.is_whole)
        if kind is np.int32:
            return pa.Array.from_buffers(pa.int32(), count, [None, self._int_buffer], 0, row * count)
        return pa.Array.from_buffers(pa.int64(), count, [None, self._long_buffer], 0, row * count)


def _measure(data: Bytes, positions: Longs) -> Parts:
    end_max = len(data)
    whole: Bools = (positions >= 0) & (positions <= end_max - RECORD_SIZE_MIN)
    # What is known to be damaged is read at position 0, where there are enough bytes.
    starts = positions if whole.all() else np.where(whole, positions, 0)
    fixed = FixedParts(data, starts)
    sizes, magics, sys_flags = fixed["size"].astype(np.int64), fixed["magic"], fixed["sys_flag"]
    ends = starts + sizes
    is_v2: Bools = magics == MAGIC_V2
    whole &= (magics == MAGIC_V1) | is_v2
    whole &= (sizes >= RECORD_SIZE_MIN) & (ends <= end_max)
    body_sizes = fixed["body_size"].astype(np.int64)
    body_starts = starts + FIXED_SIZE
    if np.bitwise_or.reduce(sys_flags) & _V6:
        extra = ((sys_flags >> 4 & 1) + (sys_flags >> 5 & 1)).astype(np.int64) * 12
        body_starts += extra
        whole &= body_starts <= ends
        rows = np.flatnonzero((extra > 0) & whole)
        body_sizes[rows] = strided(data, ">i4")[body_starts[rows] - 4]
    body_sizes = np.maximum(body_sizes, 0)
    topic_at = body_starts + body_sizes
    has_v2 = bool(is_v2.any())
    whole &= topic_at + (3 + is_v2 if has_v2 else 3) <= ends
    if not whole.all():
        topic_at = np.where(whole, topic_at, 0)
    topic_sizes = data[topic_at].astype(np.int64)
    topic_starts = topic_at + 1
    if has_v2:
        topic_sizes = np.where(is_v2, topic_sizes << 8 | data[topic_starts], topic_sizes)
        topic_starts += is_v2
    whole &= topic_sizes <= (np.where(is_v2, 0x7FFF, TOPIC_SIZE_MAX_V1) if has_v2 else TOPIC_SIZE_MAX_V1)
    property_starts = topic_starts + topic_sizes + 2
    whole &= property_starts <= ends
    at = property_starts if whole.all() else np.where(whole, property_starts, 2)
    # A negative size is none.
    property_sizes = np.maximum(strided(data, ">i2")[at - 2].astype(np.int64), 0)
    whole &= property_starts + property_sizes == ends
    return Parts(
        body_starts, body_sizes, topic_starts, topic_sizes, property_starts, property_sizes, whole,
        fixed if starts is positions else None, None,
    )  # fmt: skip
