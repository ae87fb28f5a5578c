"""The asyncio server and channel, on both loops and over real sockets."""

from __future__ import annotations

import asyncio
import random

import pytest

from net.echo import (
    AskBack,
    Bench,
    Echo,
    Hold,
    HotEcho,
    Refuse,
    dispatcher,
    header_only,
    serving,
)
from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError, CallTimeoutError, ConnectError, TooManyCallsError
from rmq_core.net.channel import Channel
from rmq_core.net.connection import Limits, UnfinishedFrames
from rmq_core.net.dispatch import Dispatcher
from rmq_core.net.server import ServerOptions
from rmq_core.protocol.command import Command, HeaderEncoding, decode_command, encode_command
from support.loops import on_both_loops, run
from support.proxy import Proxy


async def read_frame(reader: asyncio.StreamReader) -> Command:
    prefix = await reader.readexactly(4)
    return decode_command(prefix + await reader.readexactly(int.from_bytes(prefix, "big")))


@on_both_loops
def test_answers_find_their_calls(loop_name: str) -> None:
    """Many calls in flight on one connection, bodies from empty to megabytes, each checked against its own."""

    async def main() -> None:
        async with serving() as (_, address):
            channel = Channel(address)
            bodies = [random.Random(size).randbytes(size) for size in (0, 1, 100, 70_000, 3_000_000)] * 8
            answers = await asyncio.gather(
                *(channel.call(Echo(f"text {i}"), body, timeout_ms=20_000) for i, body in enumerate(bodies))
            )
            for i, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
                assert (answer.header.text, answer.body) == (f"text {i}", body)
            hot = await asyncio.gather(*(channel.call(HotEcho(str(i)), b"%d" % i) for i in range(500)))
            assert [answer.body for answer in hot] == [b"%d" % i for i in range(500)]
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_both_sides_call_on_one_connection(loop_name: str) -> None:
    """The server asks the client while the client waits for the server."""

    async def main() -> None:
        async with serving() as (_, address):
            mine = Bench()
            channel = Channel(address, dispatcher=dispatcher(mine))
            answer = await channel.call(AskBack("ping"))
            assert (answer.header.text, mine.seen) == ("ping!", ["ping"])
            with pytest.raises(BrokerError, match="not supported"):
                await Channel(address, dispatcher=Dispatcher()).call(AskBack("nobody answers"))
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_errors_of_handlers_reach_the_caller(loop_name: str) -> None:
    """A refusal keeps its code, a defect becomes code 1, an unknown code 3; the connection lives on."""

    async def main() -> None:
        async with serving() as (server, address):
            channel = Channel(address)
            for code in (16, 17, 206):
                with pytest.raises(BrokerError) as caught:
                    await channel.call(Refuse(code))
                assert (caught.value.code, caught.value.remark) == (code, "no")
            with pytest.raises(BrokerError, match="LookupError: a defect of the handler") as caught:
                await channel.call(Refuse(0))
            assert caught.value.code == 1
            del server.dispatcher.handlers[Hold.code]
            with pytest.raises(BrokerError, match=f" request type {Hold.code} not supported") as caught:
                await channel.call(Hold("nobody"))
            assert caught.value.code == 3
            assert (await channel.call(Echo("still here"))).header.text == "still here"
            assert len(server.connections) == 1
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_oneway_calls_are_never_answered(loop_name: str) -> None:
    """One-way calls that succeed, fail and are unknown: the only reply is that of the call behind them."""

    async def main() -> None:
        async with serving() as (_, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            for code, ext in (
                (Echo.code, {"text": "a"}),
                (HotEcho.code, {"text": "a"}),
                (Refuse.code, {}),
                (9, {}),
            ):
                writer.write(encode_command(Command(code, opaque=1, flag=2, ext=ext)))
            writer.write(encode_command(Command(Echo.code, opaque=77, ext={"text": "b"})))
            assert (await read_frame(reader)).opaque == 77
            writer.close()

    run(loop_name, main())


@on_both_loops
@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_each_answer_uses_the_encoding_of_its_request(loop_name: str, encoding: HeaderEncoding) -> None:
    """Ordinary, hot and failing requests, their bytes arriving one at a time."""

    async def main() -> None:
        async with serving() as (_, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            for opaque, (code, expected) in enumerate(
                ((Echo.code, 0), (HotEcho.code, 0), (Refuse.code, 1), (9, 3))
            ):
                command = Command(code, opaque=opaque, ext={"text": "a"}, encoding=encoding)
                for byte in encode_command(command):
                    writer.write(bytes((byte,)))
                    await writer.drain()
                answer = await read_frame(reader)
                assert (answer.encoding, answer.opaque, answer.code) == (encoding, opaque, expected)
                assert (answer.language.name, answer.version, answer.flag) == ("JAVA", 479, 1)
            writer.close()

    run(loop_name, main())


@on_both_loops
def test_a_malformed_frame_closes_its_connection_only(loop_name: str) -> None:
    """Wrong lengths, headers that are no JSON, unknown encodings, random bytes; a second client notices nothing."""
    broken = [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x08\x00\x00\x00\x0512345",
        b"\x00\x00\x00\x0a\x00\x00\x00\x06{code}",
        b"\x00\x00\x00\x06\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x06\x05\x00\x00\x02{}",
        b"\x00\x00\x00\x06\x01\x00\x00\x02{}",
        b"GET / HTTP/1.1\r\n\r\n",
        random.Random(7).randbytes(4096),
    ]

    async def main() -> None:
        async with serving() as (server, address):
            channel = Channel(address)
            await channel.call(Echo("before"))
            for data in broken:
                reader, writer = await asyncio.open_connection(*address.split(":"))
                writer.write(data)
                assert await reader.read() == b"", data
                writer.close()
            assert (await channel.call(Echo("after"))).header.text == "after"
            await asyncio.sleep(0.01)
            assert len(server.connections) == 1
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_wrong_fields_are_answered_and_the_connection_stays(loop_name: str) -> None:
    """A missing field, a wrong type and a hot request with neither: an error reply each."""

    async def main() -> None:
        async with serving() as (_, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            for frame, remark in (
                (header_only(Echo.code), "text is missing"),
                (header_only(Refuse.code, answer="x"), "answer: 'x' is not a number"),
                (header_only(Refuse.code, answer=1 << 40), "does not fit"),
                (header_only(HotEcho.code), "text is missing"),
            ):
                writer.write(frame)
                answer = await read_frame(reader)
                assert answer.code == 1
                assert remark in str(answer.remark)
            writer.close()

    run(loop_name, main())


@on_both_loops
def test_a_call_ends_at_its_deadline(loop_name: str) -> None:
    """Three deadlines on one connection, in the wrong order; a late answer is dropped."""

    async def main() -> None:
        clock, bench = ManualClock(), Bench()
        async with serving(bench) as (_, address):
            channel = Channel(address, clock=clock)
            await channel.connect()
            calls = [asyncio.ensure_future(channel.call(Hold(str(ms)), timeout_ms=ms)) for ms in (900, 300, 600)]
            for done in ([], [1], [1, 2], [0, 1, 2]):
                assert [i for i, call in enumerate(calls) if call.done()] == done
                await clock.advance(300)
            for call in calls:
                assert isinstance(call.exception(), CallTimeoutError)
                assert isinstance(call.exception(), TimeoutError)
            bench.released.set()
            assert (await channel.call(Echo("next"))).header.text == "next"
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_a_channel_connects_again_after_a_loss(loop_name: str) -> None:
    """The network is cut with a call in flight, then stalls while connecting."""

    async def main() -> None:
        bench = Bench()
        async with serving(bench) as (_, address), Proxy(address) as proxy:
            channel = Channel(proxy.address)
            held = asyncio.ensure_future(channel.call(Hold("lost")))
            while not bench.seen:
                await asyncio.sleep(0.001)
            proxy.cut()
            with pytest.raises(ConnectError):
                await held
            assert (await channel.call(Echo("again"))).header.text == "again"
            assert proxy.connections_made == 2
            proxy.stall()
            with pytest.raises(CallTimeoutError):
                await channel.call(Echo("stalled"), timeout_ms=50)
            proxy.resume()
            assert (await channel.call(Echo("resumed"))).header.text == "resumed"
            await channel.close()
            with pytest.raises(ConnectError, match="closed"):
                await channel.call(Echo("closed"))

    run(loop_name, main())


@on_both_loops
def test_an_unreachable_address_is_a_connect_error(loop_name: str) -> None:
    """Nobody listens; several callers share the attempt and all hear of it."""

    async def main() -> None:
        async with serving() as (_, address):
            pass
        channel = Channel(address)
        results = await asyncio.gather(*(channel.call(Echo("?")) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [ConnectError] * 5
        assert isinstance(results[0], ConnectionError)

    run(loop_name, main())


@on_both_loops
def test_idle_connections_are_closed(loop_name: str) -> None:
    """One client talks every minute, one is silent: after two and a half minutes only the first is left."""

    async def main() -> None:
        clock = ManualClock()
        async with serving(clock=clock) as (server, address):
            busy, silent = Channel(address), Channel(address)
            await silent.call(Echo("once"))
            for _ in range(3):
                await busy.call(Echo("tick"))
                await clock.advance(50_000)
            assert silent.is_connected is False
            assert busy.is_connected is True
            assert len(server.connections) == 1
            await busy.close()

    run(loop_name, main())


@on_both_loops
def test_connections_and_calls_are_limited(loop_name: str) -> None:
    """One connection more than allowed is closed at once; one waiting call too many is refused as busy."""

    async def main() -> None:
        bench = Bench()
        options = ServerOptions(connections_max=2)
        async with serving(bench, options, calls_served_max=3) as (_, address):
            first, second = Channel(address), Channel(address)
            await first.call(Echo("a"))
            await second.call(Echo("b"))
            with pytest.raises(ConnectError):
                await Channel(address).call(Echo("c"))
            held = [asyncio.ensure_future(first.call(Hold(str(i)))) for i in range(3)]
            await asyncio.sleep(0)  # the three are sent before the fourth
            with pytest.raises(BrokerError, match="OVERLOAD") as caught:
                await first.call(Hold("one too many"))
            assert caught.value.code == 2
            assert (await first.call(Echo("quick ones pass"))).header.text == "quick ones pass"
            bench.released.set()
            await asyncio.gather(*held)
            limited = Channel(address, limits=Limits(calls_in_flight_max=1))
            await second.close()
            bench.released.clear()
            await asyncio.sleep(0.01)
            waiting = asyncio.ensure_future(limited.call(Hold("in flight")))
            await asyncio.sleep(0.01)
            with pytest.raises(TooManyCallsError):
                await limited.call(Echo("too many"))
            bench.released.set()
            await waiting
            await first.close()
            await limited.close()

    run(loop_name, main())


@on_both_loops
def test_unfinished_frames_are_limited_over_all_connections(loop_name: str) -> None:
    """Twenty peers announce a megabyte and send half of it; the room is for five, the rest are closed."""

    async def main() -> None:
        unfinished = UnfinishedFrames(5 * 500_000)
        async with serving(options=ServerOptions(Limits(unfinished=unfinished))) as (server, address):
            writers = []
            for _ in range(20):
                _, writer = await asyncio.open_connection(*address.split(":"))
                writer.write((1 << 20).to_bytes(4, "big") + bytes(490_000))
                writers.append(writer)
            while len(server.connections) > 5 or unfinished.size < 5 * 490_000:
                await asyncio.sleep(0.001)
            assert unfinished.size <= unfinished.limit
            for writer in writers:
                writer.close()
            while server.connections:
                await asyncio.sleep(0.001)
            assert unfinished.size == 0

    run(loop_name, main())


@on_both_loops
def test_a_peer_that_does_not_read_is_held_and_then_given_up(loop_name: str) -> None:
    """It asks for megabytes and reads nothing: the server stops reading from it, others are served."""

    async def main() -> None:
        limits = Limits(output_soft_bytes=100_000, output_hard_bytes=8_000_000)
        async with serving(options=ServerOptions(limits)) as (server, address):
            _, writer = await asyncio.open_connection(*address.split(":"))
            frame = encode_command(Command(Echo.code, ext={"text": "x"}, body=bytes(200_000)))
            for _ in range(200):
                writer.write(frame)
            await asyncio.sleep(0.2)
            (slow,) = server.connections
            assert slow.is_congested
            other = Channel(address)
            assert (await other.call(Echo("quick"))).header.text == "quick"
            drained = asyncio.Event()
            slow.when_drained(drained.set)
            writer.transport.abort()
            await drained.wait()
            await other.close()

    run(loop_name, main())


@on_both_loops
def test_stopping_lets_calls_finish(loop_name: str) -> None:
    """A call waits while the server stops: its answer still comes, and a new connection is refused."""

    async def main() -> None:
        bench = Bench()
        async with serving(bench) as (server, address):
            channel = Channel(address)
            held = asyncio.ensure_future(channel.call(Hold("last")))
            while not bench.seen:
                await asyncio.sleep(0.001)
            closing = asyncio.ensure_future(server.close(drain_ms=5_000))
            await asyncio.sleep(0.01)
            with pytest.raises(ConnectError):
                await Channel(address).call(Echo("too late"))
            bench.released.set()
            assert (await held).header.text == "last"
            await closing
            assert server.connections == set()
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_newer_clients_are_told_to_go_away_while_stopping(loop_name: str) -> None:
    """A held call keeps the server draining; a new request gets GO_AWAY, one of 4.9 its answer."""

    async def main() -> None:
        bench = Bench()
        async with serving(bench) as (server, address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            channel = Channel(address)
            held = asyncio.ensure_future(channel.call(Hold("last")))
            while not bench.seen:
                await asyncio.sleep(0.001)
            closing = asyncio.ensure_future(server.close(drain_ms=5_000, tell_to_go_away=True))
            await asyncio.sleep(0.01)
            for version, code in ((479, 1500), (407, 0)):
                writer.write(encode_command(Command(Echo.code, ext={"text": "x"}, version=version)))
                assert (await read_frame(reader)).code == code
            bench.released.set()
            assert (await held).header.text == "last"
            await closing
            writer.close()
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_several_ports_belong_to_one_server(loop_name: str) -> None:
    """The port below by two, as the VIP port is: the same handlers, the same limit of connections."""

    async def main() -> None:
        async with serving(options=ServerOptions(connections_max=2)) as (server, address):
            vip = f"127.0.0.1:{server.listen('127.0.0.1', 0)}"
            first, second = Channel(address), Channel(vip)
            for channel in (first, second):
                assert (await channel.call(Echo("both"))).header.text == "both"
            for full in (address, vip):
                with pytest.raises(ConnectError):
                    await Channel(full).call(Echo("full"))
            await first.close()
            await second.close()

    run(loop_name, main())


@on_both_loops
def test_hooks_see_every_call(loop_name: str) -> None:
    """A hook signs on the client's side and refuses on the server's."""

    class Sign:
        def before(self, peer: str, request: Command) -> None:
            request.ext = {**(request.ext or {}), "AccessKey": "me"}

        def after(self, peer: str, request: Command, response: Command | None) -> None:
            seen.append((peer, request.code, None if response is None else response.code))

    class Check:
        def before(self, peer: str, request: Command) -> None:
            if (request.ext or {}).get("AccessKey") != "me":
                raise BrokerError(16, "who are you?")

        def after(self, peer: str, request: Command, response: Command | None) -> None:
            seen.append(("server", request.code, None if response is None else response.code))

    seen: list[tuple[str, int, int | None]] = []

    async def main() -> None:
        async with serving(hooks=(Check(),)) as (_, address):
            signing, plain = Channel(address, hooks=(Sign(),)), Channel(address)
            await signing.call(Echo("signed"))
            with pytest.raises(BrokerError, match="who are you"):
                await plain.call(Echo("unsigned"))
            assert ("server", Echo.code, 0) in seen
            assert (address, Echo.code, 0) in seen
            await signing.close()
            await plain.close()

    run(loop_name, main())
    seen.clear()
