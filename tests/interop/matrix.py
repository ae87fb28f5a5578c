"""The results of a run as a page: scenario by client and server; passed, failed, or why it does not apply.

A run of everything writes the page anew; a run of a part replaces the cells that it ran.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from interop.artifacts import ROCKETMQ
from interop.differences import HEADING, listed_differences
from interop.servers import SERVERS

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
CELL: Final = "cell"
"""Name of the property of a report that says where its result goes: reports come from other processes too."""
_HEAD: Final = """# Compatibility

What Apache's own programs, and clients in other languages, came to with ours. Written by `make interop`, which runs
every line below with the real programs; versions are those of `tests/interop/versions.toml`. ✓ passed, ✗ failed, a
number refers to the reason why a line does not apply.
"""
_REASONS: Final = "Reasons"
_NOT_APPLICABLE: Final = "not applicable: "
_PASSED: Final = "✓"
_FAILED: Final = "✗"

Tables = dict[str, dict[str, dict[str, str]]]
"""Results by table, row and column: passed, failed, or a reason."""


class Matrix:
    """The results of this run."""

    def __init__(self) -> None:
        self._tables: Tables = {}

    def add(self, report: Any) -> None:
        """Take one test's report in; a test is its call, or its set-up where that skipped or failed."""
        if report.when != "call" and report.passed:
            return
        place = dict(report.user_properties).get(CELL)
        if place is not None:
            table, row, column = place
            cells = self._tables.setdefault(table, {}).setdefault(row, {})
            if cells.get(column) in (None, _PASSED):
                cells[column] = _result(report)

    def write(self, *, keeps: bool) -> None:
        """Write the page; what it says about other cells stays if it is to keep them."""
        tables = dict(_read(PAGE.read_text())) if keeps and PAGE.exists() else {}
        for table, rows in self._tables.items():
            for row, cells in rows.items():
                tables.setdefault(table, {}).setdefault(row, {}).update(cells)
        PAGE.write_text("".join(_page(tables)))


def place_of(item: pytest.Item) -> tuple[str, str, str]:
    """The table, row and column of a test."""
    assert isinstance(item, pytest.Function)
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    row = item.function.__name__.removeprefix("test_").replace("_", " ")
    table = (inspect.getdoc(item.module) or "").splitlines()[0].rstrip(".:")
    if "client" in parameters:
        server, client = parameters.pop("server"), str(parameters.pop("client"))
        extra = f" ({item.callspec.id.split('-')[-1]})" if parameters else ""
        return f"{table}: {server}", row + extra, client
    column, rest = _version_of(item.callspec.id if parameters else "")
    return table, f"{row}: {rest}" if rest else row, column


def _version_of(case: str) -> tuple[str, str]:
    """The column of a test without clients, by its id: the version or server it is about; and what else it says."""
    if case in SERVERS:
        return case, ""
    parts = case.split("-")
    version = next((part for part in parts if part in ROCKETMQ), "result")
    return version, "-".join(part for part in parts if part != version)


def _result(report: Any) -> str:
    if report.passed:
        return _PASSED
    if report.failed:
        return _FAILED
    reason: str = report.longrepr[2].removeprefix("Skipped: ").removeprefix(_NOT_APPLICABLE)
    return " ".join(reason.split())


def _page(tables: Tables) -> Iterator[str]:
    yield _HEAD
    reasons: list[str] = []
    for name in sorted(tables):
        yield from _table(name, tables[name], reasons)
    if reasons:
        yield f"\n## {_REASONS}\n\n" + "".join(f"{number}. {text}\n" for number, text in enumerate(reasons, 1))
    yield from listed_differences()


def _table(name: str, rows: dict[str, dict[str, str]], reasons: list[str]) -> Iterable[str]:
    columns = sorted({column for cells in rows.values() for column in cells})
    yield f"\n## {name}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
    for row in sorted(rows):
        shown = [_shown(rows[row].get(column, ""), reasons) for column in columns]
        yield f"| {row} | {' | '.join(shown)} |\n"


def _shown(result: str, reasons: list[str]) -> str:
    if result in ("", _PASSED, _FAILED):
        return result
    if result not in reasons:
        reasons.append(result)
    return str(reasons.index(result) + 1)


def _read(page: str) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """The tables of a page."""
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", page, re.MULTILINE))
    for section in page.partition(f"\n{HEADING}\n")[0].split("\n## ")[1:]:
        name, *lines = section.splitlines()
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
        if name != _REASONS:
            (_, *columns), *rows = table
            yield (
                name,
                {
                    row: {
                        column: reasons.get(cell, cell) for column, cell in zip(columns, cells, strict=True) if cell
                    }
                    for row, *cells in rows
                },
            )
