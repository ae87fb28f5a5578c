"""Deletes by age and by disk use: the log from its oldest file on, queues and index behind it.

By age    At the set hours of the day, files that were last written longer ago than they are kept.
By space  Above the first ratio those files at any hour; above the second one the oldest whatever their age; above
          the third also new messages are refused until it is below the second.
A file that is being read stays readable: its mapping lives as long as a view of it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from rmq_core.clock import Clock
from rmq_core.config import StoreSettings
from rmq_core.store.commit_log import CommitLog
from rmq_core.store.disk import Disk
from rmq_core.store.key_index import KeyIndex
from rmq_core.store.queues import Queues

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
MANUAL_RUNS = 20


@dataclass(slots=True)
class Cleaned:
    """What one run removed."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0


class Retention:
    """Keeps the store within its age and its disk."""

    def __init__(
        self,
        disk: Disk,
        log_: CommitLog,
        queues: Queues,
        index: KeyIndex | None,
        settings: StoreSettings,
        clock: Clock,
    ) -> None:
        self._disk = disk
        self._log = log_
        self._queues = queues
        self._index = index
        self._settings = settings
        self._clock = clock
        self._manual_runs = 0
        self._followed_start = -1
        self.is_disk_full = False
        """Whether new messages must be refused."""

    def request(self) -> None:
        """Remove expired files at the next runs, at whatever hour."""
        self._manual_runs = MANUAL_RUNS

    def used_ratio(self) -> float:
        """How full the disk is: of several folders of the log the emptiest counts, and the queues' own."""
        return max(min(self.log_ratios().values(), default=-1.0), self.queue_ratio())

    def log_ratios(self) -> dict[Path, float]:
        """How full the disk of each folder of the log is."""
        folders = sorted({path.parent for path in map(self._log.segments.path, self._log.segments.starts)})
        return {folder: self._disk.used_ratio(folder) for folder in folders}

    def queue_ratio(self) -> float:
        """How full the disk of the queues is."""
        return self._disk.used_ratio(Path(self._queues.root))

    def run(self) -> Cleaned:
        """Remove what is due."""
        settings = self._settings
        ratio = self.used_ratio() * 100
        if ratio > settings.disk_space_warning_level_ratio:
            if not self.is_disk_full:
                log.error("the disk is %.0f %% full: no message is accepted until files are removed", ratio)
            self.is_disk_full = True
        elif 0 <= ratio < settings.disk_space_clean_forcibly_ratio and self.is_disk_full:
            log.warning("the disk is %.0f %% full: messages are accepted again", ratio)
            self.is_disk_full = False
        is_urgent = ratio > settings.disk_space_clean_forcibly_ratio and settings.clean_file_forcibly_enable
        is_due = self._is_hour() or ratio > settings.disk_max_used_space_ratio or ratio < 0 or self._manual_runs > 0
        cleaned = Cleaned()
        if is_due or is_urgent:
            self._manual_runs = max(self._manual_runs - 1, 0)
            cleaned.log_files = self._remove_log_files(is_urgent=is_urgent)
        self._follow(cleaned)
        return cleaned

    def _is_hour(self) -> bool:
        hour = time.localtime(self._clock.now_ms() / 1000).tm_hour
        return hour in {int(each) for each in self._settings.delete_when.split(";") if each.strip()}

    def _remove_log_files(self, *, is_urgent: bool) -> int:
        segments = self._log.segments
        count = 0
        # Never the last file, which says where the log goes on, nor one that is not flushed.
        flushed = min(self._log.flushed, self._log.end)
        active = flushed - flushed % segments.size
        for start in segments.starts[:-1]:
            if start + segments.size > active or count >= self._settings.delete_file_batch_max:
                break
            age_ms = self._clock.now_ms() - segments.modified_ms(start)
            if not is_urgent and age_ms < self._settings.file_reserved_time * HOUR_MS:
                break
            if not count:
                # After a crash the ends of queues come from their files or from the log: not both may be missing.
                self._queues.write_out()
                self._queues.sync()
            log.info("the log file %d is removed after %.1f hours", start, age_ms / HOUR_MS)
            segments.remove(start)
            count += 1
        return count

    def _follow(self, cleaned: Cleaned) -> None:
        start = self._log.start
        if start <= self._followed_start:
            return
        self._followed_start = start
        cleaned.queue_files = self._queues.remove_before(start)
        if self._index is not None:
            cleaned.index_files = self._index.index.remove_before(start)
