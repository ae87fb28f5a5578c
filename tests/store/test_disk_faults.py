"""Disks that are full, and disks that fail: refused clearly, heard by whoever waits, nothing good lost."""

from __future__ import annotations

import errno
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import StoreError
from rmq_core.store.message_store import MessageStore, Put, PutStatus
from support.faulty import FaultyDisk
from support.stores import HOST, numbers, open_store, properties, put, small_settings


def put_and_write(store: MessageStore, *wanted: int) -> None:
    for number in wanted:
        put(store, number)
    store.end_pass()
    store.flusher.flush()
    store.poll()


def try_put(store: MessageStore) -> Put:
    """A put whose answer the caller judges."""
    return store.put("Orders", 0, b"00000099", properties(KEYS="k99"), born_time_ms=1, born_host=HOST)


def waiting(store: MessageStore, end: int) -> list[PutStatus]:
    """What somebody hears who waits until the log is durable up to `end`."""
    heard: list[PutStatus] = []
    store.when_durable(end, heard.append)
    return heard


def reopened(root: Path) -> list[int]:
    """What a start on a good disk finds; a message put then comes behind it."""
    store = open_store(root)
    found = numbers(store)
    put_and_write(store, 77)
    assert numbers(store) == [*found, 77]
    store.close()
    return found


# The log


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_pass_that_cannot_be_written_is_refused_until_a_restart(tmp_path: Path, flush: str) -> None:
    """The disk is full in the middle of a write, and has room again at once: half of the pass is in the file."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, flush_disk_type=flush)
    put_and_write(store, 0, 1, 2)
    first = put(store, 3)
    second = put(store, 4)
    heard = [waiting(store, first.end), waiting(store, second.end)]
    disk.fail("write", "commitlog")
    with pytest.raises(StoreError, match="No space left"):
        store.end_pass()
    disk.heal()
    late = waiting(store, second.end)
    store.poll()
    assert heard == [[PutStatus.UNKNOWN_ERROR]] * 2
    assert late == [PutStatus.UNKNOWN_ERROR]
    refused = try_put(store)
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "No space left" in refused.reason
    assert "restart" in refused.reason
    assert numbers(store) == [0, 1, 2]
    assert store.record(first.log_offset) is None
    store.close()
    found = reopened(tmp_path)
    assert found[:3] == [0, 1, 2]
    assert found[3:] in ([], [3]), "what was half written must not come back"


def test_waiters_hear_of_a_write_that_failed(tmp_path: Path) -> None:
    """They are called back by the pass that fails, without any poll."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH")
    heard = [waiting(store, put(store, number).end) for number in range(3)]
    disk.fail("write", "commitlog", code=errno.EIO)
    with pytest.raises(StoreError, match="Input/output error"):
        store.end_pass()
    assert heard == [[PutStatus.UNKNOWN_ERROR]] * 3
    store.close()
    assert reopened(tmp_path) in ([], [0])


def test_a_failed_write_of_the_second_file_of_a_pass_fails_the_pass(tmp_path: Path) -> None:
    """A pass rolls over, and only its part in the new file fails: none of it is shown before a restart."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    put_and_write(store, 0)
    count = 30
    for number in range(1, count):
        put(store, number)
    assert store.log.end > store.log.segments.size
    disk.fail("write", "00000000000000004096")
    with pytest.raises(StoreError):
        store.end_pass()
    disk.heal()
    assert numbers(store) == [0]
    assert try_put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()
    found = reopened(tmp_path)
    assert found == list(range(len(found)))
    assert 0 < len(found) < count


def test_a_file_that_cannot_be_allocated_refuses_its_message_alone(tmp_path: Path) -> None:
    """The disk has no room for the next file, later it has: queue offsets go on without a gap or a restart."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    disk.fail("create", "commitlog/00000000000000004096")
    kept = []
    while (answer := try_put(store)).status is PutStatus.PUT_OK:
        kept.append(answer.queue_offset)
    assert answer.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert "No space left" in answer.reason
    batch = store.put_batch("Orders", 0, batch_of(3), born_time_ms=1, born_host=HOST)
    assert batch.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    store.end_pass()
    assert store.max_offset("Orders", 0) == len(kept)
    disk.heal()
    assert try_put(store).queue_offset == len(kept)
    store.end_pass()
    assert len(numbers(store)) == len(kept) + 1
    store.close()
    assert len(reopened(tmp_path)) == len(kept) + 1


