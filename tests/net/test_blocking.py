"""The blocking channel: plain threads, several calls in flight, a real server in a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from net.echo import AskBack, Bench, Echo, Hold, Refuse, serving
from rmq_core.errors import BrokerError, CallTimeoutError, ConnectError, RemoteProtocolError, TooManyCallsError
from rmq_core.net.blocking import LARGE, READ_SIZE, BlockingChannel, _Frames
from rmq_core.protocol.command import Command


class Running:
    """A server in a thread; `release` lets held calls go."""

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop, bench: Bench) -> None:
        self.address = address
        self._loop = loop
        self._bench = bench

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._bench.released.set)


@pytest.fixture
def running() -> Iterator[Running]:
    started, stopping = threading.Event(), asyncio.Event()
    found: list[Running] = []

    async def main() -> None:
        bench = Bench()
        async with serving(bench) as (_, address):
            found.append(Running(address, asyncio.get_running_loop(), bench))
            started.set()
            await stopping.wait()

    def serve() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=serve)
    thread.start()
    assert started.wait(10)
    yield found[0]
    found[0]._loop.call_soon_threadsafe(stopping.set)
    thread.join(10)


def test_one_thread_keeps_several_calls_in_flight(running: Running) -> None:
    """Sends a hundred, then waits for them from the last to the first."""
    with BlockingChannel(running.address) as channel:
        calls = [channel.start(Echo(str(i)), bytes(i * 1000)) for i in range(100)]
        for i, call in reversed(list(enumerate(calls))):
            answer = call.wait()
            assert (answer.header.text, len(answer.body)) == (str(i), i * 1000)


def test_many_threads_share_a_channel(running: Running) -> None:
    """Sixteen threads, each with its own bodies, some waiting for a held call: nobody gets another's answer."""
    with BlockingChannel(running.address) as channel, ThreadPoolExecutor(17) as pool:
        held = pool.submit(channel.call, Hold("held"), timeout_ms=20_000)

        def work(worker: int) -> None:
            for i in range(100):
                text, body = f"{worker}/{i}", bytes([worker]) * (i * 37)
                answer = channel.call(Echo(text), body, timeout_ms=20_000)
                assert (answer.header.text, answer.body) == (text, body)

        for future in [pool.submit(work, worker) for worker in range(16)]:
            future.result()
        running.release()
        assert held.result().header.text == "held"


def test_time_outs_leave_the_channel_usable(running: Running) -> None:
    """A held call runs out of time; its late answer is dropped and the next call gets its own."""
    with BlockingChannel(running.address) as channel:
        with pytest.raises(CallTimeoutError):
            channel.call(Hold("slow"), timeout_ms=50)
        running.release()
        assert channel.call(Echo("next")).header.text == "next"


def test_errors_and_limits(running: Running) -> None:
    """Refusals, too many calls, closed channels, addresses that nobody serves."""
    with BlockingChannel(running.address, calls_in_flight_max=2) as channel:
        with pytest.raises(BrokerError, match="no"):
            channel.call(Refuse(16))
        held = [channel.start(Hold("a")), channel.start(Hold("b"))]
        with pytest.raises(TooManyCallsError):
            channel.start(Hold("c"))
        running.release()
        assert [call.wait().header.text for call in held] == ["a", "b"]
    with pytest.raises(ConnectError, match="closed"):
        channel.call(Echo("closed"))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(ConnectError, match="cannot connect"):
        BlockingChannel(address).call(Echo("?"))


def test_requests_of_the_peer_are_served_by_whoever_reads(running: Running) -> None:
    """The server asks back while the call waits; without a handler it hears that it is not supported."""

    def on_request(command: Command) -> Command:
        return Command(0, ext={"text": (command.ext or {})["text"] + "?"})

    with BlockingChannel(running.address, on_request=on_request) as channel:
        assert channel.call(AskBack("who")).header.text == "who?!"
    with BlockingChannel(running.address) as channel, pytest.raises(BrokerError, match="not supported"):
        channel.call(AskBack("who"))


