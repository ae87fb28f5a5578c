"""Offset message ids and unique keys."""

from __future__ import annotations

import contextlib
import functools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol.message_id import (
    OffsetMessageId,
    UniqueKeyFactory,
    decode_offset_message_id,
    decode_unique_key,
    encode_offset_message_id,
    month_range_ms,
)
from rmq_core.protocol.record import Host

HOUR_MS = 3_600_000


def at(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("0A00000200002A9F0000000000001000", OffsetMessageId("10.0.0.2", 10911, 4096)),
        ("7F00000100002A9F0000000000000400", OffsetMessageId("127.0.0.1", 10911, 1024)),
        ("20010DB800000000000000000000000100002A9F0000000000000400", OffsetMessageId("2001:db8::1", 10911, 1024)),
    ],
)
def test_offset_message_ids_are_those_of_apache(text: str, identity: OffsetMessageId) -> None:
    """Both address families, both directions, and digits in lower case."""
    assert str(identity) == text
    assert decode_offset_message_id(text) == identity
    assert decode_offset_message_id(text.lower()) == identity
    assert encode_offset_message_id(Host.of(identity.host, identity.port).pack(), identity.log_offset) == text


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_message_ids_survive_the_round_trip(ip: object, port: int, log_offset: int) -> None:
    """Any address."""
    identity = OffsetMessageId(str(ip), port, log_offset)
    assert decode_offset_message_id(str(identity)) == identity


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF ", min_size=32, max_size=32))
def test_other_text_is_no_offset_message_id(text: str) -> None:
    """Blanks between digits are the trap: hex readers skip them."""
    with contextlib.suppress(RemoteProtocolError):
        assert str(decode_offset_message_id(text)) == text.upper()


@pytest.mark.parametrize(
    "text", ["7F000001FFFFFFFF0000000000000400", "7F00000100002A9FFFFFFFFFFFFFFFFF", "7F0000 1" * 4]
)
def test_ports_and_offsets_that_cannot_be_are_refused(text: str) -> None:
    """Negative in their signed fields."""
    with pytest.raises(RemoteProtocolError):
        decode_offset_message_id(text)


def test_an_identity_without_text_says_so() -> None:
    """A host name instead of an address."""
    with pytest.raises(LocalProtocolError, match="localhost"):
        str(OffsetMessageId("localhost", 1, 1))


# Unique keys


def factory(*, counter: int = 0, utc_offset_ms: int = 0, ip: bytes = b"\x7f\0\0\1") -> UniqueKeyFactory:
    return UniqueKeyFactory(
        ip=ip,
        pid=0x15180,
        hash_bytes=bytes.fromhex("5FFD2B27"),
        month_range_ms=functools.partial(month_range_ms, utc_offset_ms=utc_offset_ms),
        counter=counter,
    )


def test_unique_keys_have_apaches_layout() -> None:
    """Address, 16 bits of the process id, hash, time, counter; the counter wraps at 16 bits."""
    keys = factory(counter=0xFFFF)
    assert keys.next(at(2026, 11, 1) + 0x1234) == "7F00000151805FFD2B2700001234FFFF"
    assert keys.next(at(2026, 11, 1) + 0x1234) == "7F00000151805FFD2B27000012340000"
    assert len(factory(ip=bytes(16)).next(0)) == 56


def test_late_in_a_long_month_the_time_still_fits() -> None:
    """31 days are more milliseconds than a signed 32-bit number holds."""
    now_ms = at(2026, 12, 31, 23, 59, 59)
    decoded = decode_unique_key(factory().next(now_ms), near_ms=now_ms)
    assert decoded is not None
    assert decoded.time_ms == now_ms


def test_the_time_starts_anew_with_each_month() -> None:
    """Over the end of a year, and with a clock that steps back a little and a lot."""
    keys, new_year_ms = factory(), at(2027, 1, 1)
    assert keys.next(new_year_ms - 1)[20:28] == f"{31 * 24 * HOUR_MS - 1:08X}"
    assert keys.next(new_year_ms)[20:28] == "00000000"
    assert keys.next(new_year_ms - 999_999)[20:28] == "00000000"
    assert keys.next(new_year_ms - 1_000_000)[20:28] == f"{31 * 24 * HOUR_MS - 1_000_000:08X}"


@given(
    st.integers(at(2000, 1, 1), at(2100, 1, 1)),
    st.integers(0, 27 * 24 * HOUR_MS),
    st.integers(-14, 14).map(lambda hours: hours * HOUR_MS),
    st.integers(0, 0xFFFF),
)
def test_a_unique_key_tells_when_it_was_made(made_ms: int, age_ms: int, utc_offset_ms: int, counter: int) -> None:
    """Read up to 27 days later, in any time zone, so that the month has often changed between."""
    text = factory(counter=counter, utc_offset_ms=utc_offset_ms).next(made_ms)
    decoded = decode_unique_key(text, near_ms=made_ms + age_ms, utc_offset_ms=utc_offset_ms)
    assert decoded is not None
    assert (decoded.ip, decoded.pid, decoded.counter) == ("127.0.0.1", 0x5180, counter)
    assert decoded.time_ms == made_ms


def test_the_go_clients_lower_case_tail_is_read() -> None:
    """Upper-case prefix, lower-case time and counter."""
    decoded = decode_unique_key("7F00000151805FFD2B270000abcd00ef", near_ms=at(2026, 11, 18))
    assert decoded is not None
    assert (decoded.time_ms, decoded.counter) == (at(2026, 11, 1) + 0xABCD, 0xEF)


@pytest.mark.parametrize("text", ["", "order-42", "7F" * 15, "7F" * 17, "7F 0" * 8, "G" * 32, "７" * 32])
def test_another_kind_of_key_tells_nothing(text: str) -> None:
    """Users may set any text."""
    assert decode_unique_key(text, near_ms=0) is None


@given(st.text("0123456789abcdefABCDEF", min_size=32, max_size=32), st.integers(-(2**63), 2**63 - 1))
def test_no_moment_makes_a_unique_key_fail(text: str, near_ms: int) -> None:
    """Times from records can be anything, also outside the calendar."""
    decode_unique_key(text, near_ms=near_ms)
