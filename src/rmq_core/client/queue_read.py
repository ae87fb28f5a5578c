"""One range of a queue, read as raw buffers with several pulls in flight.

Prediction  A pull is sent for the offset at which the one before it will end if the broker gives what was asked.
            Where it gave less, the gap is pulled before anything behind it is used; where a filter let it look
            further, what the next answer repeats is cut off. How much is asked follows what was given, as
            brokers cap it.
Bounds      The answers in flight stay below a number of bytes, but one pull is always allowed, and brokers answer
            it with one message at least.
Faults      A broker that is away or busy is asked again, at its slaves too, until the budget since the last
            progress is used up. Data that are gone are reported, never skipped; a topic that a living broker has
            no more is gone at once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rmq_core.client.blocking_routes import AWAY, BUSY, BlockingRoutes, Connections
from rmq_core.client.routes import MASTER, BrokerAddress
from rmq_core.errors import (
    BrokerError,
    CallTimeoutError,
    ConnectError,
    NoRouteError,
    OffsetGoneError,
    RemoteProtocolError,
    RocketMQError,
)
from rmq_core.net.blocking import BlockingChannel, PendingCall
from rmq_core.net.calls import Answer
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import RECORD_SIZE_MIN
from rmq_core.protocol.requests import Pulled, PullMessage

logger = logging.getLogger(__name__)

SUBSCRIPTION_IN_PULL: Final = 0x4
COUNT_MAX: Final = 8_192
"""Messages that are asked for at once."""
FILTERED_COUNT_MAX: Final = 2_048
"""The same where the broker has to look at each."""
TARGET_SIZE: Final = 4 << 20
"""Bytes that one answer should have."""
ANSWER_SIZE_LEAST: Final = 256 << 10
"""Brokers that do not know the limit of bytes in a request give so much."""
PULLS_MAX: Final = 32
CAPPED_PULLS: Final = 64
"""After so many answers a broker that gave less than it was asked for is asked for more again."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 2.0
MASTER_AGAIN_S: Final = 10.0
"""So long a slave is read before its master is tried again."""
RESETS_MAX: Final = 5

_QUEUE_OFFSET_AT: Final = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a range, and the records in it, one behind the other; none where a filter left a hole."""

    queue: MessageQueue
    start: int
    end: int
    buffer: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How ranges are read."""

    group: str
    """Names of groups and topics here are those on the wire."""
    pull_timeout_ms: int = 20_000
    retry_budget_ms: int = 60_000
    read_from_slave: bool = False
    bytes_in_flight_max: int = 32 << 20
    count_max: int = COUNT_MAX


@dataclass(slots=True)
class _Ask:
    """A pull in flight: what it should cover, and what its answer may weigh."""

    start: int
    end: int
    size_max: int
    call: PendingCall[Pulled]


