"""Records as columns, from any buffer: files and pull responses alike."""

from rmq_core.columnar.decode import decode_records
from rmq_core.columnar.dispatch import DispatchColumns, dispatch_columns
from rmq_core.columnar.hashes import hash_keys, hash_spans
from rmq_core.columnar.keys import hash_record_keys
from rmq_core.columnar.scan import Found, find_records, next_record, valid_records
from rmq_core.columnar.schema import COLUMNS, DEFAULT_COLUMNS, row_schema

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "DispatchColumns",
    "Found",
    "decode_records",
    "dispatch_columns",
    "find_records",
    "hash_keys",
    "hash_record_keys",
    "hash_spans",
    "next_record",
    "row_schema",
    "valid_records",
]
