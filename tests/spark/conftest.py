"""One Spark session and one broker for the tests of this folder; they run in one worker of pytest-xdist."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_core import embedded
from rmq_spark import stream_driver
from support.spark_world import World
from support.stream_query import TOPIC, Query
from support.threaded import Threaded, threaded_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent
# Of every JVM that a test starts: the optimizing compiler took half of their time, and they end before it pays.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            # A session costs seconds and a gigabyte: with `--dist loadgroup` there is one. Programs that
            # have a session of their own are in another group, which runs beside it.
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group("spark"))
            # Spark's own code warns about itself.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("rmq-spark tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """A broker with a name server, and a raw connection to it."""
    with embedded(enablePropertyFilter=True) as mq:
        made = World(mq)
        yield made
        made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals that tests would have to wait for."""
    monkeypatch.setattr(stream_driver, "DISCOVERY_S", 0.1)
    monkeypatch.setattr(stream_driver, "SCAN_S", 0.1)
    monkeypatch.setattr(stream_driver, "LEAVING_S", 0.3)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Threaded]:
    with threaded_cluster(tmp_path) as cluster:
        cluster.create_topic(TOPIC, queues=2)
        yield cluster


@pytest.fixture
def query(running: Threaded) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def make(cluster: Threaded | None = None, **options: Any) -> Query:
        made.append(Query(cluster or running, **options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()
