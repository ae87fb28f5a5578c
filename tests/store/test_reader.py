"""Stores read offline: while they are written, far away, damaged, or shrinking under the reader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import rmq_core
from rmq_core.clock import ManualClock
from rmq_core.errors import CorruptRecordError, StoreError
from rmq_core.store import source
from rmq_core.store.message_store import MessageStore
from rmq_core.store.reader import LogRange, QueueRange, StoreReader
from support.stores import open_store, properties, put, small_settings

HOST = b"\x7f\0\0\x01\0\0\xc3\x50"


def fill(root: Path, count: int = 60, **changes: Any) -> None:
    store = open_store(root, **changes)
    for number in range(count):
        put(store, number, topic="Orders" if number % 3 else "Events", queue_id=number % 2)
        store.end_pass()
    store.close()


def bodies(table: pa.Table) -> list[int]:
    return [int(body[:8]) for body in table["body"].to_pylist()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


def test_the_package_opens_a_store_and_loads_nothing_before() -> None:
    """Imports rmq_core in a process of its own, and asks for a name that it does not have."""
    program = (
        "import sys, rmq_core; assert not {'numpy', 'pyarrow'} & set(sys.modules); rmq_core.open_store;"
        "assert 'open_store' in dir(rmq_core); assert 'pyarrow' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'open_shop'"):
        _ = rmq_core.open_shop


def test_topics_have_ranges_times_and_sizes(root: Path) -> None:
    """Compares with what was put."""
    with rmq_core.open_store(root) as reader:
        infos = {(info.topic, info.queue_id): info for info in reader.topics()}
        assert [(key, info.min_offset, info.max_offset) for key, info in infos.items()] == [
            (("Events", 0), 0, 10), (("Events", 1), 0, 10), (("Orders", 0), 0, 20), (("Orders", 1), 0, 20),
        ]  # fmt: skip
        table = reader.to_arrow(columns="all")
        assert sum(info.size_bytes or 0 for info in infos.values()) == sum(table["storeSize"].to_pylist())
        first = infos["Events", 0].first_time
        assert first == min(table["storeTimestamp"].to_pylist())
        assert first is not None
        assert first.tzinfo is not None
        assert [info.size_bytes for info in reader.topics(sizes=False)] == [None] * 4


def test_wrong_arguments_raise_before_anything_is_read(root: Path) -> None:
    """Asks for times without a zone, unknown columns, topics and queues: nothing may be left for the first row."""
    with rmq_core.open_store(root) as reader:
        with pytest.raises(ValueError, match="no time zone"):
            reader.to_batches("Orders", start=datetime(2026, 11, 1))
        with pytest.raises(ValueError, match="no time zone"):
            reader.to_batches(end=datetime(2026, 11, 1))
        with pytest.raises(TypeError, match="a time is a datetime"):
            reader.to_batches("Orders", start="yesterday")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="the nearest is 'queueId'"):
            reader.to_batches("Orders", columns=["queueid"])
        with pytest.raises(ValueError, match="on_corrupt"):
            reader.to_batches("Orders", on_corrupt="ignore")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="give both"):
            reader.to_batches(queue=1)
        with pytest.raises(StoreError, match="no topic Order; the nearest is Orders"):
            reader.to_batches("Order")
        with pytest.raises(StoreError, match="no queue 7, only 0, 1"):
            reader.to_batches("Orders", queue=7)
        with pytest.raises(ValueError, match="either key or msg_id"):
            reader.find()
        with pytest.raises(ValueError, match="split"):
            reader.splits(0)
    with pytest.raises(StoreError, match="no directory"):
        rmq_core.open_store(root / "nowhere")
    (root / "empty").mkdir()
    with pytest.raises(StoreError, match="storePathCommitLog"):
        rmq_core.open_store(root / "empty")
    with pytest.raises(ValueError, match="takes no options"):
        rmq_core.open_store(root, anon=True)


@pytest.mark.parametrize("size", [100, 1000, 5000, 1 << 30])
@pytest.mark.parametrize("topic", [None, "Orders"])
def test_splits_cover_everything_once(root: Path, topic: str | None, size: int) -> None:
    """Cuts at bounds that lie within records, and between files."""
    with rmq_core.open_store(root) as reader:
        parts = [list(reader.read_range(each)) for each in reader.splits(size, topic)]
        rows = pa.Table.from_batches([batch for part in parts for batch in part])
        assert bodies(rows) == bodies(reader.to_arrow(topic))
        assert rows.num_rows == reader.count(topic) == (60 if topic is None else 40)
        assert reader.report.damages == []


def test_store_times_cut_topics_and_the_log_alike(tmp_path: Path) -> None:
    """Puts a message each second and asks for a few seconds of them."""
    root, clock = tmp_path / "store", ManualClock()
    store = open_store(root, clock=clock)
    begin = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    for number in range(60):
        put(store, number)
        store.end_pass()
        asyncio.run(clock.advance(1000))
    store.close()
    start, end = begin + timedelta(seconds=20), begin + timedelta(seconds=41)
    with rmq_core.open_store(root) as reader:
        assert bodies(reader.to_arrow("Orders", start=start, end=end)) == list(range(20, 41))
        assert bodies(reader.to_arrow(start=start, end=end)) == list(range(20, 41))
        assert bodies(reader.to_arrow(start=start)) == list(range(20, 60))
        assert bodies(reader.to_arrow(end=start + timedelta(microseconds=1))) == list(range(21))
        assert bodies(reader.to_arrow("Orders", end=begin)) == []


def test_a_store_far_away_reads_the_same_without_whole_files(root: Path) -> None:
    """Puts the store behind fsspec's memory file system, and counts the bytes that a look at one queue costs."""
    memory = fsspec.filesystem("memory")
    memory.put(str(root), "/far/store", recursive=True)
    try:
        with rmq_core.open_store(root) as near, rmq_core.open_store("memory://far/store") as far:
            assert far.topics(sizes=True) == near.topics()
            assert [info.size_bytes for info in far.topics()] == [None] * 4
            for topic in (None, "Orders", "Events"):
                assert far.to_arrow(topic, columns="all").equals(near.to_arrow(topic, columns="all"))
            assert [record.log_offset for record in far.find(key="k17")] == [
                record.log_offset for record in near.find(key="k17")
            ]
            with pytest.raises(StoreError, match="no topic Nothing"):
                far.to_arrow("Nothing")
        with pytest.raises(StoreError, match="no directory"):
            rmq_core.open_store("memory://far/nowhere")
    finally:
        memory.rm("/far", recursive=True)


