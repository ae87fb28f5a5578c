"""Delayed messages: they wait in a queue of SCHEDULE_TOPIC_XXXX for each delay level until they are due.

Due       The queue entry of a waiting message holds its time of delivery. All messages of a level wait equally
          long, so its queue is in the order of delivery: one task for each level sleeps until the first is due. A
          level with nothing in it costs nothing; an arrival wakes it.
Early     Never. Where a time lies further away than the delay, the clock went back (or the level was redefined):
          the message is then delivered once it has been seen waiting for the whole delay.
Delivery  The same message is put where it belongs, its properties unchanged, in bounded batches: the loop serves
          others between them. A put that failed is tried again; a message that can never be put is left out, and
          logged with its place in the log, so that it does not hold up its level for ever.
Progress  The next queue offset of each level, moved once the put is written, and stored each second in
          config/delayOffset.json. Before that the log is flushed: the file never knows of a delivery that a power
          cut could undo.
Crash     Nothing is lost. What was delivered since the file was last stored is delivered again. A file that is
          ahead of or behind its queues is brought into their range at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_core.broker.records import HOT_SIZE, place_of, read_cold
from rmq_core.broker.topics import next_version
from rmq_core.errors import RemoteProtocolError, StoreError
from rmq_core.files import read_or_backup, replace_file
from rmq_core.protocol.bodies import DataVersion, DelayOffsetSerializeWrapper
from rmq_core.protocol.message import HALF_TOPIC, SCHEDULE_TOPIC, remove_property
from rmq_core.protocol.record import decode_record
from rmq_core.store.consume_queue import BLANK_RECORD_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueue
from rmq_core.store.message_store import PutStatus
from rmq_core.store.queue_ext import is_address

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

log = logging.getLogger(__name__)

SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"
"""Under this name the statistics count what is taken out of the queues."""
STORE_INTERVAL_MS: Final = 1000
RETRY_MS: Final = 100
SLEEP_MAX_MS: Final = 1000
"""A sleeper looks at the clock at least so often: it may have been set meanwhile."""
BATCH_COUNT: Final = 64
BATCH_SIZE: Final = 1 << 20
_HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


class Waiting(NamedTuple):
    """An entry of a level's queue."""

    queue_offset: int
    log_offset: int
    size: int


class Seen(NamedTuple):
    """Every message before a queue offset was there at a time."""

    end: int
    time_ms: int


class Snapshot(NamedTuple):
    """Content of the file, and how far the log must be durable before it may be written."""

    version: int
    data: bytes
    log_end: int


