"""The blocking lite pull consumer: threads, forks, interrupts, and the block of the documentation."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq_core
from rmq_core.client.blocking.lite_pull import LitePullConsumer
from rmq_core.client.pull_options import Assignment
from rmq_core.errors import ClientClosedError, ClientError, ForkedError
from support.pulling import GROUP, TOPIC, bodies, numbered, queue, stored_progress
from support.threaded import Threaded, threaded_cluster, until


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Threaded]:
    with threaded_cluster(tmp_path) as cluster:
        yield cluster


def lite(running: Threaded, group: str = GROUP, **arguments: object) -> LitePullConsumer:
    given = {"start_from": "earliest", "name_server": running.name_server, **arguments}
    return LitePullConsumer(group, **given)  # type: ignore[arg-type]


def test_the_block_of_the_documentation(running: Threaded) -> None:
    """Iterates as documented; an exception in the body leaves its message, and no other, undone."""
    running.create_topic(TOPIC, queues=1)
    running.send(TOPIC, numbered(200))

    def read_until(offset: int) -> list[bytes]:
        found = []
        with rmq_core.LitePullConsumer("audit", start_from="earliest", name_server=running.name_server) as consumer:
            consumer.subscribe(TOPIC, tags="*")
            for message in consumer:
                found.append(message.body)
                if message.queue_offset == offset:
                    raise RuntimeError("unlucky")
        return found

    with pytest.raises(RuntimeError, match="unlucky"):
        read_until(150)
    assert running.do(stored_progress(running.cluster)) == 150
    with lite(running) as consumer:
        consumer.subscribe(TOPIC)
        messages = iter(consumer)
        assert bodies(next(messages) for _ in range(50)) == numbered(200)[150:]
        consumer.commit()
    assert running.do(stored_progress(running.cluster)) == 200


def test_an_iteration_that_ends_early_gives_back_what_it_held(running: Threaded) -> None:
    """Breaks in the middle of what it took at once: the next iteration goes on there."""
    running.create_topic(TOPIC, queues=1)
    running.send(TOPIC, numbered(100))
    with lite(running) as consumer:
        consumer.subscribe(TOPIC)
        found = []
        for stop in (5, 10, 99):
            for message in consumer:
                if message.queue_offset == stop:
                    break
                found.append(message.body)
        assert found == numbered(100)[:99]


def test_a_seek_or_pause_counts_for_what_an_iteration_holds(running: Threaded) -> None:
    """Seeks and pauses within the loop's body: the very next message is the one behind it."""
    running.create_topic(TOPIC, queues=2)
    for number in range(2):
        running.send(TOPIC, numbered(100, f"{number}-"), queue_id=number)
    with lite(running) as consumer:
        consumer.assign([queue(0)])
        messages = iter(consumer)
        assert next(messages).queue_offset == 0
        consumer.seek(queue(0), 70)
        assert next(messages).queue_offset == 70
        consumer.assign([queue(0), queue(1)])
        consumer.pause(queue(0))
        assert {next(messages).queue for _ in range(100)} == {queue(1)}
        consumer.resume(queue(0))
        assert next(messages).queue_offset == 71


def test_many_threads_read_from_one_consumer_and_each_message_once(running: Threaded) -> None:
    """Four threads poll, four iterate; what one of them holds is not done because another one goes on."""
    running.create_topic(TOPIC, queues=4)
    for number in range(4):
        running.send(TOPIC, numbered(1_000, f"{number}-"), queue_id=number)
    seen: Counter[bytes] = Counter()
    counting = threading.Lock()
    with lite(running) as consumer:
        consumer.subscribe(TOPIC)
        held = consumer.poll(count_max=1)[0]

        def count(body: bytes) -> None:
            with counting:
                seen[body] += 1

        def poll() -> None:
            while messages := consumer.poll(timeout_ms=500, count_max=20):
                for message in messages:
                    count(message.body)

        def iterate() -> None:
            for message in consumer:
                count(message.body)

        pollers = [threading.Thread(target=poll) for _ in range(4)]
        iterators = [threading.Thread(target=iterate) for _ in range(4)]
        for thread in (*pollers, *iterators):
            thread.start()
        until(lambda: len(seen) == 3_999, "all others are read")
        for thread in pollers:
            thread.join(30)
        assert running.do(stored_progress(running.cluster, held.queue.queue_id)) in (None, 0)
        assert consumer.poll(timeout_ms=0) == []
        consumer.close()
        for thread in iterators:
            thread.join(30)
            assert not thread.is_alive()
    assert set(seen.values()) == {1}
    assert held.body not in seen


