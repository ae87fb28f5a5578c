"""Stored records: encode, decode, check, scan."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol import record as r
from rmq_core.protocol.message import decode_properties
from rmq_core.protocol.record import Host, RecordCheck, StoredRecord

ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), ints)
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text(
    "abc%_-", min_size=100, max_size=255
)

APACHE_PULLED = bytes.fromhex(
    "00000070daa320a758932aac000000010000000000000000000000070000000000001000000000000000018bcfe56800"
    "0a0000010000c3500000018bcfe568010a00000200002a9f0000000000000000000000000000000268690954"
    "6f70696354657374000a54414753015461674102"
)
SAMPLE = bytes.fromhex(
    "00000082daa320a73610a6860000000100000000000000000000000700000000"
    "00000400000000000000018bcfe568007f0000010000c3500000018bcfe5687b"
    "7f00000100002a9f0000000000000000000000000000000568656c6c6f06546f"
    "70696341001c54414753015461674102554e49515f4b45590137463030303030"
    "3102"
)
SAMPLE_RECORD = StoredRecord(
    topic="TopicA",
    queue_id=1,
    queue_offset=7,
    log_offset=1024,
    body=b"hello",
    property_bytes=b"TAGS\x01TagA\x02UNIQ_KEY\x017F000001\x02",
    born_time_ms=1700000000000,
    born_host=Host.of("127.0.0.1", 50000),
    store_time_ms=1700000000123,
    store_host=Host.of("127.0.0.1", 10911),
    body_crc=0x3610A686,
    size=130,
)


@st.composite
def stored_records(draw: st.DrawFn) -> StoredRecord:
    """Any record that can be written, with the fields a writer derives already right."""
    born_host, store_host, topic = draw(hosts), draw(hosts), draw(topics)
    body, property_bytes = draw(st.binary(max_size=60)), draw(st.binary(max_size=60))
    topic_size = len(topic.encode())
    magic = r.MAGIC_V2 if topic_size > 127 else draw(st.sampled_from([r.MAGIC_V1, r.MAGIC_V2]))
    v6_bits = (0x10 if len(born_host.ip) == 16 else 0) | (0x20 if len(store_host.ip) == 16 else 0)
    return StoredRecord(
        topic=topic,
        queue_id=draw(ints),
        queue_offset=draw(longs),
        log_offset=draw(longs),
        body=body,
        property_bytes=property_bytes,
        born_time_ms=draw(longs),
        born_host=born_host,
        store_time_ms=draw(longs),
        store_host=store_host,
        flag=draw(ints),
        sys_flag=draw(ints) & ~0x30 | v6_bits,
        reconsume_times=draw(ints),
        prepared_transaction_offset=draw(longs),
        body_crc=zlib.crc32(body) & r.CRC_MASK,
        magic=magic,
        size=r.record_size(
            body_size=len(body),
            topic_size=topic_size,
            properties_size=len(property_bytes),
            host_sizes=len(born_host.ip) + len(store_host.ip) + 8,
            magic=magic,
        ),
    )


def test_the_record_of_the_store_vector() -> None:
    """Field by field, and back to the same bytes."""
    assert r.decode_record(SAMPLE, verify_crc=True) == SAMPLE_RECORD
    assert r.encode_record(SAMPLE_RECORD) == SAMPLE
    assert r.check_record(SAMPLE) == RecordCheck(130, True)
    assert SAMPLE_RECORD.properties == {"TAGS": "TagA", "UNIQ_KEY": "7F000001"}
    assert SAMPLE_RECORD.properties is SAMPLE_RECORD.properties


def test_the_record_of_the_pull_vector() -> None:
    """112 bytes as a pull returns them."""
    record = r.decode_record(APACHE_PULLED, verify_crc=True)
    assert (record.topic, record.body, record.properties) == ("TopicTest", b"hi", {"TAGS": "TagA"})
    assert (str(record.born_host), str(record.store_host)) == ("10.0.0.1:50000", "10.0.0.2:10911")
    assert (record.queue_id, record.queue_offset, record.log_offset, record.size) == (1, 7, 4096, 112)
    assert r.encode_record(record) == APACHE_PULLED


def test_hosts_are_written_as_people_read_them() -> None:
    """Brackets around IPv6."""
    assert str(Host.of("::1", 80)) == "[::1]:80"
    assert Host.of("127.0.0.1", 80).pack().hex() == "7f00000100000050"


@given(stored_records())
def test_records_survive_the_round_trip(record: StoredRecord) -> None:
    """Both versions, four pairs of address families, extreme numbers, any bytes in body and properties."""
    encoded = r.encode_record(record)
    assert len(encoded) == record.size
    for buffer in (encoded, bytearray(encoded), memoryview(encoded)):
        assert r.decode_record(buffer, verify_crc=True) == record
        assert r.check_record(buffer) == RecordCheck(record.size, True)


@given(stored_records(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_is_read_wherever_it_lies(record: StoredRecord, before: bytes, after: bytes) -> None:
    """Other bytes on both sides."""
    buffer = before + r.encode_record(record) + after
    assert r.decode_record(buffer, len(before)) == record
    assert r.check_record(buffer, len(before)) == RecordCheck(record.size, True)


@settings(max_examples=15)
@given(stored_records())
def test_a_record_cut_anywhere_is_refused(record: StoredRecord) -> None:
    """Every length from nothing to one byte less; nothing else is raised."""
    encoded = r.encode_record(record)
    for size in range(len(encoded)):
        with pytest.raises(RemoteProtocolError):
            r.decode_record(encoded[:size])
        assert not r.check_record(encoded[:size]).is_valid
        assert r.decode_pull_body(encoded[:size]) == []


@given(stored_records(), st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_records_give_a_value_or_the_named_error(
    record: StoredRecord, changes: list[tuple[int, int]]
) -> None:
    """A few changed bytes anywhere; checking and scanning never raise at all."""
    damaged = bytearray(r.encode_record(record))
    for where, change in changes:
        damaged[where % len(damaged)] ^= change
    read_every_way(damaged)


@given(st.binary(max_size=200))
def test_random_bytes_give_a_value_or_the_named_error(noise: bytes) -> None:
    """Alone, and behind a head that says they are a record of that size."""
    read_every_way(noise)
    for magic in (r.MAGIC_V1, r.MAGIC_V2, r.MAGIC_BLANK):
        read_every_way(len(noise).to_bytes(4, "big") + magic.to_bytes(4, "big", signed=True) + noise[8:])


def read_every_way(buffer: bytes | bytearray) -> None:
    try:
        decoded = r.decode_record(buffer)
    except RemoteProtocolError:
        decoded = None
    if decoded is not None:
        assert decoded.size <= len(buffer)
        assert isinstance(decoded.properties, dict)
    for verify_record_crc in (False, True):
        assert r.check_record(buffer, verify_record_crc=verify_record_crc).size <= len(buffer)
    for position, size in r.scan_records(buffer):
        assert 0 < size <= len(buffer) - position
    r.decode_pull_body(buffer)


def test_a_torn_write_is_found() -> None:
    """Zeros where the rest of the record should be, from any byte up to the end of the body."""
    for size in range(88 + 5):
        assert not r.check_record(SAMPLE[:size] + bytes(len(SAMPLE) - size)).is_valid


def test_a_changed_body_fails_its_crc() -> None:
    """One bit of the body; readers who do not ask for the check still get it."""
    damaged = bytearray(SAMPLE)
    damaged[88] ^= 1
    with pytest.raises(RemoteProtocolError, match="CRC"):
        r.decode_record(damaged, verify_crc=True)
    assert r.decode_record(damaged).body == b"iello"
    assert r.check_record(damaged) == RecordCheck(-1, False)
    assert r.check_record(damaged, verify_body_crc=False) == RecordCheck(130, True)


def test_a_record_whose_lengths_disagree_is_reported_with_its_size() -> None:
    """Two bytes more than its parts; recovery takes it for half a message."""
    damaged = bytearray(SAMPLE + b"\0\0")
    damaged[3] += 2
    assert r.check_record(damaged) == RecordCheck(132, False)
    with pytest.raises(RemoteProtocolError, match="132"):
        r.decode_record(damaged)


def test_the_end_of_a_segment_is_no_error() -> None:
    """A blank record, whatever its remainder; zeros and a head cut short are errors."""
    blank = r.encode_blank(100)
    assert blank.hex() == "00000064cbd43194"
    assert r.check_record(blank + bytes(92)) == RecordCheck(0, True)
    assert not r.check_record(bytes(100)).is_valid
    assert not r.check_record(blank[:7]).is_valid
    with pytest.raises(RemoteProtocolError, match="0xcbd43194"):
        r.decode_record(blank + bytes(92))


def test_negative_lengths_mean_nothing_there() -> None:
    """Apache reads a body or properties of negative size as none; a topic of more than 127 bytes is damage."""
    empty = r.encode_record(dataclasses.replace(SAMPLE_RECORD, body=b"", property_bytes=b"", body_crc=0))
    negative = bytearray(empty)
    negative[84:88] = b"\xff\xff\xff\xff"
    negative[-2:] = b"\xff\xff"
    assert r.check_record(negative) == RecordCheck(len(empty), True)
    assert r.decode_record(negative).body == b""
    negative[88] = 200
    assert not r.check_record(negative + bytes(300)).is_valid


@given(st.lists(stored_records(), max_size=5), st.binary(max_size=100))
def test_records_in_a_row_are_found_up_to_the_first_that_is_none(records: list[StoredRecord], rest: bytes) -> None:
    """Followed by a blank record and noise."""
    encoded = [r.encode_record(record) for record in records]
    buffer = b"".join(encoded) + r.encode_blank(8 + len(rest)) + rest
    positions = [sum(map(len, encoded[:number])) for number in range(len(encoded))]
    assert list(r.scan_records(buffer)) == [(p, len(e)) for p, e in zip(positions, encoded, strict=True)]
    assert r.decode_pull_body(buffer) == records


def test_a_pull_body_ends_at_the_first_record_that_cannot_be_decoded() -> None:
    """The second of three has a wrong topic length; its size still leads to the third."""
    damaged = bytearray(SAMPLE * 3)
    damaged[130 + 93] ^= 1
    assert len(list(r.scan_records(damaged))) == 3
    assert r.decode_pull_body(damaged) == [SAMPLE_RECORD]


@pytest.mark.parametrize(
    "change",
    [
        {"queue_id": 2**31},
        {"queue_offset": -(2**63) - 1},
        {"properties": bytes(32768)},
        {"topic": bytes(32768)},
        {"born_host": b"\x7f\0\0\1"},
        {"body": bytes(70_000)},
    ],
)
def test_what_does_not_fit_is_not_written(change: dict[str, Any]) -> None:
    """Numbers out of range, lengths beyond their fields, a host without port, a record beyond the buffer."""
    fields: dict[str, Any] = {
        "topic": b"T",
        "queue_id": 0,
        "queue_offset": 0,
        "log_offset": 0,
        "body": b"",
        "properties": b"",
        "born_time_ms": 0,
        "born_host": bytes(8),
        "store_time_ms": 0,
        "store_host": bytes(8),
    }
    with pytest.raises(LocalProtocolError):
        r.encode_record_into(bytearray(70_000), 0, **(fields | change))


def test_a_writer_needs_no_crc_and_no_host_bits() -> None:
    """They are derived; wrong bits in the flag do not lead a reader astray."""
    buffer = bytearray(200)
    end = r.encode_record_into(
        memoryview(buffer),
        50,
        topic=b"TopicA",
        queue_id=1,
        queue_offset=7,
        log_offset=1024,
        body=b"hello",
        properties=SAMPLE_RECORD.property_bytes,
        born_time_ms=1700000000000,
        born_host=SAMPLE_RECORD.born_host.pack(),
        store_time_ms=1700000000123,
        store_host=SAMPLE_RECORD.store_host.pack(),
        sys_flag=0x30,
    )
    assert bytes(buffer[50:end]) == SAMPLE
    assert not any(buffer[:50])
    assert not any(buffer[end:])


# The CRC over a whole record


def test_crc_digits_are_those_of_the_vector() -> None:
    """The least significant digit first."""
    assert zlib.crc32(b"hello") & r.CRC_MASK == 907060870
    assert r.encode_crc_digits(907060870) == b"0780607090"


@pytest.mark.parametrize(
    "properties", [b"", b"A\x01B", b"A\x01B\x02", b"__CRC32#\x01123\x02A\x01B\x02", b"A\x01B\x02__CRC32#\x011"]
)
def test_the_whole_record_can_carry_a_crc(properties: bytes) -> None:
    """With and without separator, and with an older CRC to be replaced; any changed byte is found."""
    reserved = r.reserve_record_crc(properties)
    record = dataclasses.replace(SAMPLE_RECORD, property_bytes=reserved)
    buffer = bytearray(r.encode_record(record))
    r.stamp_record_crc(buffer, 0, len(buffer))
    assert r.check_record(buffer, verify_record_crc=True) == RecordCheck(len(buffer), True)
    stamped = r.decode_record(buffer).property_bytes
    assert stamped.count(b"__CRC32#") == 1
    assert decode_properties(stamped[:-20]) == ({"A": "B"} if properties else {})
    for where in range(len(buffer)):
        buffer[where] ^= 1
        assert not r.check_record(buffer, verify_record_crc=True).is_valid
        buffer[where] ^= 1


def test_a_record_without_a_crc_fails_where_one_is_demanded() -> None:
    """The ordinary vector."""
    assert not r.check_record(SAMPLE, verify_record_crc=True).is_valid
