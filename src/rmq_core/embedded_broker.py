"""A broker with its name server for tests and notebooks: a child process that ends with this one.

It is `rmq_core.embedded()`; this module has a name of its own, because that one is the function's.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rmq_core.errors import RocketMQError
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.requests import UpdateAndCreateTopic

START_S: Final = 60
STOP_S: Final = 15
_READY: Final = re.compile(r"The broker\[[^,]+, ([^\]]+)\] boot success\. Connect to name server ([^;]+);")
_SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    # A full laptop must not fail a test: nothing is deleted or refused because of what else is on its disk.
    "diskSpaceWarningLevelRatio": "100",
    "diskSpaceCleanForciblyRatio": "100",
    "diskMaxUsedSpaceRatio": "99",
}


class EmbeddedBroker:
    """A running broker; use embedded()."""

    def __init__(self, store: str | Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._settings = {**_SETTINGS, **(settings or {})}
        self._given_store = store
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self.name_server = ""
        """What clients connect to."""
        self.address = ""
        """The broker itself."""
        self.store_path = Path()
        """Where it keeps its files; a temporary folder unless one was given."""

    def __repr__(self) -> str:
        state = f"name server {self.name_server}" if self._process is not None else "not running"
        return f"<EmbeddedBroker {state}>"

    def start(self) -> Self:
        """Start it and wait until it serves. Raises RocketMQError with what it said where it does not."""
        if self._process is not None:
            return self
        if self._given_store is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="rmq-embedded-", ignore_cleanup_errors=True)
            self.store_path = Path(self._temporary.name, "store")
        else:
            self.store_path = Path(self._given_store)
        properties = {
            "listenPort": "0",
            "namesrvPort": "0",
            "storePathRootDir": str(self.store_path),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "embedded",
            "stopWithStdin": "true",
            **self._settings,
        }
        arguments = [f"{key}={value}" for key, value in properties.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rmq_core.broker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process, ready), daemon=True)
        self._reader.start()
        ready.wait(START_S)
        if not self.address:
            said = "".join(self._lines[-20:]).strip()
            self.close()
            raise RocketMQError(f"the embedded broker did not start: {said}")
        return self

    def _read(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            del self._lines[:-1000]
            if found := _READY.match(line):
                self.address, self.name_server = found.groups()
                ready.set()
        ready.set()
        process.stdout.close()

    @property
    def pid(self) -> int | None:
        """The broker's process, while it runs."""
        return None if self._process is None else self._process.pid

    def log(self) -> str:
        """The last lines that the broker logged."""
        return "".join(self._lines)

    def create_topic(self, name: str, *, queues: int = 4) -> None:
        """Make a topic with so many queues. Raises BrokerError where the name cannot be used."""
        request = UpdateAndCreateTopic(
            topic=name,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        with contextlib.closing(BlockingChannel(self.address)) as channel:
            channel.call(request, timeout_ms=5_000)

    def kill(self) -> None:
        """End it as a crash does; close() still cleans up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Stop it, and remove its files where they were temporary. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if self._reader is not None:
                self._reader.join()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def embedded(store: str | Path | None = None, **settings: str | int | bool) -> EmbeddedBroker:
    """A broker on free ports of this machine, with a temporary store unless a folder is given.

    settings are those of a broker's file, by their Java names: `embedded(flushDiskType="SYNC_FLUSH")`.
    """
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    return EmbeddedBroker(store, text)
