"""The hot decoder of sends reads what the declaration reads."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.requests.send import SendMessageV2, decode_send_v2
from support.headers import headers


@given(headers(SendMessageV2), st.integers(0, 2**31 - 1))
def test_the_hot_decoder_agrees_with_the_declaration(header: SendMessageV2, opaque: int) -> None:
    """Generated headers through JSON, then both ways."""
    ext = header.to_ext()
    parsed = orjson.loads(orjson.dumps({"opaque": opaque, "extFields": ext}))
    assert decode_send_v2(parsed) == (
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
        ext.get("j"),
        ext.get("l"),
        ext.get("m"),
    )


@pytest.mark.parametrize(
    "header",
    [{}, {"opaque": 1}, {"opaque": 1, "extFields": None}, {"opaque": 1, "extFields": {"a": "g", "d": "x"}}],
)
def test_missing_and_wrong_fields_are_protocol_errors(header: dict[str, Any]) -> None:
    """Headers without fields, without a map, with text for a number."""
    with pytest.raises(RemoteProtocolError):
        decode_send_v2(header)