def test_far_away_only_windows_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes windows smaller than files, and notes every range that is asked for."""
    fill(tmp_path / "store", count=300, mapped_file_size_commit_log=1 << 20)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "store"), "/far/store", recursive=True)
    monkeypatch.setattr(source, "REMOTE_WINDOW", 4096)
    ranges: list[int] = []
    cat_file = type(memory).cat_file

    def noted(self: Any, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        assert start is not None
        assert end is not None
        data = cat_file(self, path, start=start, end=end, **options)
        ranges.append(len(data))
        return data

    monkeypatch.setattr(type(memory), "cat_file", noted)
    try:
        with rmq_core.open_store("memory://far/store") as reader:
            assert bodies(reader.to_arrow()) == list(range(300))
            assert len(bodies(reader.to_arrow("Orders"))) == 200
        assert max(ranges) <= source._BLOCK_SIZE * 3
        assert sum(ranges) < 1 << 18
    finally:
        memory.rm("/far", recursive=True)


def test_windows_that_cut_records_lose_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps windows of two pages over records of many sizes, some larger than a window, with damage in between."""
    monkeypatch.setattr(source, "HALF_WINDOW", 65536)
    root = tmp_path / "store"
    store = open_store(root, mapped_file_size_commit_log=1 << 20)
    for number in range(120):
        put(store, number, size=150_000 if number % 40 == 7 else 100 + 317 * number % 9000)
        store.end_pass()
    store.close()
    with rmq_core.open_store(root) as reader:
        assert bodies(reader.to_arrow()) == list(range(120))
        assert bodies(reader.to_arrow("Orders")) == list(range(120))
        offsets = reader.to_arrow(columns=["commitLogOffset"])["commitLogOffset"].to_pylist()
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[offsets[7] + 100_000] ^= 1  # in the body of a large one
    path.write_bytes(data)
    with rmq_core.open_store(root) as reader:
        assert bodies(reader.to_arrow()) == [number for number in range(120) if number != 7]
        assert [(each.start, each.end) for each in reader.report.damages] == [(offsets[7], offsets[8])]
        assert bodies(reader.to_arrow("Orders")) == [number for number in range(120) if number != 7]
        assert [each.start for each in reader.report.damages] == [offsets[7]] * 2
        with pytest.raises(CorruptRecordError, match=str(offsets[7])):
            reader.to_arrow(on_corrupt="fail")


