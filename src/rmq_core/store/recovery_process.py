"""Recovery in a process of its own, where much is to be walked and compiled loops can do it.

They walk several times as fast, and would keep more than 100 MB of a broker for good; so would the mappings of what
was walked. Another process does the whole of the recovery and ends: what it did is in the files, and what it found
comes back on its output.

Alone     The broker that asks holds the lock of the directory. This process ends when the broker does: it watches
          its input, which is open for as long as the broker lives.
Failure   Whatever goes wrong, the broker recovers by itself: recovery may be interrupted anywhere.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Final

from rmq_core.columnar import kernels
from rmq_core.config import StoreSettings
from rmq_core.store.commit_log import CommitLog
from rmq_core.store.recovery import Recovered, Recovery

log = logging.getLogger(__name__)

APART_FROM: Final = 384 << 20
"""Bytes that take numpy longer than it takes to start a process."""
COMPILE_FROM: Final = 1 << 30
"""Bytes that take numpy longer than it takes to compile the loops, if that has not been done yet."""
_PROBES: Final = 16


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be recovered."""

    settings: StoreSettings
    is_clean: bool
    may_compile: bool


def job_for(settings: StoreSettings, log_: CommitLog, recovery: Recovery, *, is_clean: bool) -> Job | None:
    """What another process should do; None where it is not worth it. Log and checkpoint have been loaded."""
    if kernels.is_loaded() or os.environ.get("RMQ_COMPILED") == "0" or not sys.executable:
        return None
    size = bytes_to_walk(log_, recovery, is_clean=is_clean)
    if size < APART_FROM or importlib.util.find_spec("numba") is None:
        return None
    return Job(settings, is_clean, may_compile=size >= COMPILE_FROM)


def bytes_to_walk(log_: CommitLog, recovery: Recovery, *, is_clean: bool) -> int:
    """About how much of the log a recovery reads."""
    segments = log_.segments
    if not segments.starts:
        return 0
    walk_start, last = recovery.first_file(is_clean=is_clean), segments.starts[-1]
    step = max(segments.size // _PROBES, 1)
    used = [at for at in range(last, segments.end, step) if any(segments.read(at, 4096))]
    return max(used, default=last - step) + step - walk_start


def recover_apart(job: Job) -> Recovered | None:
    """Have another process recover the directory; None where that failed."""
    command = [sys.executable, "-m", "rmq_core.store.recovery_process"]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(pickle.dumps(job))
            process.stdin.flush()
            found = pickle.loads(process.stdout.read())
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        log.warning("the process that recovers has failed (%s): this one does it, slower", error)
        return None
    assert isinstance(found, Recovered)
    return found


# In the other process


def main() -> None:
    """Recover what the input says, and write to the output what was found."""
    job = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_input, daemon=True).start()
    # Imported late: the store itself imports this module.
    from rmq_core.store.message_store import MessageStore

    store = MessageStore(job.settings)
    kernels.load(store.root / ".cache", may_compile=job.may_compile)
    found = store.recover(is_clean=job.is_clean)
    sys.stdout.buffer.write(pickle.dumps(found))


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
