"""Delivers what is ready to be sent: one attempt after the other, on other brokers where it may, within one budget.

Budget     Each attempt gets what remains of the time divided by the attempts left.
Again      After a time-out, a broken connection and the answers that another broker may not give. A message that
           has to go to one queue is tried once. All attempts carry the same message id.
Tickets    Threads hand over a first attempt as a Ticket, frame and all, and begin() puts it on the wire without a
           coroutine; whatever does not go well then is taken up by deliver().
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from rmq_core.client.fault import DETECT_TIMEOUT_MS, FaultTable
from rmq_core.client.instance import ClientInstance
from rmq_core.client.producer_options import ProducerOptions
from rmq_core.client.send_results import Attempt, SendError, SendResult
from rmq_core.client.sending import Outgoing, SendRules, read_sent, send_request, sent_header
from rmq_core.client.targets import Target
from rmq_core.errors import (
    BrokerError,
    CallTimeoutError,
    ClientClosedError,
    ConnectError,
    NoRouteError,
    RemoteProtocolError,
    RocketMQError,
    TooManyCallsError,
    UnsupportedError,
)
from rmq_core.net.connection import Connection, next_opaque
from rmq_core.protocol.codes import V5_0_0, ResponseCode, version_name
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.requests import GetMaxOffset

logger = logging.getLogger(__name__)

_RETRIED: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""Answers that another broker may not give. Flow control is none of them: more sends would make it worse."""
FAILURES: Final = (
    CallTimeoutError,
    ConnectError,
    TooManyCallsError,
    RemoteProtocolError,
    BrokerError,
    NoRouteError,
)
"""What an attempt may end with; a message that is wrong in itself is none of them."""
_PAUSE_MAX_MS: Final = 500


class TicketListener(Protocol):
    """Whoever a ticket belongs to."""

    def ticket_done(self, ticket: Ticket) -> None:
        """Header or error is there. On the loop; must not raise."""


class Ticket:
    """A first attempt that a thread has prepared. The loop sets header or error, then tells the listener."""

    __slots__ = (
        "_is_done",
        "address",
        "error",
        "frame",
        "header",
        "listener",
        "opaque",
        "out",
        "queue",
        "started_ms",
        "timeout_ms",
    )

    def __init__(
        self,
        out: Outgoing,
        queue: MessageQueue,
        address: str,
        frame: bytes,
        opaque: int,
        started_ms: float,
        timeout_ms: float,
    ) -> None:
        self.out = out
        self.queue = queue
        self.address = address
        self.frame = frame
        self.opaque = opaque
        self.started_ms = started_ms
        self.timeout_ms = timeout_ms
        self.header: dict[str, Any] | None = None
        self.error: Exception | None = None
        self.listener: TicketListener
        """Set before begin()."""
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: dict[str, Any], /) -> None:
        self.header = result
        self._is_done = True
        self.listener.ticket_done(self)

    def set_exception(self, exception: Exception, /) -> None:
        self.error = exception
        self._is_done = True
        self.listener.ticket_done(self)

    def result(self) -> SendResult:
        """What came of it. Raises what an attempt raises."""
        if self.error is not None:
            raise self.error
        assert self.header is not None
        return read_sent(self.header, self.out, self.queue)


