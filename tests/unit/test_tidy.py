"""The form of the code: imports point down, files and functions stay small, each request code stands once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# What each part of the core may import from; a part may always import itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "clock": set(),
    "config": {"errors"},
    "protocol": {"errors", "config"},
    "columnar": {"errors", "config", "protocol"},
    "store": {"errors", "clock", "files", "config", "protocol", "columnar"},
    "net": {"errors", "clock", "files", "config", "protocol"},
    "namesrv": {"errors", "clock", "files", "config", "protocol", "net"},
    "client": {"errors", "clock", "files", "config", "protocol", "net"},
    "broker": {"errors", "clock", "files", "config", "protocol", "columnar", "store", "net", "namesrv"},
    "embedded_broker": {"errors", "clock", "files", "config", "protocol", "net", "namesrv", "client", "broker"},
    "admin": {"errors", "clock", "files", "config", "protocol", "client"},
    "console": {"errors", "clock", "files", "config", "protocol", "client"},
    "integrations": {"errors", "clock", "files", "config", "protocol", "client", "embedded_broker"},
}
SANS_IO = {"socket", "asyncio", "threading", "time", "os", "pathlib", "selectors", "ssl"}


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT / "src")
    return relative.parts[1].removesuffix(".py") if relative.parts[0] == "rmq_core" else relative.parts[0]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_imports_point_down(path: Path) -> None:
    """Looks for an import of a higher layer, and for Spark in the core."""
    part = part_of(path)
    if part not in ALLOWED:
        pytest.skip("not a part of the core")
    names = list(imported(path))
    assert not [name for name in names if name.split(".")[0] in ("pyspark", "rmq_spark")]
    parts = {name.split(".")[1] for name in names if name.startswith("rmq_core.")}
    assert parts - ALLOWED[part] - {part} == set()


def test_the_protocol_knows_no_sockets_files_threads_or_clock() -> None:
    """Looks for modules of the standard library that would bring them in."""
    for path in SOURCES:
        if part_of(path) == "protocol":
            assert SANS_IO.isdisjoint(name.split(".")[0] for name in imported(path)), path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_files_and_functions_fit_into_a_head(path: Path) -> None:
    """Counts lines; declaration tables may be longer."""
    text = path.read_text()
    is_table = path.parent.name in ("requests", "bodies", "config")
    assert is_table or text.count("\n") <= FILE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES_MAX, node.name


def test_each_request_code_is_declared_once() -> None:
    """Searches the declarations for a number that stands twice."""
    codes: dict[int, str] = {}
    for path in (ROOT / "src/rmq_core/protocol/requests").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and getattr(item.target, "id", "") == "code":
                    assert item.value is not None
                    code = ast.literal_eval(item.value)
                    assert code not in codes, f"{node.name} and {codes.get(code)}"
                    codes[code] = node.name
    assert len(codes) > 150


def test_importing_the_package_loads_neither_numpy_nor_pyarrow() -> None:
    """A client or a worker that needs neither must not pay for them."""
    program = "import sys, rmq_core, rmq_core.net.channel; sys.exit(bool({'numpy', 'pyarrow'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_classes_and_functions_are_documented() -> None:
    """Looks for a public module-level name without a docstring."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"
