"""The members of one group, as their heartbeats describe them. The rules of coming and going are in clients.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from rmq_core.net.connection import Connection
from rmq_core.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)


@dataclass(slots=True, eq=False)
class Member:
    """A client of a group."""

    client_id: str
    language: str
    version: int
    last_ms: float
    """When it was last heard of, on the clock that never goes back."""
    last_time_ms: int
    """The same as milliseconds since 1970."""


@dataclass(slots=True, eq=False)
class ProducerGroup:
    """The clients that produce for a group, by connection."""

    members: dict[Connection, Member] = field(default_factory=dict)
    _turn: int = 0

    def pick(self) -> Connection | None:
        """The next open connection in turn; one that reads what it is sent, where there is one."""
        connections = list(self.members)
        self._turn += 1
        turn = self._turn % len(connections) if connections else 0
        best = None
        for connection in connections[turn:] + connections[:turn]:
            if connection.is_open:
                if not connection.is_congested:
                    return connection
                best = best or connection
        return best


class ConsumerGroup:
    """The members of a consumer group, and what the group as a whole subscribes to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Connection, Member] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        """By topic: all members must subscribe alike, and the last one to change something wins."""
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.message_model = MessageModel.CLUSTERING
        self.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self.fingerprint: int | None = None
        """Of the last heartbeat that had one."""
        self._connections_of: dict[str, int] = {}
        """How many connections each client id has."""
        self._client_ids: bytes | None = None

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    def join(self, connection: Connection, member: Member, data: ConsumerData) -> bool:
        """Enter or refresh a member and what it says of the group; whether it is new."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        before = self.members.get(connection)
        self.members[connection] = member
        if before is None or before.client_id != member.client_id:
            self._count(member.client_id, 1)
            if before is not None:
                self._count(before.client_id, -1)
        return before is None

    def leave(self, connection: Connection) -> bool:
        """Remove a member; whether there was one."""
        member = self.members.pop(connection, None)
        if member is not None:
            self._count(member.client_id, -1)
        return member is not None

    def _count(self, client_id: str, change: int) -> None:
        count = self._connections_of.get(client_id, 0) + change
        if count:
            self._connections_of[client_id] = count
        else:
            del self._connections_of[client_id]
        self._client_ids = None

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take over what a heartbeat subscribes to; whether topics came or went."""
        table, topics, changed = self.subscriptions, set(), False
        for each in subscriptions:
            topics.add(each.topic)
            known = table.get(each.topic)
            if known is None or each.sub_version > known.sub_version:
                table[each.topic] = each
                changed = changed or known is None
        for topic in [topic for topic in table if topic not in topics]:
            del table[topic]
            changed = True
        return changed

    def client_ids(self) -> bytes:
        """The body that tells members who else is there; each client id once."""
        if self._client_ids is None:
            # Not through the body's class: members that join by the thousand have it built again and again.
            self._client_ids = orjson.dumps({"consumerIdList": list(self._connections_of)})
        return self._client_ids

    def find(self, client_id: str) -> tuple[Connection, Member] | None:
        """The connection of a client."""
        named = ((each, member) for each, member in self.members.items() if member.client_id == client_id)
        return next(named, None)