class Sender:
    """Sends for one producer. What says so may be called on any thread; all else belongs to the loop."""

    def __init__(self, instance: ClientInstance, rules: SendRules, options: ProducerOptions) -> None:
        self.instance = instance
        self.rules = rules
        self.options = options
        self.targets: dict[str, Target] = {}
        """By the topic's name on the wire."""
        self.faults = (
            FaultTable(instance.clock, detects=options.detect_faulty)
            if options.avoid_faulty or options.detect_faulty
            else None
        )
        self._waiting: dict[str, list[Ticket]] = {}
        """Tickets by the address that is being connected to."""
        self._clock = instance.clock

    # Where to

    def target(self, topic: str) -> Target | None:
        """The topic's target where its route is known. Any thread."""
        target = self.targets.get(self.rules.topic(topic))
        if target is not None and target.route is self.instance.routes.topics.get(target.wire_topic):
            return target
        return None

    async def find_target(self, topic: str, *, wire_topic: str | None = None, refresh: bool = False) -> Target:
        """The same, asking for the route where it is not known. Raises NoRouteError, ConnectError.

        The brokers' own topics have a wire_topic that no namespace changes.
        """
        wire_topic = wire_topic or self.rules.topic(topic)
        route = await self.instance.route_or_default(
            wire_topic, queues=self.rules.default_topic_queues, refresh=refresh
        )
        target = self.targets.get(wire_topic)
        if target is None or target.route is not route:
            target = self.targets[wire_topic] = Target(topic, route, self.rules)
        return target

    async def find_in_time(self, topic: str, timeout_ms: float, *, wire_topic: str | None = None) -> Target:
        """The same within a time. Raises CallTimeoutError too."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.find_target(topic, wire_topic=wire_topic)
        except CallTimeoutError:
            raise
        except TimeoutError:
            raise CallTimeoutError(f"finding a route for {topic} took the whole {timeout_ms:.0f} ms") from None

    # Attempts

    async def deliver(
        self,
        out: Outgoing,
        target: Target,
        *,
        queue: MessageQueue | None,
        timeout_ms: float,
        tried: Sequence[Attempt] = (),
    ) -> SendResult:
        """Send until it is acknowledged; to that queue, or to any. `tried` has attempts made before.

        Raises SendError with what was tried, NoRouteError and UnsupportedError.
        """
        attempts = list(tried)
        attempts_max = 1 if queue is not None else 1 + self.options.retries
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        stored: SendResult | None = None
        stored_count = 0
        if attempts and not is_retried(attempts[-1].error):
            return self._give_up(out, target.topic, attempts, stored)
        while True:
            left = attempts_max - len(attempts) - stored_count
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if left <= 0 or remaining_ms <= 0:
                return self._give_up(out, target.topic, attempts, stored)
            if attempts:
                target, remaining_ms = await self._regroup(target, attempts, remaining_ms, left)
            last = stored.queue.broker_name if stored else attempts[-1].broker_name if attempts else None
            chosen = queue or target.next_queue(last, self.faults)
            started_ms = self._clock.monotonic_ms()
            try:
                result = await self._attempt(out, target, chosen, remaining_ms / left)
            except FAILURES as error:
                attempts.append(self._failed(chosen, error, started_ms))
                if not is_retried(error):
                    return self._give_up(out, target.topic, attempts, stored)
                continue
            self.answered(chosen, started_ms)
            if result.ok or queue is not None or not self.options.retry_unless_ok or left == 1:
                return result
            stored = result
            stored_count += 1

    def _give_up(
        self, out: Outgoing, topic: str, attempts: Sequence[Attempt], stored: SendResult | None
    ) -> SendResult:
        """What is left when nothing is tried any more: a copy that is not as safe as wished, or the error."""
        if stored is not None:
            return stored
        if not attempts:
            raise CallTimeoutError(f"no time was left to send message {out.msg_id} to {topic}")
        raise SendError(topic, out.msg_id, attempts) from attempts[-1].error

    def failed(self, ticket: Ticket, error: Exception) -> Attempt:
        """Note how an attempt by a ticket failed. Any thread."""
        return self._failed(ticket.queue, error, ticket.started_ms)

    def _failed(self, queue: MessageQueue, error: Exception, started_ms: float) -> Attempt:
        took_ms = self._clock.monotonic_ms() - started_ms
        if self.faults is not None:
            is_reachable = isinstance(error, BrokerError | TooManyCallsError)
            self.faults.failed(queue.broker_name, took_ms, is_reachable=is_reachable)
        return Attempt(queue.broker_name, self._address(queue) or "no known address", error, took_ms)

    def answered(self, queue: MessageQueue, started_ms: float) -> None:
        """Note how long an answer took. Any thread."""
        if self.faults is not None:
            self.faults.answered(queue.broker_name, self._clock.monotonic_ms() - started_ms)

    async def _regroup(
        self, target: Target, attempts: Sequence[Attempt], remaining_ms: float, left: int
    ) -> tuple[Target, float]:
        """Before another attempt: find out whether brokers moved; wait a moment where there is only a dead one."""
        last = attempts[-1]
        if isinstance(last.error, CallTimeoutError):
            return target, remaining_ms
        deadline_ms = self._clock.monotonic_ms() + remaining_ms
        pause_ms = min(remaining_ms / left / 2, _PAUSE_MAX_MS)
        try:
            async with asyncio.timeout(pause_ms / 1000):
                target = await self.find_target(target.topic, wire_topic=target.wire_topic, refresh=True)
        except (RocketMQError, TimeoutError):
            pass  # what is known of the topic must do
        # The first failure may be that of an old connection: the next attempt opens a new one at once.
        is_dead = len(attempts) > 1 and all(isinstance(each.error, ConnectError) for each in attempts[-2:])
        if is_dead and all(each.broker_name == last.broker_name for each in target.queues):
            await self._clock.sleep(pause_ms)
        return target, max(deadline_ms - self._clock.monotonic_ms(), 1)

    async def _attempt(self, out: Outgoing, target: Target, queue: MessageQueue, timeout_ms: float) -> SendResult:
        address = self._address(queue) or await self._look_up(target, queue, timeout_ms)
        if out.is_timed:
            await self._check_timed(queue.broker_name, timeout_ms)
        if self.instance.call_hooks:
            channel = self.instance.channel(address)
            answer = await channel.call(send_request(out, queue, self.rules), out.body, timeout_ms=timeout_ms)
            return read_sent(sent_header(answer.code, answer.header), out, queue)
        connection = self.instance.channel(address).connection
        if connection is None:
            started_ms = self._clock.monotonic_ms()
            connection = await self._connect(address, timeout_ms)
            timeout_ms = max(timeout_ms - (self._clock.monotonic_ms() - started_ms), 1)
        opaque = next_opaque()
        header: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        frame = target.writer(queue).write(out, opaque=opaque)
        connection.exchange_frame(frame, opaque, header, timeout_ms=timeout_ms)
        return read_sent(await header, out, queue)

    def _address(self, queue: MessageQueue) -> str | None:
        master = self.instance.routes.master(queue.broker_name)
        return None if master is None else self.instance.vip(master)

    async def _look_up(self, target: Target, queue: MessageQueue, timeout_ms: float) -> str:
        """Ask for the route again: a broker may have come since."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.find_target(target.topic, wire_topic=target.wire_topic, refresh=True)
        except CallTimeoutError:
            raise
        except TimeoutError:
            raise CallTimeoutError(f"finding broker {queue.broker_name} took {timeout_ms:.0f} ms") from None
        address = self._address(queue)
        if address is None:
            raise NoRouteError(f"no route names a master of broker {queue.broker_name}")
        return address

    async def _connect(self, address: str, timeout_ms: float) -> Connection:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.instance.channel(address).connect()
        except CallTimeoutError:
            raise
        except TimeoutError:
            raise CallTimeoutError(f"connecting to {address} took the whole {timeout_ms:.0f} ms") from None

    async def _check_timed(self, broker_name: str, timeout_ms: float) -> None:
        """Raises UnsupportedError where the broker would deliver a timed message at once."""
        address = self.instance.routes.master(broker_name)
        assert address is not None
        version = self.instance.versions.get(address)
        if version is None:
            await self._connect(address, timeout_ms)
            await self.instance.heartbeat_to(address)
            version = self.instance.versions.get(address)
        if version is None:
            raise ConnectError(f"{address} does not say which version it is, and delay needs one of 5.0")
        if version < V5_0_0:
            raise UnsupportedError(
                f"broker {broker_name} is {version_name(version)}: it would deliver the message at once; "
                "delay and deliver_at need 5.0, delay_level does not"
            )

    # By ticket

    def ticket(self, out: Outgoing, target: Target, queue: MessageQueue | None, timeout_ms: float) -> Ticket | None:
        """A first attempt for begin(); None where only deliver() can do it. Any thread."""
        if self.instance.call_hooks or out.is_timed or self.options.retry_unless_ok:
            return None
        chosen = queue or target.next_queue(None, self.faults)
        address = self._address(chosen)
        if address is None:
            return None
        opaque = next_opaque()
        frame = target.writer(chosen).write(out, opaque=opaque)
        share_ms = timeout_ms if queue is not None else timeout_ms / (1 + self.options.retries)
        return Ticket(out, chosen, address, frame, opaque, self._clock.monotonic_ms(), share_ms)

    def begin(self, ticket: Ticket) -> None:
        """Put a ticket's frame on the wire; the ticket hears what came of it."""
        waiting = self._waiting.get(ticket.address)
        if waiting is not None:  # behind those that came before it
            waiting.append(ticket)
            return
        try:
            connection = self.instance.channel(ticket.address).connection
            if connection is None:
                self._waiting[ticket.address] = [ticket]
                self.instance.spawn(self._connect_and_begin(ticket.address, ticket.timeout_ms))
            else:
                self._begin_on(connection, ticket)
        except RocketMQError as error:
            ticket.set_exception(error)

    def _begin_on(self, connection: Connection, ticket: Ticket) -> None:
        try:
            connection.exchange_frame(ticket.frame, ticket.opaque, ticket, timeout_ms=ticket.timeout_ms)
        except RocketMQError as error:
            ticket.set_exception(error)

    async def _connect_and_begin(self, address: str, timeout_ms: float) -> None:
        try:
            connection = await self._connect(address, timeout_ms)
        except RocketMQError as error:
            for ticket in self._waiting.pop(address):
                ticket.set_exception(error)
        except BaseException:  # close() cancels what it finds here
            for ticket in self._waiting.pop(address):
                ticket.set_exception(ClientClosedError("the producer was closed"))
            raise
        else:
            for ticket in self._waiting.pop(address):
                self._begin_on(connection, ticket)

    # One way

    async def tell(self, out: Outgoing, target: Target, queue: MessageQueue | None, timeout_ms: float) -> None:
        """Hand a message to the network and expect nothing. Raises ConnectError, CallTimeoutError, NoRouteError."""
        chosen = queue or target.next_queue(None, self.faults)
        address = self._address(chosen) or await self._look_up(target, chosen, timeout_ms)
        if out.is_timed:
            await self._check_timed(chosen.broker_name, timeout_ms)
        connection = self.instance.channel(address).connection or await self._connect(address, timeout_ms)
        if connection.is_congested:
            await self._drained(connection, timeout_ms)
        if self.instance.call_hooks:
            connection.oneway(send_request(out, chosen, self.rules), out.body)
        else:
            connection.send(target.writer(chosen).write(out, opaque=next_opaque(), oneway=True))

    def telling(self, out: Outgoing, target: Target, queue: MessageQueue | None) -> tuple[str, bytes] | None:
        """Address and frame for tell_frame(); None where only tell() will do. Any thread."""
        if self.instance.call_hooks or out.is_timed:
            return None
        chosen = queue or target.next_queue(None, self.faults)
        address = self._address(chosen)
        if address is None or not self.instance.is_connected(address):
            return None
        connection = self.instance.channel(address).connection
        if connection is None or connection.is_congested:
            return None
        return address, target.writer(chosen).write(out, opaque=next_opaque(), oneway=True)

    def tell_frame(self, address: str, frame: bytes) -> None:
        """Write it if the connection is still there; what is told to nobody is lost."""
        connection = self.instance.channel(address).connection
        if connection is not None:
            connection.send(frame)

    async def _drained(self, connection: Connection, timeout_ms: float) -> None:
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection.when_drained(functools.partial(_finish, drained))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await drained
        except TimeoutError:
            raise CallTimeoutError(f"{connection.peer} takes nothing more for {timeout_ms:.0f} ms") from None

    # Faults

    async def detect_faults(self) -> None:
        """Probe unreachable brokers, until cancelled."""
        if self.faults is not None and self.options.detect_faulty:
            await self.faults.detect(self._probe)

    async def _probe(self, broker_name: str) -> bool:
        address = self.instance.routes.master(broker_name)
        target = next(iter(self.targets.values()), None)
        if address is None or target is None:
            if self.faults is not None:
                self.faults.forget(broker_name)
            return False
        try:
            await self.instance.call(address, GetMaxOffset(target.wire_topic, 0), timeout_ms=DETECT_TIMEOUT_MS)
        except BrokerError:
            return True  # it answers, if not as one would wish
        except RocketMQError:
            return False
        return True


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def is_retried(error: Exception) -> bool:
    return not isinstance(error, BrokerError) or error.code in _RETRIED
