"""When messages count: who waits for a flush, who sees what, and what happens when a write or a sync fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import StoreError
from rmq_core.store import flusher
from rmq_core.store.dispatcher import Appended
from rmq_core.store.message_store import MessageStore, PutStatus
from rmq_core.store.queue_reader import GetStatus
from support.stores import QuickDisk, numbers, open_store, put, small_settings
from support.waiting import until


class LogDisk(QuickDisk):
    """Counts syncs of the log, and can refuse writes or syncs below a folder."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.refused_writes = ""
        self.refused_syncs = ""

    def write(self, path: Path, data: bytes | bytearray | memoryview, offset: int) -> None:
        if self.refused_writes and self.refused_writes in str(path):
            raise OSError(28, "no space left")
        super().write(path, data, offset)

    def sync(self, path: Path) -> None:
        self.syncs += path.parent.name == "commitlog"
        if self.refused_syncs and self.refused_syncs in str(path):
            raise OSError(5, "input/output error")
        super().sync(path)


def open_sync(root: Path, disk: LogDisk | None = None, **changes: Any) -> MessageStore:
    return open_store(root, disk=disk, flush_disk_type="SYNC_FLUSH", **changes)


def test_the_interval_may_be_longer_than_a_thread_can_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ASYNC_FLUSH each 300 million years, and then, while it runs, at once."""
    monkeypatch.setattr(flusher, "LOOK_S", 0.01)
    store = open_store(tmp_path, flush_interval_commit_log=(1 << 63) - 1, flush_commit_log_least_pages=0)
    store.flusher.start()
    put(store, 0)
    store.end_pass()
    store.flusher.wake()
    until(lambda: store.log.flushed == store.log.written)
    put(store, 1)
    store.end_pass()
    assert store.log.flushed < store.log.written
    store.settings.flush_interval_commit_log = 1
    until(lambda: store.log.flushed == store.log.written)
    store.close()


def test_one_sync_answers_all_who_wait(tmp_path: Path) -> None:
    """Fifty messages in five passes, none flushed before: nobody is answered early, one sync answers all."""
    disk = LogDisk()
    store = open_sync(tmp_path, disk, mapped_file_size_commit_log=1 << 16)
    put(store, 0)
    store.end_pass()
    store.flusher.flush()
    before = disk.syncs
    heard: list[PutStatus] = []
    for number in range(1, 51):
        store.when_durable(put(store, number).end, heard.append)
        if number % 10 == 0:
            store.end_pass()
    assert heard == []
    store.flusher.flush()
    assert heard == []  # only the owner's thread calls back
    store.poll()
    assert heard == [PutStatus.PUT_OK] * 50
    assert disk.syncs == before + 1
    store.close()


def test_readers_see_flushed_messages_only(tmp_path: Path) -> None:
    """SYNC_FLUSH: queue, log, offsets and arrivals wait for the sync; with ASYNC_FLUSH the write is enough."""
    arrived: list[Appended] = []
    settings = small_settings(tmp_path, flush_disk_type="SYNC_FLUSH")
    store = MessageStore(settings, clock=ManualClock(), disk=QuickDisk(), on_arrival=arrived.extend)
    store.open()
    result = put(store, 1)
    store.end_pass()
    assert store.get("Orders", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert (store.max_offset("Orders", 0), store.max_offset("Orders", 0, is_committed=False)) == (0, 1)
    assert (store.record(result.log_offset), arrived) == (None, [])
    store.flusher.flush()
    store.poll()
    assert numbers(store) == [1]
    assert store.record(result.log_offset) is not None
    assert [each[1:4] for each in arrived] == [(0, 0, result.size)]
    store.close()
    store = open_store(tmp_path / "async")
    put(store, 1)
    assert store.max_offset("Orders", 0) == 0
    store.end_pass()
    assert numbers(store) == [1]
    store.close()


def test_who_waits_too_long_hears_so(tmp_path: Path) -> None:
    """syncFlushTimeout of 5 s: not before, and exactly once; later ones still wait."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock, flush_disk_type="SYNC_FLUSH")
    early: list[PutStatus] = []
    late: list[PutStatus] = []
    store.when_durable(put(store, 1).end, early.append)
    store.end_pass()
    clock._now_ms += 3000
    store.when_durable(put(store, 2).end, late.append)
    store.end_pass()
    clock._now_ms += 1999
    store.poll()
    assert (early, store.oldest_waiter_ms) == ([], 4999)
    clock._now_ms += 1
    store.poll()
    assert (early, late) == ([PutStatus.FLUSH_DISK_TIMEOUT], [])
    store.flusher.flush()
    store.poll()
    assert (early, late) == ([PutStatus.FLUSH_DISK_TIMEOUT], [PutStatus.PUT_OK])
    assert store.oldest_waiter_ms == 0
    store.close()


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_failed_write_or_sync_stays_failed_until_a_restart(tmp_path: Path, what: str) -> None:
    """The disk recovers at once, which must not help: what was lost is not known. All who wait hear of it."""
    disk = LogDisk()
    store = open_sync(tmp_path, disk)
    heard: list[PutStatus] = []
    first = put(store, 1)
    store.end_pass()
    store.flusher.flush()
    store.poll()
    store.when_durable(put(store, 2).end, heard.append)
    if what == "write":
        disk.refused_writes = "commitlog"
        with pytest.raises(StoreError, match="cannot be written"):
            store.end_pass()
    else:
        disk.refused_syncs = "commitlog"
        store.end_pass()
        store.flusher.flush()
        store.poll()
    disk.refused_writes = disk.refused_syncs = ""
    assert heard == [PutStatus.UNKNOWN_ERROR]
    store.when_durable(first.end, heard.append)
    assert heard[1:] == [PutStatus.PUT_OK]
    store.flusher.flush()
    store.poll()
    refused = store.put("Orders", 0, b"x", b"", born_time_ms=1, born_host=bytes(8))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "needs a restart" in refused.reason
    assert numbers(store) == [1]
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_sync(tmp_path)
    assert numbers(store) in ([1], [1, 2])
    store.close()


