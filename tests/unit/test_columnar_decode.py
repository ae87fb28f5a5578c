"""Columns of records, for rows and for dispatch: numpy and compiled loops against the protocol's own decoder."""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.columnar import (
    COLUMNS,
    DEFAULT_COLUMNS,
    decode_records,
    dispatch_columns,
    hash_record_keys,
    row_schema,
)
from rmq_core.columnar import gather as gathering
from rmq_core.errors import CorruptRecordError, RemoteProtocolError, RocketMQError
from rmq_core.protocol.compression import decompress_body
from rmq_core.protocol.filter import java_string_hash, tags_code
from rmq_core.protocol.message import find_property
from rmq_core.protocol.record import StoredRecord, decode_record, encode_record_into
from support.records import NAMES, WAYS, damaged_logs, positions_of, property_bytes, using, whole_logs

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
YEAR_1_MS = -62_135_596_800_000
YEAR_10000_MS = 253_402_300_800_000


def record(
    *, properties: bytes = b"", body: bytes = b"body", sys_flag: int = 0, topic: bytes = b"Orders", time_ms: int = 0
) -> bytes:
    """A plain record."""
    buffer = bytearray(91 + len(body) + len(topic) + len(properties))
    encode_record_into(
        buffer, 0, topic=topic, queue_id=1, queue_offset=2, log_offset=3, body=body, properties=properties,
        born_time_ms=time_ms, born_host=bytes(8), store_time_ms=time_ms, store_host=bytes(8), sys_flag=sys_flag,
    )  # fmt: skip
    return bytes(buffer)


def time_of(time_ms: int) -> datetime.datetime | None:
    is_time = YEAR_1_MS <= time_ms < YEAR_10000_MS
    return EPOCH + datetime.timedelta(milliseconds=time_ms) if is_time else None


def row_of(stored: StoredRecord, broker: str | None) -> dict[str, Any]:
    """The row of one record, by the protocol's decoder and the rules for rows."""
    properties = stored.properties
    try:
        body = decompress_body(stored.body, stored.sys_flag)
    except RocketMQError:
        body = stored.body
    offset_msg_id = (stored.store_host.pack() + stored.log_offset.to_bytes(8, "big", signed=True)).hex().upper()
    return {
        "topic": stored.topic,
        "broker": broker,
        "queueId": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "body": body,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "msgId": properties.get("UNIQ_KEY", offset_msg_id),
        "bornTimestamp": time_of(stored.born_time_ms),
        "storeTimestamp": time_of(stored.store_time_ms),
        "properties": properties,
        "offsetMsgId": offset_msg_id,
        "bornHost": str(stored.born_host),
        "storeHost": str(stored.store_host),
        "sysFlag": stored.sys_flag,
        "flag": stored.flag,
        "reconsumeTimes": stored.reconsume_times,
        "bodyCrc": stored.body_crc,
        "commitLogOffset": stored.log_offset,
        "storeSize": stored.size,
        "preparedTransactionOffset": stored.prepared_transaction_offset,
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{**row, "properties": dict(row["properties"])} for row in batch.to_pylist()]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15, deadline=None)
@given(log=whole_logs(), data=st.data())
def test_every_column_is_what_the_protocol_decodes(way: str, log: bytes, data: st.DataObject) -> None:
    """Any good records, in any order and more than once, at the very end of the buffer too."""
    positions = data.draw(st.lists(st.sampled_from(positions_of(log)), min_size=1, max_size=8))
    broker = data.draw(st.none() | st.just("broker-a"))
    with using(way):
        batch = decode_records(log, positions, columns="all", broker=broker)
    batch.validate(full=True)
    assert rows_of(batch) == [row_of(decode_record(log, position), broker) for position in positions]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=18, deadline=None)
@given(log=damaged_logs(), data=st.data())
def test_damaged_records_are_refused_and_all_others_decoded(way: str, log: bytes, data: st.DataObject) -> None:
    """Any position of damaged bytes: there is a row exactly where the protocol's decoder gives a record."""
    position = data.draw(st.sampled_from([*positions_of(log), 0]) | st.integers(-2, len(log) + 1))
    try:
        if position < 0:
            raise RemoteProtocolError("no record stands before the buffer")
        expected = row_of(decode_record(log, position), None)
    except RemoteProtocolError:
        with using(way):
            with pytest.raises(CorruptRecordError) as raised:
                decode_records(log, [position], base=1000)
            with pytest.raises(CorruptRecordError):
                dispatch_columns(log, np.array([position]))
        assert raised.value.log_offset == 1000 + position
    else:
        with using(way):
            assert rows_of(decode_records(log, [position], columns="all")) == [expected]


