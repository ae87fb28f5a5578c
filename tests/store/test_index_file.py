"""Index files: the bytes that entering keys one by one would give, and what queries find in them."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.protocol.record import decode_record
from rmq_core.store import index_file
from rmq_core.store.disk import Disk
from rmq_core.store.index_file import ENTRY, HEADER, Index, IndexFile, IndexHeader, key_hash
from support.stores import unpack_golden

INT_MAX = (1 << 31) - 1
FOREVER_MS = (1 << 63) - 1
NOW_MS = 1_700_000_000_123
GOLDEN_SLOTS, GOLDEN_ENTRIES = 500, 1200
STOPPED_CLEANLY = ("apache-4.9.7-normal", "apache-5.3.3-normal", "apache-5.3.3-lmq", "apache-5.3.3-queue-ext")
WRITTEN_BY_APACHE = (*STOPPED_CLEANLY, "apache-4.9.7-killed", "apache-5.3.3-killed")


class Row(NamedTuple):
    """One key of one message."""

    hashed: int
    log_offset: int
    time_ms: int


class RecordingDisk(Disk):
    """Notes writes as (offset, size), and can refuse one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []
        self.refused_offset: int | None = None

    def write(self, path: Path, data: bytes | bytearray | memoryview, offset: int) -> None:
        if offset == self.refused_offset:
            raise OSError("refused")
        self.writes.append((offset, len(data)))
        super().write(path, data, offset)


def make_index(folder: Path, *, slots: int = 8, entries: int = 12, disk: Disk | None = None) -> Index:
    return Index(disk or Disk(), folder, slot_count=slots, entry_count=entries, now=lambda: NOW_MS)


def add(index: Index, rows: Sequence[Row]) -> None:
    index.add(
        np.array([row.hashed for row in rows], np.int32),
        np.array([row.log_offset for row in rows], np.int64),
        np.array([row.time_ms for row in rows], np.int64),
    )


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def entered_one_by_one(rows: Sequence[Row], *, slots: int, entries: int) -> list[bytes]:
    """The files as putting one key after the other makes them, step by step as the sheet says."""
    files: list[tuple[IndexHeader, list[int], bytearray]] = []
    for row in rows:
        if not files or files[-1][0].next_entry >= entries:
            files.append((IndexHeader(), [0] * slots, bytearray(ENTRY.size * entries)))
        header, table, area = files[-1]
        number, slot = header.next_entry, row.hashed % slots
        if number <= 1:
            header.begin_time_ms, header.begin_offset = row.time_ms, row.log_offset
        difference = (row.time_ms - header.begin_time_ms) // 1000 if header.begin_time_ms > 0 else 0
        seconds = min(max(difference, 0), INT_MAX)
        previous = table[slot]
        ENTRY.pack_into(area, ENTRY.size * number, row.hashed, row.log_offset, seconds, previous)
        table[slot] = number
        header.used_slots += not previous
        header.next_entry += 1
        header.end_time_ms, header.end_offset = row.time_ms, row.log_offset
    return [
        header.pack() + b"".join(value.to_bytes(4, "big") for value in table) + bytes(area)
        for header, table, area in files
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index"


# Hashes


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicA", "key1", 641858179),
        ("TopicTest", "7F0000010000", 889979726),
        ("Orders", "cskijqs", 0),
        ("订单", "😀", key_hash("订单", "😀")),
    ],
)
def test_a_key_has_the_hash_that_java_gives_it(topic: str, key: str, expected: int) -> None:
    """Vectors from the sheet, the number that has no absolute value, and text beyond one UTF-16 unit."""
    assert key_hash(topic, key) == expected
    units = np.frombuffer(f"{topic}#{key}".encode("utf-16-le"), "<u2")
    plain = 0
    for unit in units.tolist():
        plain = (31 * plain + unit) & 0xFFFF_FFFF
    signed = plain - (1 << 32) if plain > INT_MAX else plain
    assert expected == (abs(signed) if abs(signed) <= INT_MAX else 0)


# Adding


