"""Sends messages from coroutines. It lives on the loop that starts it.

The first use starts it; flush() waits for all answers, close() does so and leaves. Arguments are judged before
anything is sent; what goes wrong later is SendError with everything that was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from rmq_core.client.auto_batch import may_be_held
from rmq_core.client.options import shows
from rmq_core.client.producer_core import ProducerCore
from rmq_core.client.producer_options import ProducerArguments, ProducerOptions
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.selectors import Selector
from rmq_core.client.send_hooks import SendKind, SendMode, Told
from rmq_core.client.send_results import SendResult
from rmq_core.client.sending import batch_piece, check_message
from rmq_core.client.targets import check_queue, check_topic
from rmq_core.protocol.message import Message, MessageQueue


class Producer:
    """Sends messages. Many tasks of its loop may use it at once."""

    @shows(ProducerArguments, ProducerOptions)
    def __init__(self, group: str, **arguments: Unpack[ProducerArguments]) -> None:
        self._core = ProducerCore(group, arguments)
        self.group = group

    def __repr__(self) -> str:
        return self._core.describe(type(self).__name__)

    # Life

    async def start(self) -> Self:
        """Begin; the first use does the same. Idempotent. Raises ClientError where the group is taken."""
        await self._core.start()
        return self

    async def flush(self) -> None:
        """Wait until every send so far has been answered, or has failed."""
        await self._core.flush()

    async def close(self) -> None:
        """Wait for what is in flight, then leave. Idempotent."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Sending

    async def send(
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
        core = self._core
        time_ms = core.time(timeout_ms)
        if queue is not None or selector is not None or core.options.auto_batch:
            check_message(message)
            check_queue(message.topic, queue, selector)
        if core.options.auto_batch and queue is None and selector is None and may_be_held(message):
            return await self._send_held(message, time_ms)
        out = core.out(message)
        ready = await core.ready()
        if ready.hooks.are_wanted:
            context = ready.hooks.before((message,), out.msg_ids, SendMode.ASYNC, queue=queue)
            with Told(ready.hooks, context) as told:
                return told.tell(await core.deliver(ready, out, message, queue, selector, time_ms))
        return await core.deliver(ready, out, message, queue, selector, time_ms)

    async def _send_held(self, message: Message, time_ms: float) -> SendResult:
        core = self._core
        piece = batch_piece(message, core.rules, now_ms=core.clock.now_ms())
        ready = await core.ready()
        context = None
        if ready.hooks.are_wanted:
            context = ready.hooks.before((message,), (piece.msg_id,), SendMode.ASYNC, queue=None)
        with Told(ready.hooks, context) as told:
            return told.tell(await core.hold(ready, piece, time_ms))

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Hand a message to the network; whether a broker stores it stays unknown. Raises ConnectError."""
        core = self._core
        time_ms = core.time(timeout_ms)
        out = core.out(message)
        check_queue(message.topic, queue, selector)
        ready = await core.ready()
        context = None
        if ready.hooks.are_wanted:
            context = ready.hooks.before((message,), out.msg_ids, SendMode.ONE_WAY, queue=queue)
        with Told(ready.hooks, context):
            target = await core.find(ready, message.topic, time_ms)
            await ready.sender.tell(out, target, target.fixed_queue(message, queue, selector), time_ms)

    # Batches, requests and replies

    async def send_batch(
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
        core = self._core
        time_ms = core.time(timeout_ms)
        pieces = core.pieces(messages, queue, selector)
        ready = await core.ready()
        context = None
        if ready.hooks.are_wanted:
            msg_ids = tuple(piece.msg_id for piece in pieces)
            context = ready.hooks.before(messages, msg_ids, SendMode.ASYNC, queue=queue, kind=SendKind.BATCH)
        with Told(ready.hooks, context) as told:
            target = await core.find(ready, messages[0].topic, time_ms)
            fixed = target.fixed_queue(messages[0], queue, selector)
            return told.tell_all(await core.deliver_batch(pieces, target, fixed, time_ms))

    async def request(
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
        core = self._core
        time_ms = core.time(timeout_ms)
        asked = core.ask(message, time_ms)
        check_queue(message.topic, queue, selector)
        ready = await core.ready()
        context = None
        if ready.hooks.are_wanted:
            context = ready.hooks.before((message,), asked.out.msg_ids, SendMode.ASYNC, queue=queue)
        with Told(ready.hooks, context):
            target = await core.find(ready, message.topic, time_ms)
            fixed = target.fixed_queue(message, queue, selector)
            return await core.deliver_request(asked, target, fixed)

    async def reply(self, message: ReceivedMessage, body: bytes, *, timeout_ms: float | None = None) -> SendResult:
        """Answer a request that was received. Raises as send() does; the broker says no where nobody waits."""
        core = self._core
        time_ms = core.time(timeout_ms)
        answer, out = core.answer_to(message, body)
        ready = await core.ready()
        context = None
        if ready.hooks.are_wanted:
            context = ready.hooks.before((answer,), out.msg_ids, SendMode.ASYNC, queue=None, kind=SendKind.REPLY)
        with Told(ready.hooks, context) as told:
            return told.tell(await core.deliver_reply(out, answer.topic, message.queue.broker_name, time_ms))

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of a topic may go to, sorted. Raises NoRouteError, ConnectError."""
        check_topic(topic)
        core = self._core
        return (await core.find(await core.ready(), topic, core.options.timeout_ms)).queues
