"""Generated values for property tests."""

from __future__ import annotations

import dataclasses
import functools
import typing
from enum import Enum
from typing import Annotated, Any, TypeVar

from hypothesis import strategies as st

from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Bits, field_plans, strip_optional

AnyBody = TypeVar("AnyBody", bound=Body)

# "$ref" alone in an object is a reference in the dialect, so it cannot be an ordinary key.
texts = st.text(max_size=12).filter(lambda text: text != "$ref")
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def integers(bits: int) -> st.SearchStrategy[int]:
    """Signed integers of a width."""
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def bodies(cls: type[AnyBody]) -> st.SearchStrategy[AnyBody]:
    """Values of a body class, from its declaration."""
    return typing.cast("st.SearchStrategy[AnyBody]", _beans(typing.cast("Any", cls)))


@functools.cache
def _beans(cls: Any) -> st.SearchStrategy[Any]:
    fields = {}
    for plan in field_plans(cls):
        values = _values(plan.type, plan.bits)
        # None is left out on the wire and comes back as the default.
        fields[plan.name] = st.none() | values if plan.is_optional and plan.default is None else values
    return st.builds(cls, **fields)


def _values(hint: Any, bits: int = 64) -> st.SearchStrategy[Any]:
    hint = strip_optional(hint)[0]
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
        bits = next((note.count for note in notes if isinstance(note, Bits)), 64)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return _beans(typing.cast("Any", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    scalars = {bool: st.booleans(), str: texts, float: floats, bytes: st.binary(max_size=12), int: integers(bits)}
    return scalars[hint]
