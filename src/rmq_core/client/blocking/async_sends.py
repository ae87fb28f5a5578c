"""Sends whose caller does not wait: what the loop does with them until their future has a result."""

from __future__ import annotations

import asyncio

from rmq_core.client.blocking.callbacks import CallbackThread, SendFuture
from rmq_core.client.deliver import FAILURES, Ticket
from rmq_core.client.in_flight import Gate
from rmq_core.client.producer_core import Ready
from rmq_core.client.send_hooks import SendContext
from rmq_core.client.send_results import Attempt, SendResult
from rmq_core.client.sending import Outgoing
from rmq_core.client.targets import Target
from rmq_core.errors import ClientClosedError
from rmq_core.protocol.message import MessageQueue


class Promise:
    """A future with the room that its send takes and the hooks that hear how it ended. Ends once."""

    __slots__ = ("_callbacks", "_context", "_gate", "_parts", "_size", "future")

    def __init__(
        self,
        gate: Gate,
        callbacks: CallbackThread,
        parts: Ready,
        size: int,
        context: SendContext | None,
    ) -> None:
        self._gate = gate
        self._callbacks = callbacks
        self._parts = parts
        self._size = size
        self._context = context
        self.future = SendFuture(callbacks)

    def done(self) -> bool:
        return self.future.done()

    def set_result(self, result: SendResult, /) -> None:
        self._gate.leave(self._size)
        if self._context is not None:
            self._callbacks.call(self._parts.hooks.after, self._context, result)
        self.future.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._gate.leave(self._size)
        self.refuse(exception)

    def refuse(self, exception: BaseException) -> None:
        """The same for a send that got no room."""
        if self._context is not None:
            self._callbacks.call(self._tell_error, exception)
        self.future.set_exception(exception)

    def _tell_error(self, error: BaseException) -> None:
        assert self._context is not None
        self._parts.hooks.after(self._context, error=error)


class AsyncSend:
    """One send on its way to a broker, by ticket first where that can be."""

    __slots__ = ("_fixed", "_out", "_parts", "_promise", "_target", "_ticket", "_time_ms")

    def __init__(
        self,
        promise: Promise,
        parts: Ready,
        out: Outgoing,
        target: Target,
        fixed: MessageQueue | None,
        time_ms: float,
    ) -> None:
        self._promise = promise
        self._parts = parts
        self._out = out
        self._target = target
        self._fixed = fixed
        self._time_ms = time_ms
        self._ticket: Ticket | None = None

    def prepare(self) -> None:
        """Make the ticket, on the caller's thread."""
        self._ticket = self._parts.sender.ticket(self._out, self._target, self._fixed, self._time_ms)
        if self._ticket is not None:
            self._ticket.listener = self

    def begin(self) -> None:
        """Start, on the loop."""
        # Held no longer: the ticket holds this object, and a circle would wait for the garbage collector.
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            self._go_on()
        else:
            self._parts.sender.begin(ticket)

    def ticket_done(self, ticket: Ticket) -> None:
        """Read the answer, or go on without the ticket."""
        sender = self._parts.sender
        try:
            result = ticket.result()
        except FAILURES as error:
            attempt = sender.failed(ticket, error)
            self._time_ms = max(self._time_ms - attempt.took_ms, 1)
            self._go_on(attempt)
        except Exception as error:  # whatever it is, it belongs to whoever waits
            self._promise.set_exception(error)
        else:
            sender.answered(ticket.queue, ticket.started_ms)
            self._promise.set_result(result)

    def _go_on(self, *tried: Attempt) -> None:
        self._parts.instance.spawn(self._deliver(tried))

    async def _deliver(self, tried: tuple[Attempt, ...]) -> None:
        try:
            result = await self._parts.sender.deliver(
                self._out, self._target, queue=self._fixed, timeout_ms=self._time_ms, tried=tried
            )
        except asyncio.CancelledError:
            self._promise.set_exception(ClientClosedError("the producer was closed before a broker answered"))
            raise
        except Exception as error:  # whatever it is, it belongs to whoever waits
            self._promise.set_exception(error)
        else:
            self._promise.set_result(result)
