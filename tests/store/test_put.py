"""Messages into the log: what is accepted, what is refused and why, and the bytes that are written."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.clock import ManualClock
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.record import MAGIC_V2, decode_record, encode_blank
from rmq_core.store.disk import Disk
from rmq_core.store.message_store import MessageStore, Put, PutStatus
from support.stores import HOST, QuickDisk, numbers, open_store, properties, put, records_of, small_settings

HOST_V6 = bytes(15) + b"\x01" + b"\0\0\xc3\x50"


def put_any(
    store: MessageStore, *, topic: str = "Orders", queue_id: int = 0, body: bytes = b"x", named: bytes = b""
) -> Put:
    return store.put(topic, queue_id, body, named, born_time_ms=1, born_host=HOST)


def batch_of(*messages: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(named), 0, 0, 7, len(body))
        + body
        + struct.pack(">h", len(named))
        + named
        for body, named in messages
    )


def test_every_field_is_stored_as_it_came(tmp_path: Path) -> None:
    """Every argument of put() with a value of its own."""
    clock = ManualClock(1_700_000_000_500)
    store = open_store(tmp_path, clock=clock)
    store.put(
        "Orders", 3, b"body", b"A\x01b\x02", born_time_ms=77, born_host=HOST, flag=-5,
        sys_flag=flags.TRANSACTION_COMMIT, reconsume_times=2, prepared_transaction_offset=99,
    )  # fmt: skip
    store.end_pass()
    (record,) = records_of(store, "Orders", 3)
    assert (record.topic, record.queue_id, record.body, record.property_bytes) == (
        "Orders",
        3,
        b"body",
        b"A\x01b\x02",
    )
    assert (record.born_time_ms, record.born_host.pack(), record.flag) == (77, HOST, -5)
    assert (record.sys_flag, record.reconsume_times) == (flags.TRANSACTION_COMMIT, 2)
    assert (record.prepared_transaction_offset, record.store_time_ms) == (99, 1_700_000_000_500)
    assert record.store_host.pack() == store.log.store_host
    store.close()


@pytest.mark.parametrize(("born", "store_host"), [(HOST, HOST_V6), (HOST_V6, HOST), (HOST_V6, HOST_V6)])
def test_hosts_of_both_families_are_stored_with_their_bits(tmp_path: Path, born: bytes, store_host: bytes) -> None:
    """Single and batch, with the bits of the system flag wrong on the way in."""
    wrong = flags.BORN_HOST_V6 if len(born) == 8 else 0
    store = MessageStore(small_settings(tmp_path), store_host=store_host, clock=ManualClock(), disk=QuickDisk())
    store.open()
    store.put("T", 0, b"one", b"", born_time_ms=1, born_host=born, sys_flag=wrong)
    store.put_batch(
        "T", 0, batch_of((b"two", b""), (b"three", b"")), born_time_ms=1, born_host=born, sys_flag=wrong
    )
    store.end_pass()
    records = records_of(store, "T", 0)
    assert [record.body for record in records] == [b"one", b"two", b"three"]
    for record in records:
        assert (record.born_host.pack(), record.store_host.pack()) == (born, store_host)
        assert bool(record.sys_flag & flags.BORN_HOST_V6) == (len(born) == 20)
        assert bool(record.sys_flag & flags.STORE_HOST_V6) == (len(store_host) == 20)
    store.close()


def test_a_long_topic_makes_records_of_version_2(tmp_path: Path) -> None:
    """A retry topic of 255 bytes, the longest name of a directory; single and batch, read after a restart."""
    topic = "%RETRY%" + "g" * 248
    store = open_store(tmp_path)
    assert put_any(store, topic=topic, body=b"00000001").status is PutStatus.PUT_OK
    assert (
        store.put_batch(topic, 0, batch_of((b"00000002", b"")), born_time_ms=1, born_host=HOST).status
        is PutStatus.PUT_OK
    )
    store.end_pass()
    assert {record.magic for record in records_of(store, topic, 0)} == {MAGIC_V2}
    store.close()
    store = open_store(tmp_path)
    assert numbers(store, topic) == [1, 2]
    store.close()


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL, "a topic of 128 bytes"),
        ({"topic": "%RETRY%" + "t" * 249}, PutStatus.MESSAGE_ILLEGAL, "a topic of 256 bytes"),
        ({"topic": "ü" * 64}, PutStatus.MESSAGE_ILLEGAL, "a topic of 128 bytes"),
        ({"topic": "../Orders"}, PutStatus.MESSAGE_ILLEGAL, "no name for a directory"),
        ({"topic": ".."}, PutStatus.MESSAGE_ILLEGAL, "no name for a directory"),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL, "no name for a directory"),
        ({"topic": "a\0b"}, PutStatus.MESSAGE_ILLEGAL, "no name for a directory"),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL, "-1 is no queue id"),
        ({"queue_id": 1 << 31}, PutStatus.MESSAGE_ILLEGAL, "no queue id"),
        ({"body": bytes(3001)}, PutStatus.MESSAGE_ILLEGAL, "larger than maxMessageSize 3000"),
        (
            {"named": b"A\x01" + bytes(32_766)},
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            "32768 bytes are longer than 32767",
        ),
        ({"named": b"A\x01" + bytes(5000)}, PutStatus.MESSAGE_ILLEGAL, "does not fit a file of the log"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_reason(
    tmp_path: Path, arguments: dict[str, object], status: PutStatus, reason: str
) -> None:
    """Each limit by one; for new and for known queues; the next message gets the next offset."""
    store = open_store(tmp_path, max_message_size=3000)
    for known in (False, True):
        if known:
            put_any(store)
        refused = put_any(store, **arguments)  # type: ignore[arg-type]
        assert refused.status is status
        assert reason in refused.reason
        assert refused.log_offset == -1
    assert put_any(store).queue_offset == 1
    store.end_pass()
    assert store.max_offset("Orders", 0) == 2
    store.close()


def test_the_largest_that_fits_is_stored(tmp_path: Path) -> None:
    """A topic of 127 bytes, a body of maxMessageSize, properties of 32767 bytes."""
    store = open_store(tmp_path, max_message_size=3000, mapped_file_size_commit_log=1 << 16)
    named = b"A\x01" + b"v" * 32_764 + b"\x02"
    assert put_any(store, topic="t" * 127, body=bytes(3000), named=named).status is PutStatus.PUT_OK
    store.end_pass()
    (record,) = records_of(store, "t" * 127, 0)
    assert (len(record.body), record.property_bytes) == (3000, named)
    store.close()


@pytest.mark.parametrize("spare", range(12))
def test_a_file_ends_with_a_blank_record(tmp_path: Path, spare: int) -> None:
    """The second record leaves 0 to 11 bytes in the file: below 8 it goes to the next one."""
    store = open_store(tmp_path)
    first = put_any(store, body=bytes(2000))
    left = 4096 - first.end
    second = put_any(store, body=bytes(left - first.size + 2000 - spare))
    third = put_any(store)
    store.end_pass()
    assert second.log_offset == (first.end if spare >= 8 else 4096)
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir()))
    blank_at = first.end if spare < 8 else second.end
    assert data[blank_at : blank_at + 8] == encode_blank(4096 - blank_at)
    assert decode_record(data, third.log_offset).queue_offset == 2
    store.close()
    store = open_store(tmp_path)
    assert [record.log_offset for record in records_of(store, "Orders", 0)] == [
        0,
        second.log_offset,
        third.log_offset,
    ]
    store.close()


def test_a_batch_is_stored_together_or_not_at_all(tmp_path: Path) -> None:
    """One that goes to the next file as a whole, and one that fits no file; with own and shared properties."""
    store = open_store(tmp_path)
    put_any(store, body=bytes(3000))
    stored = store.put_batch(
        "Orders", 0, batch_of((bytes(400), b"KEYS\x01a"), (bytes(400), b"")), extra_properties=b"WAIT\x01true\x02",
        born_time_ms=5, born_host=HOST, reconsume_times=1,
    )  # fmt: skip
    assert (stored.log_offset, stored.queue_offset, len(stored.log_offsets)) == (4096, 1, 2)
    refused = store.put_batch("Orders", 0, batch_of(*[(bytes(900), b"")] * 5), born_time_ms=5, born_host=HOST)
    assert (refused.status, refused.log_offset) == (PutStatus.MESSAGE_ILLEGAL, -1)
    store.end_pass()
    records = records_of(store, "Orders", 0)
    assert [record.log_offset for record in records] == [0, *stored.log_offsets]
    assert [record.properties for record in records[1:]] == [{"KEYS": "a", "WAIT": "true"}, {"WAIT": "true"}]
    assert [(record.flag, record.reconsume_times) for record in records[1:]] == [(7, 1)] * 2
    store.close()


@given(data=st.binary(max_size=80), cut=st.integers(0, 200))
@settings(deadline=None, max_examples=60)
def test_bytes_that_are_no_batch_change_nothing(data: bytes, cut: int) -> None:
    """Noise, and good batches cut anywhere: an error, and the next message stands where it would have."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        whole = batch_of((b"one", b"A\x01b\x02"), (b"two", b""))
        accepted = 0
        for bad in (data, whole[: cut % len(whole)]):
            try:
                accepted += len(store.put_batch("T", 0, bad, born_time_ms=1, born_host=HOST).log_offsets)
            except RemoteProtocolError:
                continue
        assert put_any(store, topic="T").queue_offset == accepted
        store.end_pass()
        assert len(records_of(store, "T", 0)) == accepted + 1
        store.close()


