"""Frames and headers, against texts and bytes that Java writes, and against bytes that nobody should write."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol.codes import Language
from rmq_core.protocol.command import (
    FRAME_SIZE_MAX,
    Command,
    FrameDecoder,
    HeaderEncoding,
    decode_command,
    encode_command,
)
from support.fuzz import fuzz
from support.headers import integers, texts

REQUEST_FIELDS = {"queueId": "1", "committed": "true", "topic": "TopicTest"}
JSON_REQUEST = (
    b'{"code":30,"extFields":{"queueId":"1","committed":"true","topic":"TopicTest"},"flag":0,'
    b'"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
)
JSON_RESPONSE = b'{"code":0,"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
BINARY_REQUEST = bytes.fromhex(
    "0000004e 0100004a 001e 00 01df 00000007 00000000 00000000 00000035 0007 71756575654964 00000001 31"
    "0009 636f6d6d6974746564 00000004 74727565 0005 746f706963 00000009 546f70696354657374"
)
BINARY_RESPONSE = bytes.fromhex(
    "00000027 01000023 0000 00 01df 00000007 00000001 00000000 0000000e 0006 6f6666736574 00000002 3432"
)

commands = st.builds(
    Command,
    code=st.integers(-32768, 3000),
    opaque=integers(32),
    flag=st.integers(0, 3),
    remark=texts.map(lambda text: text or None),
    ext=st.dictionaries(texts.filter(bool), texts, min_size=1, max_size=4) | st.none(),
    body=st.binary(max_size=64),
    language=st.sampled_from(Language),
    version=st.integers(0, 32767),
    encoding=st.sampled_from(HeaderEncoding),
)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(header: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(header), 1 << 24 | len(header)) + header


def frames_of(decoder: FrameDecoder) -> list[bytes]:
    return list(iter(decoder.next, None))


@pytest.mark.parametrize(
    ("command", "frame"),
    [
        (Command(30, opaque=7, ext=REQUEST_FIELDS), json_frame(JSON_REQUEST)),
        (Command(0, opaque=7, flag=1), json_frame(JSON_RESPONSE)),
        (Command(30, opaque=7, ext=REQUEST_FIELDS, encoding=HeaderEncoding.ROCKETMQ), BINARY_REQUEST),
        (Command(0, opaque=7, flag=1, ext={"offset": "42"}, encoding=HeaderEncoding.ROCKETMQ), BINARY_RESPONSE),
    ],
)
def test_frames_are_byte_for_byte_what_java_writes(command: Command, frame: bytes) -> None:
    """Compares with texts and bytes that Java's own classes produced, in both directions."""
    assert encode_command(command) == frame
    assert decode_command(frame) == command


@given(commands)
def test_a_command_survives_the_wire(command: Command) -> None:
    """Tries every field at the ends of its range, text with control characters, both encodings."""
    assert decode_command(encode_command(command)) == command


@settings(max_examples=30)
@given(st.lists(commands, min_size=1, max_size=4), st.data())
def test_a_stream_is_cut_at_its_frames_however_it_arrives(sent: list[Command], data: st.DataObject) -> None:
    """Feeds the same frames whole, byte by byte, and split anywhere with an unfinished frame behind."""
    frames = [encode_command(command) for command in sent]
    stream = b"".join(frames)

    whole = FrameDecoder()
    whole.feed(stream)
    assert frames_of(whole) == frames

    piecewise, seen = FrameDecoder(), []
    for index in range(len(stream)):
        piecewise.feed(stream[index : index + 1])
        seen += frames_of(piecewise)
    assert seen == frames
    assert piecewise.pending_size == 0

    split = data.draw(st.integers(0, len(stream)))
    trailing = frames[0][: data.draw(st.integers(1, len(frames[0]) - 1))]
    decoder = FrameDecoder()
    decoder.feed(stream[:split])
    decoder.feed(stream[split:] + trailing)
    assert decoder.whole() == stream
    assert decoder.next() is None
    assert decoder.pending_size == len(trailing)


def test_taking_one_frame_leaves_the_others_for_whole() -> None:
    """Mixes next(), feed() and whole() on one decoder: no frame may be lost or come twice."""
    first, second, third = (encode_command(Command(30, opaque=opaque)) for opaque in range(3))
    decoder = FrameDecoder()
    decoder.feed(first + second)
    assert decoder.next() == first
    decoder.feed(third)
    assert decoder.whole() == second + third
    assert decoder.next() is None
    assert decoder.whole() == b""


def test_many_small_frames_in_one_chunk_take_linear_time() -> None:
    """20,000 frames of two megabytes; copying the rest for each of them would move twenty gigabytes."""
    frame = json_frame(JSON_RESPONSE)
    decoder = FrameDecoder()
    started = time.process_time()
    decoder.feed(frame * 20_000)
    assert len(frames_of(decoder)) == 20_000
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 3, FRAME_SIZE_MAX - 3, 2**31 - 1, 0x16030100])
def test_a_length_that_no_frame_has_ends_the_stream(length: int) -> None:
    """Announces negative, tiny and oversized frames: refused by the four bytes, before anything is kept."""
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError):
        decoder.feed(struct.pack(">i", length))
    assert decoder.pending_size == 0


