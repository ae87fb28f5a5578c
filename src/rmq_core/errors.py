"""Every exception of the core.

`retriable` says whether the same call may succeed later or elsewhere without a change by the caller.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RocketMQError(Exception):
    """Anything that this package raises on purpose. It reaches another process as it is."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the class again: its arguments are not always those that Exception keeps.
        return _again, (type(self), self.args), self.__dict__


class ProtocolError(RocketMQError):
    """Bytes or fields that are not the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to send something the protocol cannot carry; correct the call."""


class RemoteProtocolError(ProtocolError):
    """The peer, or a file, holds bytes that do not follow the protocol."""


class StoreError(RocketMQError):
    """The message store cannot do what was asked."""


class CorruptRecordError(StoreError):
    """The record at log_offset is damaged; what lies before and after it may be whole."""

    def __init__(self, log_offset: int, reason: str) -> None:
        super().__init__(f"corrupt record at log offset {log_offset}: {reason}")
        self.log_offset = log_offset
        self.reason = reason


class BrokerError(RocketMQError):
    """A peer answered with an error: raised by handlers, carried by replies, raised again in the caller."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"response code {int(code)}: {remark}")
        self.code = int(code)
        self.remark = remark


class ClientError(RocketMQError):
    """A call could not be carried out."""


class CallTimeoutError(ClientError, TimeoutError):
    """The peer did not answer in time; it may still have done what was asked."""

    retriable = True


class ConnectError(ClientError, ConnectionError):
    """The peer cannot be reached, or the connection ended before the answer came."""

    retriable = True


class TooManyCallsError(ClientError):
    """More calls are in flight than the limit allows; wait for some of them."""

    retriable = True


class NoRouteError(ClientError):
    """No name server knows a broker for the topic."""

    retriable = True


class OffsetGoneError(ClientError):
    """A queue does not hold what was asked of it: deleted by retention, or the queue ends before it."""

    def __init__(self, queue: object, asked: int, available_from: int, *, max_offset: int) -> None:
        reason = (
            f"it was deleted; continue from {available_from}"
            if available_from > asked
            else f"the queue ends at {max_offset}: its topic was made anew, or the broker lost its last messages"
        )
        super().__init__(f"{queue} does not hold offset {asked}: {reason}")
        self.queue = queue
        self.asked = asked
        self.available_from = available_from
        """Where the queue goes on; not above `asked` where the queue ends before that."""
        self.max_offset = max_offset


class ClientClosedError(ClientError):
    """The client was closed; make a new one."""


class ForkedError(ClientError):
    """The object belongs to the process that made it; make a new one after a fork."""


class UnsupportedError(ClientError):
    """The broker's version does not do what was asked, and would do something else in silence."""


class ConfigError(RocketMQError):
    """A setting has a value that cannot be used."""

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(f"{key}={value}: {reason}")
        self.key = key
        self.value = value
        self.reason = reason


def _again(kind: type[RocketMQError], arguments: tuple[object, ...]) -> RocketMQError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error
