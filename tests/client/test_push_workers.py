"""The parts of the push consumer by themselves: pieces and who works on them, limits, rates."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rmq_core.client.consume_stats import SAMPLE_MS, ConsumeStats
from rmq_core.client.flow import Flow, FlowLimits
from rmq_core.client.hooks import Hooks
from rmq_core.client.listeners import Listener, Piece, Report
from rmq_core.client.process_queue import LOCK_VALID_MS, PULL_EXPIRY_MS, ProcessQueue
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.workers import Crew, Mailbox
from rmq_core.clock import ManualClock, SystemClock
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import Host, StoredRecord
from support.brokers import run
from support.pushing import until

QUEUE = MessageQueue("Orders", "broker-a", 0)


def message(offset: int, *, size: int = 100) -> ReceivedMessage:
    host = Host(b"\x7f\x00\x00\x01", 10911)
    record = StoredRecord("Orders", 0, offset, offset * 100, b"%d" % offset, b"", 0, host, 0, host, size=size)
    return ReceivedMessage(record, QUEUE)


def messages(count: int, start: int = 0) -> list[ReceivedMessage]:
    return [message(offset) for offset in range(start, start + count)]


def process_queue(clock: Any = None, next_offset: int = 0) -> ProcessQueue:
    return ProcessQueue(QUEUE, QUEUE, next_offset, clock or SystemClock())


class Bench:
    """A crew, and a place where its reports arrive."""

    def __init__(self, size: int = 4) -> None:
        loop = asyncio.get_running_loop()
        self.reports: list[Report] = []
        self.crew = Crew("rmq-test", size, self, lambda: loop)
        self._post = Mailbox(loop, self.reports.append).post

    def put(self, function: Callable[[Any], Any], count: int, *, queue: ProcessQueue | None = None) -> Piece:
        listener = Listener(function, "G", Hooks())
        piece = Piece(queue or process_queue(), messages(count), listener, self._post)
        self.crew.put(piece)
        return piece

    @property
    def done(self) -> list[int]:
        return sorted(offset for report in self.reports for offset in report.done)

    @property
    def returned(self) -> int:
        return sum(report.count for report in self.reports)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_slow_message_does_not_hold_up_those_behind_it(kind: str) -> None:
    """The first message of a piece of 32 blocks; the other 31 must be consumed meanwhile, each once."""

    async def main() -> None:
        bench, go = Bench(), threading.Event()
        calls: list[int] = []

        def plain(received: ReceivedMessage) -> None:
            calls.append(received.queue_offset)
            if received.queue_offset == 0:
                go.wait()

        async def coroutine(received: ReceivedMessage) -> None:
            calls.append(received.queue_offset)
            while received.queue_offset == 0 and not go.is_set():
                await asyncio.sleep(0.001)

        bench.put(plain if kind == "plain" else coroutine, 32)
        await until(lambda: len(calls) == 32)
        await until(lambda: bench.done == list(range(1, 32)))
        go.set()
        await until(lambda: bench.returned == 32)
        assert sorted(calls) == bench.done == list(range(32))
        await bench.crew.stop(1)

    run(main())


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_slow_listeners_use_every_worker(kind: str) -> None:
    """One piece of 32 messages and 8 workers: no call returns before 8 run at one time."""

    async def main() -> None:
        bench, lock, full = Bench(8), threading.Lock(), threading.Event()
        running = peak = 0

        def enter(step: int) -> None:
            nonlocal running, peak
            with lock:
                running += step
                peak = max(peak, running)
                if running == 8:
                    full.set()

        def plain(received: ReceivedMessage) -> None:
            enter(1)
            full.wait()
            enter(-1)

        async def coroutine(received: ReceivedMessage) -> None:
            enter(1)
            while not full.is_set():
                await asyncio.sleep(0.001)
            enter(-1)

        bench.put(plain if kind == "plain" else coroutine, 32)
        await until(lambda: bench.returned == 32)
        assert peak == 8
        await bench.crew.stop(1)

    run(main())


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_every_message_of_many_pieces_is_called_once_and_counted_once(kind: str) -> None:
    """Pieces of all sizes from several queues, while workers are paused, resized and brought back."""

    async def main() -> None:
        bench = Bench(3)
        queues = [process_queue() for _ in range(5)]
        calls: list[tuple[int, int]] = []

        def plain(received: ReceivedMessage) -> None:
            calls.append((id(received), received.queue_offset))

        async def coroutine(received: ReceivedMessage) -> None:
            plain(received)
            if received.queue_offset % 7 == 0:
                await asyncio.sleep(0)

        kept, total = [], 0
        for number in range(300):
            count = 1 + number % 32
            kept.append(bench.put(plain if kind == "plain" else coroutine, count, queue=queues[number % 5]))
            total += count
            if number % 50 == 10:
                bench.crew.pause()
            if number % 50 == 20:
                bench.crew.resume()
            if number % 40 == 30:
                bench.crew.resize(1 + number % 6)
            if number % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: bench.returned == total)
        assert len(calls) == total
        assert sum(len(report.done) for report in bench.reports) == total
        assert sum(report.is_last for report in bench.reports) >= len(kept)
        await bench.crew.stop(1)
        assert not [each for each in threading.enumerate() if each.name.startswith("rmq-test")]

    run(main())


def test_a_halted_queue_gets_no_further_call_and_returns_what_was_not_begun() -> None:
    """Halts in the middle of a piece, with another piece waiting in the line and one held back by a pause."""

    async def main() -> None:
        bench, begun, go = Bench(1), threading.Event(), threading.Event()
        queue = process_queue()
        calls: list[int] = []

        def listener(received: ReceivedMessage) -> None:
            calls.append(received.queue_offset)
            begun.set()
            go.wait()

        bench.put(listener, 10, queue=queue)
        bench.put(listener, 10, queue=queue)
        await until(begun.is_set)
        queue.is_halted = True
        bench.crew.withdraw(queue)
        await until(lambda: bench.returned == 10)  # the piece in the line
        bench.crew.pause()
        go.set()
        await until(lambda: bench.returned == 20)
        assert calls == bench.done == [0]
        await bench.crew.stop(1)

    run(main())


def test_reports_of_a_long_piece_come_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress must not wait for the end of a piece whose listener is slow."""
    monkeypatch.setattr("rmq_core.client.listeners.REPORT_AFTER_S", 0.01)

    async def main() -> None:
        bench, go = Bench(1), threading.Event()

        def listener(received: ReceivedMessage) -> None:
            if received.queue_offset < 5:
                time.sleep(0.005)
            else:
                go.wait()

        bench.put(listener, 6)
        await until(lambda: len(bench.done) >= 3)
        assert not any(report.is_last for report in bench.reports)
        go.set()
        await until(lambda: bench.returned == 6)
        assert bench.done == list(range(6))
        await bench.crew.stop(1)

    run(main())


