"""The JSON dialect of Java: what it reads, what it writes, and what it refuses."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import fastjson
from support.strategies import json_values

QUEUE = '{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",-1:"b"}', {"0": "a", "-1": "b"}),
        ('{"0":"a"}', {"0": "a"}),
        (f'{{{QUEUE}:{{"n":1}},{QUEUE.replace("0", "1")}:2}}', {QUEUE: {"n": 1}, QUEUE.replace("0", "1"): 2}),
        ('{ { "brokerName" : "b" , "queueId" : 0 , "topic" : "T" } : 5 }\n', {QUEUE: 5}),
        (orjson.dumps({QUEUE: 5}).decode(), {QUEUE: 5}),
        (
            '{0:{1:{2:[true,false,null,1.5,-2,"\\u00e9\\n"]}}}',
            {"0": {"1": {"2": [True, False, None, 1.5, -2, "é\n"]}}},
        ),
        ("{a:1,$b_2:2}", {"a": 1, "$b_2": 2}),
        ("{0:NaN}", {"0": None}),
        ('{0:"a",}', {"0": "a"}),
        ("{0:[1,2,]}", {"0": [1, 2]}),
        ('{0:"}{:,"}', {"0": "}{:,"}),
        ("{0:9223372036854775807}", {"0": 2**63 - 1}),
        (" 7 ", 7),
    ],
)
def test_the_dialect_reads_what_java_writes(text: str, value: Any) -> None:
    """Unquoted, object and quoted keys, blanks around them, and punctuation inside text."""
    assert fastjson.loads(text.encode()) == value
    assert fastjson.loads(memoryview(text.encode())) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  \n",
        b"{",
        b"}",
        b"{0",
        b"{0:",
        b"{0:1",
        b"{0:1]",
        b"{:1}",
        b"{,}",
        b"{0 1}",
        b"{0:1 2:2}",
        b"{0:1}x",
        b"{0:01}",
        b"{0:1.}",
        b'{0:"a}',
        b'{0:"\\x"}',
        b'{0:"\\ud800"}',
        b'{0:"\xff"}',
        b"{0:abc}",
        b"{0:1}{0:1}",
        b"{[1:2}",
        b"{{{0:1}:1}:1}",
        b"{" * 30 + b"0:1" + b"}:1" * 29 + b"}",
        b"\x00\x01\x02",
        b"a=b\n",
        "{0:١}".encode(),
    ],
)
def test_garbage_is_refused(data: bytes) -> None:
    """Cut, doubled and misspelt documents, and bytes that are no text."""
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(data)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"{0:", b"{"], ids=repr)
@pytest.mark.parametrize("depth", [65, 300, 1_000, 100_000])
def test_deep_nesting_is_refused(opening: bytes, depth: int) -> None:
    """Depth bombs in each kind of container, also ones that a standard parser still takes."""
    closing = b"]" if opening == b"[" else b"}"
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(opening * depth + b"1" + closing * depth)
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(opening * depth)


@pytest.mark.parametrize("form", ["[%s]", '{"a":%s}', "{0:%s}"])
def test_the_limit_of_nesting_is_the_same_in_both_parsers(form: str) -> None:
    """Walks up to the limit in standard JSON and in the dialect."""
    text = "1"
    for _ in range(fastjson.DEPTH_MAX):
        text = form % text
    fastjson.loads(text.encode())
    with pytest.raises(RemoteProtocolError):
        fastjson.loads((form % text).encode())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}', {"a": [{"x": 1}], "b": {"x": 1}}),
        ('{0:{"x":1},1:{"$ref":"$.0"}}', {"0": {"x": 1}, "1": {"x": 1}}),
        ('[{"x":1},{"$ref":"$[0]"}]', [{"x": 1}, {"x": 1}]),
        ('{"a":{"b":{"$ref":"@"}}}', {"a": {"b": {"b": {"$ref": "@"}}}}),
        ('{"x":1,"a":{"b":{"$ref":".."}}}', {"x": 1, "a": {"b": {"x": 1, "a": {"b": {"$ref": ".."}}}}}),
        ('{"x":1,"b":{"$ref":"$"}}', {"x": 1, "b": {"x": 1, "b": {"$ref": "$"}}}),
        ('{"a":1,"b":[{"$ref":"$.a"}]}', {"a": 1, "b": [1]}),
        ('"$ref"', "$ref"),
        ('{"$ref":"a","b":1}', {"$ref": "a", "b": 1}),
        ('{"a":"\\"$ref\\""}', {"a": '"$ref"'}),
    ],
)
def test_references_are_resolved_and_stay_finite(text: str, value: Any) -> None:
    """By path and by position, also to a container of the reference itself."""
    assert fastjson.loads(text.encode()) == value


@pytest.mark.parametrize(
    "reference", ["$.x", "$.a[7]", "$.a.b", f"$.a[{'9' * 5_000}]", "$.b.c.d"], ids=lambda text: text[:8]
)
def test_references_to_nowhere_are_refused(reference: str) -> None:
    """Missing names, indexes out of range and beyond any number."""
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(orjson.dumps({"a": [1], "b": {"c": 1}, "z": {"$ref": reference}}))


def test_references_that_multiply_are_refused_at_once() -> None:
    """Each array refers ten times to the one before: a kilobyte that means many gigabytes."""
    names = "abcdefghijkl"
    document: dict[str, Any] = {"a": ["x"] * 10}
    for before, name in itertools.pairwise(names):
        document[name] = [{"$ref": f"$.{before}"}] * 10
    started = time.monotonic()
    with pytest.raises(RemoteProtocolError, match="references"):
        fastjson.loads(orjson.dumps(document))
    assert time.monotonic() - started < 5


def test_references_that_stack_up_are_refused() -> None:
    """Each object holds the one before under fifty levels, which together are deeper than allowed."""
    document: dict[str, Any] = {"a": 1}
    for before, name in itertools.pairwise("abcdefgh"):
        value: Any = {"$ref": f"$.{before}"}
        for _ in range(50):
            value = [value]
        document[name] = value
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(orjson.dumps(document))


def test_raw_keys_are_written_without_quotes() -> None:
    """Raw keys inside ordinary ones and the other way round."""
    value = {"a": fastjson.RawKeys({"0": "x", QUEUE: [fastjson.RawKeys({"1": None})]}), 'q"': {"b": 1.0}}
    text = f'{{"a":{{0:"x",{QUEUE}:[{{1:null}}]}},"q\\"":{{"b":1.0}}}}'
    assert fastjson.dumps(value) == text.encode()
    assert fastjson.loads(text.encode()) == value


@given(json_values)
def test_standard_json_is_read_as_it_is(value: Any) -> None:
    """Any value, by the standard parser and, behind a key without quotes, by that of the dialect."""
    text = fastjson.dumps(value)
    assert fastjson.loads(text) == value
    assert fastjson.loads(b"{0:" + text + b"}") == {"0": value}


@given(st.binary(max_size=60) | st.text('{}[]:,"0a$ \\-.eE', max_size=40).map(str.encode))
def test_any_bytes_give_a_value_or_a_protocol_error(data: bytes) -> None:
    """Random bytes, and random arrangements of the characters that mean something."""
    with contextlib.suppress(RemoteProtocolError):
        fastjson.loads(data)