def test_the_worked_example_of_the_handbook(folder: Path) -> None:
    """Hashes 16, 29, 29, 8, 16, 16 in one batch: pointers 0, 0, 2, 0, 1, 5 (S2-084)."""
    index = make_index(folder, slots=100)
    hashes = [16, 29, 29, 8, 16, 16]
    add(index, [Row(hashed, 100 * number, NOW_MS) for number, hashed in enumerate(hashes, 1)])
    index.write_out()
    (data,) = contents(folder)
    entries = [ENTRY.unpack_from(data, HEADER.size + 400 + ENTRY.size * number) for number in range(1, 7)]
    assert [entry[0] for entry in entries] == hashes
    assert [entry[3] for entry in entries] == [0, 0, 2, 0, 1, 5]
    assert HEADER.unpack_from(data) == (NOW_MS, NOW_MS, 100, 600, 3, 7)
    file = IndexFile(Disk(), next(folder.iterdir()), 100, 12)
    file.load()
    found = {hashed: file.find(hashed, 64, 0, FOREVER_MS) for hashed in (16, 29, 8, 116)}
    assert found == {16: [600, 500, 100], 29: [300, 200], 8: [400], 116: []}


rows_of_messages = st.lists(
    st.tuples(
        st.integers(1, 500),
        st.sampled_from([0, 1, 999, 1000, 12_345, 1 << 42]),
        st.lists(st.integers(0, 40) | st.integers(0, INT_MAX), min_size=1, max_size=4),
    ),
    max_size=30,
)
geometries = st.tuples(st.integers(1, 16), st.integers(2, 24))
steps = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["", "write", "flush", "reopen"])), max_size=12)


def make_rows(messages: list[tuple[int, int, list[int]]], start_ms: int = NOW_MS) -> list[Row]:
    """Messages of a log: offsets and times go on from one to the next."""
    rows, log_offset, time_ms = [], 0, start_ms
    for size, wait_ms, hashes in messages:
        rows += [Row(hashed, log_offset, time_ms) for hashed in hashes]
        log_offset, time_ms = log_offset + size, time_ms + wait_ms
    return rows


@given(rows_of_messages, geometries, steps, st.sampled_from([NOW_MS, 0]))
def test_any_batches_give_the_bytes_of_one_by_one(
    messages: list[tuple[int, int, list[int]]],
    geometry: tuple[int, int],
    taken: list[tuple[int, str]],
    start_ms: int,
) -> None:
    """Cuts the rows anywhere, inside messages too; writes, syncs or opens anew between; few slots, small files."""
    slots, entries = geometry
    rows = make_rows(messages, start_ms)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "index"
        index = make_index(folder, slots=slots, entries=entries)
        at = 0
        for size, then in taken:
            add(index, rows[at : at + size])
            at += size
            if then == "write":
                index.write_out()
            elif then:
                index.flush()
            if then == "reopen":
                index = make_index(folder, slots=slots, entries=entries)
                index.load(None)
        add(index, rows[at:])
        index.flush()
        expected = entered_one_by_one(rows, slots=slots, entries=entries)
        assert (contents(folder) if expected else []) == expected


def test_times_before_the_first_message_count_as_its_time(folder: Path) -> None:
    """A clock that was set back: no negative difference, which would end every chain."""
    rows = [Row(1, 0, NOW_MS), Row(1, 10, NOW_MS - 5500), Row(1, 20, NOW_MS + 2500)]
    index = make_index(folder)
    add(index, rows)
    index.write_out()
    assert contents(folder) == entered_one_by_one(rows, slots=8, entries=12)
    assert index.query("", "", 64, 0, FOREVER_MS) == []
    assert [ENTRY.unpack_from(contents(folder)[0], HEADER.size + 32 + 20 * number)[2] for number in (1, 2, 3)] == [
        0,
        0,
        2,
    ]


def test_messages_that_were_entered_are_not_entered_again(folder: Path) -> None:
    """Recovery gives old messages a second time: all before the last one are left out, alone or before new ones."""
    rows = [Row(number, 10 * number, NOW_MS) for number in range(1, 6)]
    index = make_index(folder)
    add(index, rows)
    add(index, rows[:4])
    fresh = [Row(9, 60, NOW_MS), Row(10, 60, NOW_MS)]
    add(index, [*rows[:4], *fresh])
    index.write_out()
    assert contents(folder) == entered_one_by_one([*rows, *fresh], slots=8, entries=12)


