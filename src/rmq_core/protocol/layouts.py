"""The bytes of frames, stored records and batches, declared: the readable specification.

The codecs in `command` and `record` are written by hand for speed; tests hold them to these declarations. All
numbers are big-endian, all text is UTF-8.
"""

from __future__ import annotations

from typing import Any, Final

from construct import (
    Bytes,
    Computed,
    Const,
    GreedyBytes,
    GreedyRange,
    IfThenElse,
    Int8ub,
    Int16sb,
    Int24ub,
    Int32sb,
    Int64sb,
    Prefixed,
    Rebuild,
    Struct,
    len_,
    this,
)

from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2

# Frames

FRAME: Final = Struct(
    "size" / Rebuild(Int32sb, 4 + len_(this.header) + len_(this.body)),
    "encoding" / Int8ub,
    "header_size" / Rebuild(Int24ub, len_(this.header)),
    "header" / Bytes(this.header_size),
    "body" / Bytes(this.size - 4 - this.header_size),
)
"""`size` counts what follows it; `encoding` is 0 for a JSON header and 1 for a binary one."""

JSON_HEADER: Final = GreedyBytes
"""A JSON object: code, language, version, opaque, flag, and where present remark and extFields."""

BINARY_HEADER: Final = Struct(
    "code" / Int16sb,
    "language" / Int8ub,
    "version" / Int16sb,
    "opaque" / Int32sb,
    "flag" / Int32sb,
    "remark" / Prefixed(Int32sb, GreedyBytes),
    "ext"
    / Prefixed(
        Int32sb,
        GreedyRange(Struct("name" / Prefixed(Int16sb, GreedyBytes), "value" / Prefixed(Int32sb, GreedyBytes))),
    ),
)

# Stored records

HOST_V4: Final = Struct("ip" / Bytes(4), "port" / Int32sb)
HOST_V6: Final = Struct("ip" / Bytes(16), "port" / Int32sb)


def _record(magic: int, topic_size: Any) -> Any:
    return Struct(
        "size" / Int32sb,
        "magic" / Const(magic, Int32sb),
        "body_crc" / Int32sb,
        "queue_id" / Int32sb,
        "flag" / Int32sb,
        "queue_offset" / Int64sb,
        "log_offset" / Int64sb,
        "sys_flag" / Int32sb,
        "born_time_ms" / Int64sb,
        "born_host" / IfThenElse(this.sys_flag & flags.BORN_HOST_V6, HOST_V6, HOST_V4),
        "store_time_ms" / Int64sb,
        "store_host" / IfThenElse(this.sys_flag & flags.STORE_HOST_V6, HOST_V6, HOST_V4),
        "reconsume_times" / Int32sb,
        "prepared_transaction_offset" / Int64sb,
        "body" / Prefixed(Int32sb, GreedyBytes),
        "topic" / Prefixed(topic_size, GreedyBytes),
        "property_bytes" / Prefixed(Int16sb, GreedyBytes),
    )


RECORD_V1: Final = _record(MAGIC_V1, Int8ub)
RECORD_V2: Final = _record(MAGIC_V2, Int16sb)

BLANK_RECORD: Final = Struct(
    "size" / Int32sb,
    "magic" / Const(MAGIC_BLANK, Int32sb),
    "remainder_size" / Computed(this.size - 8),
)
"""The last record of a segment. `size` reaches to the segment's end; the remainder's bytes mean nothing."""

# Batches

BATCH_RECORD: Final = Struct(
    "size" / Rebuild(Int32sb, 22 + len_(this.body) + len_(this.properties)),
    "magic" / Const(0, Int32sb),
    "body_crc" / Const(0, Int32sb),
    "flag" / Int32sb,
    "body" / Prefixed(Int32sb, GreedyBytes),
    "properties" / Prefixed(Int16sb, GreedyBytes),
)
BATCH: Final = GreedyRange(BATCH_RECORD)
