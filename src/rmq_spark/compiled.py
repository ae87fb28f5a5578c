"""Compiled loops in workers that live long enough to gain by them.

Loading takes half a second and 110 MB, so a worker begins after it has decoded some rows, on a thread beside; rows
are decoded by numpy until it is done. Nothing is compiled in a worker: where no other process has done so yet, one
child fills the cache for all workers of the machine. Any failure means numpy, and one line in the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from rmq_core.columnar import kernels

_log: Final = logging.getLogger(__name__)

ROWS_BEFORE: Final = 100_000
"""After so many rows a worker is worth the loops."""
_FILLING_S: Final = 600
"""So long nobody else begins to fill the cache."""


class CompiledLoops:
    """When this process turns to them."""

    def __init__(self) -> None:
        self._rows = 0
        self._thread: threading.Thread | None = None

    def decoded(self, rows: int) -> None:
        """Some rows were decoded."""
        self._rows += rows
        if self._thread is None and self._rows >= ROWS_BEFORE and not kernels.is_loaded() and kernels.are_wanted():
            self._thread = threading.Thread(target=_load, name="rmq-spark-compiled", daemon=True)
            self._thread.start()

    def off(self) -> None:
        """This query wants none."""
        kernels.unload()


LOOPS: Final = CompiledLoops()


def _load() -> None:
    logger = logging.getLogger(kernels.__name__)
    before = logger.level
    logger.setLevel(logging.ERROR)  # an empty cache is no failure yet
    try:
        is_loaded = kernels.load(may_compile=False)
    finally:
        logger.setLevel(before)
    if is_loaded:
        _freeze()
        return
    try:
        _fill_cache()
    except OSError as error:
        _log.warning("compiled loops stay off, numpy is used instead: %s", error)


def _freeze() -> None:
    import gc

    gc.collect()
    gc.freeze()


def _fill_cache() -> None:
    """Compile in a child, unless one does so already; a worker that starts later finds the cache."""
    mark = kernels.own_folder() / "filling"
    with contextlib.suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime > _FILLING_S:
            mark.unlink()
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        [sys.executable, "-m", "rmq_core.columnar.kernels"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    failed = child.wait()
    mark.unlink(missing_ok=True)
    if failed:
        _log.warning("compiled loops stay off, numpy is used instead: compiling them failed")
    elif kernels.load(may_compile=False):
        _freeze()