def test_a_message_goes_on_in_the_next_file(folder: Path) -> None:
    """Three keys where there is room for two; the full file is durable before its time is reported."""
    index = make_index(folder, entries=6)
    add(index, [Row(number, 10 * number, NOW_MS + number) for number in range(1, 4)])
    assert index.rolled_end_ms == 0
    add(index, [Row(hashed, 40, NOW_MS + 4) for hashed in (7, 8, 9)])
    assert index.rolled_end_ms == NOW_MS + 4
    index.write_out()
    headers = [HEADER.unpack_from(data) for data in contents(folder)]
    assert headers == [
        (NOW_MS + 1, NOW_MS + 4, 10, 40, 5, 6),
        (NOW_MS + 4, NOW_MS + 4, 40, 40, 1, 2),
    ]
    again = make_index(folder, entries=6)
    again.load(None)
    assert (again.rolled_end_ms, again.last_end()) == (NOW_MS + 4, (NOW_MS + 4, 40))


def test_an_exactly_full_file_waits_for_the_next_key(folder: Path) -> None:
    """No empty file is made ahead of time, and the full one is reported only when it has been synced."""
    index = make_index(folder, entries=4)
    add(index, [Row(1, 10 * number, NOW_MS) for number in range(3)])
    index.flush()
    assert len(contents(folder)) == 1
    assert index.rolled_end_ms == 0
    add(index, [Row(1, 30, NOW_MS)])
    assert len(contents(folder)) == 2
    assert index.rolled_end_ms == NOW_MS


def test_files_are_named_by_local_time_and_never_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files in one millisecond, and a clock that goes back."""
    monkeypatch.setenv("TZ", "CST-8")
    time.tzset()
    try:
        times_ms = iter([NOW_MS, NOW_MS, NOW_MS - 3_600_000, NOW_MS + 1000])
        index = Index(Disk(), folder, slot_count=8, entry_count=2, now=lambda: next(times_ms))
        add(index, [Row(1, 10 * number, NOW_MS) for number in range(4)])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [path.name for path in sorted(folder.iterdir())] == [
        "20231115061320123",
        "20231115061320124",
        "20231115061320125",
        "20231115061321123",
    ]


# Writing


def test_changes_are_written_in_few_pieces_and_the_header_last(folder: Path) -> None:
    """Slots on pages 0, 1 and 4 of 4 KiB, and one on the last, which is not whole."""
    disk = RecordingDisk()
    index = make_index(folder, slots=5000, entries=20, disk=disk)
    add(index, [Row(slot, 10, NOW_MS) for slot in (4096, 5, 1024, 2047, 4999, 6)])
    assert disk.writes == []
    index.write_out()
    entries_at = HEADER.size + 4 * 5000
    assert disk.writes == [(entries_at + 20, 120), (40, 8192), (40 + 4 * 4096, 4 * (5000 - 4096)), (0, 40)]
    index.write_out()
    assert len(disk.writes) == 4


def test_slots_are_written_in_pieces(folder: Path) -> None:
    """All pages of a large table changed at once: no copy of much of it at a time, which would hold up the loop."""
    disk = RecordingDisk()
    slots = 150 * 1024
    index = make_index(folder, slots=slots, entries=200, disk=disk)
    rows = [Row(slot, 10, NOW_MS) for slot in range(0, slots, 1024)]
    add(index, rows)
    index.write_out()
    assert max(size for _, size in disk.writes) <= 256 << 10
    assert len(disk.writes) == 5
    assert contents(folder) == entered_one_by_one(rows, slots=slots, entries=200)


@pytest.mark.parametrize("refused_offset", [HEADER.size + 32 + ENTRY.size, HEADER.size, 0])
def test_a_refused_write_can_be_repeated(folder: Path, refused_offset: int) -> None:
    """Refuses entries, slots and header in turn; nothing is found less, and the next attempt writes all of it."""
    disk = RecordingDisk()
    index = make_index(folder, disk=disk)
    rows = [Row(key_hash("T", "k"), 10 * number, NOW_MS) for number in range(5)]
    add(index, rows)
    disk.refused_offset = refused_offset
    with pytest.raises(OSError, match="refused"):
        index.write_out()
    assert index.query("T", "k", 64, 0, FOREVER_MS) == [40, 30, 20, 10, 0]
    disk.refused_offset = None
    index.write_out()
    assert contents(folder) == entered_one_by_one(rows, slots=8, entries=12)


def test_unwritten_entries_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enters more than may be in memory alone without anybody calling write_out()."""
    monkeypatch.setattr(index_file, "_UNWRITTEN_MAX", 100)
    index = make_index(folder, entries=100)
    for number in range(6):
        add(index, [Row(number, number, NOW_MS)])
    assert HEADER.unpack_from(contents(folder)[0])[5] == 7


