"""Sends messages in transactions, from threads. A forked child begins anew at its next use."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from datetime import timedelta
from typing import Unpack

from rmq_core.client import loop_thread
from rmq_core.client.blocking.base import BlockingClient
from rmq_core.client.options import shows
from rmq_core.client.producer_options import ProducerArguments, ProducerOptions
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_hooks import SendKind, SendMode, Told
from rmq_core.client.send_results import SendResult
from rmq_core.client.transactions import (
    Check,
    Execute,
    HalfMessage,
    TransactionCore,
    TransactionDecision,
    TransactionResult,
    checked_decision,
    transaction_result,
)
from rmq_core.errors import ClientClosedError
from rmq_core.protocol.message import Message


class TransactionProducer(BlockingClient[TransactionCore]):
    """Sends messages in transactions; safe to use from many threads."""

    @shows(ProducerArguments, ProducerOptions)
    def __init__(
        self, group: str, *, topics: Sequence[str], check: Check, **arguments: Unpack[ProducerArguments]
    ) -> None:
        """`check` is asked what became of a message, on a thread of its own: a plain function or a coroutine."""
        self._form = TransactionCore(group, topics, check, arguments)
        """Judges and encodes on the caller's thread; it is never started."""
        self.group = group
        blocking_check = check if not inspect.iscoroutinefunction(check) else _run_by_itself(check)
        super().__init__(lambda: TransactionCore(group, topics, blocking_check, arguments))

    def __repr__(self) -> str:
        return (self._inner or self._form).describe(type(self).__name__, is_closed=self._is_closed)

    def send(
        self,
        message: Message,
        *,
        execute: Execute,
        first_check_after: timedelta | None = None,
        timeout_ms: float | None = None,
    ) -> TransactionResult:
        """Store the message unseen, run the local transaction here, and tell the broker what it decided.

        Where `execute` raises, the outcome is unknown to the broker, which will ask, and the exception is raised
        again. Raises as Producer.send() does where the message could not be stored; nothing has been run then.
        """
        if not callable(execute) or inspect.iscoroutinefunction(execute):
            raise TypeError(f"execute must be a plain function here, not {type(execute).__name__}")
        time_ms = self._form.time(timeout_ms)
        out = self._form.half(message, first_check_after)
        loop_thread.check_may_block(type(self).__name__)
        parts = self._use().parts
        if parts is None:  # closed by another thread just now
            raise ClientClosedError("this TransactionProducer was closed")
        context = None
        if parts.hooks.are_wanted:
            context = parts.hooks.before((message,), out.msg_ids, SendMode.SYNC, queue=None, kind=SendKind.HALF)
        with Told(parts.hooks, context) as told:
            sent = told.tell(self._call(lambda inner: inner.send_half(message, out, time_ms)))
        decision = TransactionDecision.ROLLBACK
        if sent.ok:
            decision = TransactionDecision.UNKNOWN
            try:
                decision = checked_decision(execute(HalfMessage(message, sent)))
            finally:
                self._end(sent, decision)
        else:
            self._end(sent, decision)
        return transaction_result(sent, decision)

    def _end(self, sent: SendResult, decision: TransactionDecision) -> None:
        self._call(lambda inner: inner.end(sent, decision))

    def flush(self) -> None:
        """Wait until every half message so far has been answered, or has failed."""
        if self._inner is not None:
            self._call(lambda inner: inner.flush())


def _run_by_itself(check: Check) -> Check:
    """A coroutine as a plain function: user code never runs on the clients' loop."""

    async def ask(message: ReceivedMessage) -> TransactionDecision | None:
        given = check(message)
        return await given if inspect.isawaitable(given) else given

    return lambda message: asyncio.run(ask(message))