def assert_dispatch(log: bytes, positions: list[int], columns: Any) -> None:
    for row, position in enumerate(positions):
        stored = decode_record(log, position)
        for starts, sizes, name in (
            (columns.uniq_key_starts, columns.uniq_key_sizes, b"UNIQ_KEY"),
            (columns.keys_starts, columns.keys_sizes, b"KEYS"),
        ):
            value = find_property(stored.property_bytes, name)
            if value is None:
                assert (starts[row], sizes[row]) == (-1, 0)
            else:
                assert log[starts[row] : starts[row] + sizes[row]] == value
        assert columns.log_offsets[row] == stored.log_offset
        assert columns.sizes[row] == stored.size
        assert columns.queue_ids[row] == stored.queue_id
        assert columns.queue_offsets[row] == stored.queue_offset
        assert columns.sys_flags[row] == stored.sys_flag
        assert columns.store_times_ms[row] == stored.store_time_ms
        assert str(columns.topics[columns.topic_ids[row]], "utf-8", "replace") == stored.topic
        assert columns.tags_codes[row] == tags_code(stored.properties.get("TAGS", ""))
        assert columns.is_special[row] == any(name.decode() in stored.properties for name in NAMES[3:])


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15, deadline=None)
@given(
    texts=st.lists(
        st.tuples(
            st.sampled_from(["", "id", "7F000001-long-id", "\u00fc", "a b"]), st.text("ab \u00e9", max_size=24)
        ),
        min_size=1,
        max_size=20,
    ),
    data=st.data(),
)
def test_keys_of_records_have_the_hashes_of_java(
    way: str, texts: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Ids and keys of any length, several in one value, in other scripts, and none; of some records only."""
    pairs = [f"UNIQ_KEY\x01{uniq}\x02KEYS\x01{keys}\x02" for uniq, keys in texts]
    log = b"".join(record(properties=pair.encode()) for pair in pairs)
    wanted = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    expected = [
        (row, java_string_hash(f"Orders#{key}"))
        for row, (uniq, keys) in enumerate(texts)
        for key in (*([uniq] if uniq else []), *filter(None, keys.split(" ")))
        if wanted[row]
    ]
    with using(way):
        columns = dispatch_columns(log, np.array(positions_of(log)))
        rows, hashes = hash_record_keys(log, columns, np.array(wanted))
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15, deadline=None)
@given(log=whole_logs(), data=st.data())
def test_queues_and_index_get_what_the_protocol_decodes(way: str, log: bytes, data: st.DataObject) -> None:
    """Any good records in any order, names and values of every kind among their properties."""
    positions = data.draw(st.lists(st.sampled_from(positions_of(log)), max_size=8))
    with using(way):
        columns = dispatch_columns(log, np.array(positions, np.int64))
    assert len(set(columns.topics)) == len(columns.topics)
    assert_dispatch(log, positions, columns)


@settings(max_examples=9, deadline=None)
@given(log=whole_logs())
def test_compiled_loops_and_numpy_give_the_same_bytes(log: bytes) -> None:
    """Compares whole batches and dispatch columns, types and order of topics included."""
    positions = np.array(positions_of(log))
    batches, columns = [], []
    for way in WAYS:
        with using(way):
            batches.append(decode_records(log, positions, columns="all"))
            columns.append(dispatch_columns(log, positions))
    assert batches[0].equals(batches[1], check_metadata=True)
    for name in type(columns[0]).__slots__:
        ours, theirs = (getattr(each, name) for each in columns)
        if name == "topics":
            assert ours == theirs
        else:
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12, deadline=None)
@given(texts=st.lists(property_bytes(), min_size=1, max_size=30), filler=st.integers(0, 70))
def test_maps_are_right_wherever_the_properties_stand(way: str, texts: list[bytes], filler: int) -> None:
    """Moves properties against the blocks in which they are read, with odd and regular records side by side."""
    log = b"".join(record(properties=b"n\x01" + b"x" * (filler + 1) + b"\x02" + text) for text in texts)
    positions = positions_of(log)
    with using(way):
        column = decode_records(log, positions, columns="properties").column(0)
    assert [dict(each) for each in column.to_pylist()] == [decode_record(log, at).properties for at in positions]


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Properties of one producer: the same names, values of the same sizes; in some a few bytes are others."""
    names = draw(st.lists(st.sampled_from((*NAMES, b"WAIT", b"", b"a-name-of-another")), unique=True, max_size=6))
    sizes = [draw(st.integers(0, 40)) for _ in names]
    has_end = draw(st.booleans())
    texts = []
    for number in range(draw(st.integers(2, 8))):
        values = [bytes(97 + (number + each) % 26 for each in range(size)) for size in sizes]
        text = bytearray(b"".join(b"%b\x01%b\x02" % pair for pair in zip(names, values, strict=True)))
        if not has_end:
            del text[-1:]
        for _ in range(draw(st.integers(0, 2)) if text else 0):
            text[draw(st.integers(0, len(text) - 1))] = draw(st.sampled_from(b"\x01\x02\x80\xffAx"))
        texts.append(bytes(text))
    return texts


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(texts=alike(), filler=st.integers(0, 140))
def test_properties_that_are_alike_are_told_apart(way: str, texts: list[bytes], filler: int) -> None:
    """One byte differs, in a name, a value or a separator; the last record is near the end of the buffer or not."""
    log = b"".join(record(properties=text) for text in texts)
    positions = positions_of(log)
    expected = [row_of(decode_record(log, position), None) for position in positions]
    with using(way):
        batch = decode_records(log + bytes(filler), positions, columns="all")
        plain = decode_records(log + bytes(filler), positions, columns=["properties"])
    assert rows_of(batch) == expected
    assert [dict(row["properties"]) for row in plain.to_pylist()] == [row["properties"] for row in expected]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [-2, 0, 3])
