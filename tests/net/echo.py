"""A server with a few requests of its own, for the tests of the network layer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from rmq_core.clock import Clock
from rmq_core.errors import BrokerError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import Dispatcher, handlers_in, handles
from rmq_core.net.server import Server, ServerOptions
from rmq_core.net.tls import ServerTls
from rmq_core.protocol.command import Command, encode_command
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class Echoed(Header):
    text: str
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Echo(Request[Echoed]):
    """Gives back text and body at once."""

    code: ClassVar = 20_001
    reply: ClassVar = Echoed
    text: str


@dataclass(frozen=True, slots=True)
class Hold(Request[Echoed]):
    """Answers when the test lets it go."""

    code: ClassVar = 20_002
    reply: ClassVar = Echoed
    text: str


@dataclass(frozen=True, slots=True)
class Refuse(Request[NoFields]):
    """Always an error with this code; 0 means an exception of the handler."""

    code: ClassVar = 20_003
    answer: Int32


@dataclass(frozen=True, slots=True)
class AskBack(Request[Echoed]):
    """Makes the server call Echo on the caller's own connection."""

    code: ClassVar = 20_004
    reply: ClassVar = Echoed
    text: str


@dataclass(frozen=True, slots=True)
class HotEcho(Request[Echoed]):
    """Served by a plain function."""

    code: ClassVar = 20_005
    reply: ClassVar = Echoed
    text: str


class Bench:
    """What the handlers share with a test."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.seen: list[str] = []


@handles(Echo)
async def echo(bench: Bench, call: Call[Echo]) -> Answer[Echoed]:
    bench.seen.append(call.header.text)
    return Answer(Echoed(call.header.text, call.connection.peer), call.body)


@handles(Hold)
async def hold(bench: Bench, call: Call[Hold]) -> Answer[Echoed]:
    bench.seen.append(call.header.text)
    await bench.released.wait()
    return Answer(Echoed(call.header.text), call.body)


@handles(Refuse)
async def refuse(bench: Bench, call: Call[Refuse]) -> Answer[NoFields]:
    if call.header.answer:
        raise BrokerError(call.header.answer, "no")
    raise LookupError("a defect of the handler")


@handles(AskBack)
async def ask_back(bench: Bench, call: Call[AskBack]) -> Answer[Echoed]:
    answer = await call.connection.call(Echo(call.header.text))
    return Answer(Echoed(answer.header.text + "!"))


def hot_echo(connection: Connection, header: dict[str, Any], body: bytes) -> bytes | None:
    if header["flag"] & 2:
        return None
    ext = {"text": str(header["extFields"]["text"])}
    command = Command(0, header["opaque"], 1, ext=ext, body=body, encoding=connection.encoding)
    return encode_command(command)


def dispatcher(bench: Bench, **options: Any) -> Dispatcher:
    return Dispatcher(bench, handlers_in(sys.modules[__name__]), hot={HotEcho.code: hot_echo}, **options)


@contextlib.asynccontextmanager
async def serving(
    bench: Bench | None = None,
    options: ServerOptions | None = None,
    *,
    clock: Clock | None = None,
    tls: ServerTls | None = None,
    on_close: Callable[[Connection], None] | None = None,
    **dispatch: Any,
) -> AsyncIterator[tuple[Server, str]]:
    """A server on a free port, and its address."""
    served = dispatcher(bench or Bench(), **dispatch)
    server = Server(served, options, clock=clock, tls=tls, on_close=on_close)
    port = server.listen("127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.close(drain_ms=100)


def header_only(code: int, **fields: Any) -> bytes:
    """A frame with a hand-made JSON header."""
    header = orjson.dumps({"code": code, "flag": 0, "opaque": 1, "extFields": fields})
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
