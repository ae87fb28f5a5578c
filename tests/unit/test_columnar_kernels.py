"""The switch for compiled loops: when they are used, and what happens where they cannot be."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rmq_core.columnar import kernels
from support.records import using

LOOPS = "rmq_core.columnar.loops"
LOAD_ONLY = """
import sys
from rmq_core.columnar import kernels

sys.exit(not kernels.load(sys.argv[1], may_compile=False))
"""


@pytest.fixture(autouse=True)
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not loaded them."""
    kernels.unload()
    monkeypatch.delenv("RMQ_COMPILED", raising=False)
    monkeypatch.delitem(sys.modules, LOOPS, raising=False)


def refused(caplog: pytest.LogCaptureFixture, cache_dir: Path | None = None, *, may_compile: bool = True) -> str:
    """The one line with which load() says no."""
    with caplog.at_level(logging.INFO, "rmq_core.columnar.kernels"):
        assert not kernels.load(cache_dir, may_compile=may_compile)
    assert not kernels.is_loaded()
    assert kernels.active() is None
    (line,) = caplog.messages
    return line


def test_without_numba_numpy_does_the_work(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hides the package."""
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "numba" in refused(caplog, tmp_path)


def test_the_environment_keeps_the_loops_off(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Says so, and looks for a log line too many."""
    monkeypatch.setenv("RMQ_COMPILED", "0")
    assert not kernels.load()
    assert caplog.messages == []


def test_a_process_that_may_not_compile_takes_a_complete_cache_only(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """An empty folder, and one in which something was about to be compiled."""
    pytest.importorskip("numba", reason="compiled loops need numba")
    assert "no complete cache" in refused(caplog, tmp_path, may_compile=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_keeps_the_loops_off(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Gives a path below a file, which nobody can make a folder of."""
    pytest.importorskip("numba", reason="compiled loops need numba")
    (tmp_path / "file").write_text("")
    assert "stay off" in refused(caplog, tmp_path / "file" / "cache")


def test_a_cache_is_used_while_nothing_is_missing_in_it(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Loads a copy of the cache in another process, which must add nothing; then takes one file away."""
    with using("compiled"):
        pass
    cache = tmp_path / "cache"
    shutil.copytree(kernels.own_folder(), cache, copy_function=shutil.copy2)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb[ci]")}
    subprocess.run([sys.executable, "-c", LOAD_ONLY, str(cache)], check=True)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb[ci]")} == before
    sys.modules.pop(LOOPS, None)
    folders = [path for path in cache.iterdir() if (path / "complete").exists()]
    assert folders
    for folder in folders:
        for path in sorted(folder.rglob("*.nbc"))[:1]:
            path.unlink()
    assert "no complete cache" in refused(caplog, cache, may_compile=False)


def test_caches_of_other_versions_are_removed_after_a_month(tmp_path: Path) -> None:
    """Old and new folders, ones of others and a link; the one that is being made is as old as they are."""
    names = (
        "loops-0123456789abcdef",
        "loops-fedcba9876543210",
        "loops-mine",
        "other-0123456789abcdef",
        "loops-aaaabbbbccccdddd",
    )
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    (tmp_path / "loops-1111222233334444").symlink_to(tmp_path / "other-0123456789abcdef")
    month_ago = time.time() - 31 * 86_400
    for name in (names[0], *names[2:]):
        os.utime(tmp_path / name, (month_ago, month_ago))
    kernels._prune(tmp_path, keep=tmp_path / names[4])
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:], "loops-1111222233334444"}
    assert all((tmp_path / name / "file").exists() for name in names[1:])


def test_a_folder_that_others_can_write_is_not_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is in the cache is executed: makes the default folder writable for all."""
    if sys.platform == "win32":
        pytest.skip("Windows has no such permissions")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kernels.own_folder().chmod(0o777)
    assert "can be written by others" in refused(caplog)


def test_loading_and_unloading_switches_the_loops() -> None:
    """Twice, as tests and long processes do."""
    for _ in range(2):
        with using("compiled"):
            assert kernels.is_loaded()
            assert kernels.active() is not None
            assert kernels.load()
        assert not kernels.is_loaded()