def test_maps_of_growing_and_shrinking_records_are_whole(way: str, step: int) -> None:
    """A thousand records, whose properties are not as long as the first ones let expect."""
    texts = [b"KEYS\x01%b\x02n%d\x01v\x02" % (b"k" * max(2000 + step * each, 1), each) for each in range(1000)]
    log = b"".join(record(properties=text) for text in texts)
    with using(way):
        batch = decode_records(log, positions_of(log), columns=["properties"])
    for number, row in enumerate(batch.to_pylist()):
        assert row["properties"] == [
            ("KEYS", "k" * max(2000 + step * number, 1)),
            (f"n{number}", "v"),
        ]


@pytest.mark.parametrize("way", WAYS)
def test_a_record_with_very_many_pairs_is_decoded_whole(way: str) -> None:
    """More pairs than the fast way takes, exactly as many, and each of them twice."""
    for count in (63, 64, 65, 1000):
        pairs = b"".join(b"name-%d\x01value-%d\x02" % (number, number) for number in range(count))
        log = record(properties=pairs) + record() + record(properties=pairs + pairs[:5000])
        with using(way):
            rows = decode_records(log, positions_of(log), columns="properties").column(0).to_pylist()
        expected = {f"name-{number}": f"value-{number}" for number in range(count)}
        assert [len(row) for row in rows[:2]] == [count, 0]
        assert dict(rows[0]) == expected
        assert dict(rows[2]) == decode_record(log, positions_of(log)[2]).properties


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "sizes", [range(600), range(600, 0, -1), [0] * 300 + [5000] + [0] * 300, [70] * 129, [0] * 128]
)
def test_bodies_of_growing_and_shrinking_records_are_copied_whole(way: str, sizes: Sequence[int]) -> None:
    """More records than are looked at together, so that there is too little room for what follows, or too much."""
    bodies = [bytes((number + at) % 251 for at in range(size)) for number, size in enumerate(sizes)]
    log = b"".join(record(body=body) for body in bodies)
    positions = positions_of(log)
    with using(way):
        batch = decode_records(log, positions, columns=("body", "storeSize"))
        again = decode_records(log, positions[::-1] + positions, columns="body")
        with pytest.raises(CorruptRecordError):
            decode_records(log[:-1], positions, columns="body")
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == bodies
    assert batch.column(1).to_pylist() == [97 + size for size in sizes]
    assert again.column(0).to_pylist() == bodies[::-1] + bodies


