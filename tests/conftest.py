"""Options of the tests that draw random numbers."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="seed of the chaos tests; by default another one in each run")
    parser.addoption("--rounds", type=int, default=20, help="how often the chaos tests kill")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a test draws its random numbers from; part of the report of a failure, so that it can be repeated."""
    given: int | None = request.config.getoption("--seed")
    chosen = random.SystemRandom().randrange(1 << 32) if given is None else given
    request.node.add_report_section("call", "seed", f"repeat with --seed {chosen}")
    return chosen


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    chosen: int = request.config.getoption("--rounds")
    return chosen


# How long an example takes says something about the machine and nothing about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