def test_a_reader_sees_a_prefix_and_more_after_a_refresh(tmp_path: Path) -> None:
    """Reads between the passes of a store in the same process, before its queues are written and after."""
    root = tmp_path / "store"
    store = open_store(root)
    for number in range(10):
        put(store, number)
    store.end_pass()
    with rmq_core.open_store(root) as reader:
        assert bodies(reader.to_arrow()) == list(range(10))
        store.keep_all()
        reader.refresh()
        assert bodies(reader.to_arrow("Orders")) == list(range(10))
        for number in range(10, 60):
            put(store, number)
            store.end_pass()
        store.keep_all()
        assert bodies(reader.to_arrow("Orders")) == list(range(10))
        reader.refresh()
        assert bodies(reader.to_arrow("Orders")) == bodies(reader.to_arrow()) == list(range(60))
        assert [record.body[:8] for record in reader.find(key="k55")] == [b"00000055"]
        assert reader.report.damages == []
    store.close()


def test_a_reader_beside_a_writing_thread_never_sees_a_torn_record(tmp_path: Path) -> None:
    """Reads again and again while a store with its threads appends passes of many sizes and rolls its files."""
    root = tmp_path / "store"
    store = MessageStore(small_settings(root, mapped_file_size_commit_log=1 << 18, flush_interval_consume_queue=1))
    store.open()
    store.start()
    done = threading.Event()
    count = 3000

    def write() -> None:
        for number in range(count):
            store.put(
                "Orders", 0, b"%08d" % number + bytes([number % 255 + 1]) * (number * 7 % 3000),
                properties(UNIQ_KEY=f"id-{number}", KEYS=f"k{number}"), born_time_ms=1, born_host=HOST,
            )  # fmt: skip
            if number % 5 == 0:
                store.end_pass()
        store.end_pass()
        done.set()

    put(store, 0)
    store.end_pass()
    writer = threading.Thread(target=write)
    writer.start()
    seen = [0, 0]
    with rmq_core.open_store(root) as reader:
        while True:
            is_last = done.is_set()
            reader.refresh()
            for place, topic in enumerate((None, "Orders")):
                if topic is not None and "Orders" not in {info.topic for info in reader.topics(sizes=False)}:
                    continue
                rows = reader.to_arrow(topic, columns=["body", "keys", "queueOffset"]).to_pylist()
                assert [row["queueOffset"] for row in rows] == list(range(len(rows)))
                assert all(row["keys"] == f"k{int(row['body'][:8])}" for row in rows[1:])
                assert len(rows) >= seen[place]
                seen[place] = len(rows)
            if is_last:
                break
        assert reader.report.damages == []
    writer.join()
    assert seen[0] == count + 1
    store.close()