def batch_of(count: int) -> bytes:
    """Messages as a client's batch holds them."""
    body, own = b"00000099", properties(KEYS="k99")
    head = (22 + len(body) + len(own)).to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big")
    return (head + body + len(own).to_bytes(2, "big") + own) * count


# Flushing


def test_a_failed_fsync_stays_failed_until_a_restart(tmp_path: Path) -> None:
    """The device fails one fsync and then works: a second fsync would succeed and promise what may be lost."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH")
    put_and_write(store, 0, 1)
    ends = [put(store, number).end for number in (2, 3)]
    store.end_pass()
    heard = [waiting(store, end) for end in ends]
    disk.fail("sync", "commitlog", code=errno.EIO)
    store.flusher.flush()
    store.poll()
    disk.heal()
    assert heard == [[PutStatus.UNKNOWN_ERROR]] * 2
    syncs = len(disk.failed)
    store.flusher.flush()
    store.poll()
    assert len(disk.failed) == syncs
    assert store.log.flushed < ends[0]
    assert waiting(store, ends[0]) == [PutStatus.UNKNOWN_ERROR]
    assert try_put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert numbers(store) == [0, 1]
    store.close()
    assert (tmp_path / "abort").exists()
    assert reopened(tmp_path)[:2] == [0, 1]


def test_asynchronous_writers_are_refused_after_a_failed_fsync(tmp_path: Path) -> None:
    """With ASYNC_FLUSH nobody waits for the fsync that fails: the next put hears of it."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    put(store, 0)
    store.end_pass()
    disk.fail("sync", "commitlog", code=errno.EIO)
    store.flusher.flush()
    store.poll()
    answer = try_put(store)
    assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "Input/output error" in answer.reason
    assert numbers(store) == [0]
    store.close()


# Queues, index, checkpoint: written by the keeper


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("create", "consumequeue"),
        ("write", "consumequeue"),
        ("sync", "consumequeue"),
        ("create", "index/"),
        ("write", "index/"),
        ("sync", "index/"),
        ("write", "checkpoint"),
        ("sync", "checkpoint"),
    ],
)
def test_a_keeper_that_cannot_write_stops_the_writers(tmp_path: Path, operation: str, part: str) -> None:
    """Threads run, one file of the keeper's cannot be written: puts are refused, reads go on, a restart has all."""
    called = threading.Event()
    disk = FaultyDisk()
    settings = small_settings(tmp_path, flush_interval_consume_queue=1, flush_consume_queue_thorough_interval=1)
    store = MessageStore(settings, disk=disk, notify=called.set)
    store.open()
    put_and_write(store, 0)
    store.keep_all()
    disk.fail(operation, part)
    for number in range(1, 30):
        put(store, number)
    store.end_pass()
    store.start()
    while store.refusal is None:
        assert called.wait(30), "nobody heard of the failure"
        called.clear()
        store.poll()
    disk.heal()
    answer = try_put(store)
    assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "No space left" in answer.reason
    assert numbers(store) == list(range(30))
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    store.rebuild_index()
    assert numbers(store) == list(range(30))
    assert [len(store.query("Orders", f"k{number}", 9, 0, 1 << 60)) for number in range(30)] == [1] * 30
    put_and_write(store, 30)
    store.close()
    assert reopened(tmp_path) == list(range(31))


