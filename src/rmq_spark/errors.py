"""What goes wrong in the connector, under names that a program can look for.

Spark carries errors of Python workers as text: the text begins with the condition, in brackets, as Spark's own do.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from rmq_core.errors import RocketMQError


class Condition(StrEnum):
    """Every condition; the text of an error begins with `[ROCKETMQ_…]`."""

    text: str
    """What it means."""

    def __new__(cls, name: str, text: str) -> Self:
        made = str.__new__(cls, name)
        made._value_ = name
        made.text = text
        return made

    BAD_OPTION = "BAD_OPTION", "An option is unknown, has a wrong value, or contradicts another one."
    BAD_COLUMN = "BAD_COLUMN", "A column is unknown, missing, or of another type."
    BAD_ROW = "BAD_ROW", "A row cannot be sent as a message."
    BAD_OFFSETS = (
        "BAD_OFFSETS",
        "Offsets in a checkpoint or an option are not of this source, or name others.",
    )
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC", "No name server knows the topic, or it cannot be read."
    UNKNOWN_QUEUE = "UNKNOWN_QUEUE", "A queue that `assign` names is not there."
    NO_MESSAGE_AT_TIME = "NO_MESSAGE_AT_TIME", "A queue has no message at or after the start time."
    DATA_LOSS = "DATA_LOSS", "Messages that were to be read are gone."
    OFFSETS_CHANGED = "OFFSETS_CHANGED", "The queues are not those that the run began with."
    GROUP_IN_USE = "GROUP_IN_USE", "Somebody else is a member of the group."
    GROUP_RESET = "GROUP_RESET", "An administrator moved the group while the query ran, and onGroupReset=fail."
    UNREACHABLE = "UNREACHABLE", "A name server or broker does not answer."
    REFUSED = "REFUSED", "A name server or broker refuses: wrong keys, or no permission for the topic or group."
    SEND_FAILED = "SEND_FAILED", "A message was not acknowledged."
    CORRUPT_STORE = "CORRUPT_STORE", "A store directory holds damage, and onCorrupt=fail; or it is no store."
    UNSUPPORTED = "UNSUPPORTED", "What was asked for is not there."


class SparkRocketMQError(RocketMQError):
    """An error of the connector: `condition` says which, `parameters` hold what it is about."""

    def __init__(self, condition: Condition, message: str, **parameters: Any) -> None:
        super().__init__(f"[ROCKETMQ_{condition}] {message}")
        self.condition = condition
        self.message = message
        self.parameters = parameters

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.condition, self.message, self.parameters)


def _rebuild(condition: Condition, message: str, parameters: dict[str, Any]) -> SparkRocketMQError:
    return SparkRocketMQError(condition, message, **parameters)


def bad_option(name: str, value: object, reason: str) -> SparkRocketMQError:
    """An option whose value cannot be used."""
    return SparkRocketMQError(
        Condition.BAD_OPTION, f"option {name}={value!r}: {reason}", option=name, value=value, reason=reason
    )
