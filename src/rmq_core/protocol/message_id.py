"""The two identities of a message.

Offset message id   Given by the broker: where the message is stored. Hex of address, port and log_offset.
Unique key          Given by the client before the first attempt: hex of address, process, loader hash, time within
                    the month, counter. Brokers take any text here, so what does not look like one is no error.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from rmq_core.errors import LocalProtocolError, RemoteProtocolError

_TAIL: Final = struct.Struct(">iq")
# Judged before bytes.fromhex(), which skips blanks: IPv4 has 32 digits in both kinds of id, IPv6 has 56.
_DIGITS: Final = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_CLOCK_STEP_MAX_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class OffsetMessageId:
    """Broker address and log_offset of a stored message. `str()` gives its text."""

    host: str
    port: int
    log_offset: int

    def __str__(self) -> str:
        try:
            ip = ipaddress.ip_address(self.host).packed
            return encode_offset_message_id(ip + self.port.to_bytes(4, "big"), self.log_offset)
        except (ValueError, OverflowError, struct.error) as error:
            raise LocalProtocolError(f"no message id for {self!r}: {error}") from error


def encode_offset_message_id(store_host: bytes, log_offset: int) -> str:
    """The text for a store host as a record holds it: 4 or 16 address bytes, then the port in 4."""
    return f"{store_host.hex().upper()}{log_offset:016X}"


def decode_offset_message_id(text: str) -> OffsetMessageId:
    """Where the message is stored. Raises RemoteProtocolError if the text is no offset message id."""
    if not _DIGITS.fullmatch(text):
        raise RemoteProtocolError(f"not an offset message id: {text[:64]!r}")
    raw = bytes.fromhex(text)
    port, log_offset = _TAIL.unpack_from(raw, len(raw) - _TAIL.size)
    if not 0 <= port <= 0xFFFF or log_offset < 0:
        raise RemoteProtocolError(f"port or offset out of range in message id {text}")
    return OffsetMessageId(str(ipaddress.ip_address(raw[: -_TAIL.size])), port, log_offset)


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """What a unique key tells about its making."""

    ip: str
    pid: int
    time_ms: int
    counter: int


class UniqueKeyFactory:
    """Makes unique keys as Apache's clients do. Safe to use from many threads.

    `month_range_ms` gives start and end of the month, in local time, that a moment lies in.
    """

    def __init__(
        self,
        *,
        ip: bytes,
        pid: int,
        hash_bytes: bytes,
        month_range_ms: Callable[[int], tuple[int, int]],
        counter: int = 0,
    ) -> None:
        if len(ip) not in (4, 16) or len(hash_bytes) != 4:
            raise ValueError("a unique key needs 4 or 16 address bytes and 4 hash bytes")
        self._prefix = (ip + (pid & 0xFFFF).to_bytes(2, "big") + hash_bytes).hex().upper()
        self._month_range_ms = month_range_ms
        self._month = (0, 0)
        self._counter = itertools.count(counter)

    def next(self, now_ms: int) -> str:
        """A key that this factory gives once in 65,536 keys of one millisecond."""
        start, end = self._month
        if not start - _CLOCK_STEP_MAX_MS < now_ms < end:
            start, end = self._month = self._month_range_ms(now_ms)
        # A clock that stepped back a little over the start of the month counts as the start itself.
        elapsed_ms = max(now_ms - start, 0) & 0xFFFFFFFF
        return f"{self._prefix}{elapsed_ms:08X}{next(self._counter) & 0xFFFF:04X}"


def month_range_ms(moment_ms: int, *, utc_offset_ms: int = 0) -> tuple[int, int]:
    """Start and end of the month that a moment lies in, where clocks are utc_offset_ms ahead of UTC.

    Raises OverflowError for a moment outside the calendar.
    """
    local = _EPOCH + timedelta(milliseconds=moment_ms + utc_offset_ms)
    start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (start + timedelta(days=31)).replace(day=1)
    return (start - _EPOCH) // _MILLISECOND - utc_offset_ms, (end - _EPOCH) // _MILLISECOND - utc_offset_ms


def decode_unique_key(text: str, *, near_ms: int, utc_offset_ms: int = 0) -> UniqueKey | None:
    """What the key tells if it was made within the month before near_ms; None for any other kind of text."""
    if not _DIGITS.fullmatch(text):
        return None
    raw = bytes.fromhex(text)
    ip_size = len(raw) - 12
    elapsed_ms = int.from_bytes(raw[-6:-2], "big")
    try:
        start, _ = month_range_ms(near_ms, utc_offset_ms=utc_offset_ms)
        if start + elapsed_ms > near_ms:
            start, _ = month_range_ms(start - 1, utc_offset_ms=utc_offset_ms)
    except OverflowError:
        return None
    return UniqueKey(
        ip=str(ipaddress.ip_address(raw[:ip_size])),
        pid=int.from_bytes(raw[ip_size : ip_size + 2], "big"),
        time_ms=start + elapsed_ms,
        counter=int.from_bytes(raw[-2:], "big"),
    )
