"""A client in a process of its own: commands in, answers and events out, as JSON lines.

Java, Go, Node and our own clients speak the same lines, so that a scenario is written once. A command is
{"id": 1, "do": "send", …}, its answer {"id": 1, "result": …} or {"id": 1, "error": "…"}; lines with "event" tell
what consumers received. The process ends with its input.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

ANSWER_S: Final = 60
STOP_S: Final = 30

Event = dict[str, Any]


class DriverError(Exception):
    """What the client threw."""


class Driver:
    """A running client program."""

    def __init__(
        self, command: list[str], *, environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        """folder: where it runs, and leaves what it writes."""
        self.events: list[Event] = []
        """Everything that consumers received, and checks of transactions."""
        self._said: list[str] = []
        self._has_ended = False
        self._changed = threading.Condition()
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=folder,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            if not isinstance(said, dict) or not ({"event", "id"} & said.keys()):
                self._said.append(line)
                del self._said[:-200]
            elif said.get("event") == "error":  # of a connection, say: whether it matters, the scenario shows
                self._said.append(line)
            elif "event" in said:
                with self._changed:
                    self.events.append(said)
                    self._changed.notify_all()
            else:
                self._answers.put(said)
        self._answers.put({"error": "the client ended"})
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def ask(self, do: str, **fields: Any) -> Any:
        """Run a command. Raises DriverError with the exception that it ended with."""
        number = next(self._ids)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do, **fields}) + "\n")
        self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            raise DriverError(f"no answer to {do} {fields}; it said {self.said()}") from None
        if "error" in answer:
            raise DriverError(f"{answer['error']}; it said {self.said()}")
        assert answer["id"] == number
        return answer.get("result")

    def said(self) -> str:
        """The last lines of its output that are neither answers nor events."""
        return "".join(self._said[-5:])

    def wait(self, enough: Callable[[list[Event]], bool], timeout_s: float = 60) -> list[Event]:
        """The events, as soon as enough of them have come. Raises AssertionError where they do not."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not enough(self.events):
                left = deadline - time.monotonic()
                assert left > 0, f"only {self.events[-20:]} came; {self.said()}"
                assert not self._has_ended, f"the client ended: {self.said()}"
                self._changed.wait(left)
            return list(self.events)

    def messages(self, consumer: str | None = None) -> list[Event]:
        """What was received so far."""
        with self._changed:
            return [
                each for each in self.events if each["event"] == "message" and consumer in (None, each["consumer"])
            ]

    def forget(self) -> None:
        """Drop the events of a scenario that is over."""
        with self._changed:
            self.events.clear()

    def __enter__(self) -> Self:
        try:
            self.wait(bool)  # the first event says that it is ready
        except AssertionError:
            self.__exit__()
            raise
        self.forget()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