def test_queue_entries_that_were_half_written_are_whole_after_the_next_try(tmp_path: Path) -> None:
    """Writing the entries fails in the second of several files: all of them are readable, before and after."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    put_and_write(store, *range(35))
    disk.fail("write", "consumequeue/Orders/0/00000000000000000200")
    with pytest.raises(OSError, match="No space left"):
        store.queues.write_out()
    assert numbers(store) == list(range(35))
    put_and_write(store, 35)
    disk.heal()
    store.queues.write_out()
    assert numbers(store) == list(range(36))
    store.close()
    assert reopened(tmp_path) == list(range(36))


def test_a_disk_above_its_limit_takes_messages_again_once_there_is_room(tmp_path: Path) -> None:
    """The disk's use goes above the third ratio and below it again."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    put_and_write(store, 0)
    disk.ratio = 0.99
    store.retention.run()
    answer = try_put(store)
    assert (answer.status, answer.reason) == (PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
    assert numbers(store) == [0]
    disk.ratio = 0.1
    store.retention.run()
    put_and_write(store, 1)
    assert numbers(store) == [0, 1]
    store.close()


# Starts that fail


def prepared(root: Path, state: str) -> None:
    """A directory after a crash, with a checkpoint that promises the queues of the first 40 messages."""
    clock = ManualClock()
    store = open_store(root, clock=clock)
    for number in range(80):
        if number == 40:
            clock._now_ms += 10_000
            put_and_write(store)
            store.keep_all()
        put(store, number, queue_id=number % 2)
        store.end_pass()
    store.keep_all()
    store._disk.close()
    assert store._lock is not None
    store._lock.close()
    if state == "a queue lacks a file":
        (root / "consumequeue" / "Orders" / "0" / f"{400:020d}").unlink()
    elif state == "the log is cut":
        start = store.log.segments.starts[-3]
        with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
            file.truncate(1000)
            file.truncate(4096)
        (root / "commitlog" / f"{store.log.segments.starts[-2]:020d}").write_bytes(bytes(4096))
    else:
        assert state == "killed"


@pytest.mark.parametrize("state", ["killed", "a queue lacks a file", "the log is cut"])
def test_a_start_that_fails_anywhere_spoils_nothing(tmp_path: Path, state: str) -> None:
    """The disk fails after the first change that a start makes, the second, and so on; the next start works."""
    prepared(tmp_path / "before", state)
    shutil.copytree(tmp_path / "before", tmp_path / "good")
    store = open_store(tmp_path / "good")
    wanted = [numbers(store, queue_id=each) for each in range(2)]
    store.close()
    assert sum(map(len, wanted)) == 80 or state == "the log is cut"
    changes = 0
    while True:
        root = tmp_path / "root"
        shutil.copytree(tmp_path / "before", root)
        disk = FaultyDisk()
        disk.fail_after(changes)
        try:
            store = open_store(root, disk=disk)
        except StoreError as error:
            assert "Input/output error" in str(error)
        else:
            disk.heal()
            store.close()
        is_over = not disk.failed
        store = open_store(root)
        assert [numbers(store, queue_id=each) for each in range(2)] == wanted, f"after {changes} changes"
        store.close()
        shutil.rmtree(root)
        if is_over:
            break
        changes += 1
    assert changes > 5


# A file system that is really full


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount program")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(store: MessageStore, numbers_: Iterator[int]) -> Put:
    """Put messages until one is refused."""
    while True:
        number = next(numbers_)
        answer = store.put("Orders", 0, (b"%08d" % number).ljust(5000, b"."), b"", born_time_ms=1, born_host=HOST)
        if answer.status is not PutStatus.PUT_OK:
            return answer
        store.end_pass()


def test_a_full_file_system_keeps_what_it_took(small_file_system: Path) -> None:
    """Messages come until no file of the log fits any more. Then room is made, and they go on."""
    ballast = small_file_system / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    large: dict[str, Any] = {"mapped_file_size_commit_log": 512 << 10, "mapped_file_size_consume_queue": 6000}
    store = open_store(small_file_system / "store", **large)
    wanted = iter(range(10_000))
    answer = fill(store, wanted)
    assert answer.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert "No space left" in answer.reason
    kept = numbers(store)
    assert len(kept) > 100
    assert kept == list(range(len(kept)))
    store.close()
    store = open_store(small_file_system / "store", **large)
    assert numbers(store) == kept
    assert fill(store, wanted).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    ballast.unlink()
    assert fill(store, wanted).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    found = numbers(store)
    assert len(found) > len(kept) + 100
    store.close()
    store = open_store(small_file_system / "store", **large)
    assert numbers(store) == found
    store.close()
