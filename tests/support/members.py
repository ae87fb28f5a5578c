"""Clients that take calls from a broker, as members of groups do."""

from __future__ import annotations

import asyncio
from typing import Any

from rmq_core.net.calls import Answer, Call
from rmq_core.net.channel import Channel
from rmq_core.net.dispatch import Dispatcher
from rmq_core.protocol.command import Command
from support.brokers import Client, Cluster

FROM_BROKERS = (39, 40, 220, 221, 307, 309, 326)


class Member(Client):
    """A client that keeps what its broker tells it, and answers what it is asked as the test says."""

    def __init__(self, address: str) -> None:
        self.told: list[Command] = []
        self.answers: dict[int, Answer[Any]] = {}
        """By request code; what has none is never answered."""
        self._news = asyncio.Event()
        super().__init__(Channel(address, dispatcher=Dispatcher(handlers=dict.fromkeys(FROM_BROKERS, self._take))))

    async def _take(self, context: Any, call: Call[Any]) -> Answer[Any] | None:
        self.told.append(call.command)
        self._news.set()
        return self.answers.get(call.command.code)

    def count(self, code: int) -> int:
        """How often the broker has sent a request."""
        return sum(command.code == code for command in self.told)

    async def until_told(self, code: int, count: int = 1) -> Command:
        """Return the request with this number once it has come."""
        while self.count(code) < count:
            self._news.clear()
            await self._news.wait()
        return [command for command in self.told if command.code == code][count - 1]


def member(cluster: Cluster, number: int = 0) -> Member:
    """A new member of a broker's groups; closed with the cluster's other clients."""
    client = Member(cluster.apps[number].broker.address)
    cluster.add_channel(client.channel)
    return client
