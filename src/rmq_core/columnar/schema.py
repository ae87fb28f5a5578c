"""The row of a message, once: names, types, and which columns come unasked.

Names are Spark's and do not change; neither does the default.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.string(),
    "msgId": pa.string(),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "properties": pa.map_(pa.string(), pa.string()),
    "offsetMsgId": pa.string(),
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "sysFlag": pa.int32(),
    "flag": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "bodyCrc": pa.int32(),
    "commitLogOffset": pa.int64(),
    "storeSize": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
}

COLUMNS: Final[tuple[str, ...]] = tuple(_TYPES)
DEFAULT_COLUMNS: Final[tuple[str, ...]] = COLUMNS[:10]
ALL: Final = "all"


def row_schema(columns: Sequence[str] | None = None, *, include_properties: bool = False) -> pa.Schema:
    """The schema of these columns, in their order; of the default ones for None, of every one for "all".

    include_properties adds the properties where they are not among them. Raises ValueError for a name that is no
    column or stands twice.
    """
    if columns is None:
        return _schema(DEFAULT_COLUMNS, include_properties)
    if isinstance(columns, str):
        return _schema(COLUMNS if columns == ALL else (columns,), include_properties)
    return _schema(tuple(columns), include_properties)


@functools.lru_cache(maxsize=64)
def _schema(names: tuple[str, ...], include_properties: bool) -> pa.Schema:
    if include_properties and "properties" not in names:
        names = (*names, "properties")
    for name in names:
        if name not in _TYPES:
            raise ValueError(f"there is no column {name!r}; {_nearest(name)}")
        if names.count(name) > 1:
            raise ValueError(f"column {name!r} is asked for twice")
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])


def _nearest(name: str) -> str:
    lower = {column.lower(): column for column in COLUMNS}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.0)
    return f"the nearest is {lower[near[0]]!r}" if near else f"there are {', '.join(COLUMNS)}"