def test_progress_is_the_oldest_message_that_is_not_finished() -> None:
    """Finishes in another order than that of the queue, some twice, some that were never there."""
    queue = process_queue(next_offset=10)
    assert queue.progress() == 10
    assert queue.put(messages(5, 10)) == 500
    queue.next_offset = 20  # what stood at 15 to 19 was not wanted
    assert queue.span == 4
    assert queue.finish([12, 11]) == 200
    assert queue.progress() == 10
    assert queue.finish([10, 12, 99]) == 100
    assert (queue.progress(), queue.span, queue.size_bytes) == (13, 1, 200)
    queue.finish([13, 14])
    assert (queue.progress(), queue.size_bytes) == (20, 0)


def test_what_was_taken_comes_first_again_when_it_is_put_back() -> None:
    """Takes four, finishes the first of them, puts the others back in their order."""
    queue = process_queue()
    queue.untaken.extend(messages(6))
    queue.put(list(queue.untaken))
    taken = queue.take(4)
    assert [each.queue_offset for each in taken] == [0, 1, 2, 3]
    queue.finish([0])
    queue.put_back()
    assert [each.queue_offset for each in queue.untaken] == [1, 2, 3, 4, 5]
    assert queue.progress() == 1


def test_locks_and_pull_loops_grow_old() -> None:
    """Moves the clock past both ages; a loop that waits for a reason is not silent."""

    async def main() -> None:
        clock = ManualClock()
        queue = process_queue(clock)
        assert not queue.may_consume()
        queue.lock()
        await clock.advance(LOCK_VALID_MS - 1)
        assert queue.may_consume()
        await clock.advance(1)
        assert not queue.may_consume()
        queue.touch()
        await clock.advance(PULL_EXPIRY_MS + 1)
        assert queue.is_stalled()
        queue.is_waiting = True
        assert not queue.is_stalled()

    run(main())


def test_each_limit_stops_the_pulls_above_it_and_not_at_it() -> None:
    """Count, bytes of a queue, bytes of all and span, each at its limit and one above."""
    flow = Flow(FlowLimits(queue_count_max=10, queue_size_max_bytes=5_000, size_max_bytes=6_000, span_max=100))
    queue = process_queue()
    flow.added(queue.put(messages(10)))
    assert flow.excess(queue) is None
    flow.added(queue.put([message(10)]))
    assert "11 messages" in str(flow.excess(queue))
    flow.freed(queue, queue.finish(range(1, 11)))
    flow.added(queue.put([message(100)]))
    assert flow.excess(queue) is None
    flow.added(queue.put([message(101)]))
    assert "span 101" in str(flow.excess(queue))
    flow.freed(queue, queue.clear())
    flow.added(queue.put([message(0, size=5_000)]))
    assert flow.excess(queue) is None
    flow.added(queue.put([message(1, size=1)]))
    assert "5001 bytes of it" in str(flow.excess(queue))
    other = process_queue()
    flow.added(other.put([message(0, size=1_000)]))
    assert "6001 bytes of all" in str(flow.excess(other))
    ordered = Flow(FlowLimits(span_max=None))
    ordered.added(queue.put([message(1_000_000)]))
    assert ordered.excess(queue) is None


def test_limits_per_topic_are_shared_out_among_the_queues() -> None:
    """A topic's 100 messages over 4 queues, over 1, and over more queues than messages."""
    flow = Flow(FlowLimits(topic_count_max=100, topic_size_max_bytes=100_000))
    queue = process_queue()
    flow.added(queue.put(messages(26)))
    flow.share(4)
    assert "limit is 25" in str(flow.excess(queue))
    flow.share(1)
    assert flow.excess(queue) is None
    flow.share(1_000)
    assert "limit is 1" in str(flow.excess(queue))


def test_rates_are_those_of_the_last_minute() -> None:
    """Ten seconds of 100 messages a second, then a minute of nothing."""

    async def main() -> None:
        clock = ManualClock()
        stats = ConsumeStats(clock)
        totals = stats.of("Orders")
        for _ in range(10):
            totals.pulls += 4
            totals.pull_ms += 20
            totals.pulled += 100
            totals.consumed += 90
            totals.failed += 10
            totals.busy_ms += 200
            await clock.advance(1_000)
        status = stats.status()["Orders"]
        assert (status.pull_tps, status.consume_ok_tps, status.consume_failed_tps) == (100, 90, 10)
        assert (status.pull_rt, status.consume_rt, status.consume_failed_msgs) == (5, 2, 100)
        for _ in range(7):
            stats.sample()
            await clock.advance(SAMPLE_MS)
        assert stats.status()["Orders"].pull_tps == 0

    run(main())