def test_the_call_back_runs_on_its_own_thread_and_may_use_the_consumer(running: Threaded) -> None:
    """Seeks and commits when queues come, on a thread that is neither the caller's nor the loop's."""
    running.create_topic(TOPIC, queues=1)
    running.send(TOPIC, numbered(10))
    threads: list[str] = []

    def changed(change: Assignment) -> None:
        threads.append(threading.current_thread().name)
        for each in change.given:
            consumer.seek(each, 7)
            consumer.commit()

    consumer = lite(running, on_assignment=changed)
    with consumer:
        consumer.subscribe(TOPIC)
        assert running.do(stored_progress(running.cluster)) == 7
        assert bodies(consumer.poll()) == numbered(10)[7:]
    assert threads == [f"rmq-callbacks-{GROUP}-1"]


def test_nothing_is_left_after_close(running: Threaded) -> None:
    """Threads other than the shared loop are gone, the broker knows no member, and using it raises."""
    running.create_topic(TOPIC, queues=1)
    consumer = lite(running, on_assignment=lambda change: None)
    assert "not started" in repr(consumer)
    with pytest.raises(ClientError, match="nothing to read"):
        consumer.poll()
    consumer.subscribe(TOPIC)
    assert "open" in repr(consumer)
    consumer.close()
    consumer.close()
    assert {each.name for each in threading.enumerate() if each.name.startswith("rmq-")} <= {"rmq-client-io"}
    assert running.broker.clients.consumer_group(GROUP) is None
    for use in (consumer.poll, consumer.start, consumer.assigned, lambda: iter(consumer)):
        with pytest.raises(ClientClosedError):
            use()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told_to_make_its_own(running: Threaded) -> None:
    """The child gets ForkedError at once and reads with a consumer of its own; the parent's goes on."""
    running.create_topic(TOPIC, queues=1)
    running.send(TOPIC, numbered(4))
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    with lite(running) as consumer:
        consumer.subscribe(TOPIC)
        assert len(consumer.poll(count_max=2)) == 2

        def child() -> None:
            try:
                consumer.poll(timeout_ms=0)
            except ForkedError:
                consumer.close()
                with lite(running, "child") as own:
                    own.subscribe(TOPIC)
                    told.put(len(own.poll(count_max=4)))
            os._exit(0)

        process = context.Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert told.get() == 4
        assert len(consumer.poll(count_max=2)) == 2


def test_an_interrupted_poll_loses_nothing(running: Threaded) -> None:
    """Ctrl-C while an iteration waits, in a process of its own: it ends at once, and what was done is stored."""
    running.create_topic(TOPIC, queues=1)
    running.send(TOPIC, numbered(3))
    program = f"""
        import signal
        import rmq_core

        signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background has it ignored
        name_server = {running.name_server!r}
        with rmq_core.LitePullConsumer("audit", start_from="earliest", name_server=name_server) as consumer:
            consumer.subscribe("{TOPIC}")
            for message in consumer:
                print(message.queue_offset, flush=True)
        """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline().strip() for _ in range(3)] == ["0", "1", "2"]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in errors
    assert running.do(stored_progress(running.cluster)) in (2, 3)
    assert running.broker.clients.consumer_group("audit") is None
