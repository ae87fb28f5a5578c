"""Has the compiled loops ready for the next recovery: a child process compiles them into the store's `.cache`.

A broker never compiles: that would hold its loop up for half a second at a time. Nor does it load the loops,
which would cost it 110 MB; the process that recovers a large log does, if they are compiled. So the child starts
once the log is so large that such a process would be worth it. It has low priority, and ends with the broker.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Final

from rmq_core.columnar import kernels
from rmq_core.store.recovery_process import APART_FROM

log = logging.getLogger(__name__)

STEP_MS: Final = 10_000


class LoopCache:
    """The compiled loops of one store."""

    def __init__(self, folder: Path, *, fill_from: int = APART_FROM // 2) -> None:
        """fill_from: bytes of log from which on they are wanted."""
        self._folder = folder
        self._fill_from = fill_from
        self._process: subprocess.Popen[bytes] | None = None
        self.is_done = not sys.executable or not kernels.are_wanted()
        """There is nothing to do any more, whether or not it went well."""

    def step(self, log_size: int) -> None:
        """Start the child when the log is large enough, and see whether it has ended; to be called now and then."""
        if self.is_done:
            return
        if self._process is None:
            if log_size >= self._fill_from:
                self._start()
        elif (code := self._process.poll()) is not None:
            self.is_done = True
            if code:
                log.warning("the loops were not compiled (exit code %d): a recovery will be slower", code)
            else:
                log.info("compiled loops are ready for the next recovery")
            self.stop()

    def _start(self) -> None:
        command = [sys.executable, "-m", "rmq_core.columnar.compiling", str(self._folder)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            log.warning("the loops cannot be compiled, a recovery will be slower: %s", error)
            self.is_done = True

    def stop(self) -> None:
        """End the child, if it is still at work."""
        self.is_done = True
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
