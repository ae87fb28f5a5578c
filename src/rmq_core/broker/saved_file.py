"""A table that is kept as a file: written as a whole, in a thread, and what changes meanwhile is written next.

Sharing   All who save() in one pass, or while a write is under way, share the write that follows.
Crash     The file is replaced atomically and the one before is kept as .bak: there is always a whole table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from rmq_core.files import read_or_backup, replace_file

T = TypeVar("T")

Runner = Callable[..., Awaitable[Any]]
"""Runs a function with its arguments in a thread."""


class SavedFile:
    """The file of one table."""

    def __init__(self, path: Path, encode: Callable[[], bytes], run: Runner) -> None:
        """encode() gives the table as it is now, on the loop's thread; run() takes what may block elsewhere."""
        self.path = path
        self._encode = encode
        self._run = run
        self._next: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._has_failed = False

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """The table as it was saved; None where it never was.

        Raises RocketMQError where neither the file nor its .bak can be read: a broker must not start without it.
        """
        return read_or_backup(self.path, parse)

    def begin(self) -> asyncio.Future[None]:
        """Have the table written; the future is done when it is durable as it is now, or has the OSError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write())
        return self._next

    async def save(self) -> None:
        """Return when the table as it is now is durable. Raises OSError."""
        await asyncio.shield(self.begin())

    async def settled(self) -> None:
        """Return when what others changed is durable too. Raises OSError."""
        if self._writing is not None or self._has_failed:
            await self.save()

    async def _write(self) -> None:
        try:
            while self._next is not None:
                waiting, self._next = self._next, None
                try:
                    await self._run(replace_file, self.path, self._encode())
                except Exception as error:  # those who wait decide what it means
                    self._has_failed = True
                    waiting.set_exception(error)
                    waiting.exception()  # it has been seen, even if nobody waits any more
                else:
                    self._has_failed = False
                    waiting.set_result(None)
        finally:
            self._writing = None
