"""Messages on their way out: frames, batches, compression, identities, and what is refused before it is sent."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client.options import own_options
from rmq_core.client.producer_options import ProducerOptions
from rmq_core.client.selectors import at_random, by_hash, java_hash, sharded_index
from rmq_core.client.send_results import SendStatus
from rmq_core.client.sending import (
    BATCH_OVERHEAD,
    FrameWriter,
    SendRules,
    batch_piece,
    check_batchable,
    encode_batch_send,
    encode_send,
    outgoing,
    outgoing_batch,
    read_sent,
    send_request,
    split_pieces,
)
from rmq_core.errors import BrokerError, RemoteProtocolError
from rmq_core.protocol.codes import CURRENT_VERSION, Language
from rmq_core.protocol.command import decode_command
from rmq_core.protocol.compression import CompressionType, decompress_body
from rmq_core.protocol.message import Message, MessageQueue, decode_properties
from rmq_core.protocol.record import decode_batch

RULES = SendRules(group="PG")
QUEUE = MessageQueue("Orders", "broker-a", 3)
TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(str.strip)


@given(
    body=st.binary(min_size=1, max_size=200),
    tags=st.none() | TEXT,
    sharding_key=st.none() | TEXT,
    flag=st.integers(-(2**31), 2**31 - 1),
    times=st.tuples(st.integers(0, 99), st.none() | st.integers(0, 99)),
    oneway=st.booleans(),
    kind=st.sampled_from(["single", "batch", "reply", "half"]),
)
def test_a_frame_says_what_the_declared_request_says(
    body: bytes,
    tags: str | None,
    sharding_key: str | None,
    flag: int,
    times: tuple[int, int | None],
    oneway: bool,
    kind: str,
) -> None:
    """Decodes frames of arbitrary messages and holds them against the declaration of the request."""
    message = Message("Orders", body, tags=tags, sharding_key=sharding_key, flag=flag)
    if kind == "batch":
        out = outgoing_batch([batch_piece(message, RULES, now_ms=1)], RULES, now_ms=1)
    else:
        out = outgoing(
            message,
            RULES,
            now_ms=1_700_000_000_000,
            transaction=kind == "half",
            reply=kind == "reply",
            reconsume_times=times[0],
            max_reconsume_times=times[1],
        )
    command = decode_command(FrameWriter(out.topic, QUEUE, RULES).write(out, opaque=77, oneway=oneway))
    request = send_request(out, QUEUE, RULES)
    assert command.ext == request.to_ext()
    assert type(request).from_ext(command.ext or {}) == request
    assert (command.code, command.opaque, command.is_oneway) == (request.code, 77, oneway)
    assert (command.language, command.version) == (Language.PYTHON, CURRENT_VERSION)
    assert command.body == out.body


def test_properties_carry_everything_a_message_has() -> None:
    """Reads them back from the request, the namespace among them."""
    rules = SendRules(group="PG", namespace="shop")
    message = Message("Orders", b"x", tags="paid", keys=["1", "2"], properties={"a": "b"}, wait_stored=False)
    request, _ = encode_send(message, QUEUE, rules, now_ms=1, msg_id="ID")
    assert request.topic == "shop%Orders"
    assert decode_properties((request.properties or "").encode()) == {
        "a": "b",
        "TAGS": "paid",
        "KEYS": "1 2",
        "WAIT": "false",
        "UNIQ_KEY": "ID",
        "INSTANCE_ID": "shop",
    }


def test_every_message_has_an_identity_of_its_own() -> None:
    """Makes the same message a thousand times in one millisecond."""
    message = Message("Orders", b"x")
    ids = {outgoing(message, RULES, now_ms=1_700_000_000_000).msg_id for _ in range(1000)}
    assert len(ids) == 1000


@pytest.mark.parametrize("kind", CompressionType)
def test_large_bodies_are_compressed_and_small_ones_are_not(kind: CompressionType) -> None:
    """Compresses at the limit and one byte below it; what does not shrink stays as it is."""
    rules = SendRules(group="PG", compression=kind, compress_over_bytes=1000)
    out = outgoing(Message("Orders", b"x" * 1000), rules, now_ms=1)
    assert len(out.body) < 1000
    assert out.sys_flag == kind.sys_flag
    assert decompress_body(out.body, out.sys_flag) == b"x" * 1000
    assert outgoing(Message("Orders", b"x" * 999), rules, now_ms=1).sys_flag == 0
    noise = bytes(range(256)) * 4
    level_0 = SendRules(group="PG", compression_level=0, compress_over_bytes=1000)
    stored = outgoing(Message("Orders", noise), level_0, now_ms=1)
    assert (stored.body, stored.sys_flag) == (noise, 0)


def test_a_batch_is_split_where_the_limit_demands_it_and_never_reordered() -> None:
    """Splits messages of growing sizes at every limit; one that fills a request goes alone."""
    messages = [Message("Orders", b"%03d" % number * (number + 1)) for number in range(30)]
    pieces = [batch_piece(message, RULES, now_ms=1) for message in messages]
    for limit in range(1, sum(piece.size for piece in pieces) + 1, 97):
        parts = split_pieces(pieces, limit)
        assert list(itertools.chain(*parts)) == pieces
        for part in parts:
            size = sum(piece.size for piece in part)
            assert size <= limit or len(part) == 1
            assert len(outgoing_batch(part, RULES, now_ms=1).body) == size
        for part, following in itertools.pairwise(parts):
            assert sum(piece.size for piece in part) + following[0].size > limit


def test_a_batch_holds_its_messages_uncompressed_with_their_properties() -> None:
    """Decodes the body of a batch of large and small messages."""
    messages = [
        Message("Orders", b"a", tags="A", flag=7),
        Message("Orders", b"b" * 5000, keys="k"),
        Message("Orders", b"c"),
    ]
    ((request, body, ids),) = encode_batch_send(messages, QUEUE, RULES, now_ms=1)
    assert request.batch
    assert request.sys_flag == 0
    records = decode_batch(body)
    assert [record.body for record in records] == [message.body for message in messages]
    assert [record.flag for record in records] == [7, 0, 0]
    assert tuple(decode_properties(record.properties)["UNIQ_KEY"] for record in records) == ids
    assert decode_properties(records[0].properties)["TAGS"] == "A"
    assert len(body) == sum(BATCH_OVERHEAD + len(each.body) + len(each.properties) for each in records)


@pytest.mark.parametrize(
    ("messages", "error", "says"),
    [
        ([], ValueError, "messages is empty"),
        (Message("A", b"x"), TypeError, "messages"),
        ([Message("A", b"x"), b"y"], TypeError, "messages"),
        ([Message("A", b"x"), Message("B", b"x")], ValueError, "one topic"),
        ([Message("A", b"x"), Message("A", b"x", wait_stored=False)], ValueError, "wait_stored"),
        ([Message("A", b"x", sharding_key="1"), Message("A", b"x", sharding_key="2")], ValueError, "sharding_key"),
        ([Message("A", b"x", delay_level=1)], ValueError, "delay"),
        ([Message("%RETRY%g", b"x")], ValueError, "retry"),
    ],
)
def test_what_cannot_share_a_request_is_refused(messages: Any, error: type[Exception], says: str) -> None:
    """Gives each kind of messages that no broker takes in one batch."""
    with pytest.raises(error, match=says):
        check_batchable(messages)


@pytest.mark.parametrize(
    ("message", "rules", "error", "says"),
    [
        (b"x", RULES, TypeError, "message must be a Message"),
        (Message("Orders", b""), RULES, ValueError, "body is empty"),
        (Message("Orders", b"xx"), SendRules(group="PG", message_size_max=1), ValueError, "body has 2 bytes"),
        (Message("Orders", b"x", properties={"a": "b" * 32768}), RULES, ValueError, "properties take"),
        (Message("Orders", b"x", properties={"a": "ü" * 16380}), RULES, ValueError, "properties take"),
    ],
)
def test_what_no_broker_would_take_is_refused(
    message: Any, rules: SendRules, error: type[Exception], says: str
) -> None:
    """Encodes what is no message, is empty, or is too large in its body or properties."""
    with pytest.raises(error, match=says):
        outgoing(message, rules, now_ms=1)


def test_properties_may_fill_what_a_broker_takes() -> None:
    """Fills the properties up to the last byte, and one further."""
    used = len(outgoing(Message("Orders", b"x", properties={"a": "b"}), RULES, now_ms=1).properties)
    full = Message("Orders", b"x", properties={"a": "b" * (32767 - used + 1)})
    assert len(outgoing(full, RULES, now_ms=1).properties) == 32767
    with pytest.raises(ValueError, match="32768"):
        outgoing(Message("Orders", b"x", properties={"a": "b" * (32767 - used + 2)}), RULES, now_ms=1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("标签", 857175),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("😀", 1772899),
        (0, 0),
        (-1, -1),
        (2**31 - 1, 2**31 - 1),
        (2**31, -(2**31)),
        (2**32, 1),
        (-(2**31) - 1, -(2**31)),
        (0x7048860DDF79, 0x860DAF31 - (1 << 32)),
    ],
)
def test_hashes_are_javas(value: str | int, expected: int) -> None:
    """Hashes text within and beyond the basic plane, and numbers of both sizes."""
    assert java_hash(value) == expected


def test_a_key_has_one_queue_even_where_its_hash_is_javas_least_number() -> None:
    """Takes the text whose hash has no absolute value in Java, and a negative one."""
    assert sharded_index("polygenelubricants", 7) == 2**31 % 7
    assert sharded_index(-13, 8) == 5
    queues = [MessageQueue("Orders", "a", number) for number in range(8)]
    assert by_hash("TagA")(queues, Message("Orders", b"x")) == queues[2598919 % 8]
    assert at_random(queues, Message("Orders", b"x")) in queues
    for wrong in (None, 1.5, True):
        with pytest.raises(TypeError, match="key"):
            by_hash(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too large"):
        by_hash(1 << 64)


def test_answers_are_read_and_bad_ones_told_from_refusals() -> None:
    """Reads results of every status, a refusal, and answers that lack what they need."""
    out = outgoing(Message("Orders", b"x"), RULES, now_ms=1, msg_id="ID")
    ext = {"msgId": "OFF", "queueId": "3", "queueOffset": "42", "transactionId": "ID", "MSG_REGION": "R"}
    for status in SendStatus:
        result = read_sent({"code": status.value, "extFields": ext}, out, QUEUE)
        assert result.status is status
        assert result.ok is (status is SendStatus.OK)
        assert (result.msg_id, result.offset_msg_id, result.queue_offset) == ("ID", "OFF", 42)
        assert (result.queue, result.transaction_id, result.region_id) == (QUEUE, "ID", "R")
    moved = read_sent({"code": 0, "extFields": {**ext, "queueId": "1"}}, out, QUEUE)
    assert moved.queue == MessageQueue("Orders", "broker-a", 1)
    with pytest.raises(BrokerError, match="no room") as refused:
        read_sent({"code": 2, "remark": "no room"}, out, QUEUE)
    assert refused.value.code == 2
    for bad in ({}, {"code": "0"}, {"code": 0}, {"code": 0, "extFields": {**ext, "queueOffset": "x"}}):
        with pytest.raises(RemoteProtocolError):
            read_sent(bad, out, QUEUE)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"timeout_ms": 0}, ValueError, "timeout_ms"),
        ({"timeout_ms": "1"}, TypeError, "timeout_ms"),
        ({"timeout_ms": float("inf")}, ValueError, "timeout_ms"),
        ({"retries": -1}, ValueError, "retries"),
        ({"retries": True}, TypeError, "retries"),
        ({"in_flight_max": 0}, ValueError, "in_flight_max"),
        ({"in_flight_bytes_max": 1.5}, TypeError, "in_flight_bytes_max"),
        ({"message_size_max": 0}, ValueError, "message_size_max"),
        ({"compression": "zlib"}, TypeError, "compression"),
        ({"compression_level": 10}, ValueError, "compression_level"),
        ({"compression": CompressionType.ZSTD, "compression_level": 0}, ValueError, "compression_level"),
        ({"avoid_faulty": 1}, TypeError, "avoid_faulty"),
        ({"auto_batch_ms": -1}, ValueError, "auto_batch_ms"),
        ({"send_timeout": 1}, TypeError, "send_timeout"),
        ({"name_server": "nowhere"}, ValueError, "name_server"),
    ],
)
def test_a_wrong_argument_of_a_producer_is_named(arguments: Any, error: type[Exception], says: str) -> None:
    """Gives each argument a value that cannot be used, and one that does not exist."""
    with pytest.raises(error, match=says):
        own_options(ProducerOptions, arguments)