class RangeRead:
    """Reads one range once; iterate over it."""

    def __init__(
        self,
        routes: BlockingRoutes,
        connections: Connections,
        queue: MessageQueue,
        topic: str,
        start: int,
        end: int,
        settings: ReadSettings,
        subscription: SubscriptionData | None = None,
    ) -> None:
        """topic is the queue's as the wire names it."""
        self._connections = connections
        self._queue = queue
        self._topic = topic
        self._position = start
        self._end = end
        self._settings = settings
        self._text = (subscription.sub_string if subscription is not None else None) or "*"
        self._kind = (subscription.expression_type if subscription is not None else None) or "TAG"
        self._is_filtered = self._text != "*"
        self._source = Source(routes, topic, queue.broker_name, settings)
        self._pace = Pace(
            min(settings.count_max, FILTERED_COUNT_MAX) if self._is_filtered else settings.count_max,
            settings.bytes_in_flight_max,
        )
        self._asks: deque[_Ask] = deque()
        self._channel: BlockingChannel | None = None
        self._resets = 0

    def __iter__(self) -> Iterator[Piece]:
        """The pieces in order. Raises OffsetGoneError, BrokerError, ConnectError, NoRouteError."""
        try:
            while self._position < self._end:
                try:
                    self._fill()
                    ask = self._asks.popleft()
                    answer = ask.call.wait(timeout_ms=self._settings.pull_timeout_ms)
                    piece = self._take(ask, answer)
                except (*AWAY, NoRouteError) as error:
                    self._cancel()
                    if isinstance(error, CallTimeoutError) and self._channel is not None:
                        self._channel.drop()
                    self._source.lost(error)
                    continue
                except BrokerError as error:
                    self._cancel()
                    self._source.refused(error)
                    continue
                if piece is not None:
                    self._source.served()
                    self._resets = 0
                    self._position = piece.end
                    yield piece
        finally:
            self._cancel()

    def _cancel(self) -> None:
        for ask in self._asks:
            ask.call.cancel()
        self._asks.clear()

    # Asking

    def _fill(self) -> None:
        asks, pace = self._asks, self._pace
        if asks and asks[0].start > self._position:
            asks.extendleft(self._ask([(self._position, asks[0].start)]))
        elif not asks and not pace.is_known:
            asks.extend(self._ask([(self._position, min(self._position + pace.count, self._end))]))
        in_flight_max = max(min(PULLS_MAX, self._settings.bytes_in_flight_max // pace.answer_size_max), 1)
        # Several at a time: the requests go out together, and the broker reads them together.
        if pace.is_known and len(asks) <= in_flight_max // 2:
            start = asks[-1].end if asks else self._position
            spans: list[tuple[int, int]] = []
            while start < self._end and len(asks) + len(spans) < in_flight_max:
                spans.append((start, min(start + pace.count, self._end)))
                start = spans[-1][1]
            if spans:
                asks.extend(self._ask(spans))

    def _ask(self, spans: Sequence[tuple[int, int]]) -> list[_Ask]:
        size_max = self._pace.answer_size_max
        requests = [
            PullMessage(
                consumer_group=self._settings.group,
                topic=self._topic,
                queue_id=self._queue.queue_id,
                queue_offset=start,
                max_msg_nums=min(end - start, self._pace.count_max),
                sys_flag=SUBSCRIPTION_IN_PULL,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription=self._text,
                expression_type=self._kind,
                max_msg_bytes=size_max,
            )
            for start, end in spans
        ]
        self._channel = self._connections.to(self._source.address())
        calls = self._channel.start_all(
            [(request, b"") for request in requests], timeout_ms=self._settings.pull_timeout_ms, takes_view=True
        )
        return [_Ask(start, end, size_max, call) for (start, end), call in zip(spans, calls, strict=True)]

    # Answers

    def _take(self, ask: _Ask, answer: Answer[Pulled]) -> Piece | None:
        """What an answer adds; None where that is nothing."""
        header, body = answer.header, ask.call.view
        self._source.suggested(header.suggest_which_broker_id)
        if answer.code == ResponseCode.SUCCESS:
            if header.next_begin_offset <= ask.start or len(body) < RECORD_SIZE_MIN:
                raise RemoteProtocolError(f"{self._queue}: an answer with messages that leads nowhere")
            self._pace.learn(ask.end - ask.start, header.next_begin_offset - ask.start, len(body), ask.size_max)
            first = _queue_offset(body, 0)
            if not self._is_filtered and first > self._position and ask.start <= self._position < header.min_offset:
                # Retention ran while the broker read: it left out what it had deleted already.
                raise self._gone(self._position, header)
        elif not self._leads_on(ask, answer):
            return None
        end = min(header.next_begin_offset, self._end)
        if end <= self._position:
            return None
        if answer.code != ResponseCode.SUCCESS:
            body = body[:0]
        elif ask.start < self._position or header.next_begin_offset > self._end:
            body = cut(body, self._position, self._end)
        return Piece(self._queue, self._position, end, body)

    def _leads_on(self, ask: _Ask, answer: Answer[Pulled]) -> bool:
        """Whether an answer without messages says that there are none up to its next offset."""
        header, start = answer.header, ask.start
        if start < self._position:  # the part that was asked for is here already; the rest is asked for anew
            return False
        leads_on = answer.code != ResponseCode.PULL_OFFSET_MOVED and header.next_begin_offset > start
        if self._source.is_slave:
            if not leads_on or header.max_offset <= start:
                self._cancel()
                self._source.lacks(f"{self._queue} is not at offset {start} on its slave yet")
            return leads_on and header.max_offset > start
        if header.min_offset > start:
            raise self._gone(start, header)
        if start >= header.max_offset:
            raise self._gone(start, header)
        if leads_on:
            self._pace.learn(ask.end - start, header.next_begin_offset - start, 0, ask.size_max)
            return True
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and self._resets < RESETS_MAX:
            # The group was reset: the broker says so once, instead of an answer. The range stays what it is.
            logger.info("group %s was reset on %s; this range is read on", self._settings.group, self._queue)
            self._resets += 1
            return False
        self._cancel()
        self._source.lacks(f"{self._queue}: the broker answers {answer.remark or answer.code} at offset {start}")
        return False

    def _gone(self, start: int, header: Pulled) -> OffsetGoneError:
        available_from = header.min_offset if header.min_offset > start else min(header.max_offset, start)
        return OffsetGoneError(self._queue, start, available_from, max_offset=header.max_offset)


class Pace:
    """How much to ask for at once, learned from what was given."""

    def __init__(self, count_max: int, bytes_in_flight_max: int) -> None:
        self.count_max = count_max
        self.count = count_max
        """What to ask for next."""
        self.is_known = False
        """Whether the first answer has come: until then nothing can be predicted."""
        self._size_most = max(min(2 * TARGET_SIZE, bytes_in_flight_max), 1)
        self.answer_size_max = self._size_most
        """Bytes that an answer may have."""
        self._wanted = count_max
        self._capped = 0

    def learn(self, asked: int, given: int, size: int, size_max: int) -> None:
        """Offsets asked for and covered, and the size of the answer."""
        if size:
            self._wanted = max(min(TARGET_SIZE * given // size, self.count_max), 1)
        if given >= min(asked, self.count_max):
            self._capped -= self._capped > 0
            if not self.is_known or not self._capped:
                self.count = max(given, 2 * self.count)
        elif given < self.count:
            self.count = given
            # Large messages filled the answer: that passes sooner than a limit of the broker.
            self._capped = CAPPED_PULLS if size < size_max // 2 else CAPPED_PULLS // 8
        self.count = max(min(self.count, self._wanted), 1)
        if size:
            expected = 2 * self.count * size // given
            self.answer_size_max = min(max(expected, ANSWER_SIZE_LEAST), self._size_most)
        self.is_known = True


class Source:
    """Which process of a broker is read: its master, or a slave while that is away or as it was told."""

    def __init__(self, routes: BlockingRoutes, topic: str, broker_name: str, settings: ReadSettings) -> None:
        self._routes = routes
        self._topic = topic
        self._broker_name = broker_name
        self._settings = settings
        self._broker_id = MASTER
        self._slave_until = 0.0
        self._failing_since: float | None = None
        self._pause_s = PAUSE_MIN_S

    @property
    def is_slave(self) -> bool:
        return self._broker_id != MASTER

    def address(self) -> str:
        """Where to ask now. Raises NoRouteError where no route names the broker."""
        if self.is_slave and time.monotonic() > self._slave_until:
            self._broker_id = MASTER
        found = self._routes.broker(self._topic, self._broker_name, self._broker_id)
        if found is None and self.is_slave:
            self._broker_id = MASTER
            found = self._routes.broker(self._topic, self._broker_name)
        if found is None:
            found = self._other()
        if found is None:
            raise NoRouteError(f"no route of topic {self._topic} names broker {self._broker_name}")
        return found.address

    def _other(self) -> BrokerAddress | None:
        """Another process than the one that was used last."""
        for each in self._routes.replicas(self._topic, self._broker_name):
            if each.broker_id != self._broker_id:
                self._broker_id, self._slave_until = each.broker_id, time.monotonic() + MASTER_AGAIN_S
                return each
        return None

    def suggested(self, broker_id: int) -> None:
        """The broker says who should be asked next time."""
        if self._settings.read_from_slave and broker_id != self._broker_id and not self._failing_since:
            self._broker_id, self._slave_until = broker_id, float("inf")

    def served(self) -> None:
        """It goes on: the budget begins anew."""
        self._failing_since, self._pause_s = None, PAUSE_MIN_S

    def refused(self, error: BrokerError) -> None:
        """An answer that is an error: wait where it will pass, raise it where it will not or the budget is used."""
        if error.code not in BUSY:
            raise error
        self._wait(error)

    def lost(self, error: RocketMQError) -> None:
        """The process does not answer, or no route names it: go on with another.

        Raises the error where the budget is used, or where the broker is alive without the topic.
        """
        was_slave = self.is_slave
        self._broker_id = MASTER
        if isinstance(error, NoRouteError) and self._is_alive():
            raise error
        if not was_slave and self._other() is not None:
            self._begin(error)
            logger.warning("%s; reading a slave of %s", error, self._broker_name)
            return
        logger.info("%s; connecting again", error)
        self._wait(error)
        self._refresh()

    def _is_alive(self) -> bool:
        try:
            return self._broker_name in self._routes.alive()
        except RocketMQError as error:  # then nobody can say whether the broker or its topic is away
            logger.info("%s", error)
            return False

    def lacks(self, reason: str) -> None:
        """It has no answer yet: ask the master, a little later. Raises ConnectError where the budget is used."""
        self._broker_id = MASTER
        self._wait(ConnectError(reason))

    def _refresh(self) -> None:
        try:
            self._routes.route(self._topic, refresh=True, tries=1)
        except RocketMQError as error:  # the last route may still do; the budget decides when to give up
            logger.info("%s", error)

    def _begin(self, error: RocketMQError) -> float:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        left_s = self._failing_since + self._settings.retry_budget_ms / 1000 - now
        if left_s <= 0:
            raise error
        return left_s

    def _wait(self, error: RocketMQError) -> None:
        left_s = self._begin(error)
        time.sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


def cut(records: memoryview, start: int, end: int) -> memoryview:
    """The records with queue offsets in [start, end). Raises RemoteProtocolError."""
    at, low, size = 0, None, len(records)
    while at < size:
        length = int.from_bytes(records[at : at + 4], "big")
        if length < RECORD_SIZE_MIN or at + length > size:
            raise RemoteProtocolError(f"a record of {length} bytes where {size - at} are left")
        offset = _queue_offset(records, at)
        if offset >= end:
            break
        if low is None and offset >= start:
            low = at
        at += length
    return records[:0] if low is None else records[low:at]


def _queue_offset(records: memoryview, at: int) -> int:
    return int.from_bytes(records[at + _QUEUE_OFFSET_AT : at + _QUEUE_OFFSET_AT + 8], "big", signed=True)
