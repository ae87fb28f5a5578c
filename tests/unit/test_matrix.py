"""The page of the interoperability runs: written whole, or only in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from interop import matrix
from interop.differences import HEADING
from interop.matrix import CELL, Matrix

REASON = ("file.py", 1, "Skipped: not applicable: it has no TLS")


def report(
    row: str, column: str, outcome: Literal["passed", "failed", "skipped"], when: Any = "call"
) -> pytest.TestReport:
    text = REASON if outcome == "skipped" else None
    return pytest.TestReport(
        "id", ("", 0, ""), {}, outcome, text, when, user_properties=[(CELL, ("T", row, column))]
    )


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "page.md")
    return tmp_path / "page.md"


def write(*reports: pytest.TestReport, keeps: bool) -> None:
    run = Matrix()
    for each in reports:
        run.add(each)
    run.write(keeps=keeps)


def rows(page: Path) -> list[str]:
    """What the page says of results; the differences that stay come behind."""
    results, _, _ = page.read_text().partition(HEADING)
    return [line for line in results.splitlines() if line.startswith(("|", "1. "))]


def test_a_run_of_a_part_keeps_the_other_cells(page: Path) -> None:
    """A new result, a replaced one, a new column; the reason of a cell that was not run stays the same."""
    write(report("a", "x", "failed"), report("b", "x", "skipped", "setup"), keeps=False)
    assert rows(page) == ["| | x |", "|---|---|", "| a | ✗ |", "| b | 1 |", "1. it has no TLS"]
    write(report("a", "x", "passed"), report("c", "y", "passed"), keeps=True)
    wanted = ["| | x | y |", "|---|---|---|", "| a | ✓ |  |", "| b | 1 |  |", "| c |  | ✓ |", "1. it has no TLS"]
    assert rows(page) == wanted
    write(report("c", "y", "passed"), keeps=False)
    assert rows(page) == ["| | y |", "|---|---|", "| c | ✓ |"]


def test_what_fails_after_its_end_has_failed(page: Path) -> None:
    """A test that passed and whose clean-up failed, and one whose set-up passed only."""
    write(
        report("a", "x", "passed"),
        report("a", "x", "failed", "teardown"),
        report("b", "x", "passed", "setup"),
        keeps=False,
    )
    assert rows(page) == ["| | x |", "|---|---|", "| a | ✗ |"]
