"""Messages by queue offset, log offset, key and time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_core.clock import ManualClock
from rmq_core.protocol.filter import tags_code
from rmq_core.protocol.record import decode_pull_body, decode_record
from rmq_core.store import key_index, queue_reader
from rmq_core.store.index_file import Index
from rmq_core.store.message_store import MessageStore
from rmq_core.store.queue_reader import EVERYTHING, GetStatus, MessageFilter
from support.stores import HOST, QuickDisk, open_store, put, small_settings

FOREVER_MS = (1 << 63) - 1
LARGE = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 6_000_000}


def filled(root: Path, count: int, *, memory_size: int | None = None, **changes: Any) -> MessageStore:
    settings_ = small_settings(root, **{**LARGE, **changes})
    store = MessageStore(settings_, clock=ManualClock(), disk=QuickDisk(), memory_size=memory_size)
    store.open()
    for number in range(count):
        put(store, number)
    store.end_pass()
    return store


def bodies(parts: list[memoryview | bytes]) -> list[int]:
    return [int(record.body[:8]) for record in decode_pull_body(b"".join(parts), verify_crc=True)]


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 10),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (1 << 62, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
    ],
)
def test_an_offset_is_judged_against_the_queue(
    tmp_path: Path, offset: int, status: GetStatus, next_offset: int
) -> None:
    """Around both ends of a queue of ten."""
    store = filled(tmp_path, 10)
    got = store.get("Orders", 0, offset, 32)
    assert (got.status, got.next_offset, got.min_offset, got.max_offset) == (status, next_offset, 0, 10)
    assert bodies(got.parts) == (list(range(offset, 10)) if status is GetStatus.FOUND else [])
    store.close()


def test_a_queue_that_is_not_there_has_no_message(tmp_path: Path) -> None:
    """An unknown topic and an unknown queue: reading makes neither."""
    store = filled(tmp_path, 1)
    for topic, queue_id in (("Other", 0), ("Orders", 5)):
        got = store.get(topic, queue_id, 3, 32)
        assert (got.status, got.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        assert store.offset_by_time(topic, queue_id, 5) == 0
        assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (0, 0)
    store.close()
    assert not (tmp_path / "consumequeue" / "Other").exists()


def test_neighbours_in_the_log_are_one_part(tmp_path: Path) -> None:
    """Ten records of one queue, then two queues in turn, then a roll to the next file."""
    store = filled(tmp_path, 10)
    assert len(store.get("Orders", 0, 0, 10).parts) == 1
    for number in range(10, 16):
        put(store, number, queue_id=number % 2)
    store.end_pass()
    assert len(store.get("Orders", 0, 0, 13).parts) == 3
    store.close()
    small = filled(tmp_path / "small", 40, mapped_file_size_commit_log=4096)
    got = small.get("Orders", 0, 0, 32)
    assert (len(got.parts), bodies(got.parts)) == (2, list(range(32)))
    small.close()


@pytest.mark.parametrize(
    ("changes", "arguments", "count"),
    [
        ({}, {"count_max": 5}, 5),
        ({}, {"count_max": 32}, 32),
        ({"max_transfer_count_on_message_in_memory": 7}, {"count_max": 32}, 7),
        ({"max_transfer_bytes_on_message_in_memory": 500}, {"count_max": 32}, 3),
        ({"max_transfer_bytes_on_message_in_memory": 1}, {"count_max": 32}, 1),
        ({}, {"count_max": 32, "size_max": 500}, 3),
        ({}, {"count_max": 32, "size_max": 1}, 1),
        ({}, {"count_max": 0}, 1),
        ({"memory_size": 0}, {"count_max": 32}, 8),
        ({"memory_size": 0, "max_transfer_bytes_on_message_in_disk": 500}, {"count_max": 32}, 3),
    ],
)
def test_an_answer_has_its_limits(
    tmp_path: Path, changes: dict[str, Any], arguments: dict[str, Any], count: int
) -> None:
    """By number, by bytes, in memory and from the device; at least one message in any case."""
    store = filled(tmp_path, 60, **changes)
    got = store.get("Orders", 0, 10, **arguments)
    assert bodies(got.parts) == list(range(10, 10 + count))
    assert (got.count, got.next_offset, got.size) == (count, 10 + count, sum(map(len, got.parts)))
    assert got.suggests_slave == (changes.get("memory_size") == 0)
    store.close()


@pytest.mark.parametrize("filter_", [EVERYTHING, MessageFilter(by_entry=lambda code, unit: True)])
@pytest.mark.parametrize("memory_size", [24 << 30, 0])
def test_who_asks_for_more_than_32_gets_more(tmp_path: Path, filter_: MessageFilter, memory_size: int) -> None:
    """By columns and one by one: the same messages; the count asked for, and both limits of bytes, still hold."""
    store = filled(tmp_path, 500, memory_size=memory_size, mapped_file_size_commit_log=4096)
    got = store.get("Orders", 0, 10, 400, filter_=filter_)
    assert bodies(got.parts) == list(range(10, 410))
    assert (got.count, got.next_offset, got.size) == (400, 410, sum(map(len, got.parts)))
    assert got.suggests_slave == (memory_size == 0)
    size = got.size // got.count
    assert store.get("Orders", 0, 10, 400, filter_=filter_, size_max=7 * size + 1).count == 7
    assert store.get("Orders", 0, 10, 400, filter_=filter_, size_max=1).count == 1
    store.settings.max_transfer_bytes_on_bulk_pull = 50 * size + 1
    assert store.get("Orders", 0, 10, 400, filter_=filter_).count == 50
    store.close()


def test_a_scan_looks_at_800_entries_or_as_many_as_are_wanted(tmp_path: Path) -> None:
    """2,000 messages of which none matches; then only the last; maxFilterMessageSize in bytes of entries."""
    store = filled(tmp_path, 2000)
    nothing = MessageFilter(by_entry=lambda code, unit: False)
    got = store.get("Orders", 0, 0, 32, filter_=nothing)
    assert (got.status, got.next_offset, got.parts) == (GetStatus.NO_MATCHED_MESSAGE, 800, [])
    assert store.get("Orders", 0, 0, 1000, filter_=nothing).next_offset == 1000
    assert store.get("Orders", 0, 1900, 32, filter_=nothing).next_offset == 2000
    store.settings.max_filter_message_size = 2000
    assert store.get("Orders", 0, 0, 32, filter_=nothing).next_offset == 100
    store.close()


def test_a_scan_ends_with_its_queue_file(tmp_path: Path) -> None:
    """Files of ten entries."""
    store = filled(tmp_path, 25, mapped_file_size_consume_queue=200)
    store.queues.write_out()
    offsets = [0]
    while offsets[-1] < 25:
        offsets.append(store.get("Orders", 0, offsets[-1], 32).next_offset)
    assert offsets == [0, 10, 20, 25]
    store.close()


def test_filters_judge_entry_and_record(tmp_path: Path) -> None:
    """By tag, by body, and by both; entries are judged first."""
    store = filled(tmp_path, 30)
    wanted = tags_code("Tag1")
    seen: list[int] = []

    def by_record(record: memoryview) -> bool:
        seen.append(int(decode_record(record).body[:8]))
        return seen[-1] % 2 == 0

    by_tag = MessageFilter(by_entry=lambda code, unit: code == wanted)
    assert bodies(store.get("Orders", 0, 0, 32, filter_=by_tag).parts) == list(range(1, 30, 3))
    both = MessageFilter(by_entry=by_tag.by_entry, by_record=by_record)
    assert bodies(store.get("Orders", 0, 0, 32, filter_=both).parts) == list(range(4, 30, 6))
    assert seen == list(range(1, 30, 3))
    store.close()


class ColdDisk(QuickDisk):
    """A disk on which nothing is in the system's memory."""

    def is_cached(self, path: Path, offset: int) -> bool:
        return False


