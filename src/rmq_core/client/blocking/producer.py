"""Sends messages from threads; safe to use from many of them.

Hand-over   The caller encodes the message down to its frame. The loop puts frames on the wire, all that have come
            by one wake-up, and wakes each caller by a lock: no coroutine and no task per send. What does not go
            well at the first attempt is taken up by the coroutine form.
User code   Selectors and hooks run on the caller's thread, call-backs of futures on a thread of their own.
Fork        A child begins anew at its next use, with connections and identities of its own.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Unpack

from rmq_core.client import loop_thread
from rmq_core.client.auto_batch import may_be_held
from rmq_core.client.blocking.async_sends import AsyncSend, Promise
from rmq_core.client.blocking.base import BlockingClient
from rmq_core.client.blocking.callbacks import CallbackThread
from rmq_core.client.blocking.wakes import Waiter, Wakes
from rmq_core.client.deliver import FAILURES, Ticket
from rmq_core.client.in_flight import Gate
from rmq_core.client.options import shows
from rmq_core.client.producer_core import ProducerCore, Ready
from rmq_core.client.producer_options import ProducerArguments, ProducerOptions
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.selectors import Selector
from rmq_core.client.send_hooks import SendKind, SendMode, Told
from rmq_core.client.send_results import Attempt, SendResult
from rmq_core.client.sending import Outgoing, batch_piece, check_message
from rmq_core.client.targets import Target, check_queue, check_topic
from rmq_core.errors import ClientClosedError, RocketMQError
from rmq_core.protocol.message import Message, MessageQueue

_LIFE_CHECK_S = 1.0


class Producer(BlockingClient[ProducerCore]):
    """Sends messages. The first use starts it; flush() waits for all answers, close() does so and leaves."""

    @shows(ProducerArguments, ProducerOptions)
    def __init__(self, group: str, **arguments: Unpack[ProducerArguments]) -> None:
        self._form = ProducerCore(group, arguments)
        """Judges and encodes on the caller's thread; it is never started."""
        self.group = group
        super().__init__(lambda: ProducerCore(group, arguments))
        self._refuses = False
        self._begin()

    def _begin(self) -> None:
        options = self._form.options
        self._gate = Gate(count_max=options.in_flight_max, size_max=options.in_flight_bytes_max)
        self._callbacks = CallbackThread(f"rmq-callbacks-{self.group}")
        self._wakes = Wakes()

    def _forget(self) -> None:
        super()._forget()
        self._begin()

    def __repr__(self) -> str:
        return (self._inner or self._form).describe(type(self).__name__, is_closed=self._is_closed)

    # Life

    def flush(self) -> None:
        """Wait until every send so far has been answered, or has failed."""
        if self._inner is not None:
            self._call(lambda inner: inner.flush())
            self._wait_empty()

    def _wait_empty(self) -> None:
        while not self._gate.wait_empty(_LIFE_CHECK_S * 1000):
            self._check_loop()

    def _check_loop(self) -> None:
        if self._thread is None or not self._thread.is_alive:
            raise ClientClosedError("the clients' loop has ended; nothing more will be answered")

    def close(self) -> None:
        """Wait for what is in flight, then leave; on a client's own thread ask for that and return. Idempotent."""
        self._refuses = True
        if loop_thread.is_client_thread():
            threading.Thread(target=self.close, name=f"rmq-close-{self.group}", daemon=True).start()
            return
        try:
            if self._inner is not None and not self._is_closed:
                self.flush()
        finally:
            super().close()
            self._callbacks.close()

    def _started(self) -> Ready:
        """The parts of the coroutine form. Raises ClientError on a thread that must not wait."""
        loop_thread.check_may_block(type(self).__name__)
        if self._refuses:
            raise ClientClosedError(f"this {type(self).__name__} was closed")
        parts = self._use().parts
        if parts is None:  # closed by another thread just now
            raise ClientClosedError(f"this {type(self).__name__} was closed")
        return parts

    def _find(self, parts: Ready, topic: str, time_ms: float) -> Target:
        return parts.sender.target(topic) or self._call(lambda inner: inner.find(parts, topic, time_ms))

    # Sending

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Send a message and wait until a broker has acknowledged it.

        Raises SendError with what was tried, NoRouteError where nobody takes the topic, UnsupportedError where the
        broker is too old for a timed message, and TooManyCallsError where there is no room in time.
        """
        form = self._form
        time_ms = form.time(timeout_ms)
        if queue is not None or selector is not None or form.options.auto_batch:
            check_message(message)
            check_queue(message.topic, queue, selector)
        if form.options.auto_batch and queue is None and selector is None and may_be_held(message):
            return self._result(self._hold(message, time_ms, SendMode.SYNC))
        out = form.out(message)
        parts = self._started()
        if not parts.hooks.are_wanted:
            return self._send(parts, out, message, queue, selector, time_ms)
        context = parts.hooks.before((message,), out.msg_ids, SendMode.SYNC, queue=queue)
        with Told(parts.hooks, context) as told:
            return told.tell(self._send(parts, out, message, queue, selector, time_ms))

    def _send(
        self,
        parts: Ready,
        out: Outgoing,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        time_ms: float,
    ) -> SendResult:
        sender = parts.sender
        target = self._find(parts, message.topic, time_ms)
        fixed = target.fixed_queue(message, queue, selector)
        left_ms = self._gate.enter(out.size, timeout_ms=time_ms)
        try:
            ticket = sender.ticket(out, target, fixed, left_ms)
            tried: tuple[Attempt, ...] = ()
            if ticket is not None:
                self._run(ticket, parts)
                try:
                    result = ticket.result()
                except FAILURES as error:
                    tried = (sender.failed(ticket, error),)
                    left_ms = max(left_ms - tried[0].took_ms, 1)
                else:
                    sender.answered(ticket.queue, ticket.started_ms)
                    return result
            return self._call(lambda _: sender.deliver(out, target, queue=fixed, timeout_ms=left_ms, tried=tried))
        finally:
            self._gate.leave(out.size)

    def _run(self, ticket: Ticket, parts: Ready) -> None:
        """Let the loop make the attempt, and wait for its end."""
        waiter = Waiter(self._wakes)
        ticket.listener = waiter
        self._post(parts.sender.begin, ticket)
        waiter.wait(self._check_loop, every_s=_LIFE_CHECK_S)

    def _post(self, function: Callable[..., object], *arguments: object) -> None:
        assert self._thread is not None
        self._thread.post(function, *arguments)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Send a message; the future gives what send() gives or raises. Its call-backs have a thread of their own.

        The first message of a topic waits for the route; at the limits of what may be in flight any one waits.
        """
        form = self._form
        time_ms = form.time(timeout_ms)
        if queue is not None or selector is not None or form.options.auto_batch:
            check_message(message)
            check_queue(message.topic, queue, selector)
        if form.options.auto_batch and queue is None and selector is None and may_be_held(message):
            return self._hold(message, time_ms, SendMode.ASYNC)
        out = form.out(message)
        parts = self._started()
        context = None
        if parts.hooks.are_wanted:
            context = parts.hooks.before((message,), out.msg_ids, SendMode.ASYNC, queue=queue)
        promise = Promise(self._gate, self._callbacks, parts, out.size, context)
        try:
            target = self._find(parts, message.topic, time_ms)
            fixed = target.fixed_queue(message, queue, selector)
            left_ms = self._gate.enter(out.size, timeout_ms=time_ms)
        except RocketMQError as error:
            promise.refuse(error)
            return promise.future
        sending = AsyncSend(promise, parts, out, target, fixed, left_ms)
        sending.prepare()
        self._post(sending.begin)
        return promise.future

    def _hold(self, message: Message, time_ms: float, mode: SendMode) -> concurrent.futures.Future[SendResult]:
        """Send with others of the topic."""
        piece = batch_piece(message, self._form.rules, now_ms=self._form.clock.now_ms())
        parts = self._started()
        context = None
        if parts.hooks.are_wanted:
            context = parts.hooks.before((message,), (piece.msg_id,), mode, queue=None)
        promise = Promise(self._gate, self._callbacks, parts, piece.size, context)
        try:
            self._find(parts, message.topic, time_ms)
            self._gate.enter(piece.size, timeout_ms=time_ms)
        except RocketMQError as error:
            promise.refuse(error)
            return promise.future
        assert parts.batches is not None
        self._post(parts.batches.add, piece, promise)
        return promise.future

    def _result(self, future: concurrent.futures.Future[SendResult]) -> SendResult:
        while True:
            try:
                return future.result(_LIFE_CHECK_S)
            except TimeoutError:
                if future.done():
                    raise
                self._check_loop()

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Hand a message to the network; whether a broker stores it stays unknown. Raises ConnectError."""
        time_ms = self._form.time(timeout_ms)
        out = self._form.out(message)
        check_queue(message.topic, queue, selector)
        parts = self._started()
        context = None
        if parts.hooks.are_wanted:
            context = parts.hooks.before((message,), out.msg_ids, SendMode.ONE_WAY, queue=queue)
        with Told(parts.hooks, context):
            target = self._find(parts, message.topic, time_ms)
            fixed = target.fixed_queue(message, queue, selector)
            left_ms = self._gate.enter(out.size, timeout_ms=time_ms)
            telling = parts.sender.telling(out, target, fixed)
            if telling is not None:
                self._post(self._tell, parts, telling, out.size)
                return
            try:
                self._call(lambda _: parts.sender.tell(out, target, fixed, left_ms))
            finally:
                self._gate.leave(out.size)

    def _tell(self, parts: Ready, telling: tuple[str, bytes], size: int) -> None:
        self._gate.leave(size)
        parts.sender.tell_frame(*telling)

    # Batches, requests and replies

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> tuple[SendResult, ...]:
        """Send messages of one topic in as few requests as the size limit allows, one after the other.

        Gives a result for each message. Raises BatchSendError with what was sent and what was not; timeout_ms is
        for each request.
        """
        time_ms = self._form.time(timeout_ms)
        pieces = self._form.pieces(messages, queue, selector)
        parts = self._started()
        context = None
        if parts.hooks.are_wanted:
            msg_ids = tuple(piece.msg_id for piece in pieces)
            context = parts.hooks.before(messages, msg_ids, SendMode.SYNC, queue=queue, kind=SendKind.BATCH)
        with Told(parts.hooks, context) as told:
            target = self._find(parts, messages[0].topic, time_ms)
            fixed = target.fixed_queue(messages[0], queue, selector)
            return told.tell_all(self._call(lambda inner: inner.deliver_batch(pieces, target, fixed, time_ms)))

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait for another client's reply to it.

        Raises CallTimeoutError where none comes in time, and what send() raises. A late reply is ignored.
        """
        asked = self._form.ask(message, self._form.time(timeout_ms))
        check_queue(message.topic, queue, selector)
        parts = self._started()
        context = None
        if parts.hooks.are_wanted:
            context = parts.hooks.before((message,), asked.out.msg_ids, SendMode.SYNC, queue=queue)
        with Told(parts.hooks, context):
            target = self._find(parts, message.topic, asked.time_ms)
            fixed = target.fixed_queue(message, queue, selector)
            return self._call(lambda inner: inner.deliver_request(asked, target, fixed))

    def reply(self, message: ReceivedMessage, body: bytes, *, timeout_ms: float | None = None) -> SendResult:
        """Answer a request that was received. Raises as send() does; the broker says no where nobody waits."""
        time_ms = self._form.time(timeout_ms)
        answer, out = self._form.answer_to(message, body)
        parts = self._started()
        context = None
        if parts.hooks.are_wanted:
            context = parts.hooks.before((answer,), out.msg_ids, SendMode.SYNC, queue=None, kind=SendKind.REPLY)
        broker_name = message.queue.broker_name
        with Told(parts.hooks, context) as told:
            return told.tell(self._call(lambda inner: inner.deliver_reply(out, answer.topic, broker_name, time_ms)))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of a topic may go to, sorted. Raises NoRouteError, ConnectError."""
        check_topic(topic)
        return self._find(self._started(), topic, self._form.options.timeout_ms).queues
