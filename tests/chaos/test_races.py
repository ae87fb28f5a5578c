"""All threads of a store at once, changing places as often as the interpreter lets them."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.writing_process import HOST, QUEUES, body, properties, settings
from rmq_core.protocol.record import StoredRecord, decode_pull_body
from rmq_core.store.message_store import MessageStore, PutStatus
from rmq_core.store.queue_reader import GetStatus

MESSAGES = 6000
NOTHING_YET = (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE)


@contextmanager
def hasty_switches() -> Iterator[None]:
    """Let threads change places at nearly every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Reader:
    """A thread that follows all queues, and looks up keys of what it has read."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        self._store = store
        self._chance = random.Random(seed)
        self._thread = threading.Thread(target=self._run)
        self._is_stopping = False
        self.read = [0] * len(QUEUES)
        self.problem: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Read to the end. Raises what the thread found wrong."""
        self._is_stopping = True
        self._thread.join()
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._follow(self._chance.randrange(len(QUEUES)))
            for number in range(len(QUEUES)):
                while self._follow(number):
                    pass
        except BaseException as problem:
            self.problem = problem

    def _follow(self, number: int) -> bool:
        """Read what is new in a queue: whole messages that know their places, one behind the other."""
        topic, queue_id = QUEUES[number]
        known = self._store.max_offset(topic, queue_id)
        offset = self.read[number]
        got = self._store.get(topic, queue_id, offset, 32, may_wait=True)
        if got.status in NOTHING_YET:
            assert known <= offset
            return False
        assert got.status is GetStatus.FOUND, got
        records = decode_pull_body(b"".join(got.parts), verify_crc=True)
        assert len(records) == got.count > 0
        for record in records:
            assert record.queue_offset == self.read[number]
            assert self._is_expected(record, number)
            self.read[number] += 1
        assert self.read[number] == got.next_offset
        if self._chance.random() < 0.1:
            self._look_up(number, self._chance.randrange(self.read[number]))
        return True

    def _is_expected(self, record: StoredRecord, number: int) -> bool:
        place = (record.topic, record.queue_id)
        return place == QUEUES[number] and record.body.startswith(b"1 %d %d " % (number, record.queue_offset))

    def _look_up(self, number: int, queue_offset: int) -> None:
        found = self._store.query(QUEUES[number][0], f"1-{number}-{queue_offset}", 64, 0, 1 << 62)
        views = [self._store.record(log_offset) for log_offset in found]
        records = [decode_pull_body(view)[0] for view in views if view is not None]
        wanted = b"1 %d %d " % (number, queue_offset)
        count = sum(record.body.startswith(wanted) for record in records)
        assert count == 1, f"the key of message {queue_offset} was found {count} times"


def write(store: MessageStore, chance: random.Random, wake: threading.Event) -> list[int]:
    """Put messages in passes; returns how many each queue got, after all of them have been acknowledged."""
    counts = [0] * len(QUEUES)
    heard: list[PutStatus] = []
    sent = 0
    while sent < MESSAGES:
        ends = []
        for _ in range(chance.randrange(1, 30)):
            number = chance.randrange(len(QUEUES))
            topic, queue_id = QUEUES[number]
            put = store.put(
                topic,
                queue_id,
                body(1, number, counts[number], chance),
                properties(1, number, counts[number]),
                born_time_ms=1,
                born_host=HOST,
            )
            assert (put.status, put.queue_offset) == (PutStatus.PUT_OK, counts[number])
            counts[number] += 1
            ends.append(put.end)
        store.end_pass()
        sent += len(ends)
        for end in ends:
            store.when_durable(end, heard.append)
        store.poll()
    while len(heard) < sent:
        assert wake.wait(30), "nobody was woken"
        wake.clear()
        store.poll()
    assert set(heard) == {PutStatus.PUT_OK}
    return counts


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_readers_see_whole_messages_in_order_while_all_threads_run(tmp_path: Path, flush: str, seed: int) -> None:
    """Writer, flusher, keeper and two readers switch all the time, over many files of log, queues and index."""
    own = settings(tmp_path)
    own.flush_disk_type = flush
    own.flush_interval_commit_log = 1
    own.flush_commit_log_thorough_interval = 1
    wake = threading.Event()
    store = MessageStore(own, notify=wake.set)
    store.open()
    store.start()
    readers = [Reader(store, seed + each) for each in range(2)]
    with hasty_switches():
        for reader in readers:
            reader.start()
        try:
            counts = write(store, random.Random(seed), wake)
        finally:
            for reader in readers:
                reader.finish()
    assert [reader.read for reader in readers] == [counts, counts]
    store.close()
    again = MessageStore(settings(tmp_path))
    assert again.open().damages == []
    assert [again.max_offset(*queue) for queue in QUEUES] == counts
    again.close()
