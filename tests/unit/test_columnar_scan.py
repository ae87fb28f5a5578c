"""Finding records in a buffer, and judging them: numpy and compiled loops against the protocol's own decoder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.columnar import find_records, hash_keys, hash_spans, next_record, valid_records
from rmq_core.protocol.filter import java_string_hash
from rmq_core.protocol.record import MAGIC_BLANK, check_record, encode_blank, encode_record_into, scan_records
from support.records import WAYS, damaged_logs, positions_of, record_bytes, using, whole_logs


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=9, deadline=None)
@given(log=damaged_logs(), data=st.data())
def test_records_are_found_as_the_protocol_scans_them(way: str, log: bytes, data: st.DataObject) -> None:
    """Damages logs anywhere, and starts and ends the walk anywhere."""
    start = data.draw(st.just(0) | st.integers(0, len(log) + 2))
    end = data.draw(st.none() | st.integers(0, len(log) + 2))
    count_max = data.draw(st.none() | st.integers(0, 4))
    limit = len(log) if end is None else min(end, len(log))
    expected = list(scan_records(memoryview(log)[:limit], start))[:count_max]
    with using(way):
        found = find_records(log, start, end, count_max=count_max)
    assert list(zip(found.positions.tolist(), found.sizes.tolist(), strict=True)) == expected
    assert found.stop == (sum(expected[-1]) if expected else start)
    magic = int.from_bytes(log[found.stop + 4 : limit][:4], "big", signed=True)
    assert found.is_blank == (found.stop + 8 <= limit and magic == MAGIC_BLANK)
    assert found.positions.dtype == np.int64
    assert found.sizes.dtype == np.int32


@pytest.mark.parametrize("way", WAYS)
def test_a_log_of_more_records_than_one_step_takes_is_found_whole(way: str) -> None:
    """One record more than a step, and two steps to the record."""
    record = bytearray(91)
    record[:8] = (91).to_bytes(4, "big") + b"\xda\xa3\x20\xa7"
    for count in (65_537, 131_072):
        with using(way):
            found = find_records(bytes(record) * count)
            assert valid_records(bytes(record) * count, found.positions, found.sizes).all()
        assert (found.positions == np.arange(count) * 91).all()
        assert found.stop == count * 91


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15, deadline=None)
@given(
    runs=st.lists(st.tuples(st.sampled_from([91, 92, 200]), st.sampled_from([1, 2, 31, 32, 33, 150])), max_size=6),
    missing=st.integers(0, 200),
    count_max=st.none() | st.integers(0, 300),
)
def test_runs_of_equal_records_are_found_to_their_very_end(
    way: str, runs: list[tuple[int, int]], missing: int, count_max: int | None
) -> None:
    """Runs as long as those that are looked at together, one shorter and one longer, the last record cut."""
    parts = [((size.to_bytes(4, "big") + b"\xda\xa3\x20\xab").ljust(size, b"\1")) * count for size, count in runs]
    log = b"".join(parts)
    log = log[: max(len(log) - missing, 0)]
    expected = list(scan_records(log))[:count_max]
    with using(way):
        found = find_records(log, count_max=count_max)
    assert list(zip(found.positions.tolist(), found.sizes.tolist(), strict=True)) == expected
    assert found.stop == (sum(expected[-1]) if expected else 0)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12, deadline=None)
@given(log=damaged_logs(), data=st.data(), verify_crc=st.booleans())
def test_records_are_valid_where_the_protocol_says_so(
    way: str, log: bytes, data: st.DataObject, verify_crc: bool
) -> None:
    """Asks at every byte of damaged logs, beside them, and with other sizes than the records say."""
    places = [*range(-3, len(log) + 3), -(2**63), 2**63 - 1]
    positions, sizes, expected = [], [], []
    for place in places:
        check = check_record(log, place, verify_body_crc=verify_crc) if 0 <= place <= len(log) else None
        is_valid = check is not None and check.is_valid and check.size > 0
        own = check.size if check is not None and is_valid else 91
        for size in (own, own + data.draw(st.integers(-1, 1))) if is_valid else (own,):
            positions.append(place)
            sizes.append(size)
            expected.append(is_valid and size == own)
    with using(way):
        good = valid_records(log, np.array(positions), np.array(sizes, np.int32), verify_crc=verify_crc)
    assert good.tolist() == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 200, 70_000])
def test_a_body_with_one_other_bit_fails_its_crc(way: str, size: int) -> None:
    """Turns a bit in the first, the middle and the last byte, for each way in which the loop takes its steps."""
    buffer, body = bytearray(91 + size), (bytes(range(256)) * 300)[:size]
    encode_record_into(
        buffer, 0, topic=b"", queue_id=0, queue_offset=0, log_offset=0, body=body, properties=b"",
        born_time_ms=0, born_host=bytes(8), store_time_ms=0, store_host=bytes(8),
    )  # fmt: skip
    at, length = np.zeros(1, np.int64), np.array([len(buffer)], np.int32)
    with using(way):
        assert valid_records(buffer, at, length).all()
        for place in {88, 88 + size // 2, 87 + size} if size else ():
            buffer[place] ^= 4
            assert not valid_records(bytes(buffer), at, length).any()
            assert valid_records(bytes(buffer), at, length, verify_crc=False).all()
            buffer[place] ^= 4


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12, deadline=None)
@given(junk=st.binary(max_size=30), record=record_bytes(log_offset=1000), after=damaged_logs(), data=st.data())
def test_the_next_record_is_the_first_that_knows_its_place(
    way: str, junk: bytes, record: bytes, after: bytes, data: st.DataObject
) -> None:
    """Puts bytes before and behind a record, and tries every place one by one."""
    log = junk + record + after
    base = 1000 - len(junk)
    position = data.draw(st.integers(0, len(junk) + 1))
    end = data.draw(st.none() | st.integers(0, len(log)))
    view = memoryview(log)[:end]

    def is_one(at: int) -> bool:
        check = check_record(view, at)
        knows = int.from_bytes(view[at + 28 : at + 36], "big", signed=True) == base + at
        return check.is_valid and check.size > 0 and knows

    expected = next((at for at in range(position, len(view)) if is_one(at)), -1)
    with using(way):
        assert next_record(log, position, base=base, end=end) == expected


def test_nothing_is_found_in_nothing() -> None:
    """An empty buffer, and a blank record alone."""
    for way in WAYS:
        with using(way):
            assert find_records(b"").stop == 0
            assert find_records(encode_blank(8)).is_blank
            assert not len(valid_records(b"", np.zeros(0, np.int64), np.zeros(0, np.int32)))
            assert not valid_records(b"", np.zeros(1, np.int64), np.full(1, 91, np.int32)).any()


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=9, deadline=None)
@given(texts=st.lists(st.text(max_size=20) | st.text("abc", max_size=90), max_size=40))
def test_texts_have_the_hash_that_java_gives_them(way: str, texts: list[str]) -> None:
    """Mixes lengths and scripts, more and fewer of a length than are hashed together."""
    with using(way):
        assert hash_keys([text.encode() for text in texts]).tolist() == [java_string_hash(text) for text in texts]


@pytest.mark.parametrize("way", WAYS)
def test_spans_go_on_with_a_hash_and_must_be_inside_the_buffer(way: str) -> None:
    """Asks for spans that begin before, end behind, or are no span."""
    with using(way):
        prefix = np.array([java_string_hash("Orders#")], np.int32)
        hashes, is_other = hash_spans(b"..key..", np.array([2]), np.array([3]), prefix)
        assert hashes.tolist() == [java_string_hash("Orders#key")]
        assert not is_other.any()
        assert prefix.tolist() == [java_string_hash("Orders#")]
        for start, size in ((-1, 2), (5, 3), (0, -1), (2**62, 1), (1, 2**63 - 1)):
            with pytest.raises(ValueError, match="not inside"):
                hash_spans(b"..key..", np.array([start]), np.array([size]), prefix)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=5, deadline=None)
@given(log=whole_logs())
def test_any_kind_of_buffer_will_do(way: str, log: bytes) -> None:
    """Views, writable ones too, give what bytes give."""
    with using(way):
        for buffer in (log, bytearray(log), memoryview(log), memoryview(bytearray(log))):
            found = find_records(buffer)
            assert found.positions.tolist() == positions_of(log)
            assert valid_records(buffer, found.positions, found.sizes).all()
