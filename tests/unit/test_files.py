"""Small files that are replaced as a whole: what a crash at any step, and a torn file, leave to be read."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.errors import RocketMQError
from rmq_core.files import read_or_backup, replace_file


class PowerCutError(Exception):
    """The program goes no further."""


def number_in(path: Path) -> Any:
    return read_or_backup(path, orjson.loads)


def write(path: Path, number: int) -> None:
    replace_file(path, orjson.dumps(number))


def watch(monkeypatch: pytest.MonkeyPatch, said: Callable[[str], None]) -> None:
    """Have each step of a write said before it is taken."""

    def before(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*arguments: Any, **named: Any) -> Any:
            said(name)
            return step(*arguments, **named)

        return taken

    monkeypatch.setattr(os, "fsync", before("fsync", os.fsync))
    monkeypatch.setattr(os, "link", before("link", os.link))
    monkeypatch.setattr(Path, "unlink", before("unlink", Path.unlink))
    monkeypatch.setattr(Path, "replace", before("rename", Path.replace))


def test_content_is_durable_before_it_has_its_name_and_the_name_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a write in their order: the content, the backup, the name, and the directory last."""
    path = tmp_path / "topics.json"
    write(path, 1)
    steps: list[str] = []
    watch(monkeypatch, steps.append)
    write(path, 2)
    write(path, 3)
    assert steps == ["fsync", "unlink", "link", "rename", "fsync"] * 2


@pytest.mark.parametrize("damage", [None, b"", bytes(9), b"[1, 2"])
@pytest.mark.parametrize("steps", range(5))
def test_a_crash_at_any_step_leaves_a_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, damage: bytes | None
) -> None:
    """Stops before each step of a write, also where the file had been torn and its backup was read."""
    path = tmp_path / "topics.json"
    write(path, 1)
    write(path, 2)
    if damage is not None:
        path.write_bytes(damage)
    known = 2 if damage is None else 1
    assert number_in(path) == known
    left = steps

    def cut(step: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerCutError

    with monkeypatch.context() as patched:
        watch(patched, cut)
        with contextlib.suppress(PowerCutError):
            write(path, 3)
    assert number_in(path) in (known, 3)
    write(path, 4)
    assert number_in(path) == 4


@pytest.mark.parametrize("damage", [b"", bytes(9), b"[1, 2", None])
def test_a_backup_takes_the_place_of_a_damaged_file_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    """An empty file, one of zeros, half a one, and none; what was damaged is kept apart."""
    path = tmp_path / "topics.json"
    write(path, 1)
    write(path, 2)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with caplog.at_level(logging.ERROR):
        assert number_in(path) == 1
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{path} is missing" if damage is None else f"{path} cannot be read: ")
    assert caplog.messages[0].endswith(f": {path}.bak takes its place")
    if damage is not None:
        assert (tmp_path / "topics.json.damaged").read_bytes() == damage
    write(path, 3)
    caplog.clear()
    assert number_in(path) == 3
    assert not caplog.messages


def test_without_a_whole_table_nothing_is_read(tmp_path: Path) -> None:
    """No file at all is nothing; one that cannot be read, with a backup that cannot either, is an error."""
    path = tmp_path / "topics.json"
    assert number_in(path) is None
    path.write_bytes(b"")
    path.with_name("topics.json.bak").write_bytes(b"{")
    with pytest.raises(RocketMQError, match=r"topics\.json cannot be read"):
        number_in(path)
    assert path.exists()
