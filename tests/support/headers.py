"""Strategies for request and reply headers, made from their declarations."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from hypothesis import strategies as st

from rmq_core.protocol.codes import Language
from rmq_core.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, HeaderEncoding
from rmq_core.protocol.fields import FieldPlan, cached, field_plans
from rmq_core.protocol.request import Header, Request

HeaderT = TypeVar("HeaderT", bound=Header)

# \x01 and \x02 separate message properties, which travel inside a header field.
texts = st.sampled_from(["", "a\x01b\x02", "主题", "\U0001f680", '"\\\n\x7f', "%RETRY%group"]) | st.text(
    max_size=12
)


def integers(bits: int) -> st.SearchStrategy[int]:
    """Integers of a width, often at the ends of their range."""
    limit = 1 << (bits - 1)
    return st.sampled_from([-limit, -1, 0, 1, limit - 1]) | st.integers(-limit, limit - 1)


@cached
def headers(cls: type[HeaderT]) -> st.SearchStrategy[HeaderT]:
    """Any header of this type; optional fields are None as often as not."""
    return st.builds(cls, **{plan.name: _values(plan) for plan in field_plans(cls)})


@cached
def commands(cls: type[Request[Any]]) -> st.SearchStrategy[Command]:
    """Any request of this type, in either encoding."""
    return _commands(headers(cls), codes=st.just(cls.code), flags=st.sampled_from([0, ONEWAY_FLAG]))


@cached
def replies(cls: type[Request[Any]]) -> st.SearchStrategy[Command]:
    """Any answer to a request of this type that is a result, in either encoding."""
    codes = st.sampled_from(sorted(cls.accepts))
    return _commands(headers(cls.reply), codes=codes, flags=st.just(RESPONSE_FLAG))


def _commands(
    of: st.SearchStrategy[Header], *, codes: st.SearchStrategy[int], flags: st.SearchStrategy[int]
) -> st.SearchStrategy[Command]:
    # The binary header has one form for "none" and "empty"; so does this strategy.
    return st.builds(
        Command,
        code=codes,
        opaque=integers(32),
        flag=flags,
        remark=texts.map(lambda text: text or None),
        ext=of.map(lambda header: header.to_ext() or None),
        body=st.binary(max_size=20),
        language=st.sampled_from(Language),
        version=st.integers(0, 32767),
        encoding=st.sampled_from(HeaderEncoding),
    )


def _values(plan: FieldPlan) -> st.SearchStrategy[Any]:
    values = _plain_values(plan)
    return st.none() | values if plan.is_optional else values


def _plain_values(plan: FieldPlan) -> st.SearchStrategy[Any]:
    if plan.type is str:
        return texts
    if plan.type is int:
        return integers(plan.bits)
    if plan.type is bool:
        return st.booleans()
    if plan.type is float:
        return st.floats(allow_nan=False)
    if isinstance(plan.type, type) and issubclass(plan.type, Enum):
        return st.sampled_from(plan.type)
    raise TypeError(f"no strategy for {plan}")
