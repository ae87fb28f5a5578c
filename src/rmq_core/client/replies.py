"""Requests that wait for another client's reply, by correlation id."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rmq_core.errors import ClientClosedError
from rmq_core.protocol.message import Property, decode_properties
from rmq_core.protocol.requests import PushReplyMessageToClient


@dataclass(frozen=True, slots=True)
class PushedReply:
    """A reply as the broker passed it on; the body as it was sent, compressed if header.sys_flag says so."""

    header: PushReplyMessageToClient
    properties: dict[str, str]
    body: bytes


class ReplyTable:
    """Who waits for which reply. A reply that nobody waits for any more is dropped."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[PushedReply]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, correlation_id: str) -> asyncio.Future[PushedReply]:
        """Register before the request is sent; forget() it in the end."""
        reply: asyncio.Future[PushedReply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        return reply

    def forget(self, correlation_id: str) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(correlation_id, None)

    def deliver(self, header: PushReplyMessageToClient, body: bytes) -> None:
        """Hand a reply to whoever waits for it."""
        properties = decode_properties((header.properties or "").encode())
        waiting = self._waiting.get(properties.get(Property.CORRELATION_ID, ""))
        if waiting is not None and not waiting.done():
            waiting.set_result(PushedReply(header, properties, body))

    def close(self) -> None:
        """Everyone who waits hears that nothing will come."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClientClosedError("the client was closed before the reply came"))
        self._waiting.clear()
