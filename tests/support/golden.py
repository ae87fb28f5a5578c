"""What Apache RocketMQ's programs said to each other: the recorded frames, loaded once per process."""

from __future__ import annotations

import base64
import functools
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

FRAMES_DIR = Path(__file__).parent.parent / "data" / "golden" / "frames"


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One frame as it was captured, and how the capture was read."""

    frame: bytes
    encoding: str
    """JSON or ROCKETMQ."""
    header: dict[str, Any]
    """Header fields other than extFields."""
    ext: dict[str, str] | None
    has_repeated_fields: bool
    """Signed requests of 4.9 repeat fields in a binary header; the last one counts."""

    @property
    def body(self) -> bytes:
        return self.frame[8 + int.from_bytes(self.frame[5:8], "big") :]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and the answer to it where there was one."""

    file: str
    line: int
    scenario: str
    client: str
    server: str
    is_to_client: bool
    code: int
    name: str
    """Java's name of the request code."""
    is_oneway: bool
    request: RecordedFrame
    response: RecordedFrame | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name} ({self.scenario})"


def exchanges() -> Iterator[Exchange]:
    """Every recorded exchange, file by file."""
    return iter(_load())


@functools.cache
def _load() -> tuple[Exchange, ...]:
    return tuple(
        _exchange(path.name, number, orjson.loads(line))
        for path in sorted(FRAMES_DIR.glob("*.jsonl.gz"))
        if path.name not in ("mqadmin-4.9.7.jsonl.gz", "mqadmin-5.3.3.jsonl.gz")
        for number, line in enumerate(gzip.decompress(path.read_bytes()).splitlines(), start=1)
    )


def _exchange(file: str, line: int, value: dict[str, Any]) -> Exchange:
    return Exchange(
        file=file,
        line=line,
        scenario=value["scenario"],
        client=value["client"],
        server=value["server"],
        is_to_client=value["direction"] == "to_client",
        code=value["code"],
        name=value["name"],
        is_oneway=value["oneway"],
        request=_frame(value["request"]),
        response=None if value["response"] is None else _frame(value["response"]),
    )


def _frame(value: dict[str, Any]) -> RecordedFrame:
    return RecordedFrame(
        frame=base64.b64decode(value["frame"]),
        encoding=value["serialize"],
        header=value["header"],
        ext=value["ext"],
        has_repeated_fields="ext_pairs" in value,
    )