@pytest.mark.parametrize("with_filter", [False, True])
def test_cold_messages_are_read_where_waiting_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_filter: bool
) -> None:
    """Nothing is recent: COLD without a byte, then the same messages by reading."""
    monkeypatch.setattr(queue_reader, "_RECENT", 0)
    store = open_store(tmp_path, disk=ColdDisk())
    for number in range(50):
        put(store, number)
    store.end_pass()
    filter_ = MessageFilter(by_record=lambda record: True) if with_filter else MessageFilter()
    got = store.get("Orders", 0, 3, 20, filter_=filter_)
    assert (got.status, got.next_offset, got.count, got.parts) == (GetStatus.COLD, 3, 0, [])
    got = store.get("Orders", 0, 3, 20, filter_=filter_, may_wait=True)
    assert bodies(got.parts) == list(range(3, 23))
    store.close()


@pytest.mark.parametrize("may_wait", [False, True])
@pytest.mark.parametrize("with_filter", [False, True])
def test_messages_that_are_just_removed_are_passed_over(tmp_path: Path, may_wait: bool, with_filter: bool) -> None:
    """The first log file goes while queue entries still name it, and between look-up and reading."""
    store = filled(tmp_path, 40, mapped_file_size_commit_log=4096)
    filter_ = MessageFilter(by_record=lambda record: True) if with_filter else MessageFilter()
    store.log.segments.remove(0)
    got = store.get("Orders", 0, 0, 5, filter_=filter_, may_wait=may_wait)
    assert got.status is GetStatus.FOUND
    (first, *_) = bodies(got.parts)
    assert first > 5
    store.log.segments._disk.remove(store.log.segments.path(4096))
    got = store.get("Orders", 0, first, 5, filter_=filter_, may_wait=may_wait)
    assert (got.count, got.parts) == (0, [])
    assert got.status in (GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE)
    store.close()


