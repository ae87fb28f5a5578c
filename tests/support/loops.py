"""Runs a coroutine on uvloop and on asyncio: what the network does must not depend on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def run(loop_name: str, main: Coroutine[Any, Any, None]) -> None:
    """Run to the end within a minute; whatever the loop had to complain about fails the test."""
    complaints: list[dict[str, Any]] = []

    async def guarded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await asyncio.wait_for(main, 60)

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(guarded())
    assert complaints == []


on_both_loops = pytest.mark.parametrize("loop_name", sorted(LOOPS))