def test_only_the_active_file_has_its_slots_in_memory(folder: Path) -> None:
    """20 MB each at the default size: after a roll, and after a load that was only asked."""
    index = make_index(folder, entries=3)
    add(index, [Row(1, 10 * number, NOW_MS) for number in range(5)])
    index.flush()
    assert [file.is_active for file in index._files] == [False, False, True]
    again = make_index(folder, entries=3)
    again.load(None)
    again.query("T", "k", 64, 0, FOREVER_MS)
    assert not any(file.is_active for file in again._files)


# Queries

KEYS = ("AaAa", "BBBB", "k1", "k2", "订单")


@given(
    st.lists(st.tuples(st.sampled_from([0, 400, 1000, 61_000]), st.sampled_from(KEYS)), max_size=40),
    geometries,
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.integers(1, 12), st.integers(0, 800), st.integers(0, 800)),
        min_size=1,
        max_size=6,
    ),
)
def test_queries_find_what_a_plain_search_finds(
    messages: list[tuple[int, str]],
    geometry: tuple[int, int],
    asked: list[tuple[str, int, int, int]],
) -> None:
    """Before anything is written, after writing, and after opening anew; keys of equal hash are found together."""
    slots, entries = geometry
    rows = make_rows([(10, wait_ms, [key_hash("T", key)]) for wait_ms, key in messages])
    with tempfile.TemporaryDirectory() as name:
        index = make_index(Path(name), slots=slots, entries=entries)
        add(index, rows)
        for state in ("added", "written", "opened"):
            if state == "written":
                index.write_out()
            elif state == "opened":
                index = make_index(Path(name), slots=slots, entries=entries)
                index.load(None)
            for key, count_max, begin_s, length_s in asked:
                begin_ms = NOW_MS - 10_000 + 1000 * begin_s
                end_ms = begin_ms + 1000 * length_s
                expected = searched(rows, entries, key_hash("T", key), begin_ms, end_ms)[:count_max]
                assert index.query("T", key, count_max, begin_ms, end_ms) == expected
            for key in KEYS:
                found = index.query("T", key, 64, 0, FOREVER_MS)
                assert found == searched(rows, entries, key_hash("T", key), 0, FOREVER_MS)


def searched(rows: Sequence[Row], entries: int, hashed: int, begin_ms: int, end_ms: int) -> list[int]:
    """Newest first, without slots and chains. Times are known to the second, counted from the first of a file."""
    found = []
    capacity = entries - 1
    for start in reversed(range(0, len(rows), capacity)):
        own = rows[start : start + capacity]
        if own[0].time_ms > end_ms or own[-1].time_ms < begin_ms:
            continue
        for row in reversed(own):
            known_ms = own[0].time_ms + (row.time_ms - own[0].time_ms) // 1000 * 1000
            if row.hashed == hashed and begin_ms <= known_ms <= end_ms:
                found.append(row.log_offset)
    return found


def test_an_empty_newest_file_does_not_hide_the_others(folder: Path) -> None:
    """A crash between making a file and its first entry: its times are 0, before any time that is asked for."""
    index = make_index(folder)
    add(index, [Row(key_hash("T", "k"), 10, NOW_MS)])
    index.flush()
    Disk().create(folder / "99990101000000000", next(folder.iterdir()).stat().st_size)
    again = make_index(folder)
    again.load(None)
    assert again.query("T", "k", 64, NOW_MS - 1000, FOREVER_MS) == [10]
    assert again.last_end() == (NOW_MS, 10)


