"""The notebooks run from top to bottom, each in a kernel of its own, and say what they are committed with."""

from __future__ import annotations

import re
from typing import Any

import pytest
from notebooks import execute

pytestmark = pytest.mark.xdist_group("spark-programs")
_CHANGING = re.compile(r"\d+|0x\w+|[:.\-+]|NaT| +")


def said(notebook: Any) -> list[list[tuple[str, str]]]:
    """What each cell put out: its kind, and its text without numbers, which change from run to run."""
    return [
        [(each.output_type, _CHANGING.sub("", _text(each))) for each in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    return "" if "image/png" in output.data else str(output.data.get("text/plain", ""))


@pytest.mark.parametrize("name", execute.NAMES)
def test_a_notebook_runs_and_says_what_it_shows(name: str) -> None:
    """A cell that fails, puts out something else than what is committed, or is committed without its outputs."""
    shown = said(execute.committed(name))
    assert sum(map(bool, shown)) >= 5
    assert said(execute.executed(name)) == shown