class Schedule:
    """Delivers the delayed messages of a broker."""

    def __init__(self, broker: Broker, path: Path) -> None:
        """path is that of delayOffset.json."""
        self._broker = broker
        self._path = path
        self.offsets: dict[int, int] = {}
        """Level → queue offset of the message to be delivered next."""
        self.data_version = DataVersion(0, 0, 0)
        self._delivered_end = 0
        """The log ends here behind the delivery that moved an offset last."""
        self._is_changed = False
        self._snapshot: Snapshot | None = None
        self._is_reported = False
        """Whether it has been logged that the file cannot be written."""
        self._writing = threading.Lock()
        self._stored_version = 0
        self._seen: dict[int, Seen] = {}
        self._sleepers: dict[int, asyncio.Future[None]] = {}
        self._idle: dict[int, asyncio.Future[None]] = {}
        """Those of the sleepers that wait for an arrival."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    # Start and stop

    def load(self) -> None:
        """Read the file. Raises RocketMQError where it is there and unreadable."""
        saved = read_or_backup(self._path, DelayOffsetSerializeWrapper.decode)
        if saved is not None:
            self.offsets = dict(saved.offset_table)
            version = saved.data_version or DataVersion()
            self.data_version = replace(version, state_version=version.state_version or 0)

    def start(self) -> None:
        """Deliver from now on, if this is a master. The store is open."""
        if not self._broker.is_master:
            return
        loop = asyncio.get_running_loop()
        for level in self._levels():
            self._clamp(level)
            self._tasks.append(loop.create_task(self._serve(level), name=f"delay level {level}"))
        interval_ms = min(STORE_INTERVAL_MS, self._broker.store_settings.flush_delay_offset_interval)
        self._broker.every(interval_ms, self.save)

    async def stop(self) -> None:
        """End deliveries where they are; persist() then stores all of them."""
        self._is_stopping = True
        for sleeper in self._sleepers.values():
            _wake(sleeper)
        await asyncio.gather(*self._tasks)
        self._tasks.clear()
        if self._is_changed:
            with contextlib.suppress(StoreError):  # the store has logged it, and refuses messages from now on
                self._broker.store.commit()

    def _levels(self) -> list[int]:
        # Levels that were configured once may still have messages waiting.
        queued = (queue_id + 1 for topic, queue_id in self._broker.store.queues.table if topic == SCHEDULE_TOPIC)
        return sorted({*self._broker.store.delay_levels_ms, *queued})

    def _clamp(self, level: int) -> None:
        low = self._broker.store.min_offset(SCHEDULE_TOPIC, level - 1)
        high = self._broker.store.max_offset(SCHEDULE_TOPIC, level - 1)
        saved = self.offsets.get(level)
        if saved is not None and not low <= saved <= high:
            self.offsets[level] = offset = min(max(saved, low), high)
            log.warning("delay level %d: offset %d is outside of its queue and becomes %d", level, saved, offset)

    # Waking

    def arrived(self, level: int) -> None:
        """Readers can see another message of a level now: wake it if it had nothing to wait for."""
        sleeper = self._idle.pop(level, None)
        if sleeper is not None:
            _wake(sleeper)

    async def _serve(self, level: int) -> None:
        while not self._is_stopping:
            try:
                wait_ms = await self._deliver(level)
            except Exception:  # whatever it was must not end a level
                log.exception("delay level %d cannot be delivered; it is tried again", level)
                wait_ms = SLEEP_MAX_MS
            if wait_ms != 0 and not self._is_stopping:
                await self._sleep(level, wait_ms)

    async def _sleep(self, level: int, wait_ms: float | None) -> None:
        """Sleep for a time, or until a message arrives."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers[level] = sleeper
        timer = None
        if wait_ms is None:
            self._idle[level] = sleeper
        else:
            timer = self._broker.clock.call_later(min(wait_ms, SLEEP_MAX_MS), _wake, sleeper)
        try:
            await sleeper
        finally:
            self._idle.pop(level, None)
            if timer is not None:
                timer.cancel()

    # Delivering

    async def _deliver(self, level: int) -> float | None:
        """Deliver what is due, up to a batch.

        Returns how long to wait for the next: 0 if more is due already, None if nothing waits.
        """
        broker = self._broker
        queue = broker.store.queues.table.get((SCHEDULE_TOPIC, level - 1))
        offset = self.offsets.get(level, 0)
        if queue is None or offset >= queue.max_offset:
            return None
        if offset < queue.min_offset:
            log.warning("delay level %d: messages before %d were deleted unread", level, queue.min_offset)
            offset = self.offsets[level] = queue.min_offset
            self._is_changed = True
        due, wait_ms = self._due(level, queue, offset)
        if not due:
            return wait_ms
        records = await self._read(due)
        # What else there is must be looked at again: messages may have arrived since.
        end, wait_ms = 0, 0
        for entry, record in zip(due, records, strict=True):
            status, put_end = self._put(level, entry, record)
            if status not in _HOPELESS and status is not PutStatus.PUT_OK:
                wait_ms = RETRY_MS
                break
            offset, end = entry.queue_offset + 1, max(end, put_end)
        if not await broker.written():
            return RETRY_MS
        if offset > self.offsets.get(level, 0):
            self.offsets[level] = offset
            self._delivered_end = max(self._delivered_end, end)
            self._is_changed = True
        return wait_ms

    def _due(self, level: int, queue: ConsumeQueue, offset: int) -> tuple[list[Waiting], float]:
        """Entries from an offset on that are due, up to a batch, and how long to wait where there is none."""
        # All messages of a pass get its time: one that is due since the pass began must not be stored as if it were
        # earlier than that.
        now_ms = min(self._broker.now_ms(), self._broker.store.put_time_ms)
        due: list[Waiting] = []
        size_in_all = 0
        data = queue.read(offset, min(BATCH_COUNT, queue.max_offset - offset))
        if len(data) < ENTRY_SIZE:
            return due, RETRY_MS
        for log_offset, size, code in ENTRY.iter_unpack(data):
            is_blank = size == BLANK_RECORD_SIZE
            if not is_blank:
                wait_ms = self._due_ms(level, queue, Waiting(offset, log_offset, size), code, now_ms) - now_ms
                if wait_ms > 0:
                    return due, wait_ms
                size_in_all += size
            due.append(Waiting(offset, log_offset, 0 if is_blank else size))
            offset += 1
            if size_in_all >= BATCH_SIZE:
                break
        return due, 0

    def _due_ms(self, level: int, queue: ConsumeQueue, entry: Waiting, code: int, now_ms: int) -> int:
        """When a message is delivered, by its entry and by how long it has been seen waiting."""
        store = self._broker.store
        delay_ms = store.delay_levels_ms.get(level)
        due_ms = code
        if is_address(code):
            ext = store.queues.ext.get((queue.topic, queue.queue_id))
            unit = None if ext is None else ext.get(code)
            stored_ms = store.log.store_time_ms(entry.log_offset, entry.size)
            due_ms = stored_ms + (delay_ms or 0) if unit is None else unit.tags_code
        if delay_ms is None:
            return due_ms
        seen = self._seen.get(level)
        if due_ms > now_ms + delay_ms and (seen is None or entry.queue_offset >= seen.end or seen.time_ms > now_ms):
            seen = self._seen[level] = Seen(queue.max_offset, now_ms)
        if seen is not None and entry.queue_offset < seen.end:
            due_ms = min(due_ms, seen.time_ms + delay_ms)
        return due_ms

    async def _read(self, entries: list[Waiting]) -> list[memoryview | bytes | None]:
        """The records of entries; None for those that the log does not have any more."""
        store = self._broker.store
        oldest = min((entry.log_offset for entry in entries if entry.size), default=store.log.end)
        if store.log.end - oldest <= HOT_SIZE:
            return [store.log.view(entry.log_offset, entry.size) if entry.size else None for entry in entries]
        return await self._broker.run(
            lambda: [read_cold(store, entry.log_offset, entry.size) if entry.size else None for entry in entries]
        )

    def _put(self, level: int, entry: Waiting, data: memoryview | bytes | None) -> tuple[PutStatus, int]:
        """Put a message where it belongs. Returns the status, PUT_OK too where it is left out, and its end."""
        where = f"delay level {level}: the message at {entry.queue_offset} (log offset {entry.log_offset})"
        if data is None:
            if entry.size:
                log.error("%s is not in the log any more", where)
            return PutStatus.PUT_OK, 0
        try:
            record = decode_record(data)
        except RemoteProtocolError as error:
            log.error("%s is damaged and left out: %s", where, error)
            return PutStatus.PUT_OK, 0
        place = place_of(record.property_bytes)
        if place is None or place.topic in (HALF_TOPIC, SCHEDULE_TOPIC):
            log.error("%s does not say where it belongs and is left out", where)
            return PutStatus.PUT_OK, 0
        broker = self._broker
        put = broker.put(
            place.topic,
            place.queue_id,
            record.body,
            # The CRC was that of the waiting record.
            remove_property(record.property_bytes, b"__CRC32#"),
            born_time_ms=record.born_time_ms,
            born_host=record.born_host.pack(),
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
        )
        if put.status in _HOPELESS:
            log.error("%s cannot be put to %s and is left out: %s", where, place.topic, put.reason)
        elif put.status is PutStatus.PUT_OK and broker.store_settings.enable_schedule_message_stats:
            broker.stats.got(SCHEDULE_GROUP, SCHEDULE_TOPIC, level - 1, 1, entry.size)
            broker.stats.sent(place.topic, place.queue_id, put.size)
        return put.status, put.end

    # Progress

    async def save(self) -> None:
        """Store how far every level is, as soon as that is durable in the log."""
        if self._snapshot is None and self._is_changed:
            self._snapshot = self._take_snapshot()
        # One that waits for the log is not replaced: under load there would always be a newer one.
        if self._snapshot is None:
            return
        try:
            if await self._broker.run(self._write, self._snapshot):
                self._snapshot, self._is_reported = None, False
        except OSError as error:
            if not self._is_reported:
                self._is_reported = True
                log.error("the progress of delayed messages cannot be saved: %s", error)

    def persist(self) -> None:
        """Store it now, on this thread, for the end of the program. Raises OSError and StoreError."""
        if (self._is_changed or self._snapshot is not None) and not self._write(self._take_snapshot()):
            raise StoreError("the log cannot be flushed; the last deliveries will be repeated")

    def _take_snapshot(self) -> Snapshot:
        self._is_changed = False
        self.data_version = next_version(self.data_version)
        data = self._wrapper().encode(standard=True)
        return Snapshot(self.data_version.counter, data, self._delivered_end)

    def _write(self, snapshot: Snapshot) -> bool:
        store = self._broker.store
        with self._writing:
            store.flusher.flush()
            if store.log.flushed < snapshot.log_end:
                return False
            # A thread that was too slow must not put an older table in the place of the last one.
            if snapshot.version > self._stored_version:
                replace_file(self._path, snapshot.data)
                self._stored_version = snapshot.version
        return True

    def _wrapper(self) -> DelayOffsetSerializeWrapper:
        return DelayOffsetSerializeWrapper(dict(sorted(self.offsets.items())), self.data_version)

    def encode(self) -> bytes:
        """The table as slaves and tools ask for it."""
        return self._wrapper().encode()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
