"""Keeps what each scenario came to, and writes docs/compatibility.md from it."""

from __future__ import annotations

import pytest

from interop.clients import CLIENTS
from interop.matrix import CELL, Matrix, place_of

_MATRIX = pytest.StashKey[Matrix]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-matrix",
        choices=["whole", "part"],
        help="write docs/compatibility.md from this run: anew, or only the cells that were run",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MATRIX] = Matrix()
    config.pluginmanager.register(_Reports(config.stash[_MATRIX]))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under pytest-xdist half of the clients of a server share a process and a server; else a module's tests of one
    version do."""
    for item in items:
        table, row, column = place_of(item)
        item.user_properties.append((CELL, (table, row, column)))
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if "client" in parameters:
            column = f"{parameters['server']} {list(CLIENTS.values()).index(parameters['client']) % 2}"
        item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {column}"))


class _Reports:
    """Takes the reports of all processes."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._matrix.add(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    how = session.config.getoption("write_matrix", None)
    if how is not None and not hasattr(session.config, "workerinput"):
        session.config.stash[_MATRIX].write(keeps=how == "part")