def test_retention_under_a_reader_is_reported_and_not_an_error(root: Path) -> None:
    """Removes the oldest files of the log and of a queue after they were found."""
    with rmq_core.open_store(root) as reader:
        ranges = reader.queue_ranges("Orders", queue=0)
        (root / "commitlog" / f"{0:020d}").unlink()
        (root / "consumequeue/Orders/0" / f"{0:020d}").unlink()
        rest = bodies(pa.Table.from_batches(reader.read_range(ranges[0])))
        assert rest
        assert rest == [number for number in range(60) if number % 3 and number % 2 == 0][-len(rest) :]
        assert reader.report.removed == [QueueRange("Orders", 0, 0, 20 - len(rest))]
        log = bodies(reader.to_arrow())
        assert log == list(range(60 - len(log), 60))
        assert [damage.reason for damage in reader.report.damages] == ["the file is missing"]
        reader.refresh()
        assert {info.min_offset for info in reader.topics()} != {0}


def test_a_log_in_several_folders_is_read_as_one(tmp_path: Path) -> None:
    """Writes with two folders outside of the store."""
    root, folders = tmp_path / "store", [tmp_path / "a", tmp_path / "b"]
    fill(root, store_path_commit_log=",".join(map(str, folders)))
    assert all(any(folder.iterdir()) for folder in folders)
    with pytest.raises(StoreError, match="commit_log"):
        rmq_core.open_store(root)
    with rmq_core.open_store(root, commit_log=folders) as reader:
        assert bodies(reader.to_arrow()) == list(range(60))
        assert len(bodies(reader.to_arrow("Events"))) == 20


def test_find_sees_what_the_index_does_not_have(root: Path) -> None:
    """Removes the index: the log itself is searched."""
    for path in (root / "index").iterdir():
        path.unlink()
    with rmq_core.open_store(root) as reader:
        assert [record.body[:8] for record in reader.find(msg_id="id-31")] == [b"00000031"]
        assert len(reader.find(key="all")) == 60
        assert [int(record.body[:8]) for record in reader.find(key="all", topic="Events", count_max=3)] == [
            57,
            54,
            51,
        ]
        assert reader.find(key="nothing") == []


def test_the_broker_column_is_what_is_given_or_what_the_store_says(root: Path) -> None:
    """Without a name, with brokerIdentity, and with an argument."""
    with rmq_core.open_store(root) as reader:
        assert set(reader.to_arrow()["broker"].to_pylist()) == {None}
        (root / "brokerIdentity").write_text("cluster#broker-a#1")
        assert set(reader.to_arrow()["broker"].to_pylist()) == {"broker-a"}
        assert set(reader.to_arrow(broker="b")["broker"].to_pylist()) == {"b"}


def test_a_reader_writes_nothing(root: Path) -> None:
    """Leaves an empty file in a queue, which a broker would remove, and compares the tree before and after."""
    (root / "consumequeue/Orders/0" / f"{10**9 * 200:020d}").touch()
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with rmq_core.open_store(root) as reader:
        reader.topics()
        reader.to_arrow()
        reader.to_arrow("Orders")
        reader.find(key="k1")
        assert isinstance(reader, StoreReader)
        assert reader.splits(1 << 30)[0] == LogRange(0, 4096)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_an_entry_that_is_half_written_is_not_shown_yet(tmp_path: Path) -> None:
    """Leaves what a page that is not there yet would leave of the entry that lies across two."""
    root = tmp_path / "store"
    store = open_store(root, mapped_file_size_consume_queue=8000)
    for number in range(205):
        put(store, number, size=300)
        store.end_pass()
    store.close()
    path = root / "consumequeue/Orders/0" / f"{0:020d}"
    data = path.read_bytes()
    assert data[4080 + 10 : 4080 + 12] != b"\0\0"
    for end in range(4080, 4100):
        path.write_bytes(data[:end].ljust(len(data), b"\0"))
        with rmq_core.open_store(root) as reader:
            assert bodies(reader.to_arrow("Orders")) == list(range(205 if end >= 4092 else 204)), end
            assert reader.report.damages == []
