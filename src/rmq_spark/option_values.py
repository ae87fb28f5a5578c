"""From the text of an option to its value. Raises ValueError that says what would be right.

Spark hands over every option as text; names are matched without case, values with it unless said otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from rmq_core.protocol.message import MessageQueue, group_name_problem, topic_name_problem
from rmq_spark.offsets import EXAMPLE, QueueOffsets, flattened

ASSIGN_EXAMPLE: Final = '{"Orders":{"broker-a":[0,1]}}'
TIMES_EXAMPLE: Final = '{"Orders":{"broker-a":{"0":1767225600000}}}'
_UNITS_MS: Final = {
    "": 1, "ms": 1, "s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_DURATION: Final = re.compile(r"([0-9]{1,15})\s*([a-z]*)")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


def text(given: str) -> str:
    """Any text but blank."""
    if not given.strip():
        raise ValueError("it is blank; leave it out or give a value")
    return given.strip()


def raw_text(given: str) -> str:
    """Any text, as it is."""
    return given


def boolean(given: str) -> bool:
    """true or false, in any case."""
    lower = given.strip().lower()
    if lower not in ("true", "false"):
        raise ValueError("give true or false")
    return lower == "true"


def whole_number(*, at_least: int, at_most: int = 2**63 - 1) -> Callable[[str], int]:
    """A parser of whole numbers between two limits."""

    def parse(given: str) -> int:
        stripped = given.strip()
        value = int(stripped) if _NUMBER.fullmatch(stripped) else None
        if value is None or not at_least <= value <= at_most:
            limits = f"of at least {at_least}" if at_most == 2**63 - 1 else f"between {at_least} and {at_most}"
            raise ValueError(f"give a whole number {limits}")
        return value

    return parse


def duration_ms(given: str) -> int:
    """Milliseconds, or a number with a unit: 500ms, 5s, 2min, 1h."""
    found = _DURATION.fullmatch(given.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError("give milliseconds, or a number with ms, s, min, h or d, as in 15m")
    return int(found[1]) * _UNITS_MS[found[2]]


def size_bytes(given: str) -> int:
    """Bytes, or a number with k, m or g."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmg]?)(?:i?b)?", given.strip().lower())
    value = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found else 0
    if value <= 0:
        raise ValueError("give a number of bytes above zero, or a number with k, m or g, as in 32m")
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser of some words, in any case."""

    def parse(given: str) -> str:
        lower = given.strip().lower()
        if lower not in choices:
            raise ValueError(f"give {' or '.join(choices)}")
        return lower

    return parse


def words(given: str) -> tuple[str, ...]:
    """Words between commas; blanks and empty parts do not count."""
    found = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip()))
    if not found:
        raise ValueError("it names nothing; give names with commas between them")
    return found


def topic(given: str) -> str:
    """The name of one topic."""
    if not given.strip():
        raise ValueError("it names no topic")
    if problem := topic_name_problem(given.strip()):
        raise ValueError(problem)
    return given.strip()


def topics(given: str) -> tuple[str, ...]:
    """Names of topics between commas."""
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise ValueError("it names no topic")
    return tuple(map(topic, names))


def group(given: str) -> str:
    """The name of a consumer or producer group."""
    if problem := group_name_problem(given.strip()):
        raise ValueError(problem)
    return given.strip()


def pattern(given: str) -> str:
    """A regular expression that whole topic names are matched with."""
    if not given.strip():
        raise ValueError("the pattern is empty")
    try:
        re.compile(given.strip())
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    return given.strip()


def _json(given: str, example: str) -> Any:
    try:
        return json.loads(given)
    except ValueError:
        raise ValueError(f"it is no JSON; give it as in {example}") from None


def assignment(given: str) -> tuple[MessageQueue, ...]:
    """Queues as {topic: {broker: [number, …]}}."""
    if not given.strip().startswith("{"):
        raise ValueError(f"it names no queue to assign; give JSON as in {ASSIGN_EXAMPLE}")
    value = _json(given, ASSIGN_EXAMPLE)
    queues = []
    for topic_name, brokers in value.items():
        topic(topic_name)
        if not isinstance(brokers, dict):
            raise ValueError(f"topic {topic_name} needs its brokers; give JSON as in {ASSIGN_EXAMPLE}")
        for broker, ids in brokers.items():
            is_list = isinstance(ids, list) and all(type(each) is int and each >= 0 for each in ids)
            if not is_list:
                raise ValueError(f"broker {broker} needs a list of queue numbers, as in {ASSIGN_EXAMPLE}")
            queues += [MessageQueue(topic_name, broker, each) for each in ids]
    if not queues:
        raise ValueError(f"it names no queue to assign; give JSON as in {ASSIGN_EXAMPLE}")
    return tuple(sorted(set(queues)))


def offsets(*keywords: str) -> Callable[[str], str | QueueOffsets]:
    """A parser of one of some words, or of offsets as JSON."""
    allowed = f"give {', '.join(keywords)}, or offsets as in {EXAMPLE} (-1 is the latest, -2 the earliest)"

    def parse(given: str) -> str | QueueOffsets:
        lower = given.strip().lower()
        if lower in keywords:
            return lower
        if not lower.startswith("{"):
            raise ValueError(allowed)
        return _queue_numbers(given, EXAMPLE, least=-2)

    return parse


def times(given: str) -> QueueOffsets:
    """Store times in milliseconds for some queues, as JSON."""
    return _queue_numbers(given, TIMES_EXAMPLE, least=0)


def _queue_numbers(given: str, example: str, *, least: int) -> QueueOffsets:
    value = _json(given, example)
    if isinstance(value, dict) and "v" in value and "queues" in value:  # as a query's progress shows it
        value = value["queues"]
    try:
        found = flattened(value)
    except ValueError as error:
        raise ValueError(f"{error}; give topic, broker and queue as in {example}") from None
    if not found:
        raise ValueError(f"it names no queue; give topic, broker and queue as in {example}")
    for queue, number in found.items():
        topic(queue.topic)
        if number < least:
            raise ValueError(f"{number} is no time in milliseconds")
    return found


def time_ms(given: str) -> int:
    """A time in whole milliseconds since 1970."""
    stripped = given.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= 18):
        raise ValueError("give a time in whole milliseconds since 1970, as in 1767225600000")
    return int(stripped)


def address_map(given: str) -> dict[str, str]:
    """Addresses as announced=reachable, with commas between pairs."""
    found = {}
    for pair in words(given):
        announced, equals, reachable = (part.strip() for part in pair.partition("="))
        if not (announced and equals and reachable):
            raise ValueError("give pairs announced=reachable, as in 172.17.0.2:10911=localhost:10911")
        found[announced] = reachable
    return found


def columns(given: str) -> str | tuple[str, ...]:
    """all, or names of columns between commas."""
    return "all" if given.strip().lower() == "all" else words(given)
