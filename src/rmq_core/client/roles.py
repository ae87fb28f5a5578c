"""What a client instance asks of the producers and consumers that share it, always on the instance's loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from rmq_core.client.routes import TopicRoute
from rmq_core.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerData, ConsumerRunningInfo
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import StoredRecord
from rmq_core.protocol.requests import CheckTransactionState


class ProducerRole(Protocol):
    """A producer as its instance sees it; names are those on the wire, namespace included."""

    group: str

    def topics(self) -> Collection[str]:
        """Topics whose routes are to be kept fresh."""
        ...

    def check_transaction(self, peer: str, question: CheckTransactionState, half: StoredRecord) -> None:
        """A broker asks what became of a half message; the answer goes to peer. Must not block."""
        ...


class ConsumerRole(Protocol):
    """A consumer as its instance sees it; names are those on the wire, namespace included."""

    group: str

    def topics(self) -> Collection[str]:
        """Topics whose routes are to be kept fresh."""
        ...

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say of it."""
        ...

    def topic_changed(self, route: TopicRoute) -> None:
        """A topic's queues or brokers changed."""
        ...

    async def rebalance(self) -> None:
        """Find out which queues are ours now."""
        ...

    async def persist_offsets(self) -> None:
        """Store progress."""
        ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moves the group."""
        ...

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """How far each of our queues is."""
        ...

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """A look inside."""
        ...

    async def consume_directly(self, record: StoredRecord, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        """Consume one message now, because an administrator asks for it."""
        ...
