"""What producers of all forms are made of: encoding on any thread, sending on one loop.

Life      The first use starts it. flush() waits until nothing is in flight; close() does the same and leaves. Both
          end by themselves, since every send has its time.
Threads   What only judges and encodes may be called on any thread, started or not; coroutines belong to the loop
          that started it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from rmq_core.client import requesting
from rmq_core.client.arguments import milliseconds
from rmq_core.client.auto_batch import AutoBatches
from rmq_core.client.deliver import Sender
from rmq_core.client.in_flight import Room
from rmq_core.client.instance import ClientInstance, acquire, release
from rmq_core.client.options import own_options
from rmq_core.client.producer_options import ProducerArguments, ProducerOptions, producer_group
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.selectors import Selector
from rmq_core.client.send_hooks import SendHooks
from rmq_core.client.send_results import BatchSendError, SendResult
from rmq_core.client.sending import (
    BatchPiece,
    Outgoing,
    batch_piece,
    check_batchable,
    outgoing,
    outgoing_batch,
    split_pieces,
    split_result,
)
from rmq_core.client.targets import Target, check_queue
from rmq_core.errors import (
    CallTimeoutError,
    ClientClosedError,
    ClientError,
    ForkedError,
    RocketMQError,
    TooManyCallsError,
)
from rmq_core.protocol.message import Message, MessageQueue, wrap_namespace
from rmq_core.protocol.record import StoredRecord
from rmq_core.protocol.requests import CheckTransactionState


@dataclass(eq=False)
class Role:
    """A producer as its client instance sees it; names are those on the wire."""

    group: str
    used: set[str] = field(default_factory=set)

    def topics(self) -> Collection[str]:
        """Topics whose routes are to be kept fresh."""
        return self.used

    def check_transaction(self, peer: str, question: CheckTransactionState, half: StoredRecord) -> None:
        """Questions about transactions go to transaction producers; another one of the group may know."""


@dataclass(slots=True)
class Ready:
    """A started producer's parts."""

    instance: ClientInstance
    loop: asyncio.AbstractEventLoop
    sender: Sender
    hooks: SendHooks
    room: Room
    batches: AutoBatches | None
    detecting: asyncio.Task[None] | None


