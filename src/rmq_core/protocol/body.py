"""JSON bodies as typed values: one frozen dataclass per body, its codec derived from its fields.

Reading is as lenient as Java's: unknown fields are ignored, null and absent fields take their default,
numbers may be text and text may be numbers, enums come by name in any case or by ordinal.
Writing follows Java: fields in alphabetical order, no blanks, None left out, numeric and object keys of maps
unquoted. `encode(standard=True)` quotes them, for peers that want standard JSON.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import math
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Self, cast

import orjson

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import fastjson
from rmq_core.protocol.fields import (
    MISSING,
    Bits,
    FieldPlan,
    check_range,
    field_plans,
    read_int,
    strip_optional,
)

_TAKEN_AS_IS = frozenset({str, int, bool})
Read = Callable[[Any], Any]
Write = Callable[[Any, bool], Any]


class Body:
    """A JSON body. Subclasses are frozen dataclasses."""

    __slots__ = ()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Read a body. Raises RemoteProtocolError where it is not JSON or a field is not of its type."""
        return cls.from_json(fastjson.loads(data))

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The same from a parsed JSON value."""
        return cast(Self, _bean_reader(cast(Any, cls))(value))

    def encode(self, *, standard: bool = False) -> bytes:
        """Write the body as Java does, or as standard JSON."""
        value = _write_bean(self, standard)
        return (
            orjson.dumps(value) if standard or not _has_raw_keys(cast(Any, type(self))) else fastjson.dumps(value)
        )

    def to_json(self) -> dict[str, Any]:
        """The body as dicts, lists and scalars."""
        return _write_bean(self, True)


@functools.cache
def _bean_reader(cls: type) -> Read:
    # A value that is of its type already is taken as it is; tables of a broker have tens of thousands of them.
    plans = [
        (plan, plan.wire_name, plan.type, 1 << (plan.bits - 1), _reader(plan.type, plan.bits))
        for plan in field_plans(cls)
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise RemoteProtocolError(f"{cls.__name__} is an object, not {str(value)[:40]!r}")
        values = []
        for plan, wire_name, kind, limit, read_field in plans:
            item: Any = value.get(wire_name)
            if type(item) is kind and (kind is not int or -limit <= item < limit) and kind in _TAKEN_AS_IS:
                values.append(item)
            elif item is not None:
                try:
                    values.append(read_field(item))
                except RemoteProtocolError as error:
                    raise RemoteProtocolError(f"{wire_name}: {error}") from None
            else:
                values.append(_default(plan))
        return cls(*values)

    return read


def _default(plan: FieldPlan) -> Any:
    default = plan.default
    if default is MISSING:
        raise RemoteProtocolError(f"{plan.wire_name} is missing")
    # Containers are frozen by convention, yet nobody should share one with the declaration.
    return default.copy() if isinstance(default, dict) else default


@functools.cache
def _bean_writers(cls: type) -> tuple[tuple[str, str, Write], ...]:
    writers = [(plan.name, plan.wire_name, _writer(plan.type)) for plan in field_plans(cls)]
    return tuple(sorted(writers, key=lambda writer: writer[1]))


def _write_bean(bean: Any, standard: bool) -> dict[str, Any]:
    result = {}
    for name, wire_name, write in _bean_writers(cast(Any, type(bean))):
        value = getattr(bean, name)
        if value is not None:
            result[wire_name] = write(value, standard)
    return result


def _unwrap(hint: Any) -> tuple[Any, int]:
    """(type, bits) of a possibly annotated, possibly optional hint inside a container."""
    hint, _ = strip_optional(hint)
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
        return hint, next((note.count for note in notes if isinstance(note, Bits)), 64)
    return hint, 64


_SCALARS: dict[Any, str] = {
    str: "text",
    float: "number",
    bool: "boolean",
    bytes: "bytes",
    Any: "any",
    object: "any",
}


def _reader(hint: Any, bits: int = 64) -> Read:
    origin = typing.get_origin(hint)
    if hint is int:
        return functools.partial(_read_int, bits=bits)
    if hint in _SCALARS:
        return _SCALAR_READERS[_SCALARS[hint]]
    if origin in (tuple, list, frozenset):
        return functools.partial(_read_array, _reader(*_unwrap(typing.get_args(hint)[0])), origin)
    if origin is dict:
        key, value = typing.get_args(hint)
        return functools.partial(_read_map, _key_reader(key), _reader(*_unwrap(value)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    if dataclasses.is_dataclass(hint):
        return _bean_reader(cast(type, hint))
    raise TypeError(f"a JSON body cannot hold {hint}")


def _read_int(value: Any, *, bits: int) -> int:
    if isinstance(value, int):
        return check_range(int(value), bits=bits)
    if isinstance(value, str):
        return read_int(value.strip(), bits=bits)
    if isinstance(value, float) and value.is_integer():
        return check_range(int(value), bits=bits)
    raise RemoteProtocolError(f"{str(value)[:40]!r} is not a number")


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise RemoteProtocolError(f"{str(value)[:40]!r} is not text")


def _read_number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RemoteProtocolError(f"{str(value)[:40]!r} is not a number") from None
    if not math.isfinite(number):
        raise RemoteProtocolError(f"JSON has no number {number}")
    return number


def _read_boolean(value: Any) -> bool:
    if isinstance(value, bool | int):
        return bool(value)
    if isinstance(value, str):
        return value.lower() in ("true", "1")
    raise RemoteProtocolError(f"{str(value)[:40]!r} is not a boolean")


def _read_bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise RemoteProtocolError("bytes are not base64") from None


_SCALAR_READERS: dict[str, Read] = {
    "text": _read_text,
    "number": _read_number,
    "boolean": _read_boolean,
    "bytes": _read_bytes,
    "any": lambda value: value,
}


def _read_array(read: Read, collect: type, value: Any) -> Any:
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{str(value)[:40]!r} is not an array")
    return collect(read(item) for item in value if item is not None)


def _read_map(read_key: Read, read: Read, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{str(value)[:40]!r} is not an object")
    return {read_key(key): read(item) for key, item in value.items() if item is not None}


def _enum_reader(enum: type[Enum]) -> Read:
    members = list(enum)
    by_text = {text.lower(): member for member in members for text in (member.name, str(member.value))}

    def read(value: Any) -> Enum:
        if isinstance(value, str) and value.lower() in by_text:
            return by_text[value.lower()]
        if isinstance(value, int) and 0 <= value < len(members):
            return members[value]
        raise RemoteProtocolError(f"{str(value)[:40]!r} is none of {', '.join(enum.__members__)}")

    return read


def _key_reader(hint: Any) -> Read:
    hint, bits = _unwrap(hint)
    if dataclasses.is_dataclass(hint):
        return lambda text: _bean_reader(cast(type, hint))(fastjson.loads(text.encode()))
    return _reader(hint, bits)


def _writer(hint: Any) -> Write:
    origin = typing.get_origin(hint)
    if origin in (tuple, list, frozenset):
        write = _writer(_unwrap(typing.get_args(hint)[0])[0])
        return lambda values, standard: [write(value, standard) for value in values]
    if origin is dict:
        key, value = typing.get_args(hint)
        return functools.partial(_write_map, _unwrap(key)[0], _writer(_unwrap(value)[0]))
    if hint is bytes:
        return lambda value, _: base64.b64encode(value).decode()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value, _: value.value if isinstance(value.value, str) else value.name
    if dataclasses.is_dataclass(hint):
        return _write_bean
    return lambda value, _: value


def _write_map(key_hint: Any, write: Write, items: dict[Any, Any], standard: bool) -> dict[str, Any]:
    if key_hint is str:
        return {key: write(value, standard) for key, value in items.items()}
    if dataclasses.is_dataclass(key_hint):
        pairs = {
            orjson.dumps(_write_bean(key, True)).decode(): write(value, standard) for key, value in items.items()
        }
    else:
        pairs = {str(key): write(value, standard) for key, value in items.items()}
    return pairs if standard else fastjson.RawKeys(pairs)


@functools.cache
def _has_raw_keys(hint: Any) -> bool:
    """Whether a value of this type can contain a map with keys that are not text."""
    hint = _unwrap(hint)[0]
    origin = typing.get_origin(hint)
    if origin is dict:
        key, value = typing.get_args(hint)
        return _unwrap(key)[0] is not str or _has_raw_keys(value)
    if origin in (tuple, list, frozenset):
        return _has_raw_keys(typing.get_args(hint)[0])
    if dataclasses.is_dataclass(hint):
        return any(_has_raw_keys(plan.type) for plan in field_plans(cast(type, hint)))
    return False
