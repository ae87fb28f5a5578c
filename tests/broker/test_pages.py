"""The examples of the pages about broker and protocol run as they are written, on ports of their own."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from support.programs import broker_program

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(page: str, word: str) -> list[str]:
    found = [block for block in PYTHON.findall((ROOT / page).read_text()) if word in block]
    assert found, f"{page} has no example with {word}"
    return found


def test_a_message_goes_through_as_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program in an empty folder; the page's send and pull against it, and its question for a route."""
    with broker_program(tmp_path, "brokerName=broker-a") as broker:
        for block in blocks("docs/protocol.md", "SendMessageV2"):
            names: dict[str, Any] = {}
            exec(block.replace("127.0.0.1:10911", broker.address), names)
        for block in blocks("docs/protocol.md", "await"):
            text = block.replace("127.0.0.1:9876", broker.name_server)
            code = compile(text, "protocol.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            asyncio.run(eval(code, {}))
    assert capsys.readouterr().out == "[b'hello']\n['broker-a']\n"


def test_the_embedded_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints an address that it was given."""
    for block in blocks("docs/broker.md", "embedded("):
        exec(block, {})
        assert "127.0.0.1:" in capsys.readouterr().out
