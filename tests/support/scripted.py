"""Brokers that answer sends as a test says: with the codes that real ones give too rarely to wait for."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rmq_core.errors import BrokerError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import Dispatcher
from rmq_core.net.server import Server
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import BrokerData, QueueData, TopicRouteData


@dataclass
class ScriptedBroker:
    """Two queues of every topic, and what came for them."""

    name: str
    codes: deque[int] = field(default_factory=deque)
    """Of the next answers to sends; 0 where there are none left."""
    sends: list[Any] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ends: list[r.EndTransaction] = field(default_factory=list)
    address: str = ""
    before_answer: Callable[[], Awaitable[None]] | None = None

    async def send(self, context: Any, call: Call[Any]) -> Answer[r.Sent]:
        self.sends.append(call.header)
        self.bodies.append(call.body)
        code = self.codes.popleft() if self.codes else 0
        if self.before_answer is not None:
            await self.before_answer()
        if code not in (0, 10, 11, 12):
            raise BrokerError(code, f"{self.name} says {code}")
        number = len(self.sends)
        sent = r.Sent(f"7F00000100002A9F{number:016X}", call.header.queue_id, number, transaction_id=f"T{number}")
        return Answer(sent, code=code)

    async def end(self, context: Any, call: Call[r.EndTransaction]) -> None:
        self.ends.append(call.header)

    async def agree(self, context: Any, call: Call[Any]) -> Answer[Any]:
        return DONE


@dataclass
class Scripted:
    """The brokers by name, and their name server."""

    brokers: dict[str, ScriptedBroker]
    name_server: str = ""

    async def route(self, context: Any, call: Call[r.GetRouteinfoByTopic]) -> Answer[Any]:
        brokers = self.brokers.values()
        data = TopicRouteData(
            broker_datas=tuple(BrokerData("DefaultCluster", each.name, {0: each.address}) for each in brokers),
            queue_datas=tuple(QueueData(each.name, 2, 2, 6, 0) for each in brokers),
        )
        return Answer(DONE.header, data.encode())


@contextlib.asynccontextmanager
async def scripted(*names: str) -> AsyncIterator[Scripted]:
    """Brokers of these names, which know every topic."""
    cluster = Scripted({name: ScriptedBroker(name) for name in names})
    servers = []
    try:
        for broker in cluster.brokers.values():
            server = Server(
                Dispatcher(
                    handlers={
                        r.SendMessageV2.code: broker.send,
                        r.SendBatchMessage.code: broker.send,
                        r.EndTransaction.code: broker.end,
                        r.HeartBeat.code: broker.agree,
                        r.UnregisterClient.code: broker.agree,
                    }
                )
            )
            servers.append(server)
            broker.address = f"127.0.0.1:{server.listen('127.0.0.1', 0)}"
        names_server = Server(Dispatcher(handlers={r.GetRouteinfoByTopic.code: cluster.route}))
        servers.append(names_server)
        cluster.name_server = f"127.0.0.1:{names_server.listen('127.0.0.1', 0)}"
        yield cluster
    finally:
        for server in servers:
            await server.close(drain_ms=100)
