"""All consume queues of a store, by topic and queue id."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rmq_core.errors import StoreError
from rmq_core.store.batch_queue import UNIT_SIZE, BatchQueue
from rmq_core.store.consume_queue import ENTRY_SIZE, ConsumeQueue
from rmq_core.store.disk import Disk
from rmq_core.store.queue_ext import QueueExt, is_address
from rmq_core.store.queue_files import QueueFiles

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]
"""(topic, queue id)"""


@dataclass(frozen=True, slots=True)
class QueueSizes:
    """File sizes of the queues."""

    entries: int = 6_000_000
    ext: int = 50_331_648
    batch: int = 13_800_000
    with_ext: bool = False


@dataclass(slots=True)
class Queues:
    """The queues and what must be written of them."""

    disk: Disk
    root: Path
    sizes: QueueSizes = field(default_factory=QueueSizes)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while entries are added and while what was added is taken for writing."""
    table: dict[QueueKey, ConsumeQueue] = field(default_factory=dict)
    ext: dict[QueueKey, QueueExt] = field(default_factory=dict)
    batch: dict[QueueKey, BatchQueue] = field(default_factory=dict)
    dirty: set[QueueFiles] = field(default_factory=set)
    """Those with bytes that are only in memory; changed under the lock."""
    _unsynced: set[Path] = field(default_factory=set)
    _changing_files: threading.Lock = field(default_factory=threading.Lock)
    """Held while files are written or removed; taken before the other lock."""

    def load(self, before_removal: Callable[[], None] = lambda: None) -> list[str]:
        """Find all queues. What is damaged is taken out of the way, to be built again, and said."""
        problems = self.look()
        if problems:
            before_removal()
        for folder, _ in problems:
            if folder.is_relative_to(self.root / "batchconsumequeue"):
                raise StoreError(f"a batch consume queue is damaged: {problems[0][1]}")
            for name, _ in reversed(self.disk.list(folder)):
                self.disk.remove(folder / name)
        return [f"{folder}: {text}" for folder, text in problems]

    def look(self) -> list[tuple[Path, str]]:
        """Find all queues and change nothing. Returns the folders of those that are damaged, and why."""
        problems: list[tuple[Path, str]] = []
        for kind in ("consumequeue", "consumequeue_ext", "batchconsumequeue"):
            for topic, queue_id, folder in self._folders(kind, problems):
                try:
                    if kind == "consumequeue":
                        queue = self._new(topic, queue_id)
                        queue.load()
                        self.table[topic, queue_id] = queue
                    elif kind == "consumequeue_ext":
                        ext = self._new_ext(topic, queue_id)
                        ext.load()
                        self.ext[topic, queue_id] = ext
                    else:
                        batch = self._new_batch(topic, queue_id)
                        batch.load()
                        self.batch[topic, queue_id] = batch
                except StoreError as error:
                    problems.append((folder, str(error)))
        return problems

    def _folders(self, kind: str, problems: list[tuple[Path, str]]) -> Iterator[tuple[str, int, Path]]:
        for topic in self.disk.list_directories(self.root / kind):
            for name in self.disk.list_directories(self.root / kind / topic):
                folder = self.root / kind / topic / name
                if name.isdecimal() and str(int(name)) == name:
                    yield topic, int(name), folder
                else:
                    problems.append((folder, "its name is no queue id"))
        if any(name.startswith("MANIFEST") for name, _ in self.disk.list(self.root / kind)):
            raise StoreError(f"{self.root / kind} holds RocksDB files: only storeType=default can be opened")

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        size = -(-self.sizes.entries // ENTRY_SIZE) * ENTRY_SIZE
        folder = f"{self.root}/consumequeue/{topic}/{queue_id}"
        return ConsumeQueue(self.disk, folder, topic, queue_id, size, self.lock)

    def _new_ext(self, topic: str, queue_id: int) -> QueueExt:
        folder = f"{self.root}/consumequeue_ext/{topic}/{queue_id}"
        return QueueExt(self.disk, folder, self.sizes.ext, self.lock)

    def _new_batch(self, topic: str, queue_id: int) -> BatchQueue:
        size = -(-self.sizes.batch // UNIT_SIZE) * UNIT_SIZE
        folder = f"{self.root}/batchconsumequeue/{topic}/{queue_id}"
        return BatchQueue(self.disk, folder, topic, queue_id, size, self.lock)

    def add_batch(self, topic: str, queue_id: int) -> BatchQueue:
        """A batch queue that is not there yet."""
        batch = self.batch[topic, queue_id] = self._new_batch(topic, queue_id)
        return batch

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made now if there is none; a file is made when it gets an entry."""
        queue = self.table.get((topic, queue_id))
        if queue is None:
            queue = self.table[topic, queue_id] = self._new(topic, queue_id)
        return queue

    def ext_of(self, queue: ConsumeQueue) -> QueueExt:
        """The ext units of a queue, made now if there are none."""
        key = (queue.topic, queue.queue_id)
        ext = self.ext.get(key)
        if ext is None:
            ext = self.ext[key] = self._new_ext(*key)
        return ext

    # Writing

    def write_out(self) -> None:
        """Write all entries that are only in memory. Raises OSError; what was not written is tried again."""
        with self._changing_files:
            with self.lock:
                dirty, self.dirty = self.dirty, set()
            waiting = list(dirty)
            try:
                while waiting:
                    self._unsynced.update(waiting[-1].write_out())
                    waiting.pop()
            finally:
                with self.lock:
                    self.dirty.update(waiting)

    def sync(self) -> None:
        """Make durable what write_out() wrote."""
        with self._changing_files:
            paths, self._unsynced = self._unsynced, set()
        try:
            self.disk.sync_many(path for path in paths if path.exists())
        except FileNotFoundError:  # one was removed just now
            self.disk.sync_many(path for path in paths if path.exists())
        except OSError:
            self._unsynced |= paths
            raise

    # Following the log

    def truncate(self, log_offset: int) -> None:
        """Forget the entries of messages at and behind a log offset."""
        for key, queue in self.table.items():
            queue.truncate(log_offset)
            if self.sizes.with_ext and (ext := self.ext.get(key)) is not None:
                ext.truncate_behind(queue.last_code(is_address))
        for batch in self.batch.values():
            batch.truncate(log_offset)

    def clear_behind(self) -> None:
        """Make the files end where the entries do: a crash may have left anything behind them."""
        for files in [*(each.files for each in self.table.values()), *(each.files for each in self.batch.values())]:
            files.clear_behind()

    def raise_min_offsets(self, log_start: int) -> None:
        for queue in self.table.values():
            queue.raise_min_offset(log_start)
        for batch in self.batch.values():
            batch.raise_min_offset(log_start)

    def remove_before(self, log_start: int) -> int:
        """The log now starts here. Returns how many files were removed."""
        count = 0
        for key, queue in list(self.table.items()):
            with self._changing_files:
                count += queue.remove_before(log_start)
                ext = self.ext.get(key)
                if ext is not None and (first := queue.entry(queue.min_offset)) is not None:
                    ext.remove_before(first.tags_code)
        for batch in list(self.batch.values()):
            batch.raise_min_offset(log_start)
        return count

    def remove_topic(self, topic: str) -> None:
        """Remove all queues of a topic; its messages stay in the log."""
        with self._changing_files:
            # A copy: the owner's thread may make queues meanwhile.
            for key in [key for key in list(self.table) if key[0] == topic]:
                self.table.pop(key).files.remove()
                if (ext := self.ext.pop(key, None)) is not None:
                    ext.files.remove()
            for kind in ("consumequeue", "consumequeue_ext"):
                # By what is there: a name that a client made up may lead elsewhere.
                if topic in self.disk.list_directories(self.root / kind):
                    self.disk.remove_directory(self.root / kind / topic)
