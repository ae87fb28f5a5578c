"""The codecs written by hand against the declarations."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rmq_core.protocol import layouts
from rmq_core.protocol.command import Command, HeaderEncoding, encode_command
from rmq_core.protocol.record import (
    MAGIC_V1,
    BatchRecord,
    StoredRecord,
    decode_batch,
    encode_batch,
    encode_blank,
    encode_record,
)
from unit.test_batch_codec import batches
from unit.test_record import stored_records

field_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)

# Frames of Apache's: GET_MAX_OFFSET and its answer, with binary headers.
BINARY_REQUEST = bytes.fromhex(
    "0000004e0100004a001e0001df000000070000000000000000000000350007717565756549640000000131"
    "0009636f6d6d69747465640000000474727565"
    "0005746f70696300000009546f70696354657374"
)
BINARY_ANSWER = bytes.fromhex(
    "000000270100002300000001df0000000700000001000000000000000e00066f6666736574000000023432"
)


@given(stored_records())
def test_the_record_codec_agrees_with_its_declaration(record: StoredRecord) -> None:
    """Every field, both versions, both address families; and the declaration builds the same bytes."""
    layout = layouts.RECORD_V1 if record.magic == MAGIC_V1 else layouts.RECORD_V2
    encoded = encode_record(record)
    declared = layout.parse(encoded)
    for name in ("size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "log_offset", "sys_flag",
                 "born_time_ms", "store_time_ms", "reconsume_times", "prepared_transaction_offset", "body",
                 "property_bytes"):  # fmt: skip
        assert declared[name] == getattr(record, name)
    assert declared.topic == record.topic.encode()
    assert (declared.born_host.ip, declared.born_host.port) == record.born_host
    assert (declared.store_host.ip, declared.store_host.port) == record.store_host
    assert layout.build(declared) == encoded


@given(st.integers(8, 2**31 - 1))
def test_the_blank_codec_agrees_with_its_declaration(size: int) -> None:
    """Any size a segment may have left."""
    declared = layouts.BLANK_RECORD.parse(encode_blank(size))
    assert (declared.size, declared.remainder_size) == (size, size - 8)
    assert layouts.BLANK_RECORD.build({"size": size}) == encode_blank(size)


@given(batches)
def test_the_batch_codec_agrees_with_its_declaration(records: list[BatchRecord]) -> None:
    """Built by each and read by the other."""
    encoded = encode_batch(records)
    declared = layouts.BATCH.parse(encoded)
    assert [BatchRecord(d.flag, d.body, d.properties) for d in declared] == records
    built = layouts.BATCH.build([{"flag": x.flag, "body": x.body, "properties": x.properties} for x in records])
    assert built == encoded
    assert decode_batch(built) == records


def test_the_frame_vectors_follow_their_declaration() -> None:
    """Read to the last field and built again."""
    request = layouts.FRAME.parse(BINARY_REQUEST)
    header = layouts.BINARY_HEADER.parse(request.header)
    assert (request.encoding, header.code, header.version, header.opaque, request.body) == (1, 30, 479, 7, b"")
    assert pairs(header) == {b"queueId": b"1", b"committed": b"true", b"topic": b"TopicTest"}
    answer = layouts.BINARY_HEADER.parse(layouts.FRAME.parse(BINARY_ANSWER).header)
    assert (answer.flag, pairs(answer)) == (1, {b"offset": b"42"})
    for frame in (BINARY_REQUEST, BINARY_ANSWER):
        declared = layouts.FRAME.parse(frame)
        rebuilt = layouts.BINARY_HEADER.build(layouts.BINARY_HEADER.parse(declared.header))
        assert layouts.FRAME.build({"encoding": 1, "header": rebuilt, "body": b""}) == frame


@given(
    st.tuples(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.dictionaries(field_text, field_text, max_size=4),
    st.binary(max_size=40),
    st.sampled_from(HeaderEncoding),
)
def test_the_frame_codec_agrees_with_its_declaration(
    numbers: tuple[int, int], remark: str, ext: dict[str, str], body: bytes, encoding: HeaderEncoding
) -> None:
    """Both header encodings; every field of the binary one."""
    code, opaque = numbers
    frame = encode_command(Command(code, opaque, remark=remark, ext=ext, body=body, encoding=encoding))
    declared = layouts.FRAME.parse(frame)
    assert (declared.encoding, declared.body) == (encoding, body)
    assert layouts.FRAME.build(declared) == frame
    if encoding is HeaderEncoding.JSON:
        assert json.loads(layouts.JSON_HEADER.parse(declared.header))["opaque"] == opaque
    else:
        header = layouts.BINARY_HEADER.parse(declared.header)
        assert (header.code, header.opaque, header.remark.decode()) == (code, opaque, remark)
        assert {name.decode(): value.decode() for name, value in pairs(header).items()} == ext
        assert layouts.BINARY_HEADER.build(header) == declared.header


def pairs(header: Any) -> dict[bytes, bytes]:
    return {entry.name: entry.value for entry in header.ext}
