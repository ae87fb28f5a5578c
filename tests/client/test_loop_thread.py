"""The loop thread of the blocking forms, and what a fork and an exit do to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from rmq_core.client import loop_thread
from rmq_core.client.blocking.base import BlockingClient
from rmq_core.client.loop_thread import LoopThread
from rmq_core.errors import ClientClosedError, ClientError, ForkedError


class Opened:
    """A coroutine form that counts what is done to it."""

    def __init__(self) -> None:
        self.starts = self.closes = 0

    async def start(self) -> None:
        self.starts += 1

    async def close(self) -> None:
        self.closes += 1

    async def answer(self) -> int:
        return 42


class Client(BlockingClient[Opened]):
    def answer(self) -> int:
        return self._call(lambda inner: inner.answer())


class Reader(Client):
    begins_anew_after_fork = False


def test_everything_posted_runs_once_and_in_order() -> None:
    """Four threads post ten thousand calls each; the order of each thread must hold."""
    thread = LoopThread("test-io")
    seen: list[tuple[int, int]] = []

    def post_many(number: int) -> None:
        for count in range(10_000):
            thread.post(seen.append, (number, count))

    posters = [threading.Thread(target=post_many, args=(number,)) for number in range(4)]
    for poster in posters:
        poster.start()
    for poster in posters:
        poster.join()
    done = threading.Event()
    thread.post(done.set)
    assert done.wait(30)
    for number in range(4):
        assert [count for who, count in seen if who == number] == list(range(10_000))
    thread.stop()
    assert not thread.is_alive


def test_a_call_that_fails_on_the_loop_does_not_stop_what_was_posted_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Posts a function that raises, then one that does not."""
    thread = LoopThread("test-io")
    done = threading.Event()
    thread.post(int, "no number")
    thread.post(done.set)
    assert done.wait(30)
    thread.stop()
    assert "failed on the client loop" in caplog.text


def test_waiting_for_the_loop_on_its_own_thread_raises_at_once() -> None:
    """Calls a blocking form from the loop, where waiting would never end."""
    thread = loop_thread.enter()
    client = Client(Opened)
    client.start()

    async def calls_back() -> str:
        with pytest.raises(ClientError, match=r"rmq_core\.aio"):
            client.answer()
        return "raised"

    assert thread.call(calls_back()) == "raised"
    client.close()
    assert thread.is_alive
    thread.let_go()
    assert not thread.is_alive


def test_a_blocking_form_opens_once_and_closes_once() -> None:
    """Uses it from many threads, closes it twice, and uses it afterwards."""
    made: list[Opened] = []

    def make() -> Opened:
        made.append(Opened())
        return made[-1]

    client = Client(make)
    threads = [threading.Thread(target=client.answer) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    client.close()
    client.close()
    assert [(each.starts, each.closes) for each in made] == [(1, 1)]
    with pytest.raises(ClientClosedError):
        client.answer()


def test_a_blocking_form_works_while_another_loop_runs_in_the_thread() -> None:
    """As in a notebook, whose cells run inside a running loop."""

    async def main() -> int:
        with Client(Opened) as client:
            return client.answer()

    assert asyncio.run(main()) == 42


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_begins_anew_or_says_that_it_cannot() -> None:
    """Forks with both kinds open; the child uses them, and the parent's go on."""
    producer, reader = Client(Opened).start(), Reader(Opened).start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert producer.answer() == 42
            try:
                reader.answer()
            except ForkedError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.answer() == producer.answer() == 42
    producer.close()
    reader.close()


def test_where_no_thread_can_be_had_the_error_is_ours_and_the_next_use_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at the end of an interpreter, or at the limit of threads: the system refuses one, then gives it."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    client = Client(Opened)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ClientError, match="no thread for the clients' loop: can't start"):
            client.start()
    assert client.answer() == 42
    client.close()


def test_the_loop_ends_with_its_last_client_and_not_before() -> None:
    """Two clients share a thread; a third one, opened after both were closed, has another."""
    first, second = Client(Opened).start(), Client(Opened).start()
    thread = first._thread
    assert thread is not None
    assert thread is second._thread
    first.close()
    assert thread.is_alive
    assert second.answer() == 42
    second.close()
    assert not thread.is_alive
    with pytest.raises(ClientClosedError):
        thread.post(print)
    third = Client(Opened).start()
    assert third._thread is not thread
    third.close()


def test_a_program_ends_without_closing_anything() -> None:
    """Leaves a client open at the end of a program, which must end by itself and silently."""
    program = (
        "from rmq_core.client import loop_thread; import asyncio\n"
        "loop_thread.enter().submit(asyncio.sleep(1000))\n"
        "print('end')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("end\n", "")