def damaged_files() -> Iterator[tuple[str, int, bytes]]:
    slots_at, entries_at = HEADER.size, HEADER.size + 4
    yield "a slot beyond the entries", slots_at, (7).to_bytes(4, "big")
    yield "a slot beyond the file", slots_at, (1 << 30).to_bytes(4, "big")
    yield "a negative slot", slots_at, b"\xff" * 4
    yield "an entry before itself", entries_at + 20 * 3, ENTRY.pack(5, 30, 0, 3)
    yield "entries in a circle", entries_at + 20, ENTRY.pack(5, 10, 0, 3)
    yield "a negative time", entries_at + 20 * 3, ENTRY.pack(5, 30, -1, 2)
    yield "a count beyond the file", 36, (1 << 30).to_bytes(4, "big")
    yield "a negative count", 36, b"\xff" * 4


@pytest.mark.parametrize(("offset", "data"), [pytest.param(*case[1:], id=case[0]) for case in damaged_files()])
def test_queries_in_damaged_files_end(folder: Path, offset: int, data: bytes) -> None:
    """A file of one slot with one value spoilt; new entries can still be added behind it."""
    index = make_index(folder, slots=1)
    add(index, [Row(5, 10 * number, NOW_MS) for number in (1, 2, 3)])
    index.flush()
    (path,) = folder.iterdir()
    Disk().write(path, data, offset)
    again = make_index(folder, slots=1)
    again.load(None)
    for hashed in (5, 6):
        assert set(again._files[0].find(hashed, 64, 0, FOREVER_MS)) <= {10, 20, 30}
    add(again, [Row(key_hash("T", "k"), 40, NOW_MS)])
    assert again.query("T", "k", 64, 0, FOREVER_MS) == [40]


def test_a_file_removed_during_a_query_is_passed_over(folder: Path) -> None:
    """Removes the older file behind the index's back, as retention may between two steps of a query."""
    index = make_index(folder, entries=3)
    hashed = key_hash("T", "k")
    add(index, [Row(hashed, 10 * number, NOW_MS) for number in range(4)])
    (older, _) = sorted(folder.iterdir())
    index._disk.remove(older)
    assert index.query("T", "k", 64, 0, FOREVER_MS) == [30, 20]


def test_threads_may_add_write_and_ask_at_once(folder: Path) -> None:
    """Small files that roll all the time; the bytes and the answers are those of one thread in the end."""
    index = make_index(folder, slots=5, entries=50)
    rows = [Row(key_hash("T", f"k{number % 7}"), number, NOW_MS + number) for number in range(3000)]
    is_done = threading.Event()
    problems: list[BaseException] = []

    def repeat(action: Any) -> None:
        try:
            while not is_done.is_set():
                action()
        except BaseException as error:
            problems.append(error)

    def ask() -> None:
        found = index.query("T", "k3", 64, 0, FOREVER_MS)
        assert found == [found[0] - 7 * number for number in range(len(found))]

    threads = [threading.Thread(target=repeat, args=(action,)) for action in (index.write_out, index.flush, ask)]
    for thread in threads:
        thread.start()
    for start in range(0, len(rows), 17):
        add(index, rows[start : start + 17])
    is_done.set()
    for thread in threads:
        thread.join()
    assert problems == []
    index.flush()
    assert contents(folder) == entered_one_by_one(rows, slots=5, entries=50)


# Loading and removing


def test_foreign_files_are_left_alone(folder: Path) -> None:
    """A name that is no number, a size that other settings made."""
    index = make_index(folder)
    add(index, [Row(key_hash("T", "k"), 10, NOW_MS)])
    index.flush()
    (folder / "notes").write_bytes(bytes(HEADER.size + 32 + 240))
    (folder / "20200101000000000").write_bytes(bytes(100))
    again = make_index(folder)
    again.load(-1)
    assert again.query("T", "k", 64, 0, FOREVER_MS) == []
    assert sorted(path.name for path in folder.iterdir()) == ["20200101000000000", "notes"]


