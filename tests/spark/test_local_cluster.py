"""Executors in processes of their own, without the package: register() brings it along."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.spark_world import World, eventually, stored

pytestmark = pytest.mark.xdist_group("spark-programs")

PROGRAM = """
import os
import sys
import rmq_spark
from pyspark.sql import SparkSession

name_server, topic, source, folder, store = sys.argv[1:]
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.executor.memory", "512m")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.warehouse.dir", folder + "/warehouse")
    .config("spark.local.dir", folder + "/local")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

def has_package(_):
    import importlib.util
    yield importlib.util.find_spec("rmq_spark") is not None

print("INSTALLED", spark.sparkContext.parallelize([0], 1).mapPartitions(has_package).collect())
rmq_spark.register(spark)
options = {"nameServer": name_server, "topic": topic, "minPartitions": "4"}
frame = spark.read.format("rocketmq").options(**options).load()
print("BATCH", frame.count(), frame.rdd.getNumPartitions() >= 4)

def killing(batches):
    # Takes the first batch of all, and kills its own executor.
    import os
    import time
    for batch in batches:
        try:
            os.close(os.open(folder + "/killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            yield batch
            continue
        executor = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
        assert "CoarseGrainedExecutorBackend" in open(f"/proc/{executor}/cmdline").read()
        open(folder + "/killed", "w").write(str(executor))
        os.kill(executor, 9)
        time.sleep(60)

bodies = [bytes(row[0]) for row in frame.select("body").mapInArrow(killing, "body binary").collect()]
is_gone = not os.path.exists("/proc/" + open(folder + "/killed").read())
print("KILLED", len(bodies), len(set(bodies)), is_gone)
print("OFFLINE", spark.read.format("rocketmq").option("topic", topic).load(store).count())
(frame.selectExpr("body", "tags").write.format("rocketmq").option("nameServer", name_server)
 .option("topic", topic + "-copy").mode("append").save())
print("COPIED", spark.read.format("rocketmq").options(**{**options, "topic": topic + "-copy"}).load().count())
query = (
    spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
    .writeStream.format("parquet").option("path", folder + "/out").option("checkpointLocation", folder + "/ckpt")
    .trigger(availableNow=True).start()
)
query.awaitTermination(120)
print("STREAM", spark.read.parquet(folder + "/out").count())
spark.stop()
"""


@pytest.fixture(scope="module")
def said(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a driver in a process of its own prints; Spark's Python has all of the environment but this project."""
    folder = tmp_path_factory.mktemp("cluster")
    python = folder / "python"
    # Without -S the installation's .pth files would make the package importable.
    site = sysconfig.get_path("purelib")
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    topic = world.topic(queues=4, stem="cluster")
    world.mq.create_topic(f"{topic}-copy", queues=2)
    world.send(topic, [f"{number}" for number in range(400)], queues=4)
    eventually(lambda: stored(world.mq.store_path, topic, 400), "the queues' files to follow the log")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, world.mq.name_server, topic, "", str(folder), str(world.mq.store_path)],
        env={
            **os.environ,
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(Path(site, "pyspark")),
            "TMPDIR": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_cluster_does_not_have_the_package(said: str) -> None:
    """Otherwise the tests below would show nothing."""
    assert "INSTALLED [False]" in said


def test_batch_reads_and_writes_run_where_the_package_is_not(said: str) -> None:
    """On two executors with one core each: from a broker, from files, and back to the broker."""
    assert "BATCH 400 True" in said
    assert "OFFLINE 400" in said
    assert "COPIED 400" in said


def test_a_killed_executor_costs_no_row_and_doubles_none(said: str) -> None:
    """Killed with the first rows in its hands: its tasks are run again elsewhere."""
    assert "KILLED 400 400 True" in said


def test_streams_run_where_the_package_is_not(said: str) -> None:
    """The source's driver process too has to unpack what it is."""
    assert "STREAM 400" in said