def test_a_record_is_found_by_its_log_offset_alone(tmp_path: Path) -> None:
    """Each offset of the first two records: only their starts are records, even where a body looks like one."""
    store = filled(tmp_path, 1)
    first = bytes(store.record(0) or b"")
    assert decode_record(first).body[:8] == b"00000000"
    inner = store.put("Orders", 0, first, b"", born_time_ms=1, born_host=HOST)
    store.end_pass()
    found = [log_offset for log_offset in range(-5, inner.end + 50) if store.record(log_offset) is not None]
    assert found == [0, inner.log_offset]
    store.close()


def test_keys_are_found_within_a_time_range_and_a_number(tmp_path: Path) -> None:
    """A key that every message has, a second apart; both ends of the range belong to it."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock, max_index_num=1000, max_msgs_num_batch=10)
    places = []
    for number in range(30):
        places.append(put(store, number).log_offset)
        store.end_pass()
        clock._now_ms += 1000
    start_ms = clock.now_ms() - 30_000
    assert store.query("Orders", "k7", 64, 0, FOREVER_MS) == [places[7]]
    assert store.query("Orders", "id-7", 64, 0, FOREVER_MS) == [places[7]]
    assert store.query("Other", "k7", 64, 0, FOREVER_MS) == []
    assert store.query("Orders", "all", 64, start_ms + 5000, start_ms + 8000) == places[5:9]
    assert store.query("Orders", "all", 64, 0, FOREVER_MS) == places[-10:]
    assert store.query("Orders", "all", 3, 0, FOREVER_MS) == places[-3:]
    store.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_keys_are_entered_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool) -> None:
    """What many passes brought, and what a start finds in the log: the loop can have its turn after each step."""
    monkeypatch.setattr(key_index, "STEP", 10)
    entered: list[int] = []
    add = Index.add

    def noted(self: Index, hashes: NDArray[np.int32], *columns: NDArray[np.int64]) -> None:
        entered.append(len(hashes))
        add(self, hashes, *columns)

    monkeypatch.setattr(Index, "add", noted)
    store = filled(tmp_path, 35, max_index_num=1000)
    if is_restarted:
        store.close()
        entered.clear()
        for file in (tmp_path / "index").iterdir():
            file.unlink()
        store = filled(tmp_path, 0, max_index_num=1000)
    assert store.index is not None
    store.index.build()
    assert entered == [30, 30, 30, 15]  # an id and two keys each
    assert len(store.query("Orders", "k34", 64, 0, FOREVER_MS)) == 1
    store.close()


@given(
    waits=st.lists(st.sampled_from([0, 0, 1, 5]), min_size=1, max_size=40),
    lost=st.integers(0, 10),
    asked=st.lists(st.integers(-3, 210), min_size=1, max_size=20),
)
@settings(deadline=None, max_examples=40)
def test_times_lead_to_the_right_offset_from_both_sides(waits: list[int], lost: int, asked: list[int]) -> None:
    """Equal times, times between messages, before the first and after the last; also where the start is removed."""
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock(1_000_000)
        store = open_store(Path(folder), clock=clock, mapped_file_size_commit_log=1 << 20)
        times = []
        for number, wait_ms in enumerate(waits):
            clock._now_ms += wait_ms
            times.append(put(store, number).store_time_ms)
            store.end_pass()
        first = min(lost, len(waits) - 1)
        store.queues.table["Orders", 0].min_offset = first
        for each in asked:
            time_ms = 1_000_000 + each
            lower = next((n for n in range(first, len(times)) if times[n] >= time_ms), len(times))
            upper = max([n for n in range(first, len(times)) if times[n] <= time_ms], default=first)
            assert store.offset_by_time("Orders", 0, time_ms) == lower
            assert store.offset_by_time("Orders", 0, time_ms, is_upper=True) == upper
        assert store.store_time_ms("Orders", 0, first) == times[first]
        store.close()
