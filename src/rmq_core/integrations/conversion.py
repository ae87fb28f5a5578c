"""Plain objects ⇄ message bodies, by the type hints of those who read them.

Writing   bytes stay as they are, text becomes UTF-8, everything else JSON: dataclasses, pydantic models, dicts,
          lists, numbers, dates, enums, UUIDs, decimals, sets.
Reading   What a hint asks for is built, and nothing is guessed: text is no number and a number is no text. Fields
          that a class does not have are ignored: they come from a newer sender. A missing one without a default is
          an error. Pydantic models read by their own rules.
Errors    ConversionError names the type and the place: `Order: lines[2].price must be a number, not text ('5')`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypeVar, Union
from uuid import UUID

import orjson

from rmq_core.errors import RocketMQError

T = TypeVar("T")
Read = Callable[[Any, str], Any]
"""Builds a value from a JSON value; the text is its place in the body."""

_JSON_NAMES: Final = {
    dict: "an object",
    list: "an array",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}
_FROM_TEXT: Final[Mapping[type, Callable[[str], Any]]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
}


# Dataclasses are passed to _plain: orjson itself leaves out fields that begin with an underscore.
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_MODULE: Final = re.compile(r"\b(?:[^\W\d]\w*\.)+(?=\w)|<locals>\.")
_building: Final = threading.RLock()
_readers: Final[dict[Any, Read]] = {}


class ConversionError(RocketMQError, ValueError):
    """A body is not what its reader asks for, or a value cannot be a body."""


def to_body(value: object) -> bytes:
    """The body for a value. Raises ConversionError naming the type that cannot be one."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS)
    except orjson.JSONEncodeError as error:
        reason = error.__cause__ or error
        raise ConversionError(f"{_name(type(value))} cannot be a message body: {reason}") from None


