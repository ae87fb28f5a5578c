"""A replica: another broker's log, copied in pieces, gives the same store as the messages themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.clock import ManualClock
from rmq_core.errors import StoreError
from rmq_core.store.dispatcher import Appended
from rmq_core.store.message_store import MessageStore
from support.stores import QuickDisk, numbers, open_store, put, small_settings

FOREVER_MS = (1 << 63) - 1


def master_log(root: Path, count: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of a log of several files, and where each message stands."""
    store = open_store(root)
    places = []
    for number in range(count):
        result = put(store, number, queue_id=number % 2, size=200 if number % 7 == 0 else 20)
        places.append((result.log_offset, result.end))
    store.end_pass()
    end = store.log.end
    store.close()
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))[:end], places


@given(cuts=st.lists(st.integers(15, 900), min_size=1, max_size=30))
@settings(deadline=None, max_examples=15)
def test_pieces_of_any_size_give_the_same_queues(cuts: list[int]) -> None:
    """Cuts inside records, lengths and blank ends; after each piece exactly the whole messages are seen."""
    with tempfile.TemporaryDirectory() as folder:
        data, places = master_log(Path(folder) / "master", 45)
        arrived: list[Appended] = []
        replica = MessageStore(
            small_settings(Path(folder) / "replica"),
            clock=ManualClock(),
            disk=QuickDisk(),
            on_arrival=arrived.extend,
        )
        replica.open()
        at = number = 0
        while at < len(data):
            size = cuts[number % len(cuts)]
            number += 1
            replica.append_log(at, data[at : at + size])
            at = min(at + size, len(data))
            whole = sum(end <= at for _, end in places)
            assert replica.max_offset("Orders", 0) + replica.max_offset("Orders", 1) == whole
        assert numbers(replica, queue_id=0) == list(range(0, 45, 2))
        assert numbers(replica, queue_id=1) == list(range(1, 45, 2))
        assert [(each[2], each[3]) for each in arrived] == [(start, end - start) for start, end in places]
        replica.rebuild_index()
        assert replica.query("Orders", "k44", 64, 0, FOREVER_MS) == [places[44][0]]
        put(replica, 100)  # it is the master now
        replica.end_pass()
        replica.close()
        again = open_store(Path(folder) / "replica")
        assert numbers(again, queue_id=0) == [*range(0, 45, 2), 100]
        assert again.query("Orders", "k100", 64, 0, FOREVER_MS) != []
        again.close()


def test_a_replica_may_begin_at_any_file(tmp_path: Path) -> None:
    """Apache's masters send an empty replica the last file; its queue offsets are the master's."""
    data, places = master_log(tmp_path / "master", 45)
    start = len(data) // 4096 * 4096
    replica = open_store(tmp_path / "replica")
    replica.append_log(start, data[start:])
    expected = [number for number, (at, _) in enumerate(places) if at >= start]
    for _ in range(2):
        found = sorted(numbers(replica, queue_id=0) + numbers(replica, queue_id=1))
        assert found == expected
        assert replica.min_offset("Orders", expected[0] % 2) == expected[0] // 2
        replica.close()
        replica = open_store(tmp_path / "replica")
    replica.close()


def test_a_piece_must_go_on_where_the_log_ends(tmp_path: Path) -> None:
    """A gap, a piece that comes twice, an odd beginning, messages of its own not yet written."""
    data, _ = master_log(tmp_path / "master", 20)
    replica = open_store(tmp_path / "replica")
    with pytest.raises(StoreError, match="the log ends at 0, and the copy goes on at 100"):
        replica.append_log(100, data[100:])
    replica.append_log(0, data[:1000])
    for log_offset in (0, 999, 1001, 4096):
        with pytest.raises(StoreError, match="the log ends at 1000"):
            replica.append_log(log_offset, data[log_offset : log_offset + 10])
    replica.append_log(1000, data[1000:])
    put(replica, 99)
    with pytest.raises(StoreError, match="wait to be written"):
        replica.append_log(replica.log.end, b"x")
    replica.close()
    with pytest.raises(StoreError, match="closed"):
        replica.append_log(len(data), b"x")


def test_a_replica_with_sync_flush_shows_what_is_flushed(tmp_path: Path) -> None:
    """The copy is written, then flushed."""
    data, _ = master_log(tmp_path / "master", 10)
    replica = open_store(tmp_path / "replica", flush_disk_type="SYNC_FLUSH")
    replica.append_log(0, data)
    assert replica.max_offset("Orders", 0) == 0
    replica.flusher.flush()
    replica.poll()
    assert numbers(replica, queue_id=0) == list(range(0, 10, 2))
    replica.close()