def test_a_broken_peer_ends_the_calls_and_the_next_one_connects_again() -> None:
    """First connection: garbage as answer. Second: closed at once. Third: silence until the channel is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        channel = BlockingChannel(f"127.0.0.1:{listening.getsockname()[1]}")

        def misbehave() -> None:
            for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
                connected, _ = listening.accept()
                connected.recv(65536)
                if answer:
                    connected.sendall(answer)
                connected.close()
            connected, _ = listening.accept()
            connected.recv(65536)
            channel.close()
            connected.close()

        thread = threading.Thread(target=misbehave)
        thread.start()
        for _ in range(3):
            with pytest.raises(ConnectError):
                channel.call(Echo("?"), timeout_ms=10_000)
        thread.join(10)
        with contextlib.closing(channel), pytest.raises(ConnectError, match="closed"):
            channel.poll(10)


def test_bodies_of_all_sizes_come_as_they_were(running: Running) -> None:
    """Around every size at which frames are received in another way, all sent at once; copied and as views."""
    draw = Random(7)
    sizes = [0, 1, LARGE - 200, LARGE, READ_SIZE - 100, READ_SIZE, READ_SIZE + 1, 3 << 20, *range(5), 700_000]
    draw.shuffle(sizes)
    bodies = [draw.randbytes(size) for size in sizes]
    requests = [(Echo(str(number)), body) for number, body in enumerate(bodies)]
    with BlockingChannel(running.address) as channel:
        views = channel.start_all(requests, timeout_ms=20_000, takes_view=True)
        copies = channel.start_all(requests, timeout_ms=20_000)
        for number, (view, copy) in enumerate(zip(views, copies, strict=True)):
            seen = view.wait()
            assert (seen.header.text, seen.body, bytes(view.view)) == (str(number), b"", bodies[number])
            assert copy.wait().body == bodies[number]


def test_a_call_that_is_cancelled_leaves_the_others_alone(running: Running) -> None:
    """Its large answer comes all the same, and is dropped."""
    with BlockingChannel(running.address) as channel:
        calls = channel.start_all([(Echo(str(number)), bytes(500_000)) for number in range(3)], timeout_ms=20_000)
        calls[0].cancel()
        calls[1].cancel()
        assert calls[2].wait().header.text == "2"
        assert channel.call(Echo("next")).header.text == "next"


def test_a_connection_that_is_dropped_is_opened_again(running: Running) -> None:
    """A held call ends with ConnectError; the next one goes out on another connection."""
    with BlockingChannel(running.address) as channel:
        held = channel.start(Hold("held"), timeout_ms=20_000)
        assert channel.times_connected == 1
        channel.drop()
        with pytest.raises(ConnectError, match="given up"):
            held.wait()
        assert channel.call(Echo("next")).header.text == "next"
        assert channel.times_connected == 2


def test_a_time_out_given_to_wait_runs_from_then(running: Running) -> None:
    """The call's own time is over when its answer is asked for: it has come long ago, or may still come."""
    with BlockingChannel(running.address) as channel:
        early, late = channel.start(Echo("early"), timeout_ms=0.01), channel.start(Hold("late"), timeout_ms=0.01)
        assert early.wait(timeout_ms=20_000).header.text == "early"
        running.release()
        assert late.wait(timeout_ms=20_000).header.text == "late"


@given(
    sizes=st.lists(st.one_of(st.integers(4, 300), st.integers(LARGE - 20, LARGE + 20)), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 30),
)
def test_frames_are_cut_alike_however_they_arrive(sizes: list[int], seed: int) -> None:
    """Small and large ones in pieces of random sizes, never more than there is room for."""
    draw = Random(seed)
    frames = [size.to_bytes(4, "big") + draw.randbytes(size) for size in sizes]
    stream, cutter, found = memoryview(b"".join(frames)), _Frames(1 << 24), []
    while stream:
        room = cutter.room()
        size = min(len(room), len(stream), draw.choice([1, 7, 5_000, 200_000, READ_SIZE]))
        assert size
        room[:size] = stream[:size]
        cutter.arrived(size)
        stream = stream[size:]
        while (frame := cutter.next()) is not None:
            found.append(bytes(frame))
    assert found == frames


@pytest.mark.parametrize("length", [0, 3, (1 << 16) - 3, 0xFFFFFFFF])
def test_lengths_that_no_frame_has_are_refused(length: int) -> None:
    """Nothing is reserved for them."""
    cutter = _Frames(1 << 16)
    cutter.room()[:4] = length.to_bytes(4, "big")
    cutter.arrived(4)
    with pytest.raises(RemoteProtocolError, match="frame of"):
        cutter.next()