def _plain(value: Any) -> Any:
    """What JSON can say of a value that it does not know."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, AbstractSet):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{_name(type(value))} has no form in JSON; make it a dataclass, or convert it before")


def from_body(body: bytes, into: type[T] | Any) -> T:
    """The value that a type asks for. Raises ConversionError; TypeError for a type that cannot be read."""
    if into is bytes:
        return typing.cast(T, body)
    if into is str:
        try:
            return typing.cast(T, body.decode())
        except UnicodeDecodeError:
            raise ConversionError("the body must be UTF-8 text") from None
    read = reader(into)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ConversionError(f"the body must be {_name(into)} as JSON, and is no JSON: {error}") from None
    try:
        return typing.cast(T, read(value, ""))
    except _MismatchError as error:
        place, wanted, found = error.args
        raise ConversionError(f"{_name(into)}: {place or 'the body'} must be {wanted}, not {found}") from None


class _MismatchError(Exception):
    """(place, what is wanted there, what was found)"""


def _mismatch(place: str, wanted: str, value: Any) -> _MismatchError:
    shown = f"{_JSON_NAMES.get(type(value), type(value).__name__)}"
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        shown += f" ({str(value)[:40]!r})"
    return _MismatchError(place, wanted, shown)


def reader(hint: Any) -> Read:
    """How to build what a hint asks for. Raises TypeError naming a hint that cannot be read."""
    hint = _bare(hint)
    with _building:  # a class that holds others of its kind is known before it is complete, but only in here
        known = _readers.get(hint)
        if known is None:
            known = _reader(hint)
            _readers.setdefault(hint, known)
        return known


def _reader(hint: Any) -> Read:
    if hint in (Any, object, typing.cast(Any, dict), typing.cast(Any, list)):
        return _as_it_is if hint in (Any, object) else functools.partial(_exactly, hint)
    origin = typing.get_origin(hint)
    if origin is not None:
        return _generic_reader(hint, origin, typing.get_args(hint))
    if hint is None or hint is type(None):
        return functools.partial(_exactly, type(None))
    if isinstance(hint, type):
        return _class_reader(hint)
    raise _unreadable(hint)


def _bare(hint: Any) -> Any:
    """A hint without Annotated and NewType."""
    while True:
        if typing.get_origin(hint) is Annotated:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def _unreadable(hint: Any) -> TypeError:
    return TypeError(
        f"{_name(hint)} cannot be read from a message body; use bytes, str, a dataclass, a pydantic model, "
        "a TypedDict, or lists and dicts of those"
    )


def _class_reader(kind: type) -> Read:
    if hasattr(kind, "model_validate") and hasattr(kind, "model_fields"):
        return functools.partial(_read_model, kind)
    if dataclasses.is_dataclass(kind):
        return _fields_reader(kind, _dataclass_fields(kind), kind)
    if typing.is_typeddict(kind):
        return _fields_reader(kind, _typed_dict_fields(kind), dict)
    if issubclass(kind, Enum):
        return functools.partial(_read_enum, kind)
    if kind in (str, bool, int):
        return functools.partial(_exactly, kind)
    if kind is float:
        return _read_float
    if kind is Decimal:
        return _read_decimal
    if kind in _FROM_TEXT:
        return functools.partial(_read_text, kind)
    if kind in (tuple, set, frozenset):
        return functools.partial(_read_array, _as_it_is, kind)
    raise _unreadable(kind)


def _generic_reader(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Read:
    if origin in (Union, types.UnionType):
        return functools.partial(_read_union, tuple(reader(each) for each in arguments), _name(hint))
    if origin is Literal:
        return functools.partial(_read_literal, arguments, _name(hint))
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return functools.partial(_read_tuple, tuple(reader(each) for each in arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, value = arguments
        if _bare(key) is not str:
            raise TypeError(f"{_name(hint)}: keys of a JSON object are text")
        return functools.partial(_read_mapping, reader(value))
    if isinstance(origin, type) and issubclass(origin, Sequence | AbstractSet):
        collect: Any = {tuple: tuple, frozenset: frozenset}.get(
            origin, set if issubclass(origin, AbstractSet) else list
        )
        return functools.partial(_read_array, reader(arguments[0]), collect)
    if isinstance(origin, type) and hasattr(origin, "model_validate"):
        return functools.partial(_read_model, hint)
    raise _unreadable(hint)


def _as_it_is(value: Any, place: str) -> Any:
    return value


def _exactly(kind: type, value: Any, place: str) -> Any:
    # bool is an int in Python and not in JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _mismatch(place, "a whole number" if kind is int else _JSON_NAMES[kind], value)
    return value


def _read_float(value: Any, place: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _mismatch(place, "a number", value)
    return float(value)


def _read_decimal(value: Any, place: str) -> Decimal:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise _mismatch(place, "a decimal number", value)
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise _mismatch(place, "a decimal number", value) from None


def _read_text(kind: type, value: Any, place: str) -> Any:
    wanted = f"a {kind.__name__} as text"
    if not isinstance(value, str):
        raise _mismatch(place, wanted, value)
    try:
        return _FROM_TEXT[kind](value)
    except ValueError:
        raise _mismatch(place, wanted, value) from None


def _read_enum(kind: type[Enum], value: Any, place: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(each.value) for each in kind)
        raise _mismatch(place, f"one of {known}", value) from None


def _read_literal(known: tuple[Any, ...], name: str, value: Any, place: str) -> Any:
    for each in known:
        if type(each) is type(value) and each == value:
            return value
    raise _mismatch(place, name, value)


def _read_union(readers: tuple[Read, ...], name: str, value: Any, place: str) -> Any:
    deepest: _MismatchError | None = None
    for read in readers:
        try:
            return read(value, place)
        except _MismatchError as error:
            # The one that came furthest says best what is wrong.
            if deepest is None or len(error.args[0]) > len(deepest.args[0]):
                deepest = error
    if deepest is not None and deepest.args[0] != place:
        raise deepest
    raise _mismatch(place, name, value)


def _read_array(read: Read, collect: Any, value: Any, place: str) -> Any:
    if not isinstance(value, list):
        raise _mismatch(place, "an array", value)
    return collect(read(each, f"{place}[{number}]") for number, each in enumerate(value))


def _read_tuple(readers: tuple[Read, ...], value: Any, place: str) -> Any:
    if not isinstance(value, list) or len(value) != len(readers):
        raise _mismatch(place, f"an array of {len(readers)}", value)
    return tuple(
        read(each, f"{place}[{number}]") for number, (read, each) in enumerate(zip(readers, value, strict=True))
    )


def _read_mapping(read: Read, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise _mismatch(place, "an object", value)
    return {key: read(each, f"{place}[{key!r}]") for key, each in value.items()}


def _read_model(kind: Any, value: Any, place: str) -> Any:
    try:
        # Only pydantic's own error is a ValueError with errors(); anything else is the model's defect.
        return kind.model_validate(value)
    except ValueError as error:
        details = getattr(error, "errors", None)
        if details is None:
            raise
        first = details()[0]
        inner = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        shown = _JSON_NAMES.get(type(first.get("input")), "something else")
        raise _MismatchError(f"{place}{inner}".lstrip("."), f"right ({first['msg']})", shown) from None


def _dataclass_fields(kind: Any) -> list[tuple[str, Any, bool]]:
    """(name, hint, whether it must be there)"""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (
            each.name,
            hints[each.name],
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING,
        )
        for each in dataclasses.fields(kind)
        if each.init
    ]


def _typed_dict_fields(kind: Any) -> list[tuple[str, Any, bool]]:
    """The same; by the marks of the fields, since __required_keys__ does not see marks that are text."""
    fields = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        mark = typing.get_origin(hint)
        if mark in (NotRequired, Required):
            fields.append((name, typing.get_args(hint)[0], mark is Required))
        else:
            fields.append((name, hint, kind.__total__))
    return fields


def _fields_reader(kind: Any, fields: list[tuple[str, Any, bool]], build: Callable[..., Any]) -> Read:
    plan: list[tuple[str, Read, bool]] = []

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(place, f"an object with the fields of {_name(kind)}", value)
        found = {}
        for name, read_field, needed in plan:
            where = f"{place}.{name}" if place else name
            if name in value:
                found[name] = read_field(value[name], where)
            elif needed:
                raise _MismatchError(where, "there", "missing")
        return build(**found)

    _readers[kind] = read
    try:
        plan += [(name, reader(hint), needed) for name, hint, needed in fields]
    except TypeError as error:
        del _readers[kind]
        raise TypeError(f"{_name(kind)}: {error}") from None
    return read


def _name(hint: Any) -> str:
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__qualname__.rsplit(".", 1)[-1]
    return _MODULE.sub("", str(hint))
