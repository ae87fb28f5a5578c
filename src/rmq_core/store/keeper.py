"""What happens beside the sends: queues, index and checkpoint are written, files allocated and removed.

Write     Entries and keys that are only in memory go to their files, which keeps the memory small.
Thorough  Log, queues and index become durable, and the checkpoint says up to which store time. Each time is taken
          before what it speaks of is made durable.
Failure   An error ends the thread and stays in `failure`: what could not be written is only in the log, and a
          restart builds it again from there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from rmq_core.clock import Clock
from rmq_core.config import StoreSettings
from rmq_core.errors import StoreError
from rmq_core.store.checkpoint import Checkpoint
from rmq_core.store.commit_log import CommitLog
from rmq_core.store.dispatcher import Dispatcher
from rmq_core.store.flusher import Flusher
from rmq_core.store.key_index import KeyIndex
from rmq_core.store.queues import Queues
from rmq_core.store.retention import Retention

log = logging.getLogger(__name__)

INTERVAL_S: Final = 0.1


class Keeper:
    """A thread, and the same steps by hand where there is none."""

    def __init__(
        self,
        log_: CommitLog,
        queues: Queues,
        index: KeyIndex | None,
        dispatcher: Dispatcher,
        flusher: Flusher,
        checkpoint: Checkpoint,
        retention: Retention,
        settings: StoreSettings,
        clock: Clock,
        on_step: Callable[[], None],
    ) -> None:
        """on_step() is called in the keeper's thread at each step, and after the failure."""
        self._log = log_
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._checkpoint = checkpoint
        self._retention = retention
        self._settings = settings
        self._clock = clock
        self._on_step = on_step
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._last_write_ms = self._last_thorough_ms = self._last_clean_ms = clock.monotonic_ms()
        self.failure: Exception | None = None

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="store-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step that it is at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stop.wait(INTERVAL_S):
                self._on_step()
                self.step()
        except Exception as error:  # nobody else would hear of it
            self.failure = error
            log.critical("queues or index cannot be written; no message is accepted until a restart: %s", error)
            self._on_step()

    def step(self) -> None:
        """Do what is due. Raises OSError."""
        settings, now_ms = self._settings, self._clock.monotonic_ms()
        with contextlib.suppress(OSError, StoreError):  # tried again when the file is needed
            self._log.allocate_ahead()
        if self._index is not None:
            self._index.build(self._stop)
        if now_ms - self._last_write_ms >= settings.flush_interval_consume_queue:
            self._last_write_ms = now_ms
            self._queues.write_out()
            if self._index is not None:
                self._index.index.write_out()
            self._checkpoint.store()
        if now_ms - self._last_thorough_ms >= settings.flush_consume_queue_thorough_interval:
            self._last_thorough_ms = now_ms
            self.keep_all()
        if now_ms - self._last_clean_ms >= settings.clean_resource_interval:
            self._last_clean_ms = now_ms
            self._retention.run()

    def keep_all(self) -> None:
        """Make log, queues and index durable, and say so in the checkpoint. Raises OSError."""
        time_ms = self._dispatcher.last_store_time_ms
        if self._index is not None:
            self._index.build(self._stop)
            self._index.index.flush()
            rolled_end_ms = self._index.index.rolled_end_ms
        # Only now: the index must not be said to be whole up to a message that the log could still lose.
        self._flusher.flush()
        if self._flusher.failure is not None:
            raise self._flusher.failure
        self._queues.write_out()
        self._queues.sync()
        if self._index is not None:
            self._checkpoint.index_time_ms = rolled_end_ms
        self._checkpoint.queues_time_ms = max(self._checkpoint.queues_time_ms, time_ms)
        self._checkpoint.store()
