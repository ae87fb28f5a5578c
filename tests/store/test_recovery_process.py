"""A recovery that another process does leaves and says the same as one that is done here."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_core.columnar import kernels
from rmq_core.store import recovery_process
from rmq_core.store.message_store import MessageStore
from rmq_core.store.recovery import Recovered
from support.stores import numbers, properties, put, small_settings

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed"),
    pytest.mark.skipif(os.environ.get("RMQ_COMPILED") == "0", reason="RMQ_COMPILED=0 keeps the loops off"),
]


@pytest.fixture
def always_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recovery is worth a process, but none is worth compiling."""
    monkeypatch.setattr(recovery_process, "APART_FROM", 0)
    monkeypatch.setattr(kernels, "is_loaded", lambda: False)


def killed(root: Path, *, is_clean: bool) -> None:
    """A directory with two queues, the end of whose log is torn unless the stop was clean."""
    store = MessageStore(small_settings(root))
    store.open()
    for number in range(60):
        put(store, number, queue_id=number % 2)
    store.end_pass()
    end = store.log.end
    store.close()
    if not is_clean:
        (root / "abort").touch()
        shutil.rmtree(root / "consumequeue" / "Orders" / "1")
        name = f"{end - end % 4096:020d}"
        with (root / "commitlog" / name).open("r+b") as file:
            file.seek(end % 4096)
            file.write(b"\1" * 50)


def opened(root: Path) -> tuple[Recovered, list[list[int]], dict[str, bytes]]:
    """What a start finds, and what it makes of the files."""
    store = MessageStore(small_settings(root))
    found = store.open()
    shown = [numbers(store, queue_id=each) for each in range(2)]
    store.queues.write_out()
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("commitlog", "consumequeue")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
    put(store, 60)
    store.end_pass()
    assert numbers(store) == [*shown[0], 60]
    store.close()
    return found, shown, files


@pytest.mark.usefixtures("always_apart")
@pytest.mark.parametrize("is_clean", [True, False])
def test_another_process_recovers_as_this_one_does(
    tmp_path: Path, is_clean: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two copies of a directory: one is recovered here, the other by a process."""
    killed(tmp_path / "apart", is_clean=is_clean)
    shutil.copytree(tmp_path / "apart", tmp_path / "here")
    with caplog.at_level(logging.WARNING):
        apart = opened(tmp_path / "apart")
    assert "has failed" not in caplog.text
    monkeypatch.setattr(recovery_process, "APART_FROM", 1 << 62)
    here = opened(tmp_path / "here")
    assert apart == here
    assert apart[1] == [list(range(0, 60, 2)), list(range(1, 60, 2))]


@pytest.mark.usefixtures("always_apart")
def test_a_process_that_fails_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The interpreter that is started is none: the start says so and recovers by itself."""
    killed(tmp_path, is_clean=False)
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    _, shown, _ = opened(tmp_path)
    assert sum(map(len, shown)) == 60
    assert "has failed" in caplog.text


def test_the_process_ends_with_the_one_that_asked() -> None:
    """Its input ends in the middle of its work, as when the broker is killed: no second writer is left."""
    program = (
        "import sys, threading; from rmq_core.store import recovery_process\n"
        "threading.Thread(target=recovery_process._end_with_input, daemon=True).start()\n"
        "print('working', flush=True); threading.Event().wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"working\n"
        process.stdin.close()
        assert process.wait(30) == 1


def test_only_what_is_to_be_walked_counts(tmp_path: Path) -> None:
    """After a clean stop that is the newest file, as far as it is used."""
    store = MessageStore(small_settings(tmp_path, mapped_file_size_commit_log=1 << 20))
    store.open()
    body = b"x" * 100_000
    for _ in range(15):
        store.put("Orders", 0, body, properties(TAGS="a"), born_time_ms=1, born_host=bytes(8))
    store.end_pass()
    recovery = store._recovery()
    size = recovery_process.bytes_to_walk(store.log, recovery, is_clean=True)
    assert size == pytest.approx(store.log.end - (1 << 20), abs=1 << 17)
    whole = recovery_process.bytes_to_walk(store.log, recovery, is_clean=False)
    assert whole == pytest.approx(store.log.end, abs=1 << 17)
    store.close()
