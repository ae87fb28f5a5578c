"""What is removed, when, and what stays readable."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rmq_core.clock import ManualClock
from rmq_core.store.message_store import MessageStore, PutStatus
from support.stores import QuickDisk, numbers, open_store, put, small_settings

HOUR_MS = 3_600_000


class RatioDisk(QuickDisk):
    """A disk that is as full as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0.1
        self.by_folder: dict[str, float] = {}

    def used_ratio(self, path: Path) -> float:
        return self.by_folder.get(path.name, self.used)


def at_hour(hour: int) -> ManualClock:
    """A clock at this local hour of some day."""
    return ManualClock(int(time.mktime((2026, 11, 18, hour, 30, 0, 0, 0, -1))) * 1000)


def filled(root: Path, clock: ManualClock, disk: RatioDisk | None = None, **changes: object) -> MessageStore:
    """Six files of the log, the first three of them written 80 hours ago, the others now."""
    store = open_store(root, clock=clock, disk=disk or RatioDisk(), **changes)
    number = 0
    while store.log.end < 5 * 4096:
        put(store, number, size=300)
        store.end_pass()
        number += 1
    store.keep_all()
    for count, start in enumerate(store.log.segments.starts):
        written_s = clock.now_ms() / 1000 - (80 * 3600 if count < 3 else 60)
        os.utime(store.log.segments.path(start), (written_s, written_s))
    return store


def test_old_files_go_at_the_set_hour_and_at_no_other(tmp_path: Path) -> None:
    """deleteWhen 04;16: the clock stands at 3, then at 16; files younger than 72 hours stay."""
    clock = at_hour(3)
    store = filled(tmp_path, clock, delete_when="04;16")
    assert store.retention.run().log_files == 0
    clock._now_ms += 13 * HOUR_MS
    assert store.retention.run().log_files == 3
    assert store.log.start == 3 * 4096
    assert store.retention.run().log_files == 0
    store.close()


def test_a_request_removes_old_files_at_any_hour(tmp_path: Path) -> None:
    """At 3 o'clock by hand."""
    store = filled(tmp_path, at_hour(3))
    store.retention.request()
    assert store.retention.run().log_files == 3
    store.close()


@pytest.mark.parametrize(
    ("used", "removed", "is_refused"),
    [(0.74, 0, False), (0.76, 3, False), (0.84, 3, False), (0.86, 5, False), (0.91, 5, True), (-1.0, 3, False)],
)
def test_a_full_disk_makes_room(tmp_path: Path, used: float, removed: int, is_refused: bool) -> None:
    """Around each of the three limits, at an hour when nothing is due; the file that is written always stays."""
    disk = RatioDisk()
    store = filled(tmp_path, at_hour(3), disk)
    disk.used = used
    assert store.retention.run().log_files == removed
    status = store.put("Orders", 0, b"x", b"", born_time_ms=1, born_host=bytes(8)).status
    assert (status is PutStatus.SERVICE_NOT_AVAILABLE) == is_refused
    store.end_pass()
    store.close()


def test_writes_are_refused_until_there_is_room_below_the_second_limit(tmp_path: Path) -> None:
    """91, then 88, then 84 percent."""
    disk = RatioDisk()
    store = filled(tmp_path, at_hour(3), disk)
    refusals = []
    for used in (0.91, 0.88, 0.84):
        disk.used = used
        store.retention.run()
        refusals.append(store.refusal)
    assert refusals == ["the disk is full", "the disk is full", None]
    store.close()


def test_no_more_files_go_at_once_than_allowed(tmp_path: Path) -> None:
    """deleteFileBatchMax 2 for three old files: from the oldest on."""
    store = filled(tmp_path, at_hour(4), delete_file_batch_max=2)
    assert [store.retention.run().log_files for _ in range(3)] == [2, 1, 0]
    store.close()


