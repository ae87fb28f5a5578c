"""Attributes of topics and groups: which there are, what they may hold, and how a request changes them.

A change is written `+key=value` or `-key`; what is kept has no sign. Some are given at creation and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rmq_core.errors import BrokerError
from rmq_core.protocol.codes import ResponseCode

_LONG_MAX: Final = (1 << 63) - 1
MESSAGE_TYPE: Final = "message.type"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: what it may hold, and whether it may change later."""

    is_allowed: Callable[[str], bool]
    is_changeable: bool


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda text: text in values


def _whole_number(low: int, high: int) -> Callable[[str], bool]:
    return lambda text: text.removeprefix("-").isdecimal() and len(text) < 21 and low <= int(text) <= high


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(_one_of("BatchCQ", "SimpleCQ"), is_changeable=False),
    "cleanup.policy": Attribute(_one_of("DELETE", "COMPACTION"), is_changeable=False),
    MESSAGE_TYPE: Attribute(
        _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"), is_changeable=True
    ),
    "reserve.time": Attribute(_whole_number(-1, _LONG_MAX), is_changeable=True),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(_whole_number(0, (1 << 31) - 1), is_changeable=True),
}


def parse_changes(text: str) -> dict[str, str]:
    """The changes of a request header: `+key=value,-key`. Raises BrokerError."""
    changes: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, has_value, value = part.partition("=")
        if not has_value and not key.startswith("-"):
            raise _refused(f"an attribute is written +key=value or -key, not {part}")
        if key in changes:
            raise _refused(f"key duplication: {key}")
        changes[key] = value
    return changes


def changed_attributes(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after a change; current is None for what is being created. Raises BrokerError."""
    result = dict(current or {})
    seen: set[str] = set()
    for signed_key, value in changes.items():
        sign, key = signed_key[:1], signed_key[1:]
        if sign not in ("+", "-") or not key:
            raise _refused(f"an attribute is written +key=value or -key, not {signed_key}")
        if key in seen:
            raise _refused(f"alter duplication key: {key}")
        seen.add(key)
        attribute = known.get(key)
        if attribute is None:
            raise _refused(f"unsupported key: {key}")
        if current is None and sign == "-":
            raise _refused(f"only add attribute is supported while creating. key: {key}")
        if current is not None and not attribute.is_changeable and (sign == "-" or result.get(key) != value):
            raise _refused(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            if key not in result:
                raise _refused(f"attempt to delete a nonexistent key: {key}")
            del result[key]
            continue
        if not attribute.is_allowed(value):
            raise _refused(f"{value} is not a value of {key}")
        result[key] = value
    return result


def _refused(remark: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, remark)
