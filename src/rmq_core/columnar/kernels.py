"""Switch for the compiled loops of loops.py: off until load() finds numba and a cache for what it compiles.

Cache     One folder per version of everything the machine code depends on (loops, numba, Python, processor). A file
          `complete` in it names all that was compiled: while one is missing, something is left to compile. Whoever
          makes a folder removes those of other versions that are older than a month.
Failures  Whatever numba does wrong, the answer is False and one log line: numpy does the same work, slower.
Switch    RMQ_COMPILED=0 in the environment keeps the loops off.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_log: Final = logging.getLogger(__name__)
_LOOPS: Final = "rmq_core.columnar.loops"
_PARTS: Final = ("rmq_core.columnar.pair_loops",)
_SOURCES: Final = ("loops.py", "pair_loops.py", "machine.py", "room.py")
_COMPLETE: Final = "complete"
_UNUSED_S: Final = 30 * 86_400
_loaded: Final[list[Any]] = []


def active() -> Any | None:
    """The module with the compiled loops, or None while numpy does the work."""
    return _loaded[0] if _loaded else None


def is_loaded() -> bool:
    """Whether compiled loops are in use."""
    return bool(_loaded)


def are_wanted() -> bool:
    """Whether there is something to load: numba is installed, and the environment does not keep the loops off."""
    return os.environ.get("RMQ_COMPILED") != "0" and importlib.util.find_spec("numba") is not None


def load(cache_dir: str | Path | None = None, *, may_compile: bool = True) -> bool:
    """Use the compiled loops from now on; compile them first if need be. Returns whether they are in use.

    cache_dir: where machine code is kept, by default a folder of this user's own among the temporary files. Without
    may_compile only a complete cache is loaded: compiling takes half a minute of a core.
    """
    if _loaded:
        return True
    if os.environ.get("RMQ_COMPILED") == "0":
        return False
    try:
        _loaded[:] = [
            _import_loops(own_folder() if cache_dir is None else Path(cache_dir), may_compile=may_compile)
        ]
    except Exception as error:  # numba, LLVM and the file system fail in many ways, none of which may stop a caller
        _log.warning("compiled loops stay off, numpy is used instead: %s: %s", type(error).__name__, error)
    return bool(_loaded)


def unload() -> None:
    """Go back to numpy."""
    _loaded.clear()


def _import_loops(cache_dir: Path, *, may_compile: bool) -> Any:
    if _LOOPS in sys.modules:
        return sys.modules[_LOOPS]
    with _cache_setting(str(cache_dir)):
        import numba
        import numba.core.config

        config: Any = numba.core.config
        if config.DISABLE_JIT:
            raise RuntimeError("NUMBA_DISABLE_JIT is set")
        if sys.byteorder != "little":
            raise RuntimeError("compiled loops read numbers as little-endian processors do")
        folder = cache_dir / f"loops-{_fingerprint(numba)}"
        if not may_compile and not _is_complete(folder):
            raise FileNotFoundError(f"{cache_dir} holds no complete cache for this version and machine")
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_complete(folder):
            _prune(cache_dir, keep=folder)
        before = config.CACHE_DIR
        with _cache_setting(str(folder)):
            try:
                config.CACHE_DIR = str(folder)
                for name in _PARTS:  # what was imported with another folder would not be kept in this one
                    sys.modules.pop(name, None)
                loops = importlib.import_module(_LOOPS)
            finally:
                config.CACHE_DIR = before
    if not _is_complete(folder):
        (folder / _COMPLETE).write_text("\n".join(sorted(_compiled(folder))))
    return loops


def _prune(cache_dir: Path, *, keep: Path) -> None:
    """Remove caches of other versions that nobody has written for long. Whoever still uses one compiles again."""
    oldest = time.time() - _UNUSED_S
    for folder in cache_dir.glob("loops-*"):
        is_ours = re.fullmatch(r"loops-[0-9a-f]{16}", folder.name) and folder.is_dir() and not folder.is_symlink()
        if is_ours and folder != keep and folder.stat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)


def _compiled(folder: Path) -> Iterator[str]:
    """What numba keeps in a folder, by name and size."""
    for path in folder.rglob("*.nb[ci]"):
        yield f"{path.relative_to(folder).as_posix()} {path.stat().st_size}"


def _is_complete(folder: Path) -> bool:
    try:
        names = (folder / _COMPLETE).read_text().splitlines()
    except FileNotFoundError:
        return False
    return bool(names) and set(names) <= set(_compiled(folder))


@contextlib.contextmanager
def _cache_setting(folder: str) -> Iterator[None]:
    """numba reads the variable when it is imported, and fails where it finds no folder it can write to."""
    name = "NUMBA_CACHE_DIR"
    before = os.environ.get(name)
    os.environ[name] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _fingerprint(numba: Any) -> str:
    """Changes with everything that makes numba compile anew, and with what it does not notice."""
    import llvmlite
    from llvmlite import binding

    parts = [
        numba.__version__,
        llvmlite.__version__,
        platform.python_version(),
        sys.implementation.cache_tag or "",
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
    ]
    for name in _SOURCES:
        source = Path(__file__).with_name(name)
        parts += (str(source), source.read_text(), str(source.stat().st_mtime_ns))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def own_folder() -> Path:
    """A folder that only this user can write to: what is in it will be executed."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(tempfile.gettempdir()) / f"rmq-spark-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError(f"{folder} can be written by others")
    return folder


if __name__ == "__main__":
    # Under the name that the decoders import, so that it is one module and not two.
    from rmq_core.columnar.kernels import load as load_loops

    logging.basicConfig(level=logging.INFO)
    sys.exit(not load_loops(sys.argv[1] if len(sys.argv) > 1 else None))
