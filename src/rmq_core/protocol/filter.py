"""Tag expressions, and the hash of a tag that stands in every consume-queue entry.

Broker  Compares hashes only: matches_code() may be true for another tag of equal hash.
Client  Compares the tags themselves with matches_tag(), and so drops what the broker let through.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

from rmq_core.errors import RemoteProtocolError

ALL_TAGS = "*"

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
_CHUNK = 64
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(_CHUNK + 1))
# _WEIGHTS[n]: what the n characters of a chunk are multiplied with, first to last.
_WEIGHTS = tuple(tuple(reversed(_POWERS[:length])) for length in range(_CHUNK + 1))
_SPACES = "".join(map(chr, range(0x21)))


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: h = 31 * h + unit over the UTF-16 code units, wrapped to int32."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode("ascii")
    else:
        encoded = text.encode("utf-16-le", "surrogatepass")
        units = struct.unpack(f"<{len(encoded) // 2}H", encoded)
    hashed = 0
    for start in range(0, len(units), _CHUNK):
        chunk = units[start : start + _CHUNK]
        length = len(chunk)
        hashed = (hashed * _POWERS[length] + sum(map(mul, chunk, _WEIGHTS[length]))) & _MASK
    return (hashed ^ _SIGN) - _SIGN


@lru_cache(maxsize=4096)
def tags_code(tag: str) -> int:
    """The hash under which a message with this tag stands in its consume queue; 0 without a tag."""
    return java_string_hash(tag)


def java_trim(text: str) -> str:
    """Java's String.trim: everything up to U+0020 goes, other Unicode spaces stay."""
    return text.strip(_SPACES)


@dataclass(frozen=True, slots=True)
class TagExpression:
    """The tags that a subscription asks for; `text` is `*` where it asks for every message."""

    text: str
    tags: frozenset[str]
    codes: frozenset[int]

    @property
    def matches_all(self) -> bool:
        return self.text == ALL_TAGS

    def matches_code(self, tags_code: int) -> bool:
        """Whether an entry with this tags code may be meant; only the low 32 bits count."""
        return self.text == ALL_TAGS or ((tags_code & _MASK) ^ _SIGN) - _SIGN in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Whether a message with this tag, or with none, is meant."""
        return self.text == ALL_TAGS or tag in self.tags


_EVERYTHING = TagExpression(text=ALL_TAGS, tags=frozenset(), codes=frozenset())


def parse_tags(expression: str | None) -> TagExpression:
    """Read `TagA || TagB`; nothing, an empty text and `*` ask for every message.

    Raises RemoteProtocolError where the text is not empty but names no tag.
    """
    if not expression or expression == ALL_TAGS:
        return _EVERYTHING
    tags = frozenset(filter(None, map(java_trim, expression.split("||"))))
    if not tags:
        raise RemoteProtocolError(f"tag expression {expression[:100]!r} names no tag; write * to get every message")
    return TagExpression(text=expression, tags=tags, codes=frozenset(map(tags_code, tags)))