class ProducerCore:
    """Encodes and sends. Many tasks of its loop may use it at once."""

    def __init__(self, group: str, arguments: ProducerArguments) -> None:
        self.group = producer_group(group)
        self.options, self._client_options = own_options(ProducerOptions, arguments)
        namespace = self._client_options.namespace
        self.rules = self.options.rules(group, namespace)
        self.clock = self._client_options.clock
        self.role = self._make_role(wrap_namespace(namespace, group))
        self.parts: Ready | None = None
        """What a started producer consists of."""
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._pid = os.getpid()
        self._asked: set[str] = set()
        """Topics whose brokers know us as someone who waits for answers."""

    def describe(self, name: str, *, is_closed: bool = False) -> str:
        """For the repr of the producer that this is the core of."""
        client = self._client_options
        where = client.address_server or ";".join(client.name_servers)
        state = "started" if self.parts is not None else "not started"
        return f"<{name} {self.group!r} at {where}, {'closed' if is_closed or self._is_closed else state}>"

    def _make_role(self, group: str) -> Role:
        return Role(group)

    # Life

    async def start(self) -> Self:
        """Begin. Idempotent. Raises ClientError where the group is taken."""
        await self.ready()
        return self

    async def ready(self) -> Ready:
        """The parts, on the loop that they belong to."""
        ready = self.parts
        if ready is not None and not self._is_closed:
            if asyncio.get_running_loop() is not ready.loop:
                self._raise_elsewhere()
            return ready
        if self._pid != os.getpid():
            self._raise_elsewhere()
        async with self._opening:
            if self._is_closed:
                raise ClientClosedError(f"the producer of {self.group} was closed; make a new one")
            if self.parts is None:
                self.parts = await self._open()
            return self.parts

    def _raise_elsewhere(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("this producer belongs to the process that started it; make a new one after a fork")
        raise ClientError(
            "this producer belongs to another event loop; make one per loop, or use rmq_core.Producer from threads"
        )

    async def _open(self) -> Ready:
        instance = await acquire(self._client_options)
        try:
            instance.add_producer(self.role)
        except BaseException:
            await release(instance)
            raise
        sender = Sender(instance, self.rules, self.options)
        ready = Ready(
            instance,
            asyncio.get_running_loop(),
            sender,
            SendHooks(
                instance.hooks, group=self.group, namespace=self.rules.namespace, client_id=instance.client_id
            ),
            Room(count_max=self.options.in_flight_max, size_max=self.options.in_flight_bytes_max),
            AutoBatches(sender) if self.options.auto_batch else None,
            instance.spawn(sender.detect_faults()) if self.options.detect_faulty else None,
        )
        try:
            await self._opened(ready)
        except BaseException:
            await self._leave(ready)
            raise
        return ready

    async def _opened(self, ready: Ready) -> None:
        """What else is to be done before the first use."""

    async def flush(self) -> None:
        """Wait until every send so far has been answered, or has failed."""
        ready = self.parts
        if ready is not None:
            if ready.batches is not None:
                await ready.batches.flush()
            await ready.room.wait_empty()

    async def close(self) -> None:
        """Wait for what is in flight, then leave. Idempotent."""
        self._is_closed = True
        async with self._opening:
            ready = self.parts
            if ready is None:
                return
            if asyncio.get_running_loop() is not ready.loop:
                self._raise_elsewhere()
            try:
                await self.flush()
            finally:
                self.parts = None
                await self._leave(ready)

    async def _leave(self, ready: Ready) -> None:
        if ready.detecting is not None:
            ready.detecting.cancel()
        try:
            await ready.instance.remove_producer(self.role)
        finally:
            await release(ready.instance)

    # Encoding, on any thread

    def time(self, timeout_ms: float | None) -> float:
        """The time for a send. Raises TypeError, ValueError."""
        return self.options.timeout_ms if timeout_ms is None else milliseconds("timeout_ms", timeout_ms)

    def out(self, message: Message) -> Outgoing:
        """The message, ready to be sent. Any thread. Raises TypeError, ValueError."""
        return outgoing(message, self.rules, now_ms=self.clock.now_ms())

    def pieces(
        self, messages: Sequence[Message], queue: MessageQueue | None, selector: Selector | None
    ) -> list[BatchPiece]:
        """The messages, ready to be sent together. Any thread. Raises TypeError, ValueError."""
        check_batchable(messages)
        check_queue(messages[0].topic, queue, selector)
        now_ms = self.clock.now_ms()
        return [batch_piece(message, self.rules, now_ms=now_ms) for message in messages]

    def ask(self, message: Message, time_ms: float) -> requesting.Asked:
        """The message as a request. Any thread. Raises TypeError, ValueError."""
        correlation_id = requesting.new_correlation_id()
        started_ms = self.clock.monotonic_ms()
        check = outgoing(message, self.rules, now_ms=self.clock.now_ms())
        return requesting.Asked(message, check, correlation_id, time_ms, started_ms)

    def answer_to(self, message: ReceivedMessage, body: bytes) -> tuple[Message, Outgoing]:
        """The answer, ready to be sent. Any thread. Raises TypeError, ValueError."""
        answer, more = requesting.reply_message(message, body)
        return answer, outgoing(answer, self.rules, now_ms=self.clock.now_ms(), more=more, reply=True)

    # Sending

    async def deliver(
        self,
        ready: Ready,
        out: Outgoing,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        time_ms: float,
    ) -> SendResult:
        """Send a message. Raises SendError, NoRouteError, UnsupportedError, TooManyCallsError."""
        room = ready.room
        if not room.try_enter(out.size):
            time_ms = await self._enter(room, out.size, time_ms)
        try:
            target = await self.find(ready, message.topic, time_ms)
            return await ready.sender.deliver(
                out, target, queue=target.fixed_queue(message, queue, selector), timeout_ms=time_ms
            )
        finally:
            room.leave(out.size)

    async def _enter(self, room: Room, size: int, time_ms: float) -> float:
        started_ms = self.clock.monotonic_ms()
        await room.enter(size, timeout_ms=time_ms)
        return max(time_ms - (self.clock.monotonic_ms() - started_ms), 1)

    async def find(self, ready: Ready, topic: str, time_ms: float, *, wire_topic: str | None = None) -> Target:
        """Where messages of the topic may go. Raises NoRouteError, ConnectError, CallTimeoutError."""
        target = ready.sender.target(topic) if wire_topic is None else None
        if target is None:
            target = await ready.sender.find_in_time(topic, time_ms, wire_topic=wire_topic)
            self.role.used.add(target.wire_topic)
        return target

    async def hold(self, ready: Ready, piece: BatchPiece, time_ms: float) -> SendResult:
        """Send a message with others of its topic."""
        assert ready.batches is not None
        await ready.room.enter(piece.size, timeout_ms=time_ms)
        try:
            self.role.used.add(self.rules.topic(piece.message.topic))
            waiting: asyncio.Future[SendResult] = ready.loop.create_future()
            ready.batches.add(piece, waiting)
            return await waiting
        finally:
            ready.room.leave(piece.size)

    async def deliver_batch(
        self, pieces: Sequence[BatchPiece], target: Target, queue: MessageQueue | None, time_ms: float
    ) -> tuple[SendResult, ...]:
        """Send the pieces. Raises BatchSendError."""
        ready = await self.ready()
        sent: list[SendResult] = []
        for part in split_pieces(pieces, self.rules.message_size_max):
            out = outgoing_batch(part, self.rules, now_ms=self.clock.now_ms())
            try:
                left_ms = await self._enter(ready.room, out.size, time_ms)
                try:
                    result = await ready.sender.deliver(out, target, queue=queue, timeout_ms=left_ms)
                finally:
                    ready.room.leave(out.size)
            except RocketMQError as error:
                unsent = [piece.message for piece in pieces[len(sent) :]]
                raise BatchSendError(sent, unsent, str(error)) from error
            sent += split_result(result, out.msg_ids)
        return tuple(sent)

    # Requests and replies

    async def deliver_request(
        self, asked: requesting.Asked, target: Target, queue: MessageQueue | None
    ) -> ReceivedMessage:
        """Send a request and wait for the reply."""
        ready = await self.ready()
        replies = ready.instance.replies
        reply = replies.expect(asked.correlation_id)
        try:
            async with asyncio.timeout(asked.left_ms(self.clock.monotonic_ms()) / 1000):
                await self._be_known(ready, target)
                more = requesting.request_properties(asked.correlation_id, ready.instance.client_id, asked.time_ms)
                out = outgoing(
                    asked.message,
                    self.rules,
                    now_ms=asked.out.born_time_ms,
                    msg_id=asked.out.msg_id,
                    more=more,
                )
                left_ms = await self._enter(ready.room, out.size, asked.left_ms(self.clock.monotonic_ms()))
                try:
                    await ready.sender.deliver(out, target, queue=queue, timeout_ms=left_ms)
                finally:
                    ready.room.leave(out.size)
                return requesting.received_reply(await reply, self.rules.namespace)
        except (CallTimeoutError, TooManyCallsError):
            raise
        except TimeoutError:
            raise CallTimeoutError(
                f"no reply to message {asked.out.msg_id} to {target.topic} in {asked.time_ms:.0f} ms"
            ) from None
        finally:
            replies.forget(asked.correlation_id)

    async def _be_known(self, ready: Ready, target: Target) -> None:
        """Make sure that every broker that may pass an answer on has heard of us."""
        if target.topic in self._asked:
            return
        for cluster in {each.cluster for each in target.route.data.broker_datas or ()} - {None}:
            topic = requesting.reply_topic(str(cluster))
            try:
                await ready.instance.route(topic)
            except RocketMQError:
                continue  # an old cluster has none: its brokers are those of the topic itself
            self.role.used.add(topic)
        await ready.instance.heartbeat()
        self._asked.add(target.topic)

    async def deliver_reply(self, out: Outgoing, topic: str, broker_name: str, time_ms: float) -> SendResult:
        """Send an answer through the broker that the request came from, which knows who asked, if it is there."""
        ready = await self.ready()
        left_ms = await self._enter(ready.room, out.size, time_ms)
        try:
            target = await self.find(ready, topic, left_ms, wire_topic=topic)
            queue = next((each for each in target.queues if each.broker_name == broker_name), None)
            return await ready.sender.deliver(out, target, queue=queue, timeout_ms=left_ms)
        finally:
            ready.room.leave(out.size)
