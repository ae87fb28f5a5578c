"""The package by way of Spark, for clusters that do not have it.

register() hands Spark a class that is pickled by value and carries the source of the package. Whoever unpickles it,
or anything that it made, first unpacks the source into a folder of the user's own and goes on from there. Where the
package is installed that one is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import pickle
import stat
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = b""
"""The package as a zip, where this process takes part in shipping it."""

_LEFT_OUT = ("rmq_core/broker/", "rmq_core/namesrv/")


class Shippable:
    """What Spark pickles: it brings the package along where that is shipped."""

    def __reduce__(self) -> Any:
        state = getattr(self, "__dict__", {})
        if not ARCHIVE:
            return _rebuild, (type(self), state)
        return revive, (pickle.dumps((type(self), state)),)


def _rebuild(kind: type[Any], state: dict[str, Any]) -> Any:
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


def revive(pickled: bytes) -> Any:
    """What was pickled, once the package is there. It is pickled by value itself: it may use only what is here."""
    unpack()
    kind, state = pickle.loads(pickled)
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


def unpack() -> None:
    """Make the package importable, and pass it on to whoever unpickles what this process makes."""
    if importlib.util.find_spec("rmq_spark") is None:
        sys.path.insert(0, unpacked_folder())
        importlib.invalidate_caches()
    # Here this function may be a copy without a module: the module that is there now goes on.
    shipping = importlib.import_module("rmq_spark.shipping")
    if not shipping.ARCHIVE:
        shipping.start(ARCHIVE)


def unpacked_folder() -> str:
    """The folder with the package, written if it is not there. Raises OSError where others may write to it."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    home = Path(tempfile.gettempdir()) / f"rmq-spark-{user}"
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError(f"{home} can be written by others, and code would be read from it")
    folder = home / f"package-{hashlib.sha256(ARCHIVE).hexdigest()[:16]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=home) as temporary:
            inner = Path(temporary, "package")
            zipfile.ZipFile(io.BytesIO(ARCHIVE)).extractall(inner)
            try:
                inner.rename(folder)
            except OSError:  # another worker was faster
                if not folder.is_dir():
                    raise
    return str(folder)


def start(archive: bytes) -> None:
    """From now on, what this process pickles for Spark brings the package along."""
    global ARCHIVE  # noqa: PLW0603
    from pyspark import cloudpickle

    ARCHIVE = archive
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def archive() -> bytes:
    """The package that runs here, as a zip; the same source gives the same bytes."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as target:
        for name in ("rmq_core", "rmq_spark"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            root = Path(spec.origin).parent
            for path in sorted(root.rglob("*")):
                member = f"{name}/{path.relative_to(root).as_posix()}"
                if path.is_file() and "__pycache__" not in path.parts and not member.startswith(_LEFT_OUT):
                    info = zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0))
                    target.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return written.getvalue()


def register(spark: SparkSession) -> None:
    """Make the format known to a session whose cluster does not have the package."""
    from pyspark.sql.datasource import DataSource

    start(ARCHIVE or archive())

    class ShippedSource(DataSource):
        """The format, once the package is unpacked."""

        def __new__(cls, options: Any) -> Any:
            unpack()
            from rmq_spark.source import RocketMQDataSource

            return RocketMQDataSource(options)

        @classmethod
        def name(cls) -> str:
            return "rocketmq"

    spark.dataSource.register(ShippedSource)
