"""The results of a run as a page: scenario by client and server; passed, failed, or why it does not apply."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
_HEAD: Final = """# Compatibility

What Apache's own programs, and clients in other languages, came to with ours. Written by `make interop`, which runs
every line below with the real programs; versions are those of `tests/interop/versions.toml`. ✓ passed, ✗ failed, a
number refers to the reason why a line does not apply.
"""
_NOT_APPLICABLE: Final = "not applicable: "


class Matrix:
    """Results by table, row and column."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, dict[str, str]]] = {}
        self._reasons: list[str] = []

    def add(self, item: pytest.Item, report: Any) -> None:
        """Take one test's report in; a test is its call, or its set-up where that skipped or failed."""
        if report.when == "teardown" and report.passed:
            return
        if report.when == "setup" and report.passed:
            return
        table, row, column = _place(item)
        cells = self._tables.setdefault(table, {}).setdefault(row, {})
        result = self._result(report)
        known = cells.get(column)
        if known is None or known == "✓":
            cells[column] = result

    def _result(self, report: Any) -> str:
        if report.passed:
            return "✓"
        if report.failed:
            return "✗"
        reason = report.longrepr[2].removeprefix("Skipped: ")
        reason = reason.removeprefix(_NOT_APPLICABLE)
        if reason not in self._reasons:
            self._reasons.append(reason)
        return str(self._reasons.index(reason) + 1)

    def write(self) -> None:
        """Write the page."""
        parts = [_HEAD, *(part for name in sorted(self._tables) for part in self._table(name))]
        if self._reasons:
            parts.append("\n## Reasons\n\n" + "".join(f"{n}. {text}\n" for n, text in enumerate(self._reasons, 1)))
        PAGE.write_text("".join(parts))

    def _table(self, name: str) -> Iterable[str]:
        rows = self._tables[name]
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        yield f"\n## {name}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
        for row, cells in rows.items():
            yield f"| {row} | {' | '.join(cells.get(column, '') for column in columns)} |\n"


def _place(item: pytest.Item) -> tuple[str, str, str]:
    """The table, row and column of a test."""
    assert isinstance(item, pytest.Function)
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    row = item.function.__name__.removeprefix("test_").replace("_", " ")
    table = (inspect.getdoc(item.module) or "").splitlines()[0].rstrip(".:")
    if "client" in parameters:
        server, client = parameters.pop("server"), str(parameters.pop("client"))
        extra = " ".join(f"({name})" for name, given in parameters.items() if given)
        return f"{table}: {server}", f"{row} {extra}".strip(), client
    return table, row, " ".join(str(each) for each in parameters.values()) or "result"
