"""A broker in a process of its own, to be killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

READY = re.compile(r"broker\[[^,]+, ([\d.]+:\d+)\]")


class BrokerProcess:
    """`python -m rmq_core.broker` on a store; without a name server, on a free port."""

    def __init__(self, store: Path, settings: Iterable[str]) -> None:
        own = ("listenPort=0", "bindAddress=127.0.0.1", "brokerIP1=127.0.0.1", "namesrvAddr=127.0.0.1:1")
        # It watches a pipe of ours, so that it does not outlive a test run that is killed.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rmq_core.broker", "--store", str(store), "stopWithStdin=true", *own, *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._address: str | None = None
        self._has_begun_or_ended = threading.Event()
        # Read all the time: a broker whose output nobody takes would stop at its next line.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.said.append(line)
                if self._address is None and (found := READY.search(line)):
                    self._address = found[1]
                    self._has_begun_or_ended.set()
        self._has_begun_or_ended.set()

    def wait_until_ready(self) -> str:
        """Return the address that it serves on."""
        self._has_begun_or_ended.wait()
        if self._address is None:
            self.end(signal.SIGKILL)
            raise AssertionError("the broker does not start:\n" + "".join(self.said))
        return self._address

    def wait(self, seconds: float) -> None:
        """Return after a time, or as soon as the process ends by itself."""
        self._reader.join(seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, how: signal.Signals) -> int:
        """Signal it, where it still runs, and return its exit code once all that it said has been read."""
        self._process.send_signal(how)
        code = self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return code
