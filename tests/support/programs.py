"""The broker as a program: a process on free ports."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READY = re.compile(
    r"The broker\[([^,]+), ([^\]]+)\] boot success\. Connect to name server ([^;]+); the store is (.+)"
)
SMALL_LOG = "mappedFileSizeCommitLog=1048576"


@dataclass(frozen=True)
class BrokerProgram:
    """A running broker."""

    process: subprocess.Popen[str]
    address: str
    name_server: str
    store: str


@contextlib.contextmanager
def broker_program(folder: Path, *arguments: str) -> Iterator[BrokerProgram]:
    """The program in a folder, once it serves; it is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rmq_core.broker", "listenPort=0", "--namesrvPort", "0", SMALL_LOG, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := READY.match(line):
                yield BrokerProgram(process, found[2], found[3], found[4])
                return
        raise AssertionError("".join(said))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
