"""The checklist of the Spark connector, docs/connector-scenarios.md, against the tests that name its numbers.

`python tests/support/scenarios.py` renews the lines that say which tests show a scenario. A scenario without a test
has a line that begins with "No test:" and says why.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "connector-scenarios.md"
_NUMBERS = re.compile(r"\bC(\d{3})(?:-C?(\d{3}))?\b")
_SCENARIO = re.compile(r"- (C\d{3}) ")


def named() -> dict[str, set[str]]:
    """The files of tests whose docstrings name each scenario."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for low, high in _NUMBERS.findall(ast.get_docstring(node) or ""):
                for number in range(int(low), int(high or low) + 1):
                    found[f"C{number:03}"].add(path.relative_to(TESTS).as_posix())
    return dict(found)


def scenarios(text: str) -> dict[str, str]:
    """Each scenario's number with the line below it, or nothing where there is none."""
    lines = text.splitlines()
    return {
        found[1]: after.strip() if after.startswith("  ") else ""
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if (found := _SCENARIO.match(line))
    }


def renewed(text: str) -> str:
    """The document with its lines about tests as they are now."""
    tests = named()
    made: list[str] = []
    for line in text.splitlines():
        if line.startswith("  Tests: "):
            continue
        made.append(line)
        if (found := _SCENARIO.match(line)) and found[1] in tests:
            made.append(f"  Tests: {', '.join(sorted(tests[found[1]]))}")
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