def test_a_young_file_protects_those_behind_it(tmp_path: Path) -> None:
    """The second file was copied anew: no hole is made in the log."""
    store = filled(tmp_path, at_hour(4))
    os.utime(store.log.segments.path(4096), (store.clock.now_ms() / 1000,) * 2)
    assert store.retention.run().log_files == 1
    assert store.log.start == 4096
    store.close()


def test_queues_and_index_follow_the_log(tmp_path: Path) -> None:
    """Messages, minimum offset, files and keys are those of the log that stayed; after a restart too."""
    store = filled(tmp_path, at_hour(4))
    before = numbers(store)
    files = len(list((tmp_path / "consumequeue" / "Orders" / "0").iterdir()))
    cleaned = store.retention.run()
    assert cleaned.queue_files > 0
    assert cleaned.index_files > 0
    for _ in range(2):
        left = numbers(store)
        first = store.min_offset("Orders", 0)
        assert 0 < first == left[0]
        assert left == before[first:]
        assert store.max_offset("Orders", 0) == len(before)
        assert store.query("Orders", f"k{left[0]}", 64, 0, 1 << 62) != []
        assert store.store_time_ms("Orders", 0, first - 1) == -1
        assert store.offset_by_time("Orders", 0, 0) == first
        store.close()
        store = open_store(tmp_path)
    assert len(list((tmp_path / "consumequeue" / "Orders" / "0").iterdir())) == files - cleaned.queue_files
    store.close()


def test_a_reader_keeps_what_it_holds(tmp_path: Path) -> None:
    """Views of a file that is then removed, from the disk and from the cache of mappings."""
    store = filled(tmp_path, at_hour(4))
    got = store.get("Orders", 0, 0, 3)
    before = b"".join(got.parts)
    assert store.retention.run().log_files == 3
    assert not (tmp_path / "commitlog" / "0".zfill(20)).exists()
    assert b"".join(got.parts) == before
    assert store.get("Orders", 0, 0, 3).parts == []
    store.close()


def test_messages_that_are_not_flushed_are_never_removed(tmp_path: Path) -> None:
    """A nearly full disk, and a log of which only the first file is flushed."""
    disk = RatioDisk()
    store = open_store(tmp_path, clock=at_hour(3), disk=disk)
    for number in range(8):
        put(store, number, size=300)
    store.end_pass()
    store.flusher.flush()
    for number in range(8, 60):
        put(store, number, size=300)
        store.end_pass()
    disk.used = 0.89
    store.retention.run()
    assert store.log.start == 0
    store.close()


def test_the_log_is_spread_over_its_folders(tmp_path: Path) -> None:
    """Two folders in turn, a third one that is only read, a full one that is left out; the emptiest disk counts."""
    folders = [tmp_path / "b", tmp_path / "a"]
    paths = ",".join(map(str, folders))
    disk = RatioDisk()
    settings = small_settings(tmp_path / "root", store_path_commit_log=paths)
    store = MessageStore(settings, clock=at_hour(3), disk=disk)
    store.open()
    for number in range(40):
        put(store, number, size=300)
        store.end_pass()
    assert [path.name for path in sorted((tmp_path / "a").iterdir())] == [
        f"{start * 4096:020d}" for start in (0, 2, 4)
    ]
    disk.by_folder = {"a": 0.95}
    while store.log.end < 7 * 4096:
        put(store, 99, size=300)
        store.end_pass()
    assert not (tmp_path / "a" / f"{6 * 4096:020d}").exists()
    assert store.retention.used_ratio() == pytest.approx(0.1)
    expected = numbers(store)
    store.close()
    moved = tmp_path / "old"
    moved.mkdir()
    (tmp_path / "a" / "0".zfill(20)).rename(moved / "0".zfill(20))
    settings.read_only_commit_log_store_paths = str(moved)
    store = MessageStore(settings, clock=at_hour(3), disk=disk)
    store.open()
    assert numbers(store) == expected
    store.close()
