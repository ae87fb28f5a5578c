"""The package travels with what Spark pickles, where register() says so."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from rmq_spark import shipping

ONLINE = {"nameServer": "127.0.0.1:1", "topic": "T"}


def test_the_archive_holds_what_executors_import_and_is_always_the_same() -> None:
    """Its digest names the folder it is unpacked to: other bytes for the same source would fill the disk."""
    first = shipping.archive()
    assert first == shipping.archive()
    names = set(zipfile.ZipFile(io.BytesIO(first)).namelist())
    assert {"rmq_spark/source.py", "rmq_core/columnar/loops.py", "rmq_core/store/reader.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("rmq_core/broker")]
    assert len(first) < 1 << 20


def test_what_is_shipped_is_revived_by_a_python_without_the_package(tmp_path: Path) -> None:
    """Pickled in a process that ships, unpickled in one that cannot import rmq_spark, and passed on from there."""
    site = sysconfig.get_path("purelib")
    sender = (
        "import sys\n"
        "from pyspark import cloudpickle\n"
        "from rmq_spark import shipping\n"
        "from rmq_spark.source import RocketMQDataSource\n"
        "shipping.start(shipping.archive())\n"
        "made = RocketMQDataSource({'nameServer': 'n:1', 'topic': 'Orders'})\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(made))\n"
    )
    pickled = subprocess.run([sys.executable, "-c", sender], capture_output=True, check=True).stdout
    receiver = (
        "import importlib.util, pickle, sys\n"
        "assert importlib.util.find_spec('rmq_spark') is None\n"
        "from pyspark import cloudpickle\n"
        "made = pickle.loads(sys.stdin.buffer.read())\n"
        "assert made.settings.topic == 'Orders', made\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(made.reader(made.schema())))\n"
    )
    environment = {"PYTHONPATH": site, "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    passed_on = subprocess.run(
        [sys.executable, "-S", "-c", receiver], input=pickled, env=environment, capture_output=True, check=False
    )
    assert passed_on.returncode == 0, passed_on.stderr.decode()
    last = (
        "import pickle, sys\n"
        "made = pickle.loads(sys.stdin.buffer.read())\n"
        "print(type(made).__name__, made._columns[:2])\n"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-c", last], input=passed_on.stdout, env=environment, capture_output=True, check=True
    )
    assert said.stdout.decode().strip() == "RocketMQBatchReader ('topic', 'broker')"
    folders = [path.name for path in tmp_path.glob("rmq-spark-*/package-*")]
    assert len(folders) == 1


def test_without_shipping_pickles_hold_no_package() -> None:
    """In the ordinary case a reader is a few hundred bytes."""
    from rmq_spark.source import RocketMQDataSource

    made = RocketMQDataSource(ONLINE)
    assert len(pickle.dumps(made)) < 4000
    assert pickle.loads(pickle.dumps(made)).settings == made.settings
