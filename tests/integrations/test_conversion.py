"""Plain objects as message bodies, there and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.integrations import ConversionError, from_body, to_body


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Line:
    item: str
    price: float
    count: int = 1


@dataclass(frozen=True)
class Order:
    number: int
    lines: tuple[Line, ...] = ()
    size: Size = Size.SMALL
    at: datetime | None = None
    notes: dict[str, list[int]] = field(default_factory=dict)
    total: Decimal = Decimal(0)
    _secret: str = ""


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Address(TypedDict):
    city: str
    zip: NotRequired[str]


@dataclass
class Odd:
    value: complex


@dataclass
class HoldsOdd:
    odd: list[Odd]


def test_a_nested_dataclass_comes_back_as_it_was() -> None:
    """Every kind of field at once, one with a leading underscore among them."""
    order = Order(
        42,
        (Line("tea", 2.5, 3), Line("cup", 4)),
        Size.LARGE,
        datetime(2026, 11, 1, 12, tzinfo=UTC),
        {"a": [1, 2]},
        Decimal("10.50"),
        "hidden",
    )
    assert from_body(to_body(order), Order) == order
    assert from_body(to_body([order]), list[Order]) == [order]
    assert from_body(b'{"number": 1, "from a newer sender": true}', Order) == Order(1)


def test_bytes_and_text_are_the_body_itself() -> None:
    """Neither is wrapped in JSON, and neither is read out of it."""
    assert to_body(b"\x00\xff") == from_body(b"\x00\xff", bytes) == b"\x00\xff"
    assert to_body(bytearray(b"x")) == b"x"
    assert to_body("Größe") == "Größe".encode()
    assert from_body(b'"quoted"', str) == '"quoted"'


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (5, int),
        (1.5, float),
        (True, bool),
        (None, type(None)),
        ({"a": 1}, dict[str, int]),
        ([1, "a"], tuple[int, str]),
        (UUID(int=7), UUID),
        (date(2026, 1, 2), date),
        ("x", Literal["x", "y"]),
        ({"city": "Ulm"}, Address),
        ({1, 2}, set[int]),
        (Tree("a", [Tree("b"), Tree("c", [Tree("d")])]), Tree),
        (None, int | None),
        ({"anything": [1, None]}, Any),
    ],
)
def test_values_come_back_by_their_hint(value: object, kind: Any) -> None:
    """Writes and reads one value of each kind."""
    body = to_body(value)
    found: Any = from_body(b'"x"' if isinstance(value, str) else body, kind)
    assert (tuple(value) if isinstance(value, list) else value) == found
    assert isinstance(found, type(value)) or isinstance(value, list)


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (b'{"number": "42"}', Order, "Order: number must be a whole number, not text ('42')"),
        (b'{"number": true}', Order, "Order: number must be a whole number, not true or false"),
        (b"{}", Order, "Order: number must be there, not missing"),
        (
            b'{"number": 1, "lines": [{"item": "a", "price": 1}, {"item": "b", "price": "x"}]}',
            Order,
            "Order: lines[1].price must be a number, not text ('x')",
        ),
        (b'{"number": 1, "size": "xl"}', Order, "Order: size must be one of 's', 'l', not text ('xl')"),
        (b'{"number": 1, "at": "now"}', Order, "Order: at must be datetime | None, not text ('now')"),
        (b'{"number": 1, "notes": {"k": [1, "2"]}}', Order, "Order: notes['k'][1] must be a whole number"),
        (b"[]", Order, "Order: the body must be an object with the fields of Order, not an array"),
        (b"[1]", tuple[int, int], "the body must be an array of 2, not an array"),
        (b"{", Order, "the body must be Order as JSON, and is no JSON"),
        (b"\xff", str, "the body must be UTF-8 text"),
        (b"{}", Address, "Address: city must be there"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_by_name_and_place(body: bytes, kind: Any, says: str) -> None:
    """Damages one thing at a time."""
    with pytest.raises(ConversionError) as refused:
        from_body(body, kind)
    assert says in str(refused.value)


def test_types_without_a_form_are_named() -> None:
    """A value that cannot be written, and hints that cannot be read, deep inside others."""
    with pytest.raises(ConversionError, match="complex has no form in JSON"):
        to_body({"a": 1j})
    with pytest.raises(ConversionError, match="cannot be a message body"):
        to_body(1 << 70)
    for _ in range(2):  # a failed attempt leaves nothing behind
        with pytest.raises(TypeError, match="HoldsOdd: Odd: complex cannot be read from a message body"):
            from_body(b'{"odd": []}', HoldsOdd)
    with pytest.raises(TypeError, match="keys of a JSON object are text"):
        from_body(b"{}", dict[int, str])


def test_pydantic_models_read_and_write_by_their_own_rules() -> None:
    """A model alone, in a list and in a dataclass; an error says where it is."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Paid", number=(int, ...), at=(datetime | None, None))
    paid = model(number=3, at=datetime(2026, 1, 1, tzinfo=UTC))
    assert from_body(to_body(paid), model) == paid
    assert from_body(to_body([paid]), list[model]) == [paid]  # type: ignore[valid-type]
    with pytest.raises(ConversionError, match=r"Paid: number must be right \(.*integer.*\), not text"):
        from_body(b'{"number": "x"}', model)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_json)
def test_whatever_json_can_say_comes_back_or_is_refused(value: Any) -> None:
    """Any value against types that it mostly does not fit: an answer or ConversionError, nothing else."""
    try:
        body = to_body(value) if not isinstance(value, str) else b'"x"'
    except ConversionError:
        return  # half a surrogate pair
    if not isinstance(value, str):
        assert from_body(body, Any) == value
    for kind in (Order, Tree, Address, list[Line], dict[str, int], int | None, Size, tuple[int, str]):
        try:
            from_body(body, kind)
        except ConversionError as error:
            assert str(error)


@given(st.binary())
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Random bodies."""
    for kind in (Order, str, dict[str, Any]):
        try:
            from_body(body, kind)
        except ConversionError as error:
            assert str(error)
