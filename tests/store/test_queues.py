"""Consume queues: their entries, their files, their ends, and what stands beside them."""

from __future__ import annotations

import random
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.protocol.filter import tags_code
from rmq_core.store.consume_queue import BLANK_ENTRY, ENTRY, ConsumeQueue
from rmq_core.store.message_store import MessageStore
from rmq_core.store.queue_ext import ADDRESS_BASE, NO_ADDRESS, ExtUnit, QueueExt, is_address
from rmq_core.store.queue_files import QueueFiles
from rmq_core.store.queue_reader import MessageFilter
from support.stores import HOST, QuickDisk, numbers, open_store, properties, put, small_settings

QUEUE = Path("consumequeue/Orders/0")


def queue_at(folder: Path, *, per_file: int = 10) -> ConsumeQueue:
    return ConsumeQueue(QuickDisk(), str(folder), "Orders", 0, 20 * per_file, threading.Lock())


def entries(count: int, *, start: int = 0) -> bytes:
    return b"".join(ENTRY.pack(100 * number, 100, number) for number in range(start, start + count))


def add(queue: ConsumeQueue, log_offset: int, tags_code: int) -> None:
    """The next message, of 100 bytes."""
    assert queue.add_at(queue.max_offset, ENTRY.pack(log_offset, 100, tags_code), log_offset + 100)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["add", "write", "load"]), st.integers(1, 13)), max_size=20),
    asked=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30)), max_size=10),
)
@settings(deadline=None, max_examples=60)
def test_a_queue_reads_the_same_from_memory_and_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], asked: list[tuple[int, int]]
) -> None:
    """Adds, writes out and loads again in any order; reads end with the file or with what is written."""
    folder = tmp_path_factory.mktemp("queue")
    queue, count = queue_at(folder), 0
    for step, size in steps:
        if step == "add":
            for number in range(count, count + size):
                add(queue, 100 * number, number)
            count += size
        else:
            queue.files.write_out()
            if step == "load":
                queue = queue_at(folder)
                queue.load()
    assert (queue.max_offset, queue.min_offset) == (count, 0)
    for start, size in asked:
        found = queue.read(start, size) if start < count else b""
        whole = entries(min(size, max(count - start, 0)), start=start)
        assert whole.startswith(found)
        assert len(found) >= min(len(whole), 20)
    assert [queue.entry(number) for number in (-1, count)] == [None, None]


@pytest.mark.parametrize("count", [*range(35), 203, 204, 205, 409, 1000])
def test_the_end_of_a_queue_is_found(tmp_path: Path, count: int) -> None:
    """Every number around the ends of files and of the first page, in files of ten and of five hundred."""
    for per_file in (10, 500):
        folder = tmp_path / str(per_file)
        queue = queue_at(folder, per_file=per_file)
        for number in range(count):
            add(queue, 100 * number, number)
        queue.files.write_out()
        again = queue_at(folder, per_file=per_file)
        again.load()
        assert (again.max_offset, again.next_offset) == (count, count)
        assert again.log_end == (100 * count if count else -1)


