"""Stores for tests: small files, messages by number, and what Apache's brokers left."""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rmq_core.clock import ManualClock
from rmq_core.config import StoreSettings
from rmq_core.config.settings import keys_of
from rmq_core.protocol.record import StoredRecord, decode_pull_body
from rmq_core.store.disk import Disk
from rmq_core.store.message_store import MessageStore, Put, PutStatus
from rmq_core.store.queue_reader import GetStatus

GOLDEN_DIR = Path(__file__).parent.parent / "data" / "golden" / "store"
GOLDEN_NAMES = sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN_DIR.glob("*.tar.gz"))

HOST = b"\x7f\0\0\x01\0\0\xc3\x50"

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 20,
    "max_index_num": 40,
}


class QuickDisk(Disk):
    """A disk whose syncs return at once: for tests in which no power fails."""

    def sync(self, path: Path) -> None:
        path.stat()  # what is not there cannot be synced

    def sync_directory(self, path: Path) -> None:
        pass

    def sync_many(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self.sync(path)


def small_settings(root: Path, **changes: Any) -> StoreSettings:
    return StoreSettings(store_path_root_dir=str(root), **{**SMALL, **changes})


def open_store(
    root: Path, *, disk: Disk | None = None, clock: ManualClock | None = None, **changes: Any
) -> MessageStore:
    """A store with small files and no threads: tests flush and keep by hand."""
    store = MessageStore(small_settings(root, **changes), clock=clock or ManualClock(), disk=disk or QuickDisk())
    store.open()
    return store


def properties(**named: str) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in named.items()).encode()


def put(store: MessageStore, number: int, *, topic: str = "Orders", queue_id: int = 0, size: int = 20) -> Put:
    """Put the message with this number; its body says which it is."""
    body = b"%08d" % number
    put_ = store.put(
        topic,
        queue_id,
        body.ljust(size, b"."),
        properties(UNIQ_KEY=f"id-{number}", KEYS=f"k{number} all", TAGS=f"Tag{number % 3}"),
        born_time_ms=1_600_000_000_000 + number,
        born_host=HOST,
    )
    assert put_.status is PutStatus.PUT_OK, put_.reason
    return put_


def numbers(store: MessageStore, topic: str = "Orders", queue_id: int = 0) -> list[int]:
    """The numbers of all messages of a queue, read as consumers read; offsets must be whole and ascending."""
    return [int(record.body[:8]) for record in records_of(store, topic, queue_id)]


def records_of(store: MessageStore, topic: str, queue_id: int) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        got = store.get(topic, queue_id, offset, 32)
        if got.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE):
            return found
        assert got.next_offset > offset, got
        found += decode_pull_body(b"".join(got.parts), verify_crc=True)
        offset = got.next_offset


@dataclass(frozen=True)
class GoldenStore:
    """A directory that Apache's broker wrote, and what that broker says about it."""

    name: str
    root: Path
    answers: dict[str, Any]

    @property
    def is_clean(self) -> bool:
        return "normal" in self.name or not (self.root / "abort").exists()

    def settings(self, **changes: Any) -> StoreSettings:
        own = self.answers["brokerSettings"].items()
        known = {key.name for key in keys_of(StoreSettings)}
        settings = StoreSettings.from_properties({key: str(value) for key, value in own if key in known})
        for key, value in {**changes, "store_path_root_dir": str(self.root)}.items():
            setattr(settings, key, value)
        return settings


@functools.cache
def golden_answers(name: str) -> dict[str, Any]:
    answers: dict[str, Any] = orjson.loads((GOLDEN_DIR / f"{name}.json").read_bytes())
    return answers


def unpack_golden(name: str, folder: Path) -> GoldenStore:
    """A fresh copy of a golden directory, times of the files kept."""
    with tarfile.open(GOLDEN_DIR / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return GoldenStore(name, folder / name, golden_answers(name))
