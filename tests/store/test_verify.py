"""What verify looks at beyond damage: light, ext and batch queues, deleted messages, and large stores in pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.store import verify_index, verify_queues
from rmq_core.store.verify import Verified, verify
from rmq_core.store.verify_index import ENTRIES, link
from support.records import WAYS, using
from support.stores import open_store, properties, put, unpack_golden

HOST = b"\x7f\0\0\x01\0\0\xc3\x50"


def at(found: Verified, path: Path, root: Path) -> list[int]:
    return [problem.offset for problem in found.problems if problem.path == str(path.relative_to(root))]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def test_units_beside_entries_are_compared_with_their_records(tmp_path: Path) -> None:
    """Damages one of each field of an ext unit that Apache's broker wrote."""
    store = unpack_golden("apache-5.3.3-queue-ext", tmp_path)
    path = min((store.root / "consumequeue_ext/Orders/0").iterdir())
    assert verify(store.root).problems == []
    for position in (1, 3, 9, 13, 17, 19):  # size, code, time and size of the bits
        flip(path, 20 + position)
        found = verify(store.root)
        assert [problem for problem in found.problems if "Orders/0" in problem.path], position
        flip(path, 20 + position)


def test_units_of_batch_queues_are_compared_with_their_records(tmp_path: Path) -> None:
    """Damages each field of a unit that Apache's broker wrote, but the one that is not used."""
    store = unpack_golden("apache-5.3.3-normal", tmp_path)
    path = min((store.root / "batchconsumequeue/ga-BatchCq/0").iterdir())
    for position in (0, 7, 9, 12, 19, 21, 27, 29, 35, 37, 43):
        flip(path, 46 * 3 + position)
        assert at(verify(store.root), path, store.root) == [46 * 3], position
        flip(path, 46 * 3 + position)
    path.rename(path.with_name("00000000000000000001"))
    assert any("ga-BatchCq/0" in problem.path for problem in verify(store.root).problems)


def test_entries_of_light_queues_are_compared_with_their_records(tmp_path: Path) -> None:
    """Damages an entry of a light queue, and cuts the queue short."""
    store = unpack_golden("apache-5.3.3-lmq", tmp_path)
    path = min((store.root / "consumequeue/%LMQ%ga-a/0").iterdir())
    flip(path, 20 * 5 + 19)
    assert at(verify(store.root), path, store.root) == [100]
    flip(path, 20 * 5 + 19)
    last = max((store.root / "consumequeue/%LMQ%ga-a/0").iterdir())
    data = last.read_bytes()
    last.write_bytes(bytes(len(data)))
    found = verify(store.root)
    assert any("%LMQ%ga-a" in problem.path and "no entry" in problem.text for problem in found.problems)


def test_a_store_that_retention_has_shortened_is_clean(tmp_path: Path) -> None:
    """Removes the oldest log files as retention does, while queues and index still name what was in them."""
    root = tmp_path / "store"
    store = open_store(root)
    for number in range(120):
        put(store, number, queue_id=number % 2)
        store.end_pass()
    store.close()
    for path in sorted((root / "commitlog").iterdir())[:2]:
        path.unlink()
    found = verify(root)
    assert found.problems == []
    assert 0 < found.records < 120
    store = open_store(root)
    put(store, 120)
    store.end_pass()
    store.close()
    assert verify(root).problems == []


def test_pieces_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares seven records at a time, on a good directory and on a damaged one."""
    store = unpack_golden("apache-5.3.3-normal", tmp_path)
    whole = verify(store.root)
    path = min((store.root / "consumequeue/Orders/0").iterdir())
    index = min((store.root / "index").iterdir())
    with monkeypatch.context() as patch:
        for module, name in ((verify_queues, "_COLLECTED_MAX"), (verify_index, "_COLLECTED_MAX")):
            patch.setattr(module, name, 7)
        patch.setattr(verify_index, "_CHUNK", 11)
        assert verify(store.root) == whole
        flip(path, 20 * 40 + 3)
        flip(index, 40 + 2000 + 20 * 600 + 2)
        damaged = verify(store.root)
    # The flipped entry of the index is one that no message has, and some message has none.
    assert {problem.path.split("/")[0] for problem in damaged.problems} == {"commitlog", "consumequeue", "index"}
    both = verify(store.root)
    assert {problem.path for problem in both.problems} == {problem.path for problem in damaged.problems}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=30, deadline=None)
@given(
    hashes=st.lists(st.integers(0, 12) | st.integers(-(2**31), 2**31 - 1), max_size=60),
    slot_count=st.integers(1, 9) | st.just(5_000_000),
    split=st.integers(0, 60),
)
def test_slots_and_links_are_what_entering_one_by_one_makes(
    way: str, hashes: list[int], slot_count: int, split: int
) -> None:
    """Few slots and many, hashes of damaged files too, in two pieces."""
    entries = np.zeros(len(hashes), ENTRIES)
    entries["hash"] = hashes
    expected, slots = [], dict[int, int]()
    for number, hashed in enumerate(hashes, 1):
        expected.append(slots.get(hashed % slot_count, 0))
        slots[hashed % slot_count] = number
    newest = np.zeros(slot_count, np.int32)
    with using(way):
        first = link(entries[:split], 1, newest)
        previous = [*first.tolist(), *link(entries[split:], 1 + len(first), newest).tolist()]
    assert previous == expected
    assert {slot: int(newest[slot]) for slot in np.flatnonzero(newest).tolist()} == slots


@pytest.mark.parametrize("way", WAYS)
def test_both_ways_say_the_same_of_a_damaged_store(tmp_path: Path, way: str) -> None:
    """Damages log, queue and index of a directory that Apache wrote; the log is walked in another thread."""
    store = unpack_golden("apache-5.3.3-normal", tmp_path)
    log, queue, index = (
        min((store.root / name).iterdir()) for name in ("commitlog", "consumequeue/Orders/0", "index")
    )
    with using(way):
        assert verify(store.root).problems == []
        for path, position in ((log, 3000), (queue, 20 * 40 + 3), (index, 40 + 2000 + 20 * 600 + 2)):
            flip(path, position)
        found = verify(store.root)
    assert {problem.path.split("/")[0] for problem in found.problems} == {"commitlog", "consumequeue", "index"}
    with using("numpy"):
        assert verify(store.root) == found


def test_many_problems_of_a_file_are_counted(tmp_path: Path) -> None:
    """Zeros a whole queue file: the first ones are told, and how many more there are."""
    root = tmp_path / "store"
    store = open_store(root, mapped_file_size_consume_queue=2000)
    for number in range(90):
        put(store, number)
        store.end_pass()
    store.close()
    path = min((root / "consumequeue/Orders/0").iterdir())
    data = path.read_bytes()
    path.write_bytes(b"\1" * len(data))
    found = verify(root)
    assert 0 < len(found.problems) < 15
    assert any("more" in problem.text for problem in found.problems)


def test_messages_without_keys_need_no_index(tmp_path: Path) -> None:
    """Writes a store without an index, and one whose messages have no keys."""
    for name, enable in (("without", False), ("empty", True)):
        root = tmp_path / name
        store = open_store(root, message_index_enable=enable)
        for number in range(20):
            named = properties(TAGS="A") if enable else properties(UNIQ_KEY=f"id-{number}")
            store.put("T", 0, b"%d" % number, named, born_time_ms=1, born_host=HOST)
        store.end_pass()
        store.close()
        found = verify(root)
        assert found.problems == []
        assert found.index_entries == 0
        assert found.notes == ([] if enable else ["there is no index"])
