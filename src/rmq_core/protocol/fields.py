"""How dataclass fields are named and typed on the wire; shared by request headers and JSON bodies.

The rule is that `queue_id` is `queueId` on the wire. `Annotated[T, Wire("name")]` gives another name,
`Int32` narrows an integer: Java's int where a plain `int` is Java's long.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, cast

from rmq_core.errors import RemoteProtocolError


@dataclass(frozen=True, slots=True)
class Wire:
    """The name of a field on the wire where it is not the camelCase of its own."""

    name: str


@dataclass(frozen=True, slots=True)
class Bits:
    """The width of an integer."""

    count: int


Int32 = Annotated[int, Bits(32)]
"""Java's int."""


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field of a dataclass: what it is called here and there, and what it holds."""

    name: str
    wire_name: str
    type: Any
    bits: int
    is_optional: bool
    default: Any
    """The value of an absent field; MISSING where the field is required."""


MISSING: Any = dataclasses.MISSING


def camel_case(name: str) -> str:
    """`queue_id` → `queueId`."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def cached(function: FunctionT) -> FunctionT:
    """functools.cache for functions of a class: mypy takes no class with a __hash__ for hashable."""
    return cast(FunctionT, functools.cache(function))


@cached
def field_plans(cls: type) -> tuple[FieldPlan, ...]:
    """The fields of a dataclass, in the order of its constructor."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_plan(field, hints[field.name]) for field in dataclasses.fields(cls))


def _plan(field: dataclasses.Field[Any], hint: Any) -> FieldPlan:
    hint, is_optional = strip_optional(hint)
    wire_name, bits = camel_case(field.name), 64
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
        hint, inner_optional = strip_optional(hint)
        is_optional = is_optional or inner_optional
        for note in notes:
            if isinstance(note, Wire):
                wire_name = note.name
            elif isinstance(note, Bits):
                bits = note.count
        if typing.get_origin(hint) is Annotated:  # Annotated[Int32 | None, Wire("x")]
            hint, *notes = typing.get_args(hint)
            bits = next((note.count for note in notes if isinstance(note, Bits)), bits)
    default, factory = field.default, cast(Any, field.default_factory)
    if default is MISSING and factory is not MISSING:
        default = factory()
    return FieldPlan(field.name, wire_name, hint, bits, is_optional, default)


def strip_optional(hint: Any) -> tuple[Any, bool]:
    """`X | None` → (X, True)."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        rest = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
        if len(rest) != 1:
            raise TypeError(f"a field holds one type or None, not {hint}")
        return rest[0], True
    return hint, False


def read_int(text: str, *, bits: int = 64) -> int:
    """A decimal number as Java parses it: no blanks, no underscores, within the type's range."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        raise RemoteProtocolError(f"{text[:40]!r} is not a number")
    return check_range(int(text), bits=bits)


def check_range(number: int, *, bits: int) -> int:
    """The number itself if a signed integer of that width holds it."""
    limit = 1 << (bits - 1)
    if not -limit <= number < limit:
        raise RemoteProtocolError(f"{number} does not fit into {bits} bits")
    return number


def register_once(registry: dict[Any, Any], key: Any, cls: type) -> None:
    """Enter cls under key; a different class under the same key is a mistake of ours.

    @dataclass(slots=True) builds each class a second time, so the same qualified name may come again.
    """
    known = registry.get(key)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"{key} is declared by {known.__qualname__} and by {cls.__qualname__}")
    registry[key] = cls
