"""Membership of a consumer group without dividing its queues: what Spark's driver is.

Heartbeats  go to every broker of the subscribed topics, each 30 seconds and whenever a connection was opened
            again, so that tools see the group online with its subscriptions.
Requests    of brokers are answered on a thread for each connection: resets and changes of membership are passed on,
            questions about progress are answered from `positions`.
Ends        leave() tells the brokers; one that is away forgets the member when its connection ends.

Push consumers divide a group's queues over all members, this one included, and would leave its share unread: look
at members() before join().
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from rmq_core.client.blocking_routes import Connections
from rmq_core.client.identity import make_client_id
from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import BrokerError, ClientError, RemoteProtocolError, RocketMQError
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    HeartbeatData,
    ProcessQueueInfo,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    SubscriptionData,
)
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.command import Command
from rmq_core.protocol.message import MessageQueue, unwrap_namespace
from rmq_core.protocol.requests import (
    GetConsumerListByGroup,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    HeartBeat,
    NotifyConsumerIdsChanged,
    ResetConsumerClientOffset,
    UnregisterClient,
)

logger = logging.getLogger(__name__)

OnReset = Callable[[str, Mapping[MessageQueue, int]], None]
LEAVE_TIMEOUT_MS: Final = 1_000
POLL_MS: Final = 60_000
RETRY_S: Final = 2.0
"""So soon a broker that was not reached is tried again."""


class GroupMember:
    """A member of a group; join() begins, leave() ends it. Callbacks run on threads of this object."""

    def __init__(
        self,
        client: QueueClient,
        group: str,
        subscriptions: Sequence[SubscriptionData],
        *,
        on_reset: OnReset | None = None,
        on_members_changed: Callable[[], None] | None = None,
        positions: Callable[[], Mapping[MessageQueue, int]] | None = None,
        client_id: str | None = None,
    ) -> None:
        """on_reset gets a topic and the offsets that an administrator moves the group to.

        Without subscriptions there is no broker to be a member on; subscribe() may name topics later.
        """
        options = client.options
        self.group = group
        self.client_id = client_id or make_client_id(options.instance_name, options.unit_name)
        self._client = client
        self._subscriptions = tuple(subscriptions)
        self._on_reset = on_reset
        self._on_members_changed = on_members_changed
        self._positions = positions
        self._connections = Connections(options, on_request=self._serve)
        self._interval_s = options.intervals.heartbeat_ms / 1000
        self._readers: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._beats: threading.Thread | None = None
        self._is_everywhere = False
        """Whether the last round reached every broker."""
        self._left = threading.Event()

    def __repr__(self) -> str:
        return f"GroupMember({self.group!r}, {self.client_id!r})"

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    # Who is there

    def members(self) -> list[str]:
        """The client ids of the group's members over all brokers, sorted; asking does not join.

        Raises ConnectError where no broker of the topics answers.
        """
        found: set[str] = set()
        problem: RocketMQError | None = None
        answers = 0
        for address in self._masters():
            request = GetConsumerListByGroup(self._client.on_wire(self.group))
            try:
                body = self._connections.to(address).call(request, timeout_ms=self._timeout_ms).body
                found.update(GetConsumerListByGroupResponseBody.decode(body).consumer_id_list)
            except BrokerError as error:
                # Brokers say so with the code for any failure: there is no consumer of this group.
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
            except ClientError as error:
                problem = error
                continue
            answers += 1
        if problem is not None and not answers:
            raise problem
        return sorted(found)

    @property
    def _timeout_ms(self) -> int:
        return self._client.options.call_timeout_ms

    def _masters(self) -> list[str]:
        return [each.address for each in self._client.addresses(self._topics()) if not each.is_slave]

    def _topics(self) -> list[str]:
        return [each.topic for each in self._subscriptions]

    # Joining and leaving

    def join(self) -> None:
        """Become a member on every broker, and stay one. Idempotent; a broker that is away is told later."""
        if self._left.is_set():
            raise ClientError(f"{self.client_id} has left {self.group}; make a new member")
        if self._beats is None:
            self._beats = threading.Thread(target=self._keep_beating, name=f"heartbeats-{self.group}", daemon=True)
            self.beat()
            self._beats.start()

    def beat(self) -> None:
        """Tell every broker now that we are here."""
        try:
            brokers = self._client.addresses(self._topics())
        except RocketMQError as error:  # its connections go on; new brokers are found with the next beat
            if self._is_everywhere:
                logger.warning("%s: routes for heartbeats: %s", self.client_id, error)
            brokers = []
        with self._lock:
            addresses = {each.address for each in brokers} | set(self._readers)
        is_everywhere = bool(brokers) or not self._subscriptions
        for address in sorted(addresses):
            is_everywhere &= self._beat_to(address)
            with self._lock:
                if address not in self._readers and not self._left.is_set():
                    reader = threading.Thread(
                        target=self._read, args=(address,), name=f"member-{self.group}-{address}", daemon=True
                    )
                    self._readers[address] = reader
                    reader.start()
        self._is_everywhere = is_everywhere

    def _beat_to(self, address: str) -> bool:
        consumer = ConsumerData(
            self._client.on_wire(self.group),
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            subscription_data_set=tuple(map(self._on_wire, self._subscriptions)),
        )
        body = HeartbeatData(self.client_id, consumer_data_set=(consumer,)).encode()
        try:
            self._connections.to(address).call(HeartBeat(), body, timeout_ms=self._timeout_ms)
        except RocketMQError as error:
            if not self._left.is_set():
                logger.warning("%s: heartbeat to %s failed: %s", self.client_id, address, error)
            return False
        return True

    def _on_wire(self, subscription: SubscriptionData) -> SubscriptionData:
        return dataclasses.replace(subscription, topic=self._client.on_wire(subscription.topic))

    def subscribe(self, subscriptions: Sequence[SubscriptionData]) -> None:
        """Change what the group is said to want; brokers hear of it at once."""
        self._subscriptions = tuple(subscriptions)
        if self._beats is not None:
            self.beat()

    def _keep_beating(self) -> None:
        while not self._left.is_set():
            if not self._left.wait(self._interval_s if self._is_everywhere else min(RETRY_S, self._interval_s)):
                self.beat()

    def leave(self) -> None:
        """Leave the group on every broker and close the connections. Idempotent."""
        with self._lock:
            if self._left.is_set():
                return
            self._left.set()
            readers = dict(self._readers)
        request = UnregisterClient(self.client_id, consumer_group=self._client.on_wire(self.group))
        for address in readers:
            try:
                self._connections.to(address).call(request, timeout_ms=LEAVE_TIMEOUT_MS)
            except RocketMQError as error:  # who is away forgets us without being told
                logger.info("%s: could not leave at %s: %s", self.client_id, address, error)
        self._connections.close()
        threads = [*readers.values(), *([self._beats] if self._beats is not None else [])]
        for thread in threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(2 * LEAVE_TIMEOUT_MS / 1000)

    # What brokers ask

    def _read(self, address: str) -> None:
        """Serve one connection; where it is lost, open it again and say who we are before anything else."""
        pause_s = 0.5
        while not self._left.is_set():
            try:
                channel: BlockingChannel = self._connections.to(address)
                channel.poll(POLL_MS)
                pause_s = 0.5
            except RocketMQError as error:
                if self._left.is_set():
                    return
                logger.info("%s: the connection to %s was lost: %s", self.client_id, address, error)
                if not self._is_used(address):
                    with self._lock:
                        self._readers.pop(address, None)
                    return
                if not self._left.wait(pause_s):
                    self._beat_to(address)
                pause_s = min(2 * pause_s, self._interval_s)

    def _is_used(self, address: str) -> bool:
        """Whether a route still names it: a broker that moved is at another address."""
        try:
            return any(each.address == address for each in self._client.addresses(self._topics()))
        except RocketMQError:  # nobody knows; it may come back
            return True

    def _serve(self, command: Command) -> Command | None:
        if command.code == NotifyConsumerIdsChanged.code:
            if self._on_members_changed is not None:
                self._on_members_changed()
            return None
        if command.code == ResetConsumerClientOffset.code:
            self._reset(command)
            return None
        if command.code == GetConsumerStatusFromClient.code:
            header = GetConsumerStatusFromClient.from_ext(command.ext or {})
            table = {
                queue: offset for queue, offset in self._wire_positions().items() if queue.topic == header.topic
            }
            return Command(0, body=GetConsumerStatusBody(message_queue_table=table).encode())
        if command.code == GetConsumerRunningInfo.code:
            return Command(0, body=self._running_info().encode())
        return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"{command.code} is not served by readers")

    def _reset(self, command: Command) -> None:
        header = ResetConsumerClientOffset.from_ext(command.ext or {})
        if header.group != self._client.on_wire(self.group) or self._on_reset is None:
            return
        try:
            offsets = ResetOffsetBody.decode(command.body).offset_table
        except RemoteProtocolError:  # brokers write another form where a C++ tool asked for the reset
            rows = ResetOffsetBodyForC.decode(command.body).offset_table
            offsets = {MessageQueue(row.topic, row.broker_name, row.queue_id): row.offset for row in rows}
        bare = unwrap_namespace(header.topic) if self._client.options.namespace else header.topic
        table = {MessageQueue(bare, queue.broker_name, queue.queue_id): offset for queue, offset in offsets.items()}
        self._on_reset(bare, table)

    def _wire_positions(self) -> dict[MessageQueue, int]:
        positions = self._positions() if self._positions is not None else {}
        return {
            MessageQueue(self._client.on_wire(queue.topic), queue.broker_name, queue.queue_id): offset
            for queue, offset in positions.items()
        }

    def _running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": ConsumeType.CONSUME_ACTIVELY, "PROP_CONSUMEORDERLY": "false"},
            subscription_set=tuple(map(self._on_wire, self._subscriptions)),
            mq_table={
                queue: ProcessQueueInfo(commit_offset=offset) for queue, offset in self._wire_positions().items()
            },
        )
