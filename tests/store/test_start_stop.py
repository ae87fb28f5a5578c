"""The files beside the messages: lock, abort file and checkpoint, and who may open a directory."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import StoreError
from rmq_core.store.message_store import PutStatus
from rmq_core.store.verify import verify
from support.stores import numbers, open_store, put

TAKE_LOCK = (
    "import sys; from pathlib import Path; from rmq_core.store.disk import lock_file; lock_file(Path(sys.argv[1]))"
)


def test_a_second_store_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    """And the refused attempt takes nothing away from the first: a third one is refused as well."""
    store = open_store(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match="is in use by this process already"):
            open_store(tmp_path)
        command = [sys.executable, "-c", TAKE_LOCK, str(tmp_path / "lock")]
        other = subprocess.run(command, check=False, capture_output=True, text=True)
        assert other.returncode == 1
        assert "is in use by another process: its lock file is held" in other.stderr
    put(store, 1)
    store.end_pass()
    store.close()
    store = open_store(tmp_path)
    assert numbers(store) == [1]
    assert (tmp_path / "lock").read_bytes() == b"lock"
    store.close()


def test_the_abort_file_stands_while_the_store_runs(tmp_path: Path) -> None:
    """With the process id, also where a longer one was left; gone after a clean stop."""
    (tmp_path / "abort").write_bytes(b"123456789012345")
    store = open_store(tmp_path)
    assert (tmp_path / "abort").read_bytes() == str(os.getpid()).encode()
    store.close()
    assert not (tmp_path / "abort").exists()


def test_the_checkpoint_promises_only_what_is_durable(tmp_path: Path) -> None:
    """Three messages a second apart, the second one flushed, all of them after keep_all()."""
    clock = ManualClock(10_000_000)
    store = open_store(tmp_path, clock=clock)

    def stored() -> tuple[int, ...]:
        store.checkpoint.store()
        data = (tmp_path / "checkpoint").read_bytes()
        assert len(data) == 4096
        return struct.unpack_from(">qqq", data)

    for number in range(3):
        put(store, number)
        store.end_pass()
        if number == 1:
            store.flusher.flush()
        clock._now_ms += 1000
    assert stored() == (10_001_000, 0, 0)
    store.keep_all()
    assert stored() == (10_002_000, 10_002_000, 0)
    store.close()
    store = open_store(tmp_path)
    assert store.checkpoint.recovery_time_ms == 9_999_000
    store.close()


def test_a_closed_store_refuses_and_closes_again(tmp_path: Path) -> None:
    """Before open(), after close(), and close() twice."""
    store = open_store(tmp_path)
    put(store, 1)  # the pass is not ended: the stop does it
    store.close()
    store.close()
    refused = store.put("Orders", 0, b"x", b"", born_time_ms=1, born_host=bytes(8))
    assert (refused.status, refused.reason) == (PutStatus.SERVICE_NOT_AVAILABLE, "the store is closed")
    store = open_store(tmp_path)
    assert numbers(store) == [1]
    store.close()


def test_an_empty_store_starts_and_stops(tmp_path: Path) -> None:
    """Three times, with a directory that is not there yet; then its first message is the first."""
    for _ in range(3):
        store = open_store(tmp_path / "new" / "store")
        assert store.log.end == 0
        store.close()
    store = open_store(tmp_path / "new" / "store")
    assert put(store, 1).log_offset == 0
    store.close()


def test_a_queue_kept_by_rocksdb_is_refused(tmp_path: Path) -> None:
    """Its directory has files of another kind in the place of topics."""
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "consumequeue" / "MANIFEST-000004").touch()
    with pytest.raises(StoreError, match="RocksDB files: only storeType=default"):
        open_store(tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file stands where the store should be."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file.* cannot be opened"):
        open_store(tmp_path / "file" / "store")


def test_a_spare_file_of_the_log_does_not_outlive_a_stop(tmp_path: Path) -> None:
    """The next file is there ahead of need while the store runs, and goes with a clean stop."""
    store = open_store(tmp_path)
    while store.log.end < 3000:
        put(store, 1)
    store.end_pass()
    assert store.log.allocate_ahead()
    assert not store.log.allocate_ahead()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2
    store.close()
    assert len(list((tmp_path / "commitlog").iterdir())) == 1


def test_keys_of_a_single_message_are_entered_once(tmp_path: Path) -> None:
    """It stands at the beginning of the log, which is what an empty index says too; the store is opened again."""
    store = open_store(tmp_path)
    put(store, 0)
    store.end_pass()
    store.close()
    open_store(tmp_path).close()
    found = verify(tmp_path)
    assert (found.index_entries, found.problems) == (3, [])
