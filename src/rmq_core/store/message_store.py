"""The only door for the broker: put, end_pass, get, query, minimum and maximum offsets.

Threads   Its owner (the event loop) puts, ends passes, polls and reads. The flusher syncs the log. The keeper
          writes queues and index, stores the checkpoint, allocates and removes files. A pool may read too.
Locks     Held together in this order: the one of queue files being written, Queues.lock (memory of the queues).
          Building the index: KeyIndex's first, then Index's.
Visible   Readers see a message when it is confirmed: written (ASYNC_FLUSH), or flushed (SYNC_FLUSH).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rmq_core.clock import Clock, SystemClock
from rmq_core.config import StoreSettings
from rmq_core.errors import StoreError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.message import PROPERTIES_SIZE_MAX
from rmq_core.protocol.record import BLANK_SIZE, TOPIC_SIZE_MAX_V1, reserve_record_crc
from rmq_core.store.checkpoint import AbortFile, Checkpoint
from rmq_core.store.commit_log import CommitLog, log_segments
from rmq_core.store.consume_queue import ConsumeQueue
from rmq_core.store.disk import DirectoryLock, Disk, lock_file
from rmq_core.store.dispatcher import Appended, Dispatcher, LightQueues, parse_delay_levels
from rmq_core.store.flusher import DIRTY_MAX, Flusher
from rmq_core.store.groups import HIDDEN
from rmq_core.store.index_file import Index
from rmq_core.store.keeper import Keeper
from rmq_core.store.key_index import KeyIndex
from rmq_core.store.log_feed import LogFeed, check_place
from rmq_core.store.puts import Put, PutStatus, parse_batch, problem_of_queue, too_large
from rmq_core.store.queue_reader import ANSWER_SIZE_MAX, EVERYTHING, Got, MessageFilter, QueueReader
from rmq_core.store.queues import Queues, QueueSizes
from rmq_core.store.recovery import Recovered, Recovery
from rmq_core.store.recovery_process import job_for, recover_apart
from rmq_core.store.retention import Retention
from rmq_core.store.waiters import Waiters

__all__ = ["MessageStore", "Put", "PutStatus", "parse_delay_levels"]

log = logging.getLogger(__name__)

_new: Final = tuple.__new__


class MessageStore:
    """Messages on disk."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        store_host: bytes = b"\x7f\0\0\x01\0\0\x2a\x9f",
        clock: Clock | None = None,
        disk: Disk | None = None,
        on_arrival: Callable[[list[Appended]], None] | None = None,
        notify: Callable[[], None] | None = None,
        filter_bits: Callable[[str, bytes], bytes] | None = None,
        memory_size: int | None = None,
    ) -> None:
        """on_arrival hears, in the owner's thread, of messages that readers can see now.

        notify is called in other threads when poll() has something to do: let it arrange that call.
        """
        self.settings = settings
        self.clock = clock or SystemClock()
        self._disk = disk or Disk()
        self.root = Path(settings.store_path_root_dir)
        self._on_arrival = on_arrival
        self._notify = notify or (lambda: None)
        self.delay_levels_ms = parse_delay_levels(settings.message_delay_level)
        self.log = CommitLog(log_segments(self._disk, settings), store_host)
        sizes = QueueSizes(
            settings.mapped_file_size_consume_queue,
            settings.mapped_file_size_consume_queue_ext,
            settings.mapper_file_size_batch_consume_queue,
            settings.enable_consume_queue_ext,
        )
        self.queues = Queues(self._disk, self.root, sizes)
        self.checkpoint = Checkpoint(self._disk, self.root / "checkpoint")
        self._abort = AbortFile(self._disk, self.root / "abort")
        self.index: KeyIndex | None = None
        if settings.message_index_enable:
            self.index = KeyIndex(
                Index(
                    self._disk,
                    self.root / "index",
                    slot_count=settings.max_hash_slot_num,
                    entry_count=settings.max_index_num,
                    now=self.clock.now_ms,
                ),
                self.log.segments,
            )
        self._light = LightQueues(settings.enable_lmq and settings.enable_multi_dispatch)
        self._is_plain = not self._light.is_enabled and not settings.enabled_append_prop_crc
        self._dispatcher = Dispatcher(self.queues, self.index, self.delay_levels_ms, self._light, filter_bits)
        self._reader = QueueReader(self.log, self.queues, settings, memory_size=memory_size)
        self.flusher = Flusher(self.log, self.checkpoint, settings, self.clock, self._notify)
        self.retention = Retention(self._disk, self.log, self.queues, self.index, settings, self.clock)
        self._keeper = Keeper(
            self.log, self.queues, self.index, self._dispatcher, self.flusher, self.checkpoint, self.retention,
            settings, self.clock, self._at_keeper_step,
        )  # fmt: skip
        self._lock: DirectoryLock | None = None
        self._feed: LogFeed | None = None
        self.failure: Exception | None = None
        """What makes the store refuse messages until a restart."""
        self._is_open = False
        # The pass: what was appended and is not confirmed yet.
        self._pass: list[Appended] = []
        self._pass_time_ms = 0
        self._unconfirmed: deque[tuple[int, list[Appended]]] = deque()
        self._waiters = Waiters(self.clock)
        self._last_commit_ms = 0.0

    # Start and stop

    def open(self) -> Recovered:
        """Take the directory, recover it, and be ready. Raises StoreError with the reason where that cannot be."""
        try:
            self._disk.make_directory(self.root)
            self._lock = lock_file(self.root / "lock")
        except OSError as error:
            raise StoreError(f"{self.root} cannot be opened: {error}") from error
        try:
            return self._open()
        except BaseException as error:
            self._disk.close()
            self._lock.close()
            if isinstance(error, OSError):
                raise StoreError(f"{self.root} cannot be opened: {error}") from error
            raise

    def _open(self) -> Recovered:
        is_clean = not self._abort.exists
        found = self._recover_apart(is_clean=is_clean) or self.recover(is_clean=is_clean)
        if self.index is not None:
            self.index.index.load(None if is_clean else self.checkpoint.index_time_ms)
        # All of it is durable now; a damaged checkpoint, or one that ran ahead of the log, is put right.
        self.checkpoint.log_time_ms = self.checkpoint.queues_time_ms = found.last_store_time_ms
        if self.index is not None:
            self._catch_up_index(self.index, is_clean=is_clean)
        self._is_open = True
        return found

    def recover(self, *, is_clean: bool) -> Recovered:
        """Make log and queues consistent: for open(), and for the process that does this in its place."""
        self.log.segments.load("mappedFileSizeCommitLog")
        self.checkpoint.load()
        problems = self.queues.load(self.checkpoint.forget_queues)
        self._abort.create()
        found = self._recovery().run(is_clean=is_clean, problems=problems)
        self.queues.sync()
        return found

    def _recovery(self) -> Recovery:
        verify_crc = self.settings.check_crc_on_recover
        return Recovery(self.log, self.queues, self.checkpoint, self._dispatcher, verify_crc=verify_crc)

    def _recover_apart(self, *, is_clean: bool) -> Recovered | None:
        if type(self._disk) is not Disk or self.settings.enable_consume_queue_ext:
            return None  # what is not in the settings is known in this process alone
        self.log.segments.load("mappedFileSizeCommitLog")
        self.checkpoint.load()
        recovery = self._recovery()
        job = job_for(self.settings, self.log, recovery, is_clean=is_clean)
        if job is None:
            return None
        self._abort.create()
        found = recover_apart(job)
        self._disk.close()  # it may hold files that are gone
        self.log.segments.load("mappedFileSizeCommitLog")
        if found is not None:
            self.checkpoint.load()
            self.queues.load()
            recovery.adopt(found)
        return found

    def _catch_up_index(self, index: KeyIndex, *, is_clean: bool) -> None:
        """Have the index built from its last message on; after a crash that one may lack some of its keys."""
        index.index.remove_from(self.log.end)
        time_ms, last = index.index.last_end()
        if is_clean and time_ms > 0 and (record := self.log.record(last)) is not None:
            last += len(record)
        index.collect_log(max(last, self.log.start), self.log.end)

    def start(self) -> None:
        """Start the threads. Without them, the caller flushes and keeps by hand (tests do)."""
        self.flusher.start()
        self._keeper.start()

    def close(self) -> None:
        """Write everything, say that the stop was clean, and let the directory go."""
        if not self._is_open:
            return
        with contextlib.suppress(StoreError):
            self.end_pass()
        self._is_open = False
        self._keeper.stop()
        with contextlib.suppress(StoreError):
            self.commit()
        self.flusher.stop()
        self.poll()
        try:
            if self.failure is None:
                self.rebuild_index()
                self.keep_all()
                self._abort.remove()
        except OSError as error:
            log.error("the store cannot be closed cleanly; the next start recovers it: %s", error)
        finally:
            self._remove_spare_files()
            self._disk.close()
            if self._lock is not None:
                self._lock.close()

    def _remove_spare_files(self) -> None:
        """The file allocated ahead of need is not kept."""
        for start in [each for each in self.log.segments.starts[1:] if each >= self.log.end]:
            with contextlib.suppress(OSError):
                self.log.segments.remove(start)

    # Putting

    @property
    def refusal(self) -> str | None:
        """Why no message is accepted now; None where one is."""
        if not self._is_open:
            return "the store is closed"
        self._hear_of_failures()
        if self.failure is not None:
            return f"the store failed and needs a restart: {self.failure}"
        if self.retention.is_disk_full:
            return "the disk is full"
        return None

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        *,
        born_time_ms: int,
        born_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Put:
        """Append a message; it counts once end_pass() has returned."""
        queue = self.queues.table.get((topic, queue_id))
        if (
            queue is None
            or self.failure is not None
            or self.retention.is_disk_full
            or not self._is_open
            or sys_flag & flags.INNER_BATCH
        ):
            if (problem := self._refuse(topic, queue_id, sys_flag)) is not None:
                return problem
            queue = self.queues.get(topic, queue_id)
        if not self._is_plain:
            properties = self._extended(topic, properties)
        log_, topic_bytes = self.log, queue.topic_bytes
        body_size, topic_size, properties_size = len(body), len(topic_bytes), len(properties)
        if body_size > self.settings.max_message_size or properties_size > PROPERTIES_SIZE_MAX:
            return self._too_large(body_size, properties_size)
        size = 75 + len(born_host) + len(log_.store_host) + body_size + topic_size + properties_size
        if topic_size > TOPIC_SIZE_MAX_V1:
            size += 1
        store_time_ms = self._pass_time_ms or self._start_pass()
        try:
            log_offset = log_.reserve(size)
        except (OSError, StoreError) as error:
            return self._no_room(size, error)
        is_hidden = sys_flag and sys_flag & flags.TRANSACTION_MASK in HIDDEN
        queue_offset = 0 if is_hidden else queue.next_offset
        log_.append(
            size, topic_bytes, queue_id, queue_offset, body, properties, born_time_ms, born_host, store_time_ms,
            flag, sys_flag, reconsume_times, prepared_transaction_offset,
        )  # fmt: skip
        if not is_hidden:
            queue.next_offset = queue_offset + 1
        if not self._is_plain:
            self._finish_extended(topic, properties, size)
        self._pass.append((queue, queue_offset, log_offset, size, properties, store_time_ms, sys_flag))
        # Made as a tuple: the constructor of a named tuple takes as long as encoding the record's body.
        return _new(Put, (PutStatus.PUT_OK, log_offset, size, queue_offset, store_time_ms, (), ""))

    def _extended(self, topic: str, properties: bytes) -> bytes:
        """The properties with what the settings add to them."""
        if self._light.is_enabled and b"INNER_MULTI_DISPATCH\x01" in properties:
            properties = self._light.with_offsets(topic, properties, self.queues)
        return reserve_record_crc(properties) if self.settings.enabled_append_prop_crc else properties

    def _finish_extended(self, topic: str, properties: bytes, size: int) -> None:
        if self.settings.enabled_append_prop_crc:
            self.log.stamp_crc([size])
        for name, offset in self._light.of(topic, properties):
            self.queues.get(name, 0).next_offset = offset + 1

    def _start_pass(self) -> int:
        if self._feed is not None:
            self._feed.follow(self.log.end, wants_arrivals=False)
            self._feed = None
        self._pass_time_ms = self.log.last_store_time_ms = self.put_time_ms
        return self._pass_time_ms

    @property
    def put_time_ms(self) -> int:
        """The store time of a message put now: one for a pass, and never going back, as search by time needs it."""
        return self._pass_time_ms or max(self.clock.now_ms(), self.log.last_store_time_ms)

    def renew_pass_time(self) -> None:
        """What this pass puts from now on gets the present time: for messages whose delay begins to run now."""
        if self._pass_time_ms:
            self._pass_time_ms = self.log.last_store_time_ms = max(self.clock.now_ms(), self._pass_time_ms)

    def _refuse(self, topic: str, queue_id: int, sys_flag: int) -> Put | None:
        if (reason := self.refusal) is not None:
            return Put(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        if sys_flag & flags.INNER_BATCH or any(topic == name for name, _ in self.queues.batch):
            return Put(PutStatus.MESSAGE_ILLEGAL, reason="batch consume queues are only read")
        return problem_of_queue(topic, queue_id)

    def _too_large(self, body_size: int, properties_size: int) -> Put:
        body_size_max = self.settings.max_message_size
        return too_large(body_size=body_size, body_size_max=body_size_max, properties_size=properties_size)

    def _no_room(self, size: int, error: Exception) -> Put:
        if size + BLANK_SIZE > self.log.segments.size:
            return Put(PutStatus.MESSAGE_ILLEGAL, reason=f"a record of {size} bytes does not fit a file of the log")
        log.error("the next file of the log cannot be made: %s", error)
        return Put(PutStatus.CREATE_MAPPED_FILE_FAILED, reason=str(error))

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes | memoryview,
        *,
        extra_properties: bytes = b"",
        born_time_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> Put:
        """Append the messages of a client's batch, all of them or none. extra_properties go to each.

        Raises RemoteProtocolError where the bytes are no batch.
        """
        problem = self._refuse(topic, queue_id, sys_flag)
        if problem is not None:
            return problem
        if len(batch) > self.settings.max_message_size:
            return self._too_large(len(batch), 0)
        queue = self.queues.get(topic, queue_id)
        topic_size = len(queue.topic_bytes)
        overhead = 75 + len(born_host) + len(self.log.store_host) + topic_size + (topic_size > TOPIC_SIZE_MAX_V1)
        with_record_crc = self.settings.enabled_append_prop_crc
        heads, properties, sizes = parse_batch(
            batch, record_overhead=overhead, extra_properties=extra_properties, with_record_crc=with_record_crc
        )
        properties_size = max(map(len, properties))
        if properties_size > PROPERTIES_SIZE_MAX:
            return self._too_large(0, properties_size)
        store_time_ms = self._pass_time_ms or self._start_pass()
        try:
            log_offset = self.log.reserve(sum(sizes))
        except (OSError, StoreError) as error:
            return self._no_room(sum(sizes), error)
        host_bits = flags.BORN_HOST_V6 if len(born_host) == 20 else 0
        host_bits |= flags.STORE_HOST_V6 if len(self.log.store_host) == 20 else 0
        common = struct.pack(
            f">iq{len(born_host)}sq{len(self.log.store_host)}siq",
            sys_flag & ~(flags.BORN_HOST_V6 | flags.STORE_HOST_V6) | host_bits,
            born_time_ms, born_host, store_time_ms, self.log.store_host, reconsume_times, 0,
        )  # fmt: skip
        queue_offset = queue.next_offset
        self.log.append_batch(sizes, heads, queue.topic_bytes, queue_id, queue_offset, common)
        if with_record_crc:
            self.log.stamp_crc(sizes)
        offsets = list(itertools.accumulate(sizes, initial=log_offset))
        end = offsets.pop()
        queue.next_offset = queue_offset + len(sizes)
        numbers, same = range(queue_offset, queue.next_offset), itertools.repeat
        self._pass += zip(
            same(queue), numbers, offsets, sizes, properties, same(store_time_ms), same(sys_flag), strict=False
        )
        return Put(PutStatus.PUT_OK, log_offset, end - log_offset, queue_offset, store_time_ms, offsets)

    # Ends of passes, and what follows

    def end_pass(self) -> None:
        """Write what was put, and let readers see it if that is enough.

        Raises StoreError where it could not be written: nothing of the pass counts then, and nothing is accepted
        until a restart.
        """
        self._pass_time_ms = 0
        if not self._pass:
            return
        appended, self._pass = self._pass, []
        self._unconfirmed.append((self.log.end, appended))
        if self.settings.transient_store_pool_enable and not self.flusher.is_sync and not self._is_commit_due():
            return
        self.commit()

    def _is_commit_due(self) -> bool:
        due_ms = self._last_commit_ms + self.settings.commit_interval_commit_log
        return self.clock.monotonic_ms() >= due_ms or self.log.unwritten >= DIRTY_MAX

    def commit(self) -> None:
        """Write what end_pass() left in memory (transientStorePoolEnable); otherwise there is nothing."""
        if self.failure is not None:
            raise StoreError(f"the store failed: {self.failure}")
        if not self.log.unwritten:
            self._confirm()  # written in the middle of its pass
            return
        self._last_commit_ms = self.clock.monotonic_ms()
        try:
            self.log.write()
        except OSError as error:
            self.failure = error
            log.critical("the log cannot be written; no message is accepted until a restart: %s", error)
            self._answer_waiters()
            raise StoreError(f"the log cannot be written: {error}") from error
        if self.flusher.is_sync or self.log.written - self.log.flushed >= DIRTY_MAX:
            self.flusher.wake()
        self._confirm()

    @property
    def confirmed_offset(self) -> int:
        """Readers see messages before this offset of the log."""
        return self.log.flushed if self.flusher.is_sync else self.log.written

    def _confirm(self) -> None:
        confirmed = self.confirmed_offset
        while self._unconfirmed and self._unconfirmed[0][0] <= confirmed:
            _, appended = self._unconfirmed.popleft()
            self._dispatcher.enter(appended)
            if self._on_arrival is not None:
                self._on_arrival(appended)
        if self._feed is not None:
            arrivals = self._feed.follow(confirmed, wants_arrivals=self._on_arrival is not None)
            if arrivals and self._on_arrival is not None:
                self._on_arrival(arrivals)

    def when_durable(self, end: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back, from poll() or at once, when the log is durable up to `end`, cannot be, or time is over."""
        self._waiters.add(end, self.settings.sync_flush_timeout, callback)
        if self.log.flushed >= end or self.failure is not None:
            self._answer_waiters()
        else:
            self.flusher.wake()

    def poll(self) -> None:
        """Do in the owner's thread what other threads made possible. Cheap where there is nothing."""
        self._hear_of_failures()
        if self.log.unwritten and self.failure is None and not self._pass and self._is_commit_due():
            with contextlib.suppress(StoreError):
                self.commit()
        self._answer_waiters()

    def _hear_of_failures(self) -> None:
        failure = self.flusher.failure or self._keeper.failure
        if failure is not None and self.failure is None:
            self.failure = failure

    def _answer_waiters(self) -> None:
        flushed = self.log.flushed
        self._confirm()  # behind the look at `flushed`: whoever hears that a message is durable can read it
        self._waiters.answer(flushed, has_failed=self.failure is not None)

    @property
    def oldest_waiter_ms(self) -> float:
        """How long the first of those who wait for a flush has waited."""
        return self._waiters.longest_ms

    # Keeping

    def _at_keeper_step(self) -> None:
        if self._waiters or self.log.unwritten or self._keeper.failure is not None:
            self._notify()

    def keep_all(self) -> None:
        """Make log, queues and index durable, and say so in the checkpoint. Raises OSError."""
        self._keeper.keep_all()

    def rebuild_index(self) -> None:
        """Index what the index lacks, from the log; the keeper does it where it runs. Raises OSError."""
        if self.index is not None:
            self.index.build()

    # Replicas

    def append_log(self, log_offset: int, data: bytes | memoryview) -> None:
        """Append a piece of another broker's log; its records are entered when they are whole and confirmed.

        A broker puts messages of its own only after it has stopped to copy. Raises StoreError where the piece does
        not go on where the log ends, and where it cannot be written: nothing is accepted then until a restart.
        """
        reason = self.refusal
        if reason is not None:
            raise StoreError(reason)
        if self._pass or self.log.unwritten:
            raise StoreError("messages of this broker's own wait to be written")
        check_place(self.log, log_offset)
        if self._feed is None:
            self._feed = LogFeed(self.log, self._dispatcher, self.queues, self.index, start=log_offset)
        try:
            self.log.append_copy(log_offset, data)
        except OSError as error:
            self.failure = error
            log.critical("the copy of the log cannot be written: %s", error)
            raise StoreError(f"the log cannot be written: {error}") from error
        if self.flusher.is_sync or self.log.written - self.log.flushed >= DIRTY_MAX:
            self.flusher.wake()
        self._confirm()

    # Reading

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        *,
        size_max: int = ANSWER_SIZE_MAX,
        filter_: MessageFilter = EVERYTHING,
        may_wait: bool = False,
    ) -> Got:
        """Messages of a queue from a queue offset on."""
        return self._reader.get(
            topic, queue_id, offset, count_max, size_max=size_max, filter_=filter_, may_wait=may_wait
        )

    def in_memory(self, log_offset: int) -> bool:
        """Whether Apache's broker would take this message to be in memory."""
        return self._reader.in_memory(log_offset)

    def record(self, log_offset: int) -> memoryview | None:
        """The record at a log offset; None where there is none that readers may see."""
        view = self.log.record(log_offset)
        return view if view is not None and log_offset + len(view) <= self.confirmed_offset else None

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.table.get((topic, queue_id)) or self.queues.batch.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int, *, is_committed: bool = True) -> int:
        """Behind the last message that readers see; is_committed=False: behind the last that was put."""
        queue = self.queues.table.get((topic, queue_id)) or self.queues.batch.get((topic, queue_id))
        if queue is None:
            return 0
        if is_committed or not isinstance(queue, ConsumeQueue):
            return queue.max_offset
        return queue.next_offset

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, is_upper: bool = False) -> int:
        """The first queue offset stored at or after a time; is_upper: the last one at or before it."""
        return self._reader.offset_by_time(topic, queue_id, time_ms, is_upper=is_upper)

    def store_time_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at a queue offset was stored; -1 where there is none."""
        return self._reader.store_time_ms(topic, queue_id, offset)

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets of messages whose key has this hash, oldest first: compare topic and key yourself."""
        if self.index is None:
            return []
        self.index.build_recent()
        count_max = min(count_max, self.settings.max_msgs_num_batch)
        found = self.index.index.query(topic, key, count_max, begin_ms, end_ms)
        return sorted(set(found))

    def remove_topic(self, topic: str) -> None:
        """Remove the queues of a topic; its messages stay in the log until they are too old."""
        self.queues.remove_topic(topic)
