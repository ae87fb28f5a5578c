"""Frames that callers encode by themselves: who waits gets the header of the answer, or hears why there is none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rmq_core.errors import CallTimeoutError, ConnectError, TooManyCallsError
from rmq_core.net.channel import Channel
from rmq_core.net.connection import Limits
from rmq_core.protocol.command import (
    RESPONSE_FLAG,
    Command,
    FrameDecoder,
    HeaderEncoding,
    decode_command,
    encode_command,
)
from support.loops import on_both_loops, run

Answer = Callable[[Command], list[Command]]


def request(opaque: int) -> bytes:
    return encode_command(Command(310, opaque=opaque, ext={"b": "Orders"}, body=b"x"))


def response(command: Command, **changes: Any) -> Command:
    return Command(0, opaque=command.opaque, flag=RESPONSE_FLAG, ext={"msgId": f"M{command.opaque}"}, **changes)


@contextlib.asynccontextmanager
async def peer(answer: Answer, **options: Any) -> AsyncIterator[Channel]:
    """A channel to a server that answers each command with what the test says."""

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.decoder = FrameDecoder()

        def data_received(self, data: bytes) -> None:
            self.decoder.feed(data)
            while (frame := self.decoder.next()) is not None:
                for command in answer(decode_command(frame)):
                    self.transport.write(encode_command(command))

    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", 0)
    channel = Channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", **options)
    try:
        yield channel
    finally:
        await channel.close()
        server.close()


def ask(channel: Channel, opaque: int, *, timeout_ms: float = 20_000) -> asyncio.Future[dict[str, Any]]:
    header: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    connection = channel.connection
    assert connection is not None
    connection.exchange_frame(request(opaque), opaque, header, timeout_ms=timeout_ms)
    return header


@on_both_loops
@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_the_header_comes_whatever_its_encoding(loop_name: str, encoding: HeaderEncoding) -> None:
    """Answers ten requests in the opposite order, some twice, among answers that nobody waits for."""

    async def main() -> None:
        asked: list[Command] = []

        def answer(command: Command) -> list[Command]:
            asked.append(command)
            if len(asked) < 10:
                return []
            stray = Command(0, opaque=999, flag=RESPONSE_FLAG, encoding=encoding)
            return [stray, *(response(each, encoding=encoding) for each in [*reversed(asked), asked[0]])]

        async with peer(answer) as channel:
            assert channel.connection is None
            await channel.connect()
            headers = await asyncio.gather(*(ask(channel, opaque) for opaque in range(1, 11)))
            for opaque, header in enumerate(headers, 1):
                assert header["opaque"] == opaque
                assert header["code"] == 0
                assert header["extFields"] == {"msgId": f"M{opaque}"}

    run(loop_name, main())


@on_both_loops
def test_who_waits_in_vain_hears_why(loop_name: str) -> None:
    """Lets one run out of time, gives one up, answers that one late, and breaks the connection under a third."""

    async def main() -> None:
        held: list[Command] = []

        def answer(command: Command) -> list[Command]:
            if command.opaque == 4:
                return [response(each) for each in held]
            held.append(command)
            return []

        async with peer(answer, limits=Limits(calls_in_flight_max=3)) as channel:
            await channel.connect()
            with pytest.raises(CallTimeoutError, match="in time"):
                await ask(channel, 1, timeout_ms=20)
            given_up = ask(channel, 2)
            given_up.cancel()
            broken = ask(channel, 3)
            late = ask(channel, 5)
            with pytest.raises(TooManyCallsError):
                ask(channel, 6)
            connection = channel.connection
            assert connection is not None
            connection.abort()
            for waiting in (broken, late):
                with pytest.raises(ConnectError, match="ended"):
                    await waiting
            assert channel.connection is None
            with pytest.raises(ConnectError, match="closed"):
                connection.exchange_frame(
                    request(7), 7, asyncio.get_running_loop().create_future(), timeout_ms=1_000
                )
            held.clear()
            await channel.connect()
            cancelled = ask(channel, 8)
            cancelled.cancel()
            waiting = ask(channel, 9)
            ask(channel, 4).cancel()  # lets the peer answer all that it holds, the cancelled one too
            assert (await waiting)["opaque"] == 9

    run(loop_name, main())