def test_after_a_crash_only_files_known_to_be_whole_stay(folder: Path) -> None:
    """Three files that end at 1, 2 and 3 s: by the checkpoint's time, and all of them after a clean stop."""
    index = make_index(folder, entries=2)
    add(index, [Row(7, number, NOW_MS + 1000 * number) for number in (1, 2, 3)])
    index.flush()
    Disk().create(folder / "99990101000000000", next(folder.iterdir()).stat().st_size)
    for drop_after_ms, expected in ((None, 4), (NOW_MS + 2000, 2), (NOW_MS + 1999, 1), (0, 0)):
        again = make_index(folder, entries=2)
        again.load(drop_after_ms)
        assert len(contents(folder)) == len(again._files) == expected
    assert (again.last_end(), again.rolled_end_ms) == ((0, 0), 0)


def test_files_of_removed_messages_go_but_for_the_last(folder: Path) -> None:
    """Files that end at log offsets 1, 3 and 5: the limit itself is not before the limit."""
    index = make_index(folder, entries=3)
    add(index, [Row(7, number, NOW_MS) for number in range(6)])
    assert [index.remove_before(log_offset) for log_offset in (1, 2, 3, 1000)] == [0, 1, 0, 1]
    assert len(contents(folder)) == 1
    assert index.last_end() == (NOW_MS, 5)


def test_there_may_be_no_directory(folder: Path) -> None:
    """A new store: nothing to load, to find, to write or to remove."""
    index = make_index(folder)
    index.load(0)
    add(index, [])
    index.flush()
    assert index.query("T", "k", 64, 0, FOREVER_MS) == []
    assert index.remove_before(1000) == 0
    assert not folder.exists()


# What Apache's brokers wrote


@pytest.mark.parametrize("name", STOPPED_CLEANLY)
def test_queries_in_golden_files_give_the_answers_of_apache(name: str, tmp_path: Path) -> None:
    """Every key that was asked of the broker that wrote them."""
    golden = unpack_golden(name, tmp_path)
    index = make_index(golden.root / "index", slots=GOLDEN_SLOTS, entries=GOLDEN_ENTRIES)
    index.load(None)
    assert len(golden.answers["keys"]) >= 40
    for asked in golden.answers["keys"]:
        found = index.query(asked["topic"], asked["key"], 64, 0, FOREVER_MS)
        assert sorted(found) == sorted(asked["answer"]), asked


@pytest.mark.parametrize("name", WRITTEN_BY_APACHE)
def test_golden_files_are_written_byte_for_byte(name: str, tmp_path: Path) -> None:
    """Enters the keys of Apache's files again, with the times that its log gives for them, in batches of 100.

    The kill of one broker came between an entry and the header that counts it. That entry is compared by itself.
    """
    root = unpack_golden(name, tmp_path).root
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    expected = contents(root / "index")
    uncounted = [entry for entry in map(take_uncounted_entry, range(len(expected)), repeat(expected)) if any(entry)]
    assert len(uncounted) == (name == "apache-4.9.7-killed")
    rows = []
    for data in expected:
        for number in range(1, HEADER.unpack_from(data)[5]):
            at = HEADER.size + 4 * GOLDEN_SLOTS + ENTRY.size * number
            hashed, log_offset, _, _ = ENTRY.unpack_from(data, at)
            rows.append(Row(hashed, log_offset, decode_record(log, log_offset).store_time_ms))
    index = make_index(tmp_path / "again", slots=GOLDEN_SLOTS, entries=GOLDEN_ENTRIES)
    for start in range(0, len(rows), 100):
        add(index, rows[start : start + 100])
    index.flush()
    assert contents(tmp_path / "again") == expected
    for entry in uncounted:
        hashed, log_offset, seconds, previous = ENTRY.unpack(entry)
        record = decode_record(log, log_offset)
        assert hashed in {key_hash(record.topic, key) for key in record.properties["KEYS"].split()}
        assert seconds == (record.store_time_ms - HEADER.unpack_from(expected[-1])[0]) // 1000
        assert previous == 0


def take_uncounted_entry(number: int, files: list[bytes]) -> bytes:
    """The entry behind the last one that the header of a file counts; it is made zero there."""
    data = bytearray(files[number])
    at = HEADER.size + 4 * GOLDEN_SLOTS + ENTRY.size * HEADER.unpack_from(data)[5]
    entry = bytes(data[at : at + ENTRY.size])
    data[at : at + len(entry)] = bytes(len(entry))
    files[number] = bytes(data)
    return entry
