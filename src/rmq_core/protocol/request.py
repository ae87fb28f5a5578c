"""What a request is: a code, a typed header, the type of its reply. One declaration per request.

The declarations are in `requests/`. Server decoding, client encoding and the round-trip tests follow from
them; a code declared twice fails at import. In a frame every header field is text under the field's wire
name (`extFields`); absent optional fields are left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, Self, TypeVar

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import MISSING, FieldPlan, cached, field_plans, read_int, register_once

ENVELOPE_FIELDS: Mapping[str, str] = {
    "ns": "namespace of the resource, resolved by proxies",
    "nsd": "true when names already carry their namespace",
    "bname": "name of the broker the request is meant for",
    "oway": "true when no answer is wanted",
    "lo": "whether a static topic's logical queue is meant",
    "AccessKey": "who signs",
    "SecurityToken": "temporary credential that goes with the access key",
    "Signature": "signature over all other fields and the body",
    "ReqT": "how the client reached this address",
    "__ZONE_NAME": "zone of the sender",
    "__ZONE_MODE": "how the zone is used",
}
"""Header fields that any request may carry besides its own: the envelope's, not the request's."""

REQUESTS: dict[int, type[Request[Any]]] = {}
"""Every declared request by its code; complete once `rmq_core.protocol.requests` is imported."""


class Header:
    """Typed header fields of a request or a reply. Subclasses are frozen dataclasses."""

    __slots__ = ()

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read the fields of this header; fields it does not know are ignored.

        Raises RemoteProtocolError where a required field is missing or a value is not of its type.
        """
        values = []
        for wire_name, read, default in _readers(cls):
            text = ext.get(wire_name)
            # The binary header has no null: an empty number stands for an absent one.
            if text or (text is not None and read is str):
                try:
                    values.append(read(text))
                except RemoteProtocolError as error:
                    raise RemoteProtocolError(f"the field {wire_name}: {error}") from None
            elif default is MISSING:
                raise RemoteProtocolError(f"the field {wire_name} is missing")
            else:
                values.append(default)
        return cls(*values)

    def to_ext(self) -> dict[str, str]:
        """The fields as they go over the wire; None is left out."""
        ext = {}
        for name, wire_name, write in _writers(type(self)):
            value = getattr(self, name)
            if value is not None:
                ext[wire_name] = write(value)
        return ext


@dataclass(frozen=True, slots=True)
class NoFields(Header):
    """A header without fields."""


Reply_co = TypeVar("Reply_co", bound=Header, covariant=True)


class Request(Header, Generic[Reply_co]):
    """A request header. Subclasses name their code, the reply's type and what the bodies hold."""

    __slots__ = ()

    code: ClassVar[int]
    reply: ClassVar[type[Header]] = NoFields
    body: ClassVar[type[Body] | None] = None
    """The JSON body of the request, where it has one."""
    reply_body: ClassVar[type[Body] | None] = None
    """The JSON body of the answer, where it has one."""
    accepts: ClassVar[frozenset[int]] = frozenset({0})
    """Response codes that are results; any other one is raised in the caller as BrokerError."""

    def __init_subclass__(cls) -> None:
        code = cls.__dict__.get("code")
        if code is not None:
            register_once(REQUESTS, code, cls)


@cached
def java_name(request: type[Request[Any]]) -> str:
    """The constant that Apache's sources use: GetMaxOffset → GET_MAX_OFFSET."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", request.__name__).upper()


@cached
def _readers(cls: type[Header]) -> tuple[tuple[str, Callable[[str], Any], Any], ...]:
    return tuple((plan.wire_name, _reader(plan), plan.default) for plan in field_plans(cls))


@cached
def _writers(cls: type[Header]) -> tuple[tuple[str, str, Callable[[Any], str]], ...]:
    return tuple((plan.name, plan.wire_name, _writer(plan)) for plan in field_plans(cls))


def _reader(plan: FieldPlan) -> Callable[[str], Any]:
    if plan.type is str:
        return str
    if plan.type is int:
        return functools.partial(read_int, bits=plan.bits)
    if plan.type is bool:
        return _read_bool
    if plan.type is float:
        return _read_float
    if isinstance(plan.type, type) and issubclass(plan.type, Enum):
        return functools.partial(_read_enum, plan.type)
    raise TypeError(f"header fields are text, numbers, booleans or enums, not {plan.type}")


def _writer(plan: FieldPlan) -> Callable[[Any], str]:
    if plan.type is bool:
        return _write_bool
    if plan.type is int:
        return functools.partial(_write_int, plan.wire_name, plan.bits)
    if isinstance(plan.type, type) and issubclass(plan.type, Enum):
        return _write_enum
    return str


def _read_bool(text: str) -> bool:
    # As Boolean.parseBoolean: "1", which old C++ clients send, is false.
    return text.lower() == "true"


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RemoteProtocolError(f"{text[:40]!r} is not a number") from None


def _read_enum(enum: type[Enum], text: str) -> Enum:
    try:
        return enum[text.upper()]
    except KeyError:
        raise RemoteProtocolError(f"{text[:40]!r} is none of {', '.join(enum.__members__)}") from None


def _write_bool(value: bool) -> str:
    return "true" if value else "false"


def _write_int(wire_name: str, bits: int, value: int) -> str:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise LocalProtocolError(f"{wire_name}={value} does not fit into {bits} bits")
    return str(int(value))


def _write_enum(value: Enum) -> str:
    return value.name
