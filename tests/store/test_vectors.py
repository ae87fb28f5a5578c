"""Bytes that are known from Java's own code and from the fact sheet, compared with what the store writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_core.clock import ManualClock
from rmq_core.protocol.filter import java_string_hash, tags_code
from rmq_core.protocol.message_id import encode_offset_message_id
from rmq_core.protocol.record import decode_record
from rmq_core.store.index_file import key_hash
from rmq_core.store.message_store import MessageStore
from support.stores import properties, small_settings

RECORD = bytes.fromhex(
    "00000082daa320a73610a6860000000100000000000000000000000700000000"
    "00000400000000000000018bcfe568007f0000010000c3500000018bcfe5687b"
    "7f00000100002a9f0000000000000000000000000000000568656c6c6f06546f"
    "70696341001c54414753015461674102554e49515f4b45590137463030303030"
    "3102"
)
ENTRY = bytes.fromhex("000000000000040000000082000000000027a807")
HOST = b"\x7f\0\0\x01\0\0\xc3\x50"


@pytest.mark.parametrize(
    ("text", "hashed", "indexed", "slot"),
    [
        ("TagA", 2598919, 2598919, 2598919),
        ("TagB", 2598920, 2598920, 2598920),
        ("a||b", 3012833, 3012833, 3012833),
        ("订单", 1129459, 1129459, 1129459),
        ("😀", 1772899, 1772899, 1772899),
        ("TopicA#key1", 641858179, 641858179, 1858179),
        ("TopicTest#7F0000010000", -889979726, 889979726, 4979726),
        ("polygenelubricants", -2147483648, 0, 0),
    ],
)
def test_hashes_are_those_of_java(text: str, hashed: int, indexed: int, slot: int) -> None:
    """Surrogate pairs, negative hashes, and the one without an absolute value."""
    assert java_string_hash(text) == hashed
    assert tags_code(text) == hashed
    if "#" in text:
        topic, _, key = text.partition("#")
        assert key_hash(topic, key) == indexed
        assert key_hash(topic, key) % 5_000_000 == slot


def test_record_entry_and_message_id_are_byte_for_byte_right(tmp_path: Path) -> None:
    """Brings log and queue to the offsets of the sheet's record: 1024 and 7."""
    clock = ManualClock(1_700_000_000_123)
    store = MessageStore(small_settings(tmp_path), clock=clock)
    store.open()
    for number in range(7):
        body = bytes(1024 - store.log.end - 97 if number == 6 else 10)
        store.put("TopicA", 1, body, b"", born_time_ms=0, born_host=HOST)
    assert store.log.end == 1024
    named = properties(TAGS="TagA", UNIQ_KEY="7F000001")
    result = store.put("TopicA", 1, b"hello", named, born_time_ms=1_700_000_000_000, born_host=HOST)
    store.end_pass()
    assert (result.log_offset, result.queue_offset, result.size) == (1024, 7, 130)
    store.close()
    assert (tmp_path / "commitlog" / "0".zfill(20)).read_bytes()[1024 : 1024 + 130] == RECORD
    queue_file = tmp_path / "consumequeue" / "TopicA" / "1" / "0".zfill(20)
    assert queue_file.read_bytes()[140:160] == ENTRY
    record = decode_record(RECORD, verify_crc=True)
    assert encode_offset_message_id(record.store_host.pack(), 1024) == "7F00000100002A9F0000000000000400"


def test_the_crc_over_a_whole_record_has_its_digits_from_behind(tmp_path: Path) -> None:
    """enabledAppendPropCRC, for single messages and batches; the CRC of `hello` is 907060870."""
    from rmq_core.protocol.record import encode_crc_digits, has_valid_record_crc

    assert encode_crc_digits(907060870) == b"0780607090"
    store = MessageStore(small_settings(tmp_path, enabled_append_prop_crc=True), clock=ManualClock())
    store.open()
    store.put("TopicA", 0, b"hello", properties(TAGS="TagA"), born_time_ms=0, born_host=HOST)
    own = properties(KEYS="k")
    message = b"".join(
        (
            (22 + 5 + len(own)).to_bytes(4, "big"),
            bytes(12),
            (5).to_bytes(4, "big"),
            b"hello",
            len(own).to_bytes(2, "big"),
            own,
        )
    )
    batch = store.put_batch("TopicA", 0, message * 3, born_time_ms=0, born_host=HOST)
    store.end_pass()
    for log_offset in (0, *batch.log_offsets):
        view = store.record(log_offset)
        assert view is not None
        assert has_valid_record_crc(view, 0, len(view))
        assert decode_record(view).properties["__CRC32#"].isdigit()
    store.close()