def test_the_largest_frame_of_java_passes() -> None:
    """One byte below and one above the limit, which counts the four bytes of the length itself."""
    FrameDecoder().feed(struct.pack(">i", FRAME_SIZE_MAX - 4))
    header_size = len(encode_command(Command(30)))
    assert len(encode_command(Command(30, body=bytes(FRAME_SIZE_MAX - header_size)))) == FRAME_SIZE_MAX
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_command(Command(30, body=bytes(FRAME_SIZE_MAX - header_size + 1)))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0\4",
        struct.pack(">ii", 4, 1),
        struct.pack(">ii", 5, 0xFFFFFF) + b"{",
        struct.pack(">ii", 40, 2) + b"{}",
        struct.pack(">ii", 6, 2 << 24 | 2) + b"{}",
        json_frame(b""),
        json_frame(b"[]"),
        json_frame(b'"text"'),
        json_frame(b'{"code":'),
        json_frame(b'{"code":1.5}'),
        json_frame(b'{"code":"x"}'),
        json_frame(b'{"code":2147483648}'),
        json_frame(b'{"code":1,"extFields":[]}'),
        json_frame(b'{"code":1,"remark":"\xff"}'),
        json_frame(b'{"code":1,"remark":"\\ud800"}'),
        json_frame(b'{"code":1,"extFields":{"a":' + b"[" * 300 + b"]" * 300 + b"}}"),
        json_frame(b'{"code":1,"extFields":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}"),
        binary_frame(b""),
        binary_frame(bytes(20)),
        binary_frame(bytes(13) + struct.pack(">ii", -1, 0)),
        binary_frame(bytes(13) + struct.pack(">ii", 9, 0)),
        binary_frame(bytes(17) + struct.pack(">i", -1)),
        binary_frame(bytes(17) + struct.pack(">i", 1)),
        binary_frame(bytes(17) + struct.pack(">ih", 2, 0)),
        binary_frame(bytes(17) + struct.pack(">ihi", 6, -1, 0)),
        binary_frame(bytes(17) + struct.pack(">ihci", 7, 1, b"k", 9)),
        binary_frame(bytes(17) + struct.pack(">ihcic", 8, 1, b"\xff", 1, b"v")),
    ],
)
def test_a_broken_frame_is_the_peers_mistake_and_nothing_worse(frame: bytes) -> None:
    """Headers longer than their frame, lengths that lie, text that is not UTF-8, JSON of the wrong shape."""
    with pytest.raises(RemoteProtocolError):
        decode_command(frame)


@pytest.mark.parametrize(
    "command",
    [
        Command(65536 + 3442, encoding=HeaderEncoding.ROCKETMQ),
        Command(1, opaque=2**31, encoding=HeaderEncoding.ROCKETMQ),
        Command(1, version=2**15, encoding=HeaderEncoding.ROCKETMQ),
        Command(1, remark="\ud800", encoding=HeaderEncoding.ROCKETMQ),
        Command(1, ext={"a": "\ud800"}, encoding=HeaderEncoding.ROCKETMQ),
        Command(1, ext={"a" * 32768: ""}, encoding=HeaderEncoding.ROCKETMQ),
        Command(1, ext={"a": "\ud800"}),
    ],
)
def test_what_the_protocol_cannot_carry_is_refused_before_it_is_sent(command: Command) -> None:
    """Numbers too wide for the binary header, half characters, names that are too long."""
    with pytest.raises(LocalProtocolError):
        encode_command(command)


def test_the_last_of_repeated_binary_fields_counts() -> None:
    """Signed requests of 4.9 write their fields twice."""
    fields = b"".join(struct.pack(">hcic", 1, b"a", 1, value) for value in (b"1", b"2"))
    frame = binary_frame(bytes(17) + struct.pack(">i", len(fields)) + fields)
    assert decode_command(frame).ext == {"a": "2"}


def test_codes_of_pop_fit_into_a_binary_request_but_not_into_an_answer() -> None:
    """16 bits of 200050 are 3442; a response code 3442 must stay what it is."""
    request = encode_command(Command(200050, encoding=HeaderEncoding.ROCKETMQ))
    assert request[8:10] == struct.pack(">h", 3442)
    assert decode_command(request).code == 200050
    response = encode_command(Command(3442, flag=1, encoding=HeaderEncoding.ROCKETMQ))
    assert decode_command(response).code == 3442


@given(st.binary(max_size=80))
def test_random_bytes_give_frames_or_an_error_of_the_peer(data: bytes) -> None:
    """Feeds bytes without any structure; only RemoteProtocolError may come out."""
    decoder = FrameDecoder()
    try:
        decoder.feed(data)
        for frame in frames_of(decoder):
            decode_command(frame)
    except RemoteProtocolError:
        pass


def test_damaged_recordings_give_values_or_an_error_of_the_peer() -> None:
    """20,000 recorded frames with flipped, cut, inserted and repeated bytes, down to header and body."""
    counts = fuzz(20_000, seed=1)
    # A run that never gets past the first check would prove nothing.
    for reached in ("commands", "frames refused", "headers", "headers refused", "bodies", "bodies refused"):
        assert counts[reached] > 100, counts