@pytest.mark.parametrize("folder", ["consumequeue", "index", "checkpoint"])
def test_a_keeper_that_cannot_write_stops_the_store_and_a_restart_has_it_all(tmp_path: Path, folder: str) -> None:
    """Refuses the files of queues, index or checkpoint in turn: sends are refused, and no message is lost."""
    disk = LogDisk()
    notified = threading.Event()
    settings = small_settings(tmp_path, flush_interval_consume_queue=1)
    store = MessageStore(settings, disk=disk, notify=notified.set)
    store.open()
    disk.refused_writes = folder
    for number in range(20):
        put(store, number)
    store.end_pass()
    store.start()
    assert notified.wait(20)
    store.poll()
    assert store.failure is not None
    assert "needs a restart" in (store.refusal or "")
    assert numbers(store) == list(range(20))
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert numbers(store) == list(range(20))
    store.close()


def test_deferred_writes_wait_for_their_commit_step(tmp_path: Path) -> None:
    """transientStorePoolEnable: invisible for 200 ms or until the stop, then written in one go."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock, transient_store_pool_enable=True)
    clock._now_ms += 1000
    put(store, 0)
    store.end_pass()
    for number in range(1, 4):
        put(store, number)
        store.end_pass()
    assert numbers(store) == [0]
    clock._now_ms += 199
    store.poll()
    assert numbers(store) == [0]
    clock._now_ms += 1
    store.poll()
    assert numbers(store) == [0, 1, 2, 3]
    put(store, 4)
    store.end_pass()
    store.close()
    store = open_store(tmp_path)
    assert numbers(store) == [0, 1, 2, 3, 4]
    store.close()


@pytest.mark.parametrize(("pages", "after_ms", "is_flushed"), [(4, 0, False), (0, 0, True), (4, 10_000, True)])
def test_timed_flushes_look_at_pages_and_at_the_thorough_interval(
    tmp_path: Path, pages: int, after_ms: int, is_flushed: bool
) -> None:
    """ASYNC_FLUSH with a little that is dirty: by least pages, and by time."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock, flush_commit_log_least_pages=pages)
    put(store, 1)
    store.end_pass()
    clock._now_ms += after_ms
    assert store.flusher._is_due() == is_flushed
    store.close()


def test_threads_flush_and_keep_while_messages_come(tmp_path: Path) -> None:
    """The store's own threads and real syncs: each message is answered, and all are there after a restart."""
    wake = threading.Event()
    settings = small_settings(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_consume_queue=1)
    store = MessageStore(settings, notify=wake.set)
    store.open()
    store.start()
    heard: list[PutStatus] = []
    for number in range(60):
        store.when_durable(put(store, number).end, heard.append)
        store.end_pass()
        while len(heard) <= number:
            assert wake.wait(20)
            wake.clear()
            store.poll()
    store.close()
    assert heard == [PutStatus.PUT_OK] * 60
    store = open_store(tmp_path)
    assert numbers(store) == list(range(60))
    store.close()
