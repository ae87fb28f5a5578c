"""Sends whole requests to chosen queues, on plain threads and without a loop: what Spark's sink uses.

Order     One request of a queue is in flight; the next one goes out when it is acknowledged. One that failed is
          sent again, with the same identities, to the same queue before the next. Many queues go side by side.
Failures  Answers that say no and time-outs count as tries; a broker that is away or busy is waited for, within a
          budget of time. What was sent may have been stored although no answer came: at least once, never less.
Bounds    send() waits while more bytes are unacknowledged than allowed; flush() waits for all of them.
Thread    All work is done on the thread that calls, one at a time. What arrives meanwhile is taken with the next
          call. A broker that hangs holds up the others for as long as one call may take.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from rmq_core.client.blocking_routes import AWAY, BUSY, BlockingRoutes, Connections
from rmq_core.client.identity import make_client_id
from rmq_core.client.options import ClientOptions
from rmq_core.client.routes import MASTER, TopicRoute, default_route
from rmq_core.client.send_results import Attempt, SendStatus
from rmq_core.client.sending import Outgoing, SendRules, send_request
from rmq_core.errors import BrokerError, CallTimeoutError, ClientError, ConnectError, NoRouteError, UnsupportedError
from rmq_core.net.blocking import PendingCall
from rmq_core.protocol.bodies import HeartbeatData, ProducerData
from rmq_core.protocol.codes import V5_0_0, ResponseCode
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.requests import HeartBeat, Sent

logger = logging.getLogger(__name__)

_RETRIED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
_UNSAFE: Final = {status.value: status for status in SendStatus if status is not SendStatus.OK}
_LOOK_UPS: Final = 3
_LOOK_UP_PAUSE_S: Final = 1.0
_ROUTE_AGE_S: Final = 30.0
_ROUTE_AGE_AFTER_FAILURE_S: Final = 1.0
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
_BEAT_S: Final = 30.0
_ATTEMPTS_KEPT: Final = 8


class QueueSendError(ClientError):
    """A request was not acknowledged; what waited behind it in its queue was not sent.

    Its messages may have been stored where no answer came in time. `tried` has the last attempts.
    """

    retriable = True

    def __init__(self, queue: MessageQueue, out: Outgoing, tried: Sequence[Attempt]) -> None:
        super().__init__(queue, out.msg_ids[:1], tuple(tried))
        self.queue = queue
        self.size = out.size
        self.tried = tuple(tried)

    def __str__(self) -> str:
        what = f"{self.size} bytes for {self.queue.topic} {self.queue.broker_name} {self.queue.queue_id}"
        return f"{what} were not acknowledged: {'; '.join(map(str, self.tried))}"

    @property
    def code(self) -> int | None:
        """The response code of the last attempt; None where no answer came."""
        error = self.tried[-1].error if self.tried else None
        return error.code if isinstance(error, BrokerError) else None


@dataclass(slots=True)
class _Lane:
    """The requests of one queue, the first of them perhaps in flight."""

    queue: MessageQueue
    waiting: deque[Outgoing] = field(default_factory=deque)
    call: PendingCall[Sent] | None = None
    address: str = ""
    started_s: float = 0
    wakes_s: float = 0
    """Not tried again before."""
    failed_s: float | None = None
    """When the first try of the first request failed."""
    failures: int = 0
    """How often it was tried in vain, and how often of these it counts."""
    counted: int = 0
    tried: list[Attempt] = field(default_factory=list)


class QueueSender:
    """Sends to queues of many topics. Not for several threads at once."""

    def __init__(
        self,
        options: ClientOptions,
        rules: SendRules,
        *,
        timeout_ms: int = 3_000,
        retries: int = 2,
        away_budget_ms: int = 60_000,
        bytes_in_flight_max: int = 16 << 20,
    ) -> None:
        """retries: how often a request that was refused or not answered is sent again; away_budget_ms: how long a
        broker may be away or busy, or a queue without success."""
        if timeout_ms <= 0 or retries < 0 or away_budget_ms < 0 or bytes_in_flight_max <= 0:
            raise ValueError(
                "timeout_ms and bytes_in_flight_max are above zero, retries and away_budget_ms not below"
            )
        self._rules = rules
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._budget_s = away_budget_ms / 1000
        self._bytes_max = bytes_in_flight_max
        self._connections = Connections(options)
        self._routes = BlockingRoutes(options, self._connections, tries=1)
        self._default_routes: dict[str, TopicRoute] = {}
        self._masters: dict[str, str] = {}
        self._asked_s: dict[str, float] = {}
        self._client_id = make_client_id(options.instance_name, options.unit_name)
        self._versions: dict[str, tuple[int, float]] = {}
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._idle: deque[_Lane] = deque()
        self._busy: dict[MessageQueue, _Lane] = {}
        self._resting: dict[MessageQueue, _Lane] = {}
        self._bytes = 0
        self.requests_acknowledged = 0
        """How many requests brokers have acknowledged."""

    def __repr__(self) -> str:
        return f"<QueueSender {self._client_id}: {self._bytes} bytes in flight>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What users call

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be sent to, by broker and number. A topic that does not exist yet has those that its
        first message will make. Raises NoRouteError, ConnectError."""
        for left in reversed(range(_LOOK_UPS)):
            try:
                route = self._route(topic, age_max_s=_ROUTE_AGE_S)
                break
            except ConnectError:
                if not left:
                    raise
                time.sleep(_LOOK_UP_PAUSE_S)
        return tuple(MessageQueue(topic, each.broker_name, each.queue_id) for each in route.write_queues)

    def send(self, queue: MessageQueue, out: Outgoing) -> None:
        """Take a request for a queue and send it when its turn has come. Waits where too much is in flight.

        Raises QueueSendError for any request that failed for good; the sender is of no use then.
        """
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(queue)
        if not lane.waiting:
            self._idle.append(lane)
        lane.waiting.append(out)
        self._bytes += out.size
        self._start_idle()
        self._collect()
        while self._bytes > self._bytes_max:
            self._wait()

    def flush(self) -> None:
        """Wait until everything is acknowledged. Raises QueueSendError."""
        while self._bytes or self._busy:
            self._wait()

    def close(self) -> None:
        """Close all connections; what is not acknowledged is not waited for. Idempotent."""
        self._connections.close()
        for lanes in (self._lanes, self._busy, self._resting):
            lanes.clear()
        self._idle.clear()
        self._bytes = 0

    # Routes

    def _route(self, topic: str, *, age_max_s: float) -> TopicRoute:
        """The newest route there is: an old one where no name server answers."""
        wire = self._rules.topic(topic)
        try:
            route = self._routes.route(wire, age_max_s=age_max_s)
        except NoRouteError:
            route = self._default_routes.get(wire) or self._ask_default(wire)
        except AWAY:
            # Raises the same again where there was never an answer.
            route = self._default_routes.get(wire) or self._routes.route(wire, age_max_s=float("inf"))
        for data in route.data.broker_datas or ():
            if MASTER in data.broker_addrs:
                self._masters[data.broker_name] = data.broker_addrs[MASTER]
        return route

    def _ask_default(self, wire: str) -> TopicRoute:
        try:
            default = self._routes.route(self._rules.default_topic)
        except NoRouteError:
            raise NoRouteError(
                f"topic {wire} does not exist and no broker creates topics by themselves; create it first"
            ) from None
        route = default_route(wire, default.data, queues_max=self._rules.default_topic_queues)
        self._default_routes[wire] = route
        return route

    def _address(self, lane: _Lane) -> str:
        """Where the queue's master is, asked anew after a failure: it may have come back elsewhere."""
        name = lane.queue.broker_name
        topic, now = lane.queue.topic, time.monotonic()
        is_due = now - self._asked_s.get(topic, float("-inf")) > _ROUTE_AGE_AFTER_FAILURE_S
        if name not in self._masters or (lane.failures and is_due):
            self._asked_s[topic] = now
            self._route(topic, age_max_s=_ROUTE_AGE_AFTER_FAILURE_S)
        if name not in self._masters:
            raise NoRouteError(f"no name server knows a master of broker {name}")
        return self._masters[name]

    # Sending

    def _start_idle(self) -> None:
        now = time.monotonic()
        for lane in [each for each in self._resting.values() if each.wakes_s <= now]:
            del self._resting[lane.queue]
            self._idle.append(lane)
        while self._idle:
            self._start(self._idle.popleft())

    def _start(self, lane: _Lane) -> None:
        out = lane.waiting[0]
        lane.started_s = time.monotonic()
        try:
            lane.address = self._address(lane)
            self._greet(lane.address, out)
            channel = self._connections.to(lane.address)
            request: Any = send_request(out, lane.queue, self._rules)
            lane.call = channel.start(request, out.body, timeout_ms=self._timeout_ms)
        except (*AWAY, NoRouteError, BrokerError) as error:
            self._failed(lane, error)
            if isinstance(error, ConnectError):
                self._settle_broken(lane.address)
            return
        self._busy[lane.queue] = lane

    def _greet(self, address: str, out: Outgoing) -> None:
        """Say from time to time who sends, and learn what version the broker is."""
        version, told_s = self._versions.get(address, (0, float("-inf")))
        now = time.monotonic()
        if now - told_s > _BEAT_S:
            beat = HeartbeatData(self._client_id, (ProducerData(self._rules.group),))
            answer = self._connections.to(address).call(HeartBeat(), beat.encode(), timeout_ms=self._timeout_ms)
            version = answer.version
            self._versions[address] = (version, now)
        if out.is_timed and version < V5_0_0:
            raise UnsupportedError(
                f"the broker at {address} is older than 5.0 and would deliver a timed message at once; "
                "use a delay level"
            )

    def _collect(self) -> None:
        """Take the answers that have come, without waiting, and send what may go next."""
        if not self._busy:
            return
        for address in {lane.address for lane in self._busy.values()}:
            try:
                self._connections.to(address).poll(0)
            except ConnectError:
                self._settle_broken(address)
        late = time.monotonic() - self._timeout_ms / 1000
        for lane in list(self._busy.values()):
            is_over = lane.call is not None and (lane.call.response is not None or lane.started_s < late)
            if is_over and not self._settle(lane):
                self._settle_broken(lane.address)
        self._start_idle()

    def _wait(self) -> None:
        """Wait for one answer at least, or for the time at which something is tried again."""
        self._start_idle()
        oldest = next(iter(self._busy.values()), None)
        if oldest is not None:
            if not self._settle(oldest):
                self._settle_broken(oldest.address)
            self._collect()
        elif self._resting:
            wakes_s = min(lane.wakes_s for lane in self._resting.values())
            time.sleep(max(wakes_s - time.monotonic(), 0))
        self._start_idle()

    def _settle_broken(self, address: str) -> None:
        """The connection was lost, and every call on it."""
        for lane in [each for each in self._busy.values() if each.address == address]:
            self._settle(lane)

    def _is_waiting_for(self, address: str) -> bool:
        return any(lane.address == address for lane in self._busy.values())

    def _settle(self, lane: _Lane) -> bool:
        """Wait for the answer of the request in flight, and draw the consequence. False: the connection is lost."""
        call, lane.call = lane.call, None
        self._busy.pop(lane.queue, None)
        if call is None:
            return True
        try:
            answer = call.wait()
        except (*AWAY, BrokerError) as error:
            self._failed(lane, error)
            if isinstance(error, CallTimeoutError) and not self._is_waiting_for(lane.address):
                self._connections.to(lane.address).drop()
            return not isinstance(error, ConnectError)
        if answer.code in _UNSAFE:
            self._failed(lane, BrokerError(answer.code, answer.remark or _UNSAFE[answer.code].name))
            return True
        done = lane.waiting.popleft()
        lane.failures, lane.counted, lane.failed_s = 0, 0, None
        lane.tried.clear()
        self._bytes -= done.size
        self.requests_acknowledged += 1
        if lane.waiting:
            self._idle.append(lane)
        return True

    def _failed(self, lane: _Lane, error: Exception) -> None:
        """Have the first request of the lane tried again, a little later. Raises QueueSendError at the end."""
        now = time.monotonic()
        lane.failed_s = now if lane.failed_s is None else lane.failed_s
        lane.failures += 1
        lane.tried.append(Attempt(lane.queue.broker_name, lane.address, error, (now - lane.started_s) * 1000))
        del lane.tried[:-_ATTEMPTS_KEPT]
        is_waited_for = isinstance(error, ConnectError | NoRouteError) or (
            isinstance(error, BrokerError) and error.code in BUSY
        )
        lane.counted += not is_waited_for
        is_final = isinstance(error, BrokerError) and error.code not in BUSY | _RETRIED | _UNSAFE.keys()
        if is_final or lane.counted > self._retries or now - lane.failed_s > self._budget_s:
            raise QueueSendError(lane.queue, lane.waiting[0], lane.tried) from error
        # The first loss is often that of a connection which a broker closed while nobody used it.
        pause_s = 0.0 if lane.failures == 1 else min(_PAUSE_FIRST_S * 2 ** (lane.failures - 2), _PAUSE_MAX_S)
        lane.wakes_s = now + pause_s
        self._resting[lane.queue] = lane
        logger.info("%s %s %d: trying again in %.2f s: %s", *_named(lane.queue), pause_s, error)


def _named(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id
