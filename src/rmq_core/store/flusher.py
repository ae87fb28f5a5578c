"""Makes appends durable: as soon as one waits (SYNC_FLUSH), or from time to time (ASYNC_FLUSH).

Group commit   One sync serves everything written before it began. Whoever comes while it runs shares the next.
Failure        A sync that failed may have lost what it was for, and a second one would not say so. So the first
               failure is the last: it stays in `failure`, and nothing counts as durable any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rmq_core.clock import Clock
from rmq_core.config import StoreSettings
from rmq_core.store.checkpoint import Checkpoint
from rmq_core.store.commit_log import CommitLog

log = logging.getLogger(__name__)

PAGE_SIZE = 4096
DIRTY_MAX = 32 << 20
"""So many bytes are flushed early: above it the kernel may hold the writer up."""


LOOK_S = 1.0
"""So often the settings are looked at while there is nothing to do."""


class Flusher:
    """A thread that syncs the log."""

    def __init__(
        self,
        log_: CommitLog,
        checkpoint: Checkpoint,
        settings: StoreSettings,
        clock: Clock,
        on_flushed: Callable[[], None],
    ) -> None:
        """on_flushed() is called in the flusher's thread after each sync, and after the failure."""
        self._log = log_
        self._checkpoint = checkpoint
        self._settings = settings
        self._clock = clock
        self._on_flushed = on_flushed
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._syncing = threading.Lock()
        self._last_thorough_ms = clock.monotonic_ms()
        self.failure: OSError | None = None

    @property
    def is_sync(self) -> bool:
        return self._settings.flush_disk_type == "SYNC_FLUSH"

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="store-flusher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Flush once more and end the thread."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.flush()

    def wake(self) -> None:
        """Somebody waits, or much is dirty."""
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopping:
            self._sleep()
            self._wake.clear()
            if self.is_sync or self._is_due():
                self.flush()

    def _sleep(self) -> None:
        """Until somebody wakes it, or for the interval of the settings, which may change meanwhile."""
        if self.is_sync:
            self._wake.wait()
            return
        started_s = time.monotonic()
        left_s = 0.0
        while not self._wake.wait(min(left_s, LOOK_S)):
            left_s = started_s + self._settings.flush_interval_commit_log / 1000 - time.monotonic()
            if left_s <= 0:
                return

    def _is_due(self) -> bool:
        dirty = self._log.written - self._log.flushed
        settings, now_ms = self._settings, self._clock.monotonic_ms()
        if dirty and now_ms - self._last_thorough_ms >= settings.flush_commit_log_thorough_interval:
            return True
        pages = self._log.written // PAGE_SIZE - self._log.flushed // PAGE_SIZE
        return dirty >= DIRTY_MAX or (dirty > 0 and pages >= settings.flush_commit_log_least_pages)

    def flush(self) -> None:
        """Sync what is written now. A failure is kept, not raised."""
        with self._syncing:
            time_ms = self._log.written_time_ms
            target = self._log.written
            if self.failure is not None or target <= self._log.flushed:
                return
            try:
                self._log.segments.sync(self._log.flushed, target)
            except OSError as error:
                self.failure = error
                log.critical("the log cannot be synced; no message is accepted until a restart: %s", error)
            else:
                self._log.flushed = target
                self._checkpoint.log_time_ms = max(self._checkpoint.log_time_ms, time_ms)
                self._last_thorough_ms = self._clock.monotonic_ms()
        self._on_flushed()