@pytest.mark.parametrize("per_file", [10, 100, 600])
def test_strays_of_a_power_cut_are_not_kept(tmp_path: Path, per_file: int) -> None:
    """400 durable entries, 200 later ones of which any sectors came through: exactly the durable ones stay."""
    whole = entries(600)
    for seed in range(40):
        chance = random.Random(seed)
        data = bytearray(whole[:8000].ljust(-(-len(whole) // (20 * per_file)) * 20 * per_file, b"\0"))
        for at in range(8000 - 8000 % 512, len(whole), 512):
            if chance.random() < 0.5:
                data[max(at, 8000) : at + 512] = whole[max(at, 8000) : at + 512]
        folder = tmp_path / str(seed)
        folder.mkdir()
        for start in range(0, len(data), 20 * per_file):
            (folder / f"{start:020d}").write_bytes(data[start : start + 20 * per_file])
        queue = queue_at(folder, per_file=per_file)
        queue.load()
        queue.truncate(40_000)
        queue.files.clear_behind()
        assert queue.max_offset == 400, seed
        again = queue_at(folder, per_file=per_file)
        again.load()
        assert again.max_offset == 400, seed
        assert b"".join(again.read(number, 1) for number in range(400)) == whole[:8000]


@pytest.mark.parametrize("cut", [0, 1, 99, 100, 101, 950, 1000, 1001, 2400, 2499, 2500, 9999])
def test_truncation_forgets_the_messages_behind_it(tmp_path: Path, cut: int) -> None:
    """25 entries of 100 bytes each, in memory, in files, and half in each; the files end with zeros then."""
    for written in (0, 13, 25):
        folder = tmp_path / str(written)
        queue = queue_at(folder)
        for number in range(25):
            add(queue, 100 * number, number)
            if number + 1 == written:
                queue.files.write_out()
        queue.truncate(cut)
        kept = min(-(-cut // 100), 25)
        assert queue.max_offset == kept
        queue.files.write_out()
        left = b"".join(path.read_bytes() for path in sorted(folder.iterdir())) if folder.exists() else b""
        assert left.rstrip(b"\0") == entries(kept).rstrip(b"\0")


def test_a_queue_never_ends_with_blanks(tmp_path: Path) -> None:
    """Blanks before an entry that is then truncated; blanks alone would make Apache skip what follows."""
    queue = queue_at(tmp_path)
    add(queue, 0, 0)
    assert queue.add_at(4, ENTRY.pack(500, 100, 1), 600, missing_max=3)
    assert queue.read(1, 3) == BLANK_ENTRY * 3
    assert not queue.add_at(9, ENTRY.pack(900, 100, 1), 1000, missing_max=3)
    assert not queue.add_at(2, ENTRY.pack(900, 100, 1), 1000, missing_max=3)
    queue.files.write_out()
    queue.truncate(500)
    assert queue.max_offset == 1


@pytest.mark.parametrize(
    ("log_start", "min_offset", "removed"),
    [(0, 0, 0), (1, 1, 0), (1000, 10, 1), (1950, 20, 2), (2500, 25, 2), (9999, 25, 2)],
)
def test_the_minimum_follows_the_log(tmp_path: Path, log_start: int, min_offset: int, removed: int) -> None:
    """25 entries in three files; the last file stays, and remembers the queue's end."""
    queue = queue_at(tmp_path)
    for number in range(25):
        add(queue, 100 * number, number)
    queue.files.write_out()
    assert queue.remove_before(log_start) == removed
    assert (queue.min_offset, queue.max_offset) == (min_offset, 25)
    again = queue_at(tmp_path)
    again.load()
    again.raise_min_offset(log_start)
    assert (again.min_offset, again.max_offset) == (min_offset, 25)


class FullDisk(QuickDisk):
    """Refuses a number of writes after some that go well."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good
        self.bad = 1

    def write(self, path: Path, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.good -= 1
        if self.good < 0 and self.bad:
            self.bad -= 1
            raise OSError(28, "no space left")
        super().write(path, data, offset)


@pytest.mark.parametrize("good", range(4))
def test_a_refused_write_of_a_queue_is_repeated(tmp_path: Path, good: int) -> None:
    """Three files, each refused once, while more entries come: reads see all of it all the time."""
    files = QueueFiles(FullDisk(good), str(tmp_path), 200, threading.Lock())
    files.append(entries(25))
    refused = 0
    for more in (entries(5, start=25), b"", b""):
        try:
            files.write_out()
        except OSError:
            refused += 1
        files.append(more)
        assert b"".join(files.read(at, 20) for at in range(0, files.end, 20)) == entries(files.end // 20)
    files.write_out()
    assert refused == 1
    assert b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir())) == entries(30)


# Tags codes


def test_an_entry_holds_the_tag_or_the_time_of_delivery(tmp_path: Path) -> None:
    """Hashes of tags; for the delay topic the store time and the delay of the level, capped, or none."""
    store = open_store(tmp_path, message_delay_level="1s 5s 2m")
    store_time = 0
    cases = {"1": 1000, "3": 120_000, "9": 120_000, "0": None, "x": None, "-1": None}
    for level in cases:
        store_time = store.put(
            "SCHEDULE_TOPIC_XXXX", 0, b"x", properties(TAGS="T", DELAY=level), born_time_ms=1, born_host=HOST
        ).store_time_ms
    for tag in ("Tag", "订单", ""):
        store.put("Orders", 0, b"x", b"TAGS\x01" + tag.encode() + b"\x02", born_time_ms=1, born_host=HOST)
    store.end_pass()
    for _ in range(2):
        codes = [code for _, _, code in ENTRY.iter_unpack(store.queues.table["SCHEDULE_TOPIC_XXXX", 0].read(0, 6))]
        expected = [0 if delay is None else store_time + delay for delay in cases.values()]
        assert codes[:3] == expected[:3]
        assert codes[3:] == [0, 0, 0]
        codes = [code for _, _, code in ENTRY.iter_unpack(store.queues.table["Orders", 0].read(0, 3))]
        assert codes == [tags_code("Tag"), tags_code("订单"), 0]
        store.close()
        (tmp_path / "abort").touch()
        (tmp_path / "checkpoint").unlink()
        store = open_store(tmp_path, message_delay_level="1s 5s 2m")
    store.close()


# Ext units


def test_ext_units_hold_tags_and_filter_bits(tmp_path: Path) -> None:
    """Files of 100 bytes: each unit is found by its address; the end of a file is marked; load() finds the end."""

    def ext_at() -> QueueExt:
        return QueueExt(QuickDisk(), str(tmp_path), 100, threading.Lock())

    ext = ext_at()
    units = [ExtUnit(number, 1000 + number, bytes(number % 5) + b"\xff") for number in range(12)]
    addresses = [ext.add(unit) for unit in units]
    assert all(map(is_address, addresses))
    assert [ext.get(address) for address in addresses] == units
    assert ext.add(ExtUnit(0, 0, bytes(90))) == NO_ADDRESS
    ext.files.write_out()
    first = (tmp_path / f"{0:020d}").read_bytes()
    assert struct.unpack_from(">hqqh", first) == (21, 0, 1000, 1)
    assert first[sum(20 + len(unit.filter_bits) for unit in units[:4]) :][:2] == b"\xff\xff"
    again = ext_at()
    again.load()
    assert again.files.end == addresses[-1] - ADDRESS_BASE + 20 + len(units[-1].filter_bits)
    assert [again.get(address) for address in addresses] == units
    for bad in (0, addresses[3] + 7, again.files.end + ADDRESS_BASE, -1):
        assert again.get(bad) is None
    again.truncate_behind(addresses[5])
    assert [again.get(address) for address in addresses[5:7]] == [units[5], None]


def test_filters_are_given_the_unit_beside_an_entry(tmp_path: Path) -> None:
    """enableConsumeQueueExt: bits computed at the append, and again when queues are built from the log."""
    settings_ = small_settings(tmp_path, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=1024)

    def opened() -> MessageStore:
        store = MessageStore(
            settings_, disk=QuickDisk(), filter_bits=lambda topic, named: named[-3:-1] if b"KEYS" in named else b""
        )
        store.open()
        return store

    def seen(store: MessageStore) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []

        def by_entry(code: int, unit: ExtUnit | None) -> bool:
            assert unit is not None
            assert unit.tags_code == code
            found.append((code, unit.filter_bits))
            return True

        for start in range(0, 30, 10):
            store.get("Orders", 0, start, 10, filter_=MessageFilter(by_entry=by_entry))
        return found

    store = opened()
    for number in range(30):
        put(store, number)
    store.end_pass()
    expected = seen(store)
    assert [code for code, _ in expected] == [tags_code(f"Tag{number % 3}") for number in range(30)]
    assert len(set(expected)) == 3
    store.close()
    for damage in ("none", "killed"):
        if damage == "killed":
            (tmp_path / "abort").touch()
            (tmp_path / "checkpoint").unlink()
        store = opened()
        assert seen(store) == expected, damage
        store.close()


# Topics that are removed


def test_a_removed_topic_is_gone_and_may_come_again(tmp_path: Path) -> None:
    """With entries in files, in memory and not yet confirmed; its name begins anew at 0."""
    store = open_store(tmp_path, flush_disk_type="SYNC_FLUSH")
    for number in range(15):
        put(store, number)
        put(store, number, topic="Other")
    store.end_pass()
    store.flusher.flush()
    store.poll()
    store.queues.write_out()
    put(store, 15)
    store.end_pass()
    store.remove_topic("Orders")
    assert not (tmp_path / QUEUE).parent.exists()
    store.flusher.flush()
    store.poll()
    store.keep_all()
    assert not (tmp_path / QUEUE).parent.exists()
    assert put(store, 20).queue_offset == 0
    store.end_pass()
    store.flusher.flush()
    store.poll()
    assert numbers(store) == [20]
    store.close()
    store = open_store(tmp_path)
    assert (numbers(store), numbers(store, "Other")) == ([20], list(range(15)))
    store.close()
