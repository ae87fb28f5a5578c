"""The frames that Apache RocketMQ's clients, tools, brokers and name servers really sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rmq_core.protocol.requests  # noqa: F401  fills REQUESTS
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.command import Command, FrameDecoder, HeaderEncoding, decode_command, encode_command
from rmq_core.protocol.fields import field_plans
from rmq_core.protocol.request import ENVELOPE_FIELDS, REQUESTS, Header, java_name
from support.golden import Exchange, RecordedFrame, exchanges

FILES = sorted({exchange.file for exchange in exchanges()})

# What is left of POP_MESSAGE and its kin in the 16 bits of a binary header.
BINARY_POP_CODES = {
    3442: 200050,
    3443: 200051,
    3444: 200052,
    3445: 200053,
    3446: 200054,
    3447: 200055,
    3543: 200151,
}

pytestmark = pytest.mark.parametrize("file", FILES)


def recorded(file: str) -> Iterator[Exchange]:
    return (exchange for exchange in exchanges() if exchange.file == file)


def frames(file: str) -> Iterator[tuple[Exchange, RecordedFrame]]:
    for exchange in recorded(file):
        yield exchange, exchange.request
        if exchange.response is not None:
            yield exchange, exchange.response


def own_fields(command: Command) -> dict[str, str]:
    return {name: text for name, text in (command.ext or {}).items() if name not in ENVELOPE_FIELDS}


def left_over(header: type[Header], command: Command) -> set[str]:
    return own_fields(command).keys() - {plan.wire_name for plan in field_plans(header)}


def test_every_frame_decodes_as_it_was_recorded(file: str) -> None:
    """Compares each part of the header with an independent reading of the same bytes."""
    for exchange, frame in frames(file):
        decoder = FrameDecoder()
        decoder.feed(frame.frame)
        assert decoder.next() == frame.frame, exchange
        command = decode_command(frame.frame)
        header = frame.header
        code = header["code"]
        if not command.is_response and frame.encoding == "ROCKETMQ":
            code = BINARY_POP_CODES.get(code, code)
        assert command.code == code, exchange
        assert (command.opaque, command.flag) == (header["opaque"], header["flag"]), exchange
        assert (command.language.name, command.version) == (header["language"], header["version"]), exchange
        assert (command.remark or "") == (header.get("remark") or ""), exchange
        assert (command.ext or {}) == (frame.ext or {}), exchange
        assert (command.encoding.name, command.body) == (frame.encoding, frame.body), exchange


def test_frames_encode_again_byte_for_byte(file: str) -> None:
    """All binary frames and the JSON of Java; Go orders its keys another way, and repeated fields come once."""
    for exchange, frame in frames(file):
        command = decode_command(frame.frame)
        is_ours = command.encoding is HeaderEncoding.ROCKETMQ or command.language.name == "JAVA"
        if is_ours and not frame.has_repeated_fields:
            assert encode_command(command) == frame.frame, exchange
        else:
            assert decode_command(encode_command(command)) == command, exchange


def test_requests_have_the_names_that_apache_gives_them(file: str) -> None:
    """An undeclared code must be one that Apache does not know either."""
    for exchange in recorded(file):
        request = REQUESTS.get(exchange.code)
        assert (java_name(request) if request else "UNKNOWN") == exchange.name, exchange


def test_every_request_fits_its_declaration(file: str) -> None:
    """No field may be left over or change; what we refuse for a missing field, Apache must have refused too."""
    for exchange in recorded(file):
        command = decode_command(exchange.request.frame)
        request = REQUESTS.get(command.code)
        if request is None:
            continue
        assert left_over(request, command) == set(), exchange
        try:
            header = request.from_ext(command.ext or {})
        except RemoteProtocolError:
            answer = None if exchange.response is None else exchange.response.header["code"]
            assert answer != 0, exchange
            continue
        assert header.to_ext() == own_fields(command), exchange


def test_every_result_fits_the_declared_reply(file: str) -> None:
    """Answers that a caller takes for results must decode, with no field left over or changed."""
    for exchange in recorded(file):
        request = REQUESTS.get(decode_command(exchange.request.frame).code)
        if request is None or exchange.response is None:
            continue
        command = decode_command(exchange.response.frame)
        if command.code in request.accepts:
            assert left_over(request.reply, command) == set(), exchange
            assert request.reply.from_ext(command.ext or {}).to_ext() == own_fields(command), exchange
