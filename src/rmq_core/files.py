"""Small files that must never be half written: replaced as a whole, with the one before kept as .bak."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rmq_core.errors import RocketMQError

log = logging.getLogger(__name__)
T = TypeVar("T")


def replace_file(path: str | Path, data: bytes) -> None:
    """Make data the content of path, durably; after a crash there is either the old content or the new.

    One caller at a time for each path. Raises OSError; the old content is still there then.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        backup = path.with_name(path.name + ".bak")
        with contextlib.suppress(FileNotFoundError):
            backup.unlink()
        os.link(path, backup)
    temporary.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    if os.name == "nt":  # Windows opens no directories; its renames last without this
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_or_backup(path: str | Path, parse: Callable[[bytes], T]) -> T | None:
    """Parse the file, or its .bak where that fails; None where neither exists.

    A file that its backup stands in for is put aside as .damaged: the next write must not make it the backup.
    Raises RocketMQError where what exists cannot be read.
    """
    path = Path(path)
    backup = path.with_name(path.name + ".bak")
    problem = None
    for candidate in (path, backup):
        try:
            parsed = parse(candidate.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RocketMQError) as error:
            problem = problem or f"{candidate} cannot be read: {error}"
        else:
            if candidate is backup:
                log.error("%s: %s takes its place", problem or f"{path} is missing", backup)
                with contextlib.suppress(OSError):
                    path.replace(path.with_name(path.name + ".damaged"))
            return parsed
    if problem is not None:
        raise RocketMQError(problem)
    return None
