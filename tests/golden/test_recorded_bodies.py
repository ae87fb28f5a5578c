"""Every JSON body that Apache's programs sent is declared, and survives being read and written again."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any

import pytest

import rmq_core.protocol.requests  # noqa: F401 - fills REQUESTS
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import fastjson
from rmq_core.protocol.bodies import AclList, UserList
from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import MISSING, field_plans, strip_optional
from rmq_core.protocol.request import REQUESTS
from support.golden import Exchange, exchanges

NOT_DECLARED = {
    (25, "request"): "properties text",
    (26, "response"): "properties text",
    (318, "request"): "properties text",
    (319, "response"): "properties text",
    (2001, "request"): "properties text",
    (2002, "request"): "the name of a group",
    (2003, "response"): "text for a person to read, which only happens to look like JSON",
    (60, "response"): "seven binary numbers",
}

ARRAY_BODIES: dict[type[Body], str] = {UserList: "users", AclList: "acls"}
"""Bodies that are a bare array on the wire, and the field that holds it here."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedBody:
    """One JSON body and where it was seen."""

    exchange: Exchange
    side: str
    data: bytes
    value: Any

    def __str__(self) -> str:
        return f"{self.exchange} {self.side}"

    @property
    def declared(self) -> type[Body] | None:
        request = REQUESTS.get(self.exchange.code)
        if request is None:
            return None
        return request.body if self.side == "request" else request.reply_body

    @property
    def is_java(self) -> bool:
        return self.side == "response" or not self.exchange.client.startswith("go-")


@functools.cache
def recorded_bodies() -> tuple[RecordedBody, ...]:
    return tuple(_json_bodies())


def _json_bodies() -> Iterator[RecordedBody]:
    for exchange in exchanges():
        for side, frame in (("request", exchange.request), ("response", exchange.response)):
            if frame is not None and frame.body[:1] in (b"{", b"["):
                try:
                    yield RecordedBody(exchange, side, frame.body, fastjson.loads(frame.body))
                except RemoteProtocolError:
                    # Messages that begin with a brace; a JSON body that we cannot parse shows in the counts below.
                    continue


def declared_bodies() -> Iterator[tuple[RecordedBody, type[Body]]]:
    for body in recorded_bodies():
        if body.declared is not None:
            yield body, body.declared


def test_every_recorded_json_body_is_declared() -> None:
    """Searches the recordings for a JSON body whose request names no class for it."""
    missing = {
        f"{body.exchange.code} {body.exchange.name} {body.side}"
        for body in recorded_bodies()
        if body.declared is None and (body.exchange.code, body.side) not in NOT_DECLARED
    }
    assert not missing


@pytest.mark.parametrize(("code", "side"), NOT_DECLARED, ids=str)
def test_bodies_that_are_not_json_have_no_class(code: int, side: str) -> None:
    """Looks for a declaration that contradicts the list of other bodies."""
    request = REQUESTS[code]
    assert (request.body if side == "request" else request.reply_body) is None


def test_every_body_of_a_request_with_a_class_is_read() -> None:
    """Counts bodies of declared requests that are not JSON to us: none may be lost on the way to the others."""
    parsed = Counter((body.exchange.code, body.side) for body in recorded_bodies())
    seen: Counter[tuple[int, str]] = Counter()
    for exchange in exchanges():
        request = REQUESTS.get(exchange.code)
        if request is None:
            continue
        if request.body is not None and exchange.request.body:
            seen[exchange.code, "request"] += 1
        if request.reply_body is not None and exchange.response is not None and exchange.response.body:
            seen[exchange.code, "response"] += 1
    assert {key: parsed[key] for key in seen} == dict(seen)
    assert sum(seen.values()) > 4_000


def test_recorded_bodies_decode_and_encode_to_the_same_content() -> None:
    """Reads and writes each one: a lost, changed or invented field fails; a declared default may appear."""
    differences: dict[str, str] = {}
    for body, declared in declared_bodies():
        decoded = declared.decode(body.data)
        for standard in (False, True):
            again = fastjson.loads(decoded.encode(standard=standard))
            for difference in _differences(declared, body.value, again, "$"):
                differences.setdefault(f"{body.exchange.code} {body.side} {difference}", str(body))
    assert not differences


def test_bodies_of_java_come_out_byte_for_byte() -> None:
    """Compares texts, so that the order of fields and the form of keys count, where no default was added."""
    different = {}
    equal = 0
    for body, declared in declared_bodies():
        decoded = declared.decode(body.data)
        encoded = decoded.encode()
        # Since 4.9.4 a route goes to newer clients with its keys quoted.
        if body.data in (encoded, decoded.encode(standard=True)):
            equal += 1
        elif body.is_java and fastjson.loads(encoded) == body.value:
            different[str(body)] = (body.data[:300], encoded[:300])
    assert not different
    assert equal > 4_000


def _differences(hint: Any, recorded: Any, again: Any, path: str) -> Iterator[str]:
    hint = _bare(hint)
    origin = typing.get_origin(hint)
    if hint in ARRAY_BODIES:
        hint = field_plans(hint)[0].type
        origin = tuple
    if recorded is None:
        return
    if dataclasses.is_dataclass(hint):
        yield from _bean_differences(hint, recorded, again, path)
    elif origin is dict:
        key_hint, item_hint = typing.get_args(hint)
        theirs, ours = (_by_key(key_hint, table) for table in (recorded, again))
        if theirs.keys() != ours.keys():
            yield f"{path}: other keys"
        for key in theirs.keys() & ours.keys():
            yield from _differences(item_hint, theirs[key], ours[key], f"{path}.*")
    elif origin is tuple:
        if len(recorded) != len(again):
            yield f"{path}: {len(recorded)} items, then {len(again)}"
        for theirs, ours in zip(recorded, again, strict=False):
            yield from _differences(typing.get_args(hint)[0], theirs, ours, f"{path}[]")
    elif _scalar(hint, recorded) != _scalar(hint, again):
        yield f"{path}: {recorded!r}, then {again!r}"


def _bean_differences(cls: Any, recorded: Any, again: Any, path: str) -> Iterator[str]:
    plans = {plan.wire_name: plan for plan in field_plans(cls)}
    for name in recorded.keys() - plans.keys():
        yield f"{path}.{name}: not declared"
    for name, plan in plans.items():
        if recorded.get(name) is None:
            written = again.get(name)
            if written is not None and (plan.default is MISSING or written != _written(plan.default)):
                yield f"{path}.{name}: invented {written!r}"
        elif name not in again:
            yield f"{path}.{name}: lost"
        else:
            yield from _differences(plan.type, recorded[name], again[name], f"{path}.{name}")


def _bare(hint: Any) -> Any:
    hint = strip_optional(hint)[0]
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _by_key(key_hint: Any, table: dict[str, Any]) -> dict[Any, Any]:
    """Keyed by what the key means: the fields of an object key may stand in any order."""
    if dataclasses.is_dataclass(_bare(key_hint)):
        return {tuple(sorted(fastjson.loads(key.encode()).items())): item for key, item in table.items()}
    return dict(table)


def _scalar(hint: Any, value: Any) -> Any:
    """Go writes numbers as text, and some write enums in other letters."""
    if hint is int:
        return int(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str(value).upper()
    return value


def _written(default: Any) -> Any:
    """A declared default as it stands in JSON."""
    if isinstance(default, Body):
        return default.to_json()
    if isinstance(default, tuple):
        return list(default)
    return default
