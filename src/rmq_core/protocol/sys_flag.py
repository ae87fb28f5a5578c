"""The bits of a message's system flag, in send headers and in stored records alike."""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20

NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

COMPRESSION_TYPE_SHIFT: Final = 8
COMPRESSION_TYPE_MASK: Final = 0x700


def transaction_type(sys_flag: int) -> int:
    """One of the TRANSACTION_ values."""
    return sys_flag & TRANSACTION_MASK


def with_transaction_type(sys_flag: int, kind: int) -> int:
    """The same flag with its transaction bits replaced by `kind`."""
    return sys_flag & ~TRANSACTION_MASK | kind
