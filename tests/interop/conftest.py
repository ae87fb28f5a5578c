"""Keeps what each scenario came to, and writes docs/compatibility.md after a run of all of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from interop.matrix import Matrix

_MATRIX = pytest.StashKey[Matrix]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-matrix", action="store_true", help="write docs/compatibility.md from this run")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MATRIX] = Matrix()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    item.config.stash[_MATRIX].add(item, report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("write_matrix", False):
        session.config.stash[_MATRIX].write()