def test_store_times_never_go_back(tmp_path: Path) -> None:
    """The clock is set back between passes and between two starts."""
    times = []
    for start_ms in (10_000_000, 9_000_000):
        clock = ManualClock(start_ms)
        store = open_store(tmp_path, clock=clock)
        for number in range(3):
            times.append(put(store, number).store_time_ms)
            store.end_pass()
            clock._now_ms -= 1000
        store.close()
    assert times == sorted(times)
    assert times[0] == 10_000_000


def test_a_pass_without_a_message_leaves_no_time_behind(tmp_path: Path) -> None:
    """A refused message begins a pass; the next pass has a time of its own."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    put_any(store, named=b"A\x01" + bytes(5000))
    store.end_pass()
    clock._now_ms += 5000
    assert put_any(store).store_time_ms == clock.now_ms()
    store.end_pass()
    store.close()


class CountingDisk(Disk):
    """Counts writes to the log."""

    writes = 0

    def write(self, path: Path, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.writes += path.parent.name == "commitlog"
        super().write(path, data, offset)


def test_a_pass_is_written_at_once_for_each_file(tmp_path: Path) -> None:
    """Sixty messages in one pass over two files."""
    disk = CountingDisk()
    store = open_store(tmp_path, disk=disk)
    for number in range(30):
        put(store, number)
    assert disk.writes == 0
    store.end_pass()
    assert disk.writes == 2
    assert numbers(store) == list(range(30))
    store.close()


def test_hidden_records_take_no_queue_offset(tmp_path: Path) -> None:
    """Prepared and rolled back ones stand in the log alone, after a restart too."""
    store = open_store(tmp_path)
    for sys_flag in (0, flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK, flags.TRANSACTION_COMMIT):
        store.put("T", 0, b"%d" % sys_flag, b"", born_time_ms=1, born_host=HOST, sys_flag=sys_flag)
    store.end_pass()
    for _ in range(2):
        assert [record.body for record in records_of(store, "T", 0)] == [b"0", b"8"]
        assert [record.queue_offset for record in records_of(store, "T", 0)] == [0, 1]
        store.close()
        (tmp_path / "abort").touch()
        store = open_store(tmp_path)
    store.close()


def test_light_queues_get_the_messages_that_name_them(tmp_path: Path) -> None:
    """Names that are none, names twice, other topics; offsets go on after restarts of both kinds."""
    changes: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    store = open_store(tmp_path, **changes)
    for number in range(6):
        names = ("%LMQ%a,%LMQ%b", "%LMQ%a,%LMQ%a", "%LMQ%a", "Other", "%LMQ%x/y", "%LMQ%" + "n" * 300)[number]
        store.put("T", 0, b"%08d" % number, properties(INNER_MULTI_DISPATCH=names), born_time_ms=1, born_host=HOST)
    for topic in ("%RETRY%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"):
        store.put(topic, 0, b"%08d" % 9, properties(INNER_MULTI_DISPATCH="%LMQ%a"), born_time_ms=1, born_host=HOST)
    store.end_pass()
    store.keep_all()
    for is_clean in (True, False):
        assert numbers(store, "%LMQ%a") == [0, 1, 2]
        assert numbers(store, "%LMQ%b") == [0]
        assert numbers(store, "T") == [0, 1, 2, 3, 4, 5]
        assert sorted({topic for topic, _ in store.queues.table if topic.startswith("%LMQ%")}) == [
            "%LMQ%a",
            "%LMQ%b",
        ]
        store.close()
        if not is_clean:
            (tmp_path / "abort").touch()
            (tmp_path / "checkpoint").unlink()
        store = open_store(tmp_path, **changes)
    stored = records_of(store, "T", 0)
    assert stored[0].properties["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
    assert stored[2].properties["INNER_MULTI_QUEUE_OFFSET"] == "2"
    store.put("T", 0, b"%08d" % 7, properties(INNER_MULTI_DISPATCH="%LMQ%a"), born_time_ms=1, born_host=HOST)
    store.end_pass()
    assert numbers(store, "%LMQ%a") == [0, 1, 2, 7]
    store.close()


def test_messages_for_batch_queues_are_refused(tmp_path: Path) -> None:
    """The bit of an inner batch, for a new queue and for a known one."""
    store = open_store(tmp_path)
    put_any(store)
    for topic in ("Orders", "New"):
        refused = store.put(topic, 0, b"x", b"", born_time_ms=1, born_host=HOST, sys_flag=flags.INNER_BATCH)
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
    store.close()
