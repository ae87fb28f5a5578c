"""What a consumer wants of a topic: by tags, or by SQL92 over properties.

Versions   Brokers keep the subscription with the highest version, so each new one is higher than all before it in
           this process, and than those of earlier processes unless the clock went back.
Tags       Brokers compare hashes; matches() compares the tags themselves and drops what only hashes alike.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping
from typing import Final, Protocol

from rmq_core.errors import ProtocolError
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.filter import ALL_TAGS, parse_tags
from rmq_core.protocol.message import Property, topic_name_problem

TAG: Final = "TAG"
SQL92: Final = "SQL92"


class HasProperties(Protocol):
    """A message, whether as it is stored or as users get it."""

    @property
    def properties(self) -> Mapping[str, str]: ...


def subscription(topic: str, *, tags: str = ALL_TAGS, sql: str | None = None) -> SubscriptionData:
    """A checked subscription of a topic as the wire names it. Raises TypeError and ValueError naming the cause."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    if problem := topic_name_problem(topic):
        raise ValueError(problem)
    if sql is not None:
        return _by_sql(topic, tags, sql)
    if not isinstance(tags, str):
        raise TypeError(f"tags must be str like 'paid || shipped', not {type(tags).__name__}")
    try:
        parsed = parse_tags(tags)
    except ProtocolError as error:
        raise ValueError(f"tags: {error}") from None
    return SubscriptionData(
        topic=topic,
        sub_string=parsed.text,
        tags_set=tuple(sorted(parsed.tags)),
        code_set=tuple(sorted(parsed.codes)),
        sub_version=_next_version(),
        expression_type=TAG,
    )


def _by_sql(topic: str, tags: str, sql: str) -> SubscriptionData:
    if tags != ALL_TAGS:
        raise ValueError("give either tags or sql; within sql the tag is the property TAGS")
    if not isinstance(sql, str):
        raise TypeError(f"sql must be str, not {type(sql).__name__}")
    from rmq_core.protocol.sql92 import compile_sql  # its grammar takes a while to load

    try:
        compile_sql(sql)
    except ProtocolError as error:
        raise ValueError(f"sql: {error}") from None
    return SubscriptionData(topic=topic, sub_string=sql, sub_version=_next_version(), expression_type=SQL92)


def renewed(known: SubscriptionData) -> SubscriptionData:
    """The same with a new version, so that brokers take it for the latest."""
    return dataclasses.replace(known, sub_version=_next_version())


def is_by_tags(known: SubscriptionData) -> bool:
    """Whether the broker needs no filter data for it."""
    return known.expression_type in (None, TAG)


def matches(known: SubscriptionData, message: HasProperties) -> bool:
    """Whether a message that the broker let through is meant: its tag is one of those asked for."""
    return not known.tags_set or message.properties.get(Property.TAGS) in known.tags_set


_counting = threading.Lock()
_last = 0


def _next_version() -> int:
    global _last  # noqa: PLW0603
    with _counting:
        _last = max(_last + 1, time.time_ns() // 1_000_000)
        return _last


def _forget() -> None:
    global _counting  # noqa: PLW0603
    _counting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
