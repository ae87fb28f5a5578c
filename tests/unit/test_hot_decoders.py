"""The hot decoders of sends and pulls read what the declarations read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.requests.pull import PullFields, PullMessage, decode_pull
from rmq_core.protocol.requests.send import SendMessage, SendMessageV2, decode_send_v1, decode_send_v2
from support.headers import headers


def parsed(header: SendMessage | SendMessageV2 | PullMessage, opaque: int) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads(orjson.dumps({"opaque": opaque, "extFields": header.to_ext()}))
    return value


@given(st.one_of(headers(SendMessage), headers(SendMessageV2)), st.integers(0, 2**31 - 1))
def test_the_decoders_of_sends_agree_with_their_declarations(
    header: SendMessage | SendMessageV2, opaque: int
) -> None:
    """Generated headers of both versions through JSON, then both ways."""
    ext = header.to_ext()
    is_v1 = isinstance(header, SendMessage)
    decode = decode_send_v1 if is_v1 else decode_send_v2
    names = ("reconsumeTimes", "maxReconsumeTimes", "batch") if is_v1 else ("j", "l", "m")
    assert decode(parsed(header, opaque)) == (
        opaque,
        header.producer_group,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        header.properties,
        *(ext.get(name) for name in names),
    )


@given(headers(PullMessage), st.integers(0, 2**31 - 1))
def test_the_decoder_of_pulls_agrees_with_its_declaration(header: PullMessage, opaque: int) -> None:
    """Generated headers through JSON, then both ways."""
    assert decode_pull(parsed(header, opaque)) == PullFields(
        opaque,
        False,
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.max_msg_nums,
        header.sys_flag,
        header.commit_offset,
        header.suspend_timeout_millis,
        header.sub_version,
        header.subscription,
        header.expression_type,
        header.max_msg_bytes or 0,
    )


@pytest.mark.parametrize("decode", [decode_send_v1, decode_send_v2, decode_pull])
@pytest.mark.parametrize(
    "header",
    [
        {},
        {"opaque": 1},
        {"opaque": 1, "extFields": None},
        {"opaque": 1, "extFields": {"a": "g", "d": "x"}},
        {"opaque": 1, "extFields": {"consumerGroup": "g", "topic": "t", "queueId": "x"}},
    ],
)
def test_missing_and_wrong_fields_are_protocol_errors(
    decode: Callable[[dict[str, Any]], object], header: dict[str, Any]
) -> None:
    """Headers without fields, without a map, with text for a number."""
    with pytest.raises(RemoteProtocolError):
        decode(header)
