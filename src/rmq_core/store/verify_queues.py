"""Entries of consume queues against the log: of ordinary queues, and of light ones.

What the log says is collected, some hundred thousand records at a time, sorted by queue and compared at once: the
cost does not depend on how the queues take turns in the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import DispatchColumns
from rmq_core.protocol.message import LMQ_PREFIX, SCHEDULE_TOPIC
from rmq_core.protocol.record import decode_record
from rmq_core.store.consume_queue import BLANK_RECORD_SIZE, ENTRY_SIZE
from rmq_core.store.dispatcher import LightQueues
from rmq_core.store.groups import is_batch, is_shown
from rmq_core.store.queue_ext import ADDRESS_MAX
from rmq_core.store.tools import Findings, StoreFiles
from rmq_core.store.verify_ext import ExtCheck
from rmq_core.store.verify_files import QueueRun, queue_folders
from rmq_core.store.walk import Damage, Stretch

_ENTRIES: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_WANTED: Final = np.dtype([("queue_offset", np.int64), ("time_ms", np.int64), ("entry", _ENTRIES)])
_COLLECTED_MAX: Final = 200_000
_OPAQUE: Final = f"V{_WANTED.itemsize}"
_SKIP_COUNT: Final = 300_000
_KEYS_MAX: Final = 1 << 16
"""Where topic and queue make more numbers than this, there is no table of them."""


class QueueCheck:
    """All queues with entries of twenty bytes."""

    def __init__(
        self, root: Path, files: StoreFiles, found: Findings, topics: set[str] | None, *, entered_ms: int | None
    ) -> None:
        """topics: those that the broker knows, if that can be told. entered_ms: the store time before which
        everything is in the queues; None where all is, because the last stop was clean."""
        self._root = root
        self._entered_ms = entered_ms
        self._files = files
        self._found = found
        self._topics = topics
        self.entries = 0
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._queues: list[_Queue | None] = []
        self._collected: list[tuple[NDArray[np.int32], NDArray[np.void]]] = []
        self._count = 0
        size = -(-files.sizes.entries // ENTRY_SIZE) * ENTRY_SIZE
        for topic, queue_id, folder in queue_folders(files.disk, root / "consumequeue", found):
            run = QueueRun.find(files.disk, folder, size, found)
            if run is None:
                continue
            ext = None
            ext_folder = root / "consumequeue_ext" / topic / str(queue_id)
            if files.disk.list(ext_folder):
                ext = ExtCheck(files.disk, ext_folder, files.sizes.ext, found)
            self._numbers[topic.encode(), queue_id] = len(self._queues)
            self._queues.append(_Queue(topic, run, files, found, ext))
        self._light = LightQueues(any(topic.startswith(LMQ_PREFIX.encode()) for topic, _ in self._numbers))

    def add(self, step: Stretch, columns: DispatchColumns, batch_topics: set[str]) -> None:
        """These records follow in the log."""
        shown = is_shown(columns)
        rows = np.flatnonzero(shown & ~is_batch(columns, batch_topics) & (columns.queue_ids >= 0))
        self._collect(self._queue_numbers(columns, rows), _wanted(columns, rows, columns.queue_offsets[rows]))
        if self._light.is_enabled:
            for row in np.flatnonzero(columns.is_special & shown).tolist():
                self._add_light(step, columns, row)
        if self._count >= _COLLECTED_MAX:
            self._compare()

    def _add_light(self, step: Stretch, columns: DispatchColumns, row: int) -> None:
        record = decode_record(step.buffer, int(step.positions[row]))
        for name, queue_offset in self._light.of(record.topic, record.property_bytes):
            number = self._number(name.encode(), 0, record.log_offset, record.store_time_ms)
            wanted = _wanted(columns, np.array([row]), np.array([queue_offset]))
            self._collect(np.array([number], np.int32), wanted)

    def _collect(self, numbers: NDArray[np.int32], wanted: NDArray[np.void]) -> None:
        self._collected.append((numbers, wanted))
        self._count += len(wanted)

    def _queue_numbers(self, columns: DispatchColumns, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        width = int(columns.queue_ids[rows].max(initial=0)) + 1
        keys = columns.topic_ids[rows].astype(np.int64) * width + columns.queue_ids[rows]
        is_small = width * len(columns.topics) <= _KEYS_MAX
        if not is_small:
            unique, keys = np.unique(keys, return_inverse=True)
        first = np.full(width * len(columns.topics) if is_small else len(unique), -1)
        first[keys[::-1]] = rows[::-1]  # of equal keys the first counts
        present = np.flatnonzero(first >= 0)
        numbers = np.empty(len(first), np.int32)
        for place, row in sorted(
            zip(present.tolist(), first[present].tolist(), strict=True), key=lambda each: each[1]
        ):
            topic = columns.topics[columns.topic_ids[row]]
            numbers[place] = self._number(
                topic, int(columns.queue_ids[row]), int(columns.log_offsets[row]), int(columns.store_times_ms[row])
            )
        of_rows: NDArray[np.int32] = numbers[keys]
        return of_rows

    def _number(self, topic: bytes, queue_id: int, log_offset: int, time_ms: int) -> int:
        number = self._numbers.get((topic, queue_id))
        if number is None:
            number = self._numbers[topic, queue_id] = len(self._queues)
            self._queues.append(None)
            name = topic.decode("utf-8", "replace")
            if self._topics is not None and name not in self._topics:
                self._found.note(f"messages of {name} are in the log, but the topic is not: was it deleted?")
            elif self._entered_ms is not None and time_ms >= self._entered_ms:
                self._found.note(f"the queue {name}/{queue_id} is not there yet")
            else:
                folder = self._root / "consumequeue" / name / str(queue_id)
                self._found.problem(folder, 0, f"the queue of the record at {log_offset} of the log is missing")
        return number

    def _compare(self) -> None:
        if not self._count:
            return
        numbers = np.concatenate([part[0] for part in self._collected])
        # Small numbers are sorted, and rows without fields copied, several times as fast.
        numbers = numbers.astype(np.uint16 if len(self._queues) <= 0xFFFF else np.int32)
        wanted = np.concatenate([part[1].view(_OPAQUE) for part in self._collected])
        self._collected, self._count = [], 0
        order = np.argsort(numbers, kind="stable")
        numbers, wanted = numbers[order], wanted[order].view(_WANTED)
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(order)]
        for low, high in itertools.pairwise(bounds):
            queue = self._queues[numbers[low]]
            if queue is not None:
                self.entries += queue.compare(wanted[low:high])

    def finish(self, damages: Sequence[Damage], log_end: int) -> None:
        """The log is over: what is left in the queues belongs to no message."""
        self._compare()
        for queue in self._queues:
            if queue is not None:
                self.entries += queue.finish(damages, log_end, is_running=self._entered_ms is not None)


def _wanted(
    columns: DispatchColumns, rows: NDArray[np.int64], queue_offsets: NDArray[np.int64]
) -> NDArray[np.void]:
    wanted = np.empty(len(rows), _WANTED)
    wanted["queue_offset"] = queue_offsets
    wanted["time_ms"] = columns.store_times_ms[rows]
    entries = wanted["entry"]
    entries["log_offset"] = columns.log_offsets[rows]
    entries["size"] = columns.sizes[rows]
    entries["code"] = columns.tags_codes[rows]
    return wanted


class _Queue:
    """One queue, compared from its first entry to its last."""

    def __init__(self, topic: str, run: QueueRun, files: StoreFiles, found: Findings, ext: ExtCheck | None) -> None:
        self._topic = topic
        self._run = run
        self._files = files
        self._found = found
        self._ext = ext
        self._next = run.first // ENTRY_SIZE
        """Entries before this one have been looked at."""
        self._end = run.end // ENTRY_SIZE
        self._unaccounted: list[tuple[int, NDArray[np.void]]] = []
        self._last_expired = -1
        self._missing: tuple[int, str, int] | None = None

    def _problem(self, queue_offset: int, text: str, count: int = 1) -> None:
        address = queue_offset * ENTRY_SIZE
        self._found.problem(self._run.path(address), address % self._run.size, text, count=count)

    def _read(self, start: int, end: int) -> NDArray[np.void]:
        end = min(end, self._end)
        return np.frombuffer(self._run.read(start * ENTRY_SIZE, max(end - start, 0) * ENTRY_SIZE), _ENTRIES)

    def compare(self, wanted: NDArray[np.void]) -> int:
        """The log has these records next; returns how many entries were looked at."""
        offsets = wanted["queue_offset"]
        if (looked := self._compare_exactly(wanted)) > 0:
            return looked
        breaks = np.flatnonzero(np.diff(offsets) <= 0) + 1
        looked = 0
        for low, high in itertools.pairwise([0, *breaks.tolist(), len(wanted)]):
            part = wanted[low:high]
            start = int(part["queue_offset"][0])
            if start < self._next:
                known = int(np.searchsorted(part["queue_offset"], self._next))
                text = (
                    f"the record at {part['entry']['log_offset'][0]} has a queue offset that another one had before"
                )
                self._problem(start, text, known)
                part = part[known:]
            if len(part):
                looked += self._compare_run(part)
        return looked

    def _compare_exactly(self, wanted: NDArray[np.void]) -> int:
        """How most queues are: these very entries come next. Returns 0 where it is not so."""
        count, offsets = len(wanted), wanted["queue_offset"]
        if offsets[0] != self._next or offsets[-1] != self._next + count - 1 or (np.diff(offsets) != 1).any():
            return 0
        found = self._run.read(self._next * ENTRY_SIZE, count * ENTRY_SIZE)
        if found != wanted["entry"].tobytes():
            return 0
        self._next += count
        return count

    def _compare_run(self, wanted: NDArray[np.void]) -> int:
        start, end = int(wanted["queue_offset"][0]), int(wanted["queue_offset"][-1]) + 1
        looked = self._skip(start)
        if end - start > 2 * len(wanted) + _SKIP_COUNT:  # a queue offset that cannot be right
            gap = int(np.argmax(np.diff(wanted["queue_offset"]))) + 1
            return looked + self._compare_run(wanted[:gap]) + self._compare_run(wanted[gap:])
        entries = self._read(start, end)
        places = wanted["queue_offset"] - start
        present = places < len(entries)
        if not present.all():
            first = int(np.argmin(present))
            self._say_missing(wanted[first:])
            wanted, places = wanted[present], places[present]
        named = np.zeros(len(entries), np.bool_)
        named[places] = True
        if not named.all():
            self._note_unaccounted(start, entries, ~named)
        self._next = start + len(entries) if len(entries) else max(self._next, min(end, self._end))
        self._compare_entries(entries[places], wanted)
        return looked + len(entries)

    def _say_missing(self, wanted: NDArray[np.void]) -> None:
        first = self._missing or (
            self._end,
            f"no entry for the record at {wanted['entry']['log_offset'][0]} of the log",
            0,
        )
        self._missing = (first[0], first[1], first[2] + len(wanted))

    def _compare_entries(self, entries: NDArray[np.void], wanted: NDArray[np.void]) -> None:
        records = wanted["entry"]
        codes = entries["code"].astype(np.int64)
        with_ext = codes <= ADDRESS_MAX
        if with_ext.any():
            if self._ext is None:
                row = int(np.argmax(with_ext))
                self._problem(int(wanted["queue_offset"][row]), "the entry names an ext unit, and there is none")
                codes[with_ext] = records["code"][with_ext]
            else:
                codes[with_ext] = self._ext.check(codes[with_ext], wanted["time_ms"][with_ext])
        same = (entries["log_offset"] == records["log_offset"]) & (entries["size"] == records["size"])
        if self._topic == SCHEDULE_TOPIC:
            # The time of delivery. By which table is not in the directory, but all its delays are whole seconds.
            delays = codes - wanted["time_ms"]
            same &= (codes == records["code"]) | ((delays > 0) & (delays % 1000 == 0))
        else:
            same &= codes == records["code"]
        rows = np.flatnonzero(~same)
        for row in rows[:10].tolist():
            log_offset, size, _ = entries[row].tolist()
            is_blank = size == BLANK_RECORD_SIZE
            got = "blank" if is_blank else str((log_offset, size, int(codes[row])))
            should = tuple(int(records[name][row]) for name in ("log_offset", "size", "code"))
            text = f"the entry is {got}, the record says {should}"
            self._problem(int(wanted["queue_offset"][row]), text, len(rows) - 9 if row == rows[:10][-1] else 1)

    # Entries of which the log has no record

    def _skip(self, end: int) -> int:
        """Look at the entries before this one, which no record of the log claimed."""
        looked = 0
        while self._next < min(end, self._end):
            entries = self._read(self._next, min(end, self._next + _SKIP_COUNT))
            if not len(entries):
                return looked
            self._note_unaccounted(self._next, entries, np.ones(len(entries), np.bool_))
            self._next += len(entries)
            looked += len(entries)
        return looked

    def _note_unaccounted(self, start: int, entries: NDArray[np.void], rows: NDArray[np.bool_]) -> None:
        offsets = entries["log_offset"].astype(np.int64)
        is_blank = (entries["size"] == BLANK_RECORD_SIZE) & (offsets == 0)
        is_expired = (offsets >= 0) & (entries["size"] > 0) & (offsets < self._files.segments.first)
        expired = offsets[rows & is_expired & ~is_blank]
        if len(expired) and (expired[0] <= self._last_expired or (np.diff(expired) <= 0).any()):
            self._problem(start, "entries of messages that were removed are not in the order of the log")
        self._last_expired = int(expired[-1]) if len(expired) else self._last_expired
        odd = np.flatnonzero(rows & ~is_blank & ~is_expired)
        if len(odd) and sum(len(each) for _, each in self._unaccounted) < 1000:
            for low in odd[:1000].tolist():
                self._unaccounted.append((start + low, entries[low : low + 1].copy()))

    def finish(self, damages: Sequence[Damage], log_end: int, *, is_running: bool) -> int:
        """The log is over."""
        looked = self._skip(self._end)
        if self._missing is not None:
            offset, text, count = self._missing
            if is_running:  # it is entered at the next start, if not sooner
                self._found.note(f"{self._topic}: {count} records are not entered yet")
            else:
                self._problem(offset, text, count)
        for queue_offset, entry in self._unaccounted:
            log_offset = int(entry["log_offset"][0])
            if any(damage.start <= log_offset < damage.end for damage in damages):
                text = "lies in a damaged part of the log"
            elif log_offset >= log_end:
                text = "is behind the end of the log"
            else:
                text = "is none of this queue and this place"
            self._problem(queue_offset, f"the record at {log_offset} that it names {text}")
        last = self._read(self._end - 1, self._end) if self._end > self._run.first // ENTRY_SIZE else None
        if last is not None and len(last) and last["size"][0] == BLANK_RECORD_SIZE:
            self._problem(self._end - 1, "a queue cannot end with a blank entry")
        if self._ext is not None:
            self._ext.finish()
        return looked
