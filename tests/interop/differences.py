"""What may differ from Apache's programs, gathered from the data of the tests, for the page of results."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rmq_core.protocol import requests  # noqa: F401  (declares them)
from rmq_core.protocol.request import REQUESTS

HERE: Final = Path(__file__).parent
HEADING: Final = "# Differences that stay, and why"
GOLDEN: Final = HERE.parent / "data" / "golden" / "differences.toml"


def listed_differences() -> Iterator[str]:
    """The part of the page that begins with the heading."""
    yield f"\n{HEADING}\n"
    yield "\n## What mqadmin prints\n\n| command | reason |\n|---|---|\n"
    for command, allowed in _table(HERE / "mqadmin.toml")["differences"].items():
        yield f"| {command} | {allowed['reason']} |\n"
    yield "\n## Answers on the wire\n\n| requests | reason |\n|---|---|\n"
    for request, reason in _table(HERE / "wire.toml")["differences"].items():
        yield f"| {request} | {reason} |\n"
    for entry in _table(GOLDEN)["difference"]:
        names = [REQUESTS[code].__name__ if code in REQUESTS else str(code) for code in entry["codes"]]
        yield f"| {', '.join(names) or 'all'} | {entry['reason']} |\n"


def _table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())
