"""Threads that wake one another: none may be forgotten, whoever leaves in between."""

from __future__ import annotations

import random
import threading

import pytest

from rmq_core.client.blocking.wakes import Waiter, Wakes
from rmq_core.client.loop_thread import LoopThread


def test_every_thread_wakes_though_others_leave() -> None:
    """Completes the waits of 16 threads in random order, a third of which give up at random moments."""
    thread, wakes = LoopThread("test-wakes"), Wakes()
    woken: list[int] = []
    left: list[int] = []

    def work(number: int) -> None:
        chance = random.Random(number)

        def leave() -> None:
            if chance.random() < 0.5:
                raise KeyboardInterrupt

        for _ in range(300):
            waiter = Waiter(wakes)
            leaves = chance.random() < 0.3
            thread.post(thread.loop.call_later, chance.choice((0, 0, 0.0005)), wakes.add, waiter)
            try:
                waiter.wait(leave if leaves else lambda: None, every_s=0.0002 if leaves else 0.05)
            except KeyboardInterrupt:
                left.append(number)
            else:
                woken.append(number)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
        assert not each.is_alive(), "a thread was never woken"
    assert len(woken) + len(left) == 16 * 300
    assert left
    thread.stop()


def test_what_a_check_raises_ends_the_wait() -> None:
    """Waits for something that never comes, until the check says that it cannot come."""
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise RuntimeError("the loop has ended")

    with pytest.raises(RuntimeError, match="ended"):
        Waiter(Wakes()).wait(check, every_s=0.001)
