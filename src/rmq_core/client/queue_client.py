"""Queues for who reads them by range: where they are, where they begin and end, how far groups are, their bytes.

For Spark's driver and executors, and for scripts. Plain threads without a loop; safe to use from many of them.
Names are those that users know; the namespace is added on the wire.

Many at once  Questions about many queues go out together, over one connection to each broker.
Failures      Look-ups are tried a few times with a pause between; reading goes on within a budget of time.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rmq_core.client.blocking_routes import AWAY, BUSY, BlockingRoutes, Connections
from rmq_core.client.options import ClientOptions
from rmq_core.client.queue_read import COUNT_MAX, SUBSCRIPTION_IN_PULL, Piece, RangeRead, ReadSettings
from rmq_core.client.routes import BrokerAddress
from rmq_core.errors import BrokerError, NoRouteError, RocketMQError
from rmq_core.net.blocking import PendingCall
from rmq_core.net.calls import Answer
from rmq_core.protocol.bodies import SubscriptionData, TopicList
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import (
    TOOLS_GROUP,
    MessageQueue,
    group_name_problem,
    unwrap_namespace,
    wrap_namespace,
)
from rmq_core.protocol.request import Request
from rmq_core.protocol.requests import (
    GetAllTopicListFromNameserver,
    GetMaxOffset,
    GetMinOffset,
    PullMessage,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)

__all__ = ["NO_GROUP", "Piece", "QueueClient"]

T = TypeVar("T")
Failures = dict[MessageQueue, RocketMQError]

NO_GROUP: Final = TOOLS_GROUP
"""The group that pulls without one name: every broker has it, also where groups are not made by themselves."""
QUESTIONS_MAX: Final = 256
"""Questions in flight to one broker."""
RESET_WAITS: Final = "Offset has been previously reset"
RESET_REMARK: Final = "OFFSET_RESET"


class QueueClient:
    """Asks about queues and reads them; close() it, or use it as a context manager."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        group: str = "",
        pull_timeout_ms: int = 20_000,
        retry_budget_ms: int = 60_000,
        read_from_slave: bool = False,
        fetch_retries: int = 3,
        fetch_retry_interval_ms: int = 1_000,
    ) -> None:
        """fetch_retries is how often a look-up is tried in all, with fetch_retry_interval_ms between."""
        if group and (problem := group_name_problem(group)):
            raise ValueError(problem)
        for name, value, least in (
            ("pull_timeout_ms", pull_timeout_ms, 1),
            ("retry_budget_ms", retry_budget_ms, 0),
            ("fetch_retries", fetch_retries, 1),
            ("fetch_retry_interval_ms", fetch_retry_interval_ms, 0),
        ):
            if value < least:
                raise ValueError(f"{name}={value} is below {least}")
        self.options = options
        self.group = group
        self._settings = ReadSettings(
            group=self.on_wire(group or NO_GROUP),
            pull_timeout_ms=pull_timeout_ms,
            retry_budget_ms=retry_budget_ms,
            read_from_slave=read_from_slave,
        )
        self._connections = Connections(options)
        self.routes = BlockingRoutes(
            options, self._connections, tries=fetch_retries, pause_ms=fetch_retry_interval_ms
        )

    def __repr__(self) -> str:
        return f"QueueClient({';'.join(self.options.name_servers)}, group={self.group!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; what is being read ends with an error. Idempotent."""
        self._connections.close()

    def on_wire(self, name: str) -> str:
        """A topic's or group's name with the namespace."""
        return wrap_namespace(self.options.namespace, name)

    # Where queues are

    def topics(self) -> list[str]:
        """Every topic that a name server knows, those of RocketMQ itself included; sorted."""
        names = TopicList.decode(self.routes.ask(GetAllTopicListFromNameserver()).body).topic_list
        if not self.options.namespace:
            return sorted(names)
        bare = ((name, unwrap_namespace(name)) for name in names)
        return sorted(short for name, short in bare if short != name and self.on_wire(short) == name)

    def queues(self, topic: str, *, refresh: bool = False) -> tuple[MessageQueue, ...]:
        """The queues that may be read, sorted. Raises NoRouteError where no name server knows the topic."""
        route = self.routes.route(self.on_wire(topic), refresh=refresh)
        return tuple(MessageQueue(topic, each.broker_name, each.queue_id) for each in route.read_queues)

    def brokers(self) -> dict[str, dict[int, str]]:
        """The brokers that name servers know to be alive: addresses by id, by name."""
        return self.routes.alive()

    def is_gone(self, queue: MessageQueue) -> bool:
        """Whether its broker is alive and has it no more: the topic was deleted, shrunk, or closed to readers.

        Raises ConnectError where no name server answers.
        """
        try:
            is_there = queue in self.queues(queue.topic, refresh=True)
        except NoRouteError:
            is_there = False
        return not is_there and queue.broker_name in self.brokers()

    def addresses(self, topics: Collection[str]) -> list[BrokerAddress]:
        """Every process of the brokers of some topics, of those that name servers know.

        Raises NoRouteError where they know none of them, and ConnectError where none answers.
        """
        found: dict[str, BrokerAddress] = {}
        unknown: NoRouteError | None = None
        for topic in topics:
            try:
                self.routes.route(self.on_wire(topic))
            except NoRouteError as error:
                unknown = error
            found.update((each.address, each) for each in self.routes.brokers(self.on_wire(topic)))
        if unknown is not None and not found:
            raise unknown
        return sorted(found.values(), key=lambda each: (each.broker_name, each.broker_id))

    # Where queues begin and end

    def min_offsets(
        self, queues: Collection[MessageQueue], *, failures: Failures | None = None
    ) -> dict[MessageQueue, int]:
        """The offset of the oldest message of each queue.

        Raises what the first queue failed with; given `failures`, puts it there instead and does not try again.
        """
        found = self._ask_each(
            queues, lambda queue: GetMinOffset(self.on_wire(queue.topic), queue.queue_id), failures
        )
        # A queue that was never written is answered -1 by some brokers.
        return {queue: max(answer.header.queue_offset, 0) for queue, answer in found.items()}

    def max_offsets(
        self, queues: Collection[MessageQueue], *, failures: Failures | None = None
    ) -> dict[MessageQueue, int]:
        """The offset that the next message of each queue gets; failures as for min_offsets."""
        found = self._ask_each(
            queues, lambda queue: GetMaxOffset(self.on_wire(queue.topic), queue.queue_id), failures
        )
        return {queue: max(answer.header.queue_offset, 0) for queue, answer in found.items()}

    def offsets_by_time(self, queues: Collection[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """The offset of the first message stored at that time or later; without one, what the broker says."""
        found = self._ask_each(
            queues,
            lambda queue: SearchOffsetByTimestamp(self.on_wire(queue.topic), queue.queue_id, time_ms),
            None,
        )
        return {queue: max(answer.header.queue_offset, 0) for queue, answer in found.items()}

    # How far groups are

    def group_offsets(
        self, queues: Collection[MessageQueue], *, group: str | None = None, failures: Failures | None = None
    ) -> dict[MessageQueue, int | None]:
        """The next offset that the group will read of each queue; None where it has no progress."""
        name = self._group(group)

        def ask(queue: MessageQueue) -> QueryConsumerOffset:
            return QueryConsumerOffset(name, self.on_wire(queue.topic), queue.queue_id, set_zero_if_not_found=False)

        problems: Failures = {}
        found = self._ask_each(queues, ask, problems, is_patient=failures is None)
        offsets: dict[MessageQueue, int | None] = {
            queue: answer.header.queue_offset if answer.header.queue_offset >= 0 else None
            for queue, answer in found.items()
        }
        for queue, error in problems.items():
            if isinstance(error, BrokerError) and error.code == ResponseCode.QUERY_NOT_FOUND:
                offsets[queue] = None
            elif failures is None:
                raise error
            else:
                failures[queue] = error
        return offsets

    def commit(
        self, offsets: Mapping[MessageQueue, int], *, group: str | None = None, failures: Failures | None = None
    ) -> frozenset[MessageQueue]:
        """Store the next offsets that the group will read, and wait until the brokers have them.

        Returns the queues where nothing was stored, because an administrator's reset waits there for the group's
        next pull. Failures as for min_offsets.
        """
        name = self._group(group)
        for queue, offset in offsets.items():
            if offset < 0:
                raise ValueError(f"offsets: {queue} has {offset}")

        def ask(queue: MessageQueue) -> UpdateConsumerOffset:
            return UpdateConsumerOffset(name, self.on_wire(queue.topic), queue.queue_id, offsets[queue])

        found = self._ask_each(list(offsets), ask, failures)
        return frozenset(queue for queue, answer in found.items() if answer.remark == RESET_WAITS)

    def take_reset(self, queue: MessageQueue, *, group: str | None = None) -> int | None:
        """The offset of a reset that waits for the group's next pull, which this is; None where none waits.

        Raises BrokerError, ConnectError, CallTimeoutError, NoRouteError.
        """
        address = self._master(queue)
        if address is None:
            raise NoRouteError(f"no route of topic {queue.topic} names a master of broker {queue.broker_name}")
        offset = self.max_offsets([queue])[queue]
        request = PullMessage(
            consumer_group=self._group(group),
            topic=self.on_wire(queue.topic),
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=SUBSCRIPTION_IN_PULL,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
        answer = self._connections.to(address).call(request, timeout_ms=self.options.call_timeout_ms)
        is_reset = answer.code == ResponseCode.PULL_OFFSET_MOVED and answer.remark == RESET_REMARK
        return answer.header.next_begin_offset if is_reset else None

    def connection_number(self, queue: MessageQueue) -> int:
        """Another number than before: the connection to the master was lost since, which may have been restarted.

        Raises NoRouteError and ConnectError.
        """
        address = self._master(queue)
        return self._connections.to(address).times_connected if address is not None else -1

    def _group(self, given: str | None) -> str:
        name = self.group if given is None else given
        if not name:
            raise ValueError("group: give one here, or to the client")
        return self.on_wire(name)

    # Reading

    def read(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        *,
        subscription: SubscriptionData | None = None,
        bytes_in_flight_max: int = 32 << 20,
        count_max: int = COUNT_MAX,
    ) -> Iterator[Piece]:
        """The messages with offsets in [start, end) as pieces in order, without gap or overlap.

        A subscription by tags is judged by the tags' hashes alone, as brokers do. Raises OffsetGoneError where the
        queue does not hold the range, BrokerError where the broker refuses, and after the retry budget
        ConnectError, CallTimeoutError or NoRouteError.
        """
        if not 0 <= start <= end:
            raise ValueError(f"start={start}, end={end}: a range is 0 <= start <= end")
        if bytes_in_flight_max < 1 or count_max < 1:
            raise ValueError(f"bytes_in_flight_max={bytes_in_flight_max}, count_max={count_max}: both at least 1")
        settings = ReadSettings(
            group=self._settings.group,
            pull_timeout_ms=self._settings.pull_timeout_ms,
            retry_budget_ms=self._settings.retry_budget_ms,
            read_from_slave=self._settings.read_from_slave,
            bytes_in_flight_max=bytes_in_flight_max,
            count_max=count_max,
        )
        topic = self.on_wire(queue.topic)
        return iter(RangeRead(self.routes, self._connections, queue, topic, start, end, settings, subscription))

    # Many questions at once

    def _ask_each(
        self,
        queues: Collection[MessageQueue],
        question: Callable[[MessageQueue], Request[Any]],
        failures: Failures | None,
        *,
        is_patient: bool | None = None,
    ) -> dict[MessageQueue, Answer[Any]]:
        """Ask the master of each queue's broker; failures are raised where no place for them is given."""
        answers: dict[MessageQueue, Answer[Any]] = {}

        def ask() -> None:
            missing = [queue for queue in queues if queue not in answers]
            self._look_up_unknown(missing)
            problems: Failures = {}
            self._ask_once(missing, question, answers, problems)
            for error in problems.values():
                if _is_passing(error):
                    self._look_up_again(missing)
                    raise error
            if failures is not None:
                failures.update(problems)
            elif problems:
                raise next(iter(problems.values()))

        if failures is not None and not is_patient:
            self._ask_once(list(queues), question, answers, failures)
        else:
            self.routes.patiently(ask)
        return answers

    def _look_up_unknown(self, queues: Collection[MessageQueue]) -> None:
        unknown = {queue.topic for queue in queues if self._master(queue) is None}
        for topic in unknown:
            self.routes.route(self.on_wire(topic), refresh=True)

    def _look_up_again(self, queues: Collection[MessageQueue]) -> None:
        for topic in {queue.topic for queue in queues}:
            try:
                self.routes.route(self.on_wire(topic), refresh=True, tries=1)
            except RocketMQError:  # the failed questions say more than that no name server answers either
                return

    def _ask_once(
        self,
        queues: Collection[MessageQueue],
        question: Callable[[MessageQueue], Request[Any]],
        answers: dict[MessageQueue, Answer[Any]],
        failures: Failures,
    ) -> None:
        waiting: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            try:
                address = self._master(queue)
            except RocketMQError as error:
                failures[queue] = error
                continue
            if address is None:
                text = f"no route of topic {queue.topic} names a master of broker {queue.broker_name}"
                failures[queue] = NoRouteError(text)
            else:
                waiting[address].append(queue)
        while waiting:
            rounds = {address: rest[:QUESTIONS_MAX] for address, rest in waiting.items()}
            calls = {address: self._start(address, some, question, failures) for address, some in rounds.items()}
            for address, started in calls.items():
                is_away = self._collect(started, answers, failures) or len(started) < len(rounds[address])
                rest = waiting[address][QUESTIONS_MAX:]
                if is_away and rest:
                    failures.update(dict.fromkeys(rest, failures[rounds[address][-1]]))
                if is_away or not rest:
                    del waiting[address]
                else:
                    waiting[address] = rest

    def _master(self, queue: MessageQueue) -> str | None:
        found = self.routes.broker(self.on_wire(queue.topic), queue.broker_name)
        return None if found is None else found.address

    def _start(
        self,
        address: str,
        queues: Sequence[MessageQueue],
        question: Callable[[MessageQueue], Request[Any]],
        failures: Failures,
    ) -> list[tuple[MessageQueue, PendingCall[Any]]]:
        """Send one question for each queue; those that could not be sent are in failures."""
        channel = self._connections.to(address)
        started: list[tuple[MessageQueue, PendingCall[Any]]] = []
        try:
            started.extend(
                (queue, channel.start(question(queue), timeout_ms=self.options.call_timeout_ms)) for queue in queues
            )
        except RocketMQError as error:
            failures.update(dict.fromkeys(queues[len(started) :], error))
        return started

    def _collect(
        self,
        started: Sequence[tuple[MessageQueue, PendingCall[Any]]],
        answers: dict[MessageQueue, Answer[Any]],
        failures: Failures,
    ) -> bool:
        """Wait for the answers. True where the broker is away: the rest is not waited for then."""
        for number, (queue, call) in enumerate(started):
            try:
                answers[queue] = call.wait()
            except AWAY as error:
                for missing, other in itertools.islice(started, number, None):
                    other.cancel()
                    failures[missing] = error
                return True
            except RocketMQError as error:
                failures[queue] = error
        return False


def _is_passing(error: RocketMQError) -> bool:
    return isinstance(error, AWAY) or (isinstance(error, BrokerError) and error.code in BUSY)
