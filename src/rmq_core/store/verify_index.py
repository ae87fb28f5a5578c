"""Index files against the keys of the log, and each file against itself.

Both are in the order of the log, so a place in the index moves along with the walk. Slots and links are what
entering the same entries one after the other makes: that is done again, some hundred thousand at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import DispatchColumns, kernels
from rmq_core.store.disk import Disk
from rmq_core.store.index_file import ENTRY, HEADER, IndexHeader
from rmq_core.store.index_shape import index_shape
from rmq_core.store.key_index import key_rows
from rmq_core.store.tools import Findings

ENTRIES: Final = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_COLLECTED_MAX: Final = 50_000
_CHUNK: Final = 100_000
_SLACK: Final = 4096


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of the log, in its order."""

    log_offsets: NDArray[np.int64]
    hashes: NDArray[np.int32]
    times_ms: NDArray[np.int64]

    @classmethod
    def join(cls, parts: list[_Keys]) -> _Keys:
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.log_offsets for part in parts]),
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.times_ms for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.log_offsets)

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> _Keys:
        return _Keys(self.log_offsets[rows], self.hashes[rows], self.times_ms[rows])


class _File:
    """The entries of one file, from one that was not looked at yet on."""

    def __init__(self, disk: Disk, path: Path, header: IndexHeader, shape: tuple[int, int]) -> None:
        self.path = path
        self.header = header
        self.slot_count, self.entry_count = shape
        self._view = disk.map(path)
        self.count = min(header.next_entry, self.entry_count) - 1
        self.next = 0

    def place(self, number: int) -> int:
        """Where an entry is, counted from 0, in the file."""
        return HEADER.size + 4 * self.slot_count + ENTRY.size * (number + 1)

    def read(self, start: int, count: int) -> NDArray[np.void]:
        """Entries, counted from 0."""
        count = max(min(count, self.count - start), 0)
        data = self._view[self.place(start) :][: ENTRY.size * count]
        return np.frombuffer(data[: len(data) // ENTRY.size * ENTRY.size], ENTRIES)

    def slots(self) -> NDArray[np.int32]:
        return np.frombuffer(self._view[HEADER.size :][: 4 * self.slot_count], ">i4").astype(np.int32)


class IndexCheck:
    """All index files."""

    def __init__(self, disk: Disk, folder: Path, found: Findings, log_start: int) -> None:
        self._found = found
        self._log_start = log_start
        self.entries = 0
        self._files: list[_File] = []
        self._exists = folder.is_dir()
        self._collected: list[_Keys] = []
        self._count = 0
        self._missing: tuple[int, int] | None = None
        shapes: dict[int, tuple[int, int]] = {}
        for name, size in disk.list(folder):
            path = folder / name
            if not name.isdecimal():
                found.problem(path, 0, "its name is no time")
                continue
            shape = index_shape(disk, path, size, is_mapped=True) or shapes.get(size)
            if shape is not None:
                shapes[size] = shape
            header = IndexHeader.unpack(disk.read(path, 0, HEADER.size)) if size >= HEADER.size else None
            if header is None or (shape is None and header != IndexHeader()):
                found.problem(path, 0, f"{size} bytes and what its header says do not make an index file")
            elif shape is not None and header.next_entry > 1:
                self._add_file(_File(disk, path, header, shape))
        if {len(each.path.name) for each in self._files} - {17}:
            found.note("names in index/ have other lengths than a time")

    def _add_file(self, file: _File) -> None:
        self._check_links(file)
        self._check_header(file)
        while file.next < file.count:  # retention leaves entries of messages that are gone
            offsets = file.read(file.next, _CHUNK)["log_offset"]
            kept = np.flatnonzero(offsets >= self._log_start)
            file.next += int(kept[0]) if len(kept) else len(offsets)
            if len(kept) or not len(offsets):
                break
        self.entries += file.count
        self._files.append(file)

    def _check_links(self, file: _File) -> None:
        newest = np.zeros(file.slot_count, np.int32)
        for start in range(0, file.count, _CHUNK):
            entries = file.read(start, _CHUNK)
            previous = link(entries, start + 1, newest)
            for row in np.flatnonzero(previous != entries["previous"]).tolist()[:10]:
                text = f"the entry before is {entries['previous'][row]}, not {previous[row]}"
                self._found.problem(file.path, file.place(start + row), text)
        slots = file.slots()
        for slot in np.flatnonzero(newest[: len(slots)] != slots).tolist()[:10]:
            self._found.problem(
                file.path, HEADER.size + 4 * slot, f"the slot says {slots[slot]}, not {newest[slot]}"
            )
        if int(np.count_nonzero(newest)) != file.header.used_slots:
            text = f"the header says {file.header.used_slots} slots are used, not {np.count_nonzero(newest)}"
            self._found.problem(file.path, 32, text)

    def _check_header(self, file: _File) -> None:
        first, last = file.read(0, 1), file.read(file.count - 1, 1)
        if not len(first) or not len(last):
            self._found.problem(file.path, 0, f"it has no room for the {file.count} entries of its header")
            return
        for place, wanted, entry in ((16, file.header.begin_offset, first), (24, file.header.end_offset, last)):
            if int(entry["log_offset"][0]) != wanted:
                text = f"the header says log offset {wanted}, the entry {entry['log_offset'][0]}"
                self._found.problem(file.path, place, text)

    # Against the log

    def add(self, buffer: memoryview, columns: DispatchColumns) -> None:
        """These records follow in the log."""
        rows, hashes = key_rows(buffer, columns)
        self._collected.append(_Keys(columns.log_offsets[rows], hashes, columns.store_times_ms[rows]))
        self._count += len(rows)
        if self._count >= _COLLECTED_MAX:
            self._compare()

    def _compare(self) -> None:
        if not self._count:
            return
        wanted = _Keys.join(self._collected)
        self._collected, self._count = [], 0
        for file in self._files:
            while len(wanted) and file.next < file.count:
                count = min(len(wanted), file.count - file.next)
                entries = file.read(file.next, count)
                same = entries["log_offset"] == wanted.log_offsets[:count]
                same &= entries["hash"] == wanted.hashes[:count]
                equal = count if same.all() else int(np.argmin(same))
                self._check_times(file, entries[:equal], wanted[:equal])
                file.next += equal
                wanted = wanted[equal:]
                if equal < count:
                    wanted = self._compare_apart(file, wanted)
                    break
        self._note_missing(wanted)

    def _check_times(self, file: _File, entries: NDArray[np.void], wanted: _Keys) -> None:
        begin_ms = file.header.begin_time_ms
        left_ms = wanted.times_ms - begin_ms - entries["seconds"] * np.int64(1000)
        if begin_ms > 0 and ((left_ms >= 0) & (left_ms < 1000)).all():
            return
        seconds = np.clip((wanted.times_ms - begin_ms) // 1000 if begin_ms > 0 else 0, 0, (1 << 31) - 1)
        for row in np.flatnonzero(entries["seconds"] != seconds).tolist()[:10]:
            place = file.place(file.next + row)
            self._found.problem(
                file.path, place, f"the entry is of second {entries['seconds'][row]}, not {seconds[row]}"
            )

    def _compare_apart(self, file: _File, wanted: _Keys) -> _Keys:
        """Where the two are not the same one by one: which keys have an entry, and which entries a key.

        Returns the keys behind the end of this file.
        """
        entries = file.read(file.next, len(wanted) + _SLACK)
        offsets = entries["log_offset"].astype(np.int64)
        # From behind, so that one offset that is wrong does not hide those that follow it.
        least = np.minimum.accumulate(offsets[::-1])[::-1]
        count = int(np.searchsorted(least, wanted.log_offsets[-1], side="right"))
        entries, offsets = entries[:count], offsets[:count]
        is_last = file.next + count >= file.count
        rest = wanted[:0]
        if is_last and count:
            last = max(offsets[-1], file.header.end_offset)
            split = int(np.searchsorted(wanted.log_offsets, last, side="right"))
            wanted, rest = wanted[:split], wanted[split:]
        keys, known = _mixed(wanted.log_offsets, wanted.hashes), _mixed(offsets, entries["hash"].astype(np.int32))
        self._say_extra(file, entries, ~np.isin(known, keys))
        self._note_missing(wanted[~np.isin(keys, known)])
        file.next += count
        return rest

    def _say_extra(self, file: _File, entries: NDArray[np.void], is_extra: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(is_extra)
        for row in rows[:10].tolist():
            text = f"no message at {entries['log_offset'][row]} of the log has such a key"
            place = file.place(file.next + row)
            self._found.problem(file.path, place, text, count=len(rows) - 9 if row == rows[:10][-1] else 1)

    def _note_missing(self, wanted: _Keys) -> None:
        if len(wanted):
            offset, count = self._missing or (int(wanted.log_offsets[0]), 0)
            self._missing = (offset, count + len(wanted))

    def finish(self, missing_key: Callable[[int, int], None], *, is_running: bool) -> None:
        """The log is over. missing_key(log_offset, count) hears of the first of the keys that have no entry."""
        self._compare()
        for file in self._files:
            while file.next < file.count:
                entries = file.read(file.next, _CHUNK)
                self._say_extra(file, entries, np.ones(len(entries), np.bool_))
                file.next += max(len(entries), 1)
        if self._missing is None:
            return
        offset, count = self._missing
        if not self._exists:
            self._found.note("there is no index")
        elif is_running:  # it is entered while the broker runs, or at its next start
            self._found.note(f"{count} keys are not in the index, the first of the message at {offset} of the log")
        else:
            missing_key(offset, count)


def link(entries: NDArray[np.void], number: int, newest: NDArray[np.int32]) -> NDArray[np.int32]:
    """Enter entries in their slots: what was the newest of its slot before each. number: of the first of them."""
    previous = np.empty(len(entries), np.int32)
    if (loops := kernels.active()) is not None:
        loops.link_entries(entries.view(np.uint8), number, newest, previous)
        return previous
    own = entries["hash"].astype(np.int32) % np.int32(len(newest))
    numbers = np.arange(number, number + len(entries), dtype=np.int32)
    previous[:] = newest[own]
    newest[own] = numbers  # of equal slots the last counts
    repeated = np.zeros(len(newest), np.bool_)
    repeated[own[newest[own] != numbers]] = True
    rows = np.flatnonzero(repeated[own])
    rows = rows[np.argsort(own[rows], kind="stable")]
    follows = np.flatnonzero(own[rows][1:] == own[rows][:-1])
    previous[rows[follows + 1]] = numbers[rows[follows]]
    return previous


def _mixed(log_offsets: NDArray[np.int64], hashes: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Offset and hash as one number."""
    return log_offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ hashes.astype(np.uint64)
