"""What a send gives back: where the message was stored, or what was tried in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rmq_core.errors import BrokerError, ClientError
from rmq_core.protocol.message import Message, MessageQueue


class SendStatus(Enum):
    """How safe a stored message is. Only OK says that it is as safe as its broker is set up to make it."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    """In the broker's memory, and not on its disk in time."""
    SLAVE_NOT_AVAILABLE = 11
    """On the master, which has no slave to copy it to."""
    FLUSH_SLAVE_TIMEOUT = 12
    """On the master, and not on a slave in time."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message that a broker has stored."""

    status: SendStatus
    msg_id: str
    """The identity that the producer gave it, the same in all attempts."""
    offset_msg_id: str
    """Where the broker stored it."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None

    @property
    def ok(self) -> bool:
        return self.status is SendStatus.OK


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to send, and how it ended."""

    broker_name: str
    address: str
    error: Exception
    took_ms: float

    def __str__(self) -> str:
        return f"{self.broker_name} ({self.address}) after {self.took_ms:.0f} ms: {self.error}"


class SendError(ClientError):
    """No broker acknowledged the message. One that did not answer in time may have stored it all the same.

    `tried` has every attempt in its order; the last one's error is the cause.
    """

    retriable = True

    def __init__(self, topic: str, msg_id: str, tried: Sequence[Attempt]) -> None:
        super().__init__(topic, msg_id, tuple(tried))
        self.topic = topic
        self.msg_id = msg_id
        self.tried = tuple(tried)

    def __str__(self) -> str:
        times = "time" if len(self.tried) == 1 else "times"
        listed = "; ".join(map(str, self.tried))
        return f"message {self.msg_id} to {self.topic} was tried {len(self.tried)} {times} in vain: {listed}"

    @property
    def code(self) -> int | None:
        """The response code of the last attempt; None where no answer came."""
        error = self.tried[-1].error if self.tried else None
        return error.code if isinstance(error, BrokerError) else None


class BatchSendError(ClientError):
    """A part of a batch was not acknowledged: `sent` has the results of what was, `unsent` the other messages.

    The first messages of `unsent` may have been stored where their broker did not answer in time.
    """

    retriable = True

    def __init__(self, sent: Sequence[SendResult], unsent: Sequence[Message], reason: str) -> None:
        super().__init__(tuple(sent), tuple(unsent), reason)
        self.sent = tuple(sent)
        self.unsent = tuple(unsent)
        self.reason = reason

    def __str__(self) -> str:
        return f"{len(self.unsent)} of {len(self.sent) + len(self.unsent)} messages were not sent: {self.reason}"
