"""Sends plain objects: `template.send("Orders", order)`. A destination may carry its tag, as in "Orders:paid"."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

from rmq_core.client.blocking.producer import Producer
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_results import SendResult
from rmq_core.client.transactions import TransactionResult
from rmq_core.integrations.conversion import from_body, to_body
from rmq_core.protocol.message import Message

T = TypeVar("T")


class MessageArguments(TypedDict, total=False):
    """What a message may have besides topic and body."""

    tags: str | None
    keys: str | Sequence[str] | None
    properties: Mapping[str, str]
    delay_level: int | None
    delay: timedelta | None
    deliver_at: datetime | None


class SendsInTransaction(Protocol):
    """A transaction listener's producer."""

    def __call__(self, message: Message, argument: object, timeout_ms: float | None) -> TransactionResult:
        """Store the message, run the listener's transaction with the argument, tell the outcome."""
        ...


class Template:
    """Sends what is no message yet; safe to use from many threads."""

    def __init__(self, producer: Producer | Callable[[], Producer]) -> None:
        """producer: one that is there, or a function that makes it at first use."""
        self._make: Callable[[], Producer] = producer if not isinstance(producer, Producer) else lambda: producer
        self._in_transaction: dict[str, SendsInTransaction] = {}

    @property
    def producer(self) -> Producer:
        """The producer that it sends with."""
        return self._make()

    def send(
        self,
        destination: str,
        value: object,
        *,
        sharding_key: str | None = None,
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> SendResult:
        """Send and wait until a broker has acknowledged it. Raises as Producer.send() does."""
        made = to_message(destination, value, message, sharding_key)
        return self.producer.send(made, timeout_ms=timeout_ms)

    def send_async(
        self,
        destination: str,
        value: object,
        *,
        sharding_key: str | None = None,
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> concurrent.futures.Future[SendResult]:
        """Send; the future gives what send() gives or raises."""
        made = to_message(destination, value, message, sharding_key)
        return self.producer.send_async(made, timeout_ms=timeout_ms)

    def send_oneway(self, destination: str, value: object, **message: Unpack[MessageArguments]) -> None:
        """Hand it to the network; whether a broker stores it stays unknown."""
        self.producer.send_oneway(to_message(destination, value, message, None))

    def send_ordered(
        self,
        destination: str,
        value: object,
        sharding_key: str,
        *,
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> SendResult:
        """Send to the queue of a key: what has the same key is consumed in the order in which it was sent."""
        if not isinstance(sharding_key, str) or not sharding_key:
            raise ValueError("sharding_key must be text, and not empty")
        return self.send(destination, value, sharding_key=sharding_key, timeout_ms=timeout_ms, **message)

    def send_batch(
        self,
        destination: str,
        values: Iterable[object],
        *,
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> tuple[SendResult, ...]:
        """Send many in few requests. Raises BatchSendError with what was sent and what was not."""
        messages = [to_message(destination, value, message, None) for value in values]
        return self.producer.send_batch(messages, timeout_ms=timeout_ms) if messages else ()

    @overload
    def request(
        self,
        destination: str,
        value: object,
        *,
        into: None = None,
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> ReceivedMessage: ...

    @overload
    def request(
        self,
        destination: str,
        value: object,
        *,
        into: type[T],
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> T: ...

    def request(
        self,
        destination: str,
        value: object,
        *,
        into: type[T] | None = None,
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> T | ReceivedMessage:
        """Send, wait for the reply, and read it as `into`. Raises CallTimeoutError, ConversionError."""
        made = to_message(destination, value, message, None)
        reply = self.producer.request(made, timeout_ms=timeout_ms)
        return reply if into is None else from_body(reply.body, into)

    def send_in_transaction(
        self,
        destination: str,
        value: object,
        argument: object = None,
        *,
        group: str | None = None,
        timeout_ms: float | None = None,
        **message: Unpack[MessageArguments],
    ) -> TransactionResult:
        """Send what becomes visible when the transaction listener's execute(value, argument) has committed.

        group says which listener where there are several.
        """
        made = to_message(destination, value, message, None)
        known = self._in_transaction
        if group is None and len(known) > 1:
            raise ValueError(f"group: there are several transaction listeners, name one of {', '.join(known)}")
        if not known or (group is not None and group not in known):
            raise ValueError(
                f"group: there is no transaction listener {group or ''}".rstrip() + "; declare it with "
                "@app.transaction_listener(group, topics=[...])"
            )
        return known[group if group is not None else next(iter(known))](made, argument, timeout_ms)

    def add_transactions(self, group: str, send: SendsInTransaction) -> None:
        """Make a transaction listener's producer known."""
        self._in_transaction[group] = send


def to_message(destination: str, value: object, more: MessageArguments, sharding_key: str | None) -> Message:
    """The message for a value. Raises TypeError, ValueError, ConversionError."""
    if not isinstance(destination, str):
        raise TypeError(f"destination must be str, not {type(destination).__name__}")
    topic, colon, tags = destination.partition(":")
    if colon and (more.get("tags") is not None or not tags):
        raise ValueError(f"destination {destination!r}: give the tag there or as tags=, and only once")
    arguments: dict[str, Any] = {**more, "tags": tags} if colon else dict(more)
    return Message(topic, to_body(value), sharding_key=sharding_key, **arguments)
