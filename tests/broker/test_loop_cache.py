"""The child process that compiles loops for the next recovery: when it starts, and what is left of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmq_core.broker.loop_cache import LoopCache
from rmq_core.columnar import kernels
from support.records import using

LIMIT_S = 120
LOAD_ONLY = """
import sys
from rmq_core.columnar import kernels

sys.exit(not kernels.load(sys.argv[1], may_compile=False))
"""

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed"),
    pytest.mark.skipif(os.environ.get("RMQ_COMPILED") == "0", reason="RMQ_COMPILED=0 keeps the loops off"),
]


def can_load(cache: Path) -> bool:
    """Whether a process that never compiles can use the loops."""
    return subprocess.run([sys.executable, "-c", LOAD_ONLY, str(cache)], check=False).returncode == 0


def wait_until_done(cache: LoopCache, log_size: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not cache.is_done:
        cache.step(log_size)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_loops_of_a_large_log_are_ready_for_its_recovery(tmp_path: Path) -> None:
    """A small log first. Only the file that says that all is there is missing, as compiling takes long."""
    with using("compiled"):
        pass
    folder = tmp_path / ".cache"
    shutil.copytree(kernels.own_folder(), folder, copy_function=shutil.copy2)
    for complete in folder.rglob("complete"):
        complete.unlink()
    cache = LoopCache(folder, fill_from=1000)
    for _ in range(3):
        cache.step(999)
    assert not cache.is_done
    assert not can_load(folder)
    wait_until_done(cache, 1000)
    assert can_load(folder)


def test_a_cache_that_cannot_be_filled_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder lies below a file."""
    (tmp_path / "file").write_text("")
    cache = LoopCache(tmp_path / "file" / ".cache", fill_from=0)
    wait_until_done(cache, 1)
    cache.step(1)
    assert caplog.text.count("a recovery will be slower") == 1


def test_a_broker_that_stops_takes_its_child_along(tmp_path: Path) -> None:
    """Stops at once after the start of the child, which then has nothing left to compile into."""
    cache = LoopCache(tmp_path / ".cache", fill_from=0)
    cache.step(1)
    process = cache._process
    assert process is not None
    cache.stop()
    assert process.returncode not in (None, 0)
    cache.stop()


def test_a_child_ends_with_a_broker_that_was_killed(tmp_path: Path) -> None:
    """Closes the input of the child, as the end of its parent does."""
    command = [sys.executable, "-m", "rmq_core.columnar.compiling", str(tmp_path / ".cache")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert not can_load(tmp_path / ".cache")
