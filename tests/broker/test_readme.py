"""The examples of README and docs run as they are written, on ports of their own."""

from __future__ import annotations

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


def test_a_message_goes_through_as_the_readme_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program in an empty folder, then the README's send and pull against it."""
    with broker_program(tmp_path) as broker:
        for block in blocks("README.md", "SendMessageV2"):
            names: dict[str, Any] = {}
            exec(block.replace("127.0.0.1:10911", broker.address), names)
    assert capsys.readouterr().out == "[b'hello']\n"


@pytest.mark.parametrize("page", ["README.md", "docs/broker.md"])
def test_the_embedded_examples_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints an address that it was given."""
    for block in blocks(page, "embedded("):
        exec(block, {})
        assert "127.0.0.1:" in capsys.readouterr().out