@pytest.mark.parametrize("way", WAYS)
def test_many_topics_are_numbered_in_the_order_in_which_they_come(way: str) -> None:
    """More topics than the first table of texts holds, and each again."""
    topics = [b"topic-%d" % (number * 7919 % 3000) for number in range(3000)] * 2
    log = b"".join(record(topic=topic) for topic in topics)
    with using(way):
        columns = dispatch_columns(log, np.array(positions_of(log)))
    assert columns.topics == topics[:3000]
    assert columns.topic_ids.tolist() == [*range(3000)] * 2


@pytest.mark.parametrize("way", WAYS)
def test_times_that_no_calendar_has_are_null(way: str) -> None:
    """The first and last millisecond of the years 1 to 9999, and those beside them."""
    times = [YEAR_1_MS - 1, YEAR_1_MS, -1, 0, YEAR_10000_MS - 1, YEAR_10000_MS, -(2**63), 2**63 - 1]
    log = b"".join(record(time_ms=time_ms) for time_ms in times)
    with using(way):
        batch = decode_records(log, positions_of(log), columns=("bornTimestamp", "storeTimestamp"))
    for column in batch.columns:
        assert column.to_pylist() == [time_of(time_ms) for time_ms in times]


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_cannot_be_inflated_stays_as_it_is_stored(way: str) -> None:
    """Good and cut streams, an unknown type, and bodies that are not compressed, side by side."""
    stream = zlib.compress(b"hello" * 50)
    bodies = [(stream, 1), (stream[:-3], 1), (stream, 0), (stream, 0x701), (b"", 1), (stream, 0x301)]
    log = b"".join(record(body=body, sys_flag=sys_flag) for body, sys_flag in bodies)
    with using(way):
        column = decode_records(log, positions_of(log), columns="body").column(0)
    hello = b"hello" * 50
    assert column.to_pylist() == [hello, stream[:-3], stream, stream, b"", hello]


@pytest.mark.parametrize("way", WAYS)
def test_columns_outlive_the_buffer(way: str) -> None:
    """Overwrites the buffer after the rows were made."""
    log = bytearray(record(properties=b"TAGS\x01TagA\x02KEYS\x01k1\x02"))
    with using(way):
        batch = decode_records(log, [0], columns="all")
    before = batch.to_pylist()
    log[:] = bytes(len(log))
    assert batch.to_pylist() == before
    assert before[0]["tags"] == "TagA"


def test_a_column_above_what_arrow_can_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limit to a few bytes, for bodies as they are and for inflated ones."""
    monkeypatch.setattr(gathering, "COLUMN_SIZE_MAX", 50)
    plain, compressed = record(body=bytes(51)), record(body=zlib.compress(bytes(51)), sys_flag=1)
    for way in WAYS:
        with using(way):
            for log in (plain, compressed):
                with pytest.raises(ValueError, match="does not fit one batch"):
                    decode_records(log, [0], columns="body")


@pytest.mark.parametrize("way", WAYS)
def test_no_records_give_no_rows(way: str) -> None:
    """Every column of nothing, with the types it always has."""
    with using(way):
        batch = decode_records(b"", [], columns="all")
        columns = dispatch_columns(b"", np.zeros(0, np.int64))
    assert batch.num_rows == 0
    assert batch.schema == row_schema("all")
    assert columns.topics == []
    assert len(columns.tags_codes) == 0


def test_the_schema_is_what_is_asked_for() -> None:
    """The default, one more column, all, some in another order, and names that are wrong or stand twice."""
    assert tuple(row_schema().names) == DEFAULT_COLUMNS
    assert row_schema(include_properties=True).names == [*DEFAULT_COLUMNS, "properties"]
    assert tuple(row_schema("all").names) == COLUMNS
    assert row_schema(("flag", "topic")).names == ["flag", "topic"]
    assert row_schema("all", include_properties=True).names == list(COLUMNS)
    with pytest.raises(ValueError, match="the nearest is 'queueId'"):
        row_schema(("queue_id",))
    with pytest.raises(ValueError, match="twice"):
        row_schema(("topic", "topic"))
