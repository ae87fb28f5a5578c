"""The format through Spark Connect, in a process of its own: a server and a client without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark_world import World

pytestmark = pytest.mark.xdist_group("spark-programs")

PROGRAM = """
import sys
import rmq_spark
from pyspark.sql import SparkSession

name_server, topic, folder = sys.argv[1:]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", folder + "/warehouse")
    .getOrCreate()
)
print("CLIENT", type(spark).__module__)
options = {"nameServer": name_server, "topic": topic}
print("BATCH", spark.read.format("rocketmq").options(**options).load().count())
try:
    spark.read.format("rocketmq").options(**options, topics="x").load().count()
except Exception as error:
    print("REFUSED", "ROCKETMQ_BAD_OPTION" in str(error), "nearest is topic" in str(error))
spark.sql(f"CREATE TEMPORARY VIEW v USING rocketmq OPTIONS (nameServer '{name_server}', topic '{topic}')")
print("SQL", spark.sql("SELECT count(*) AS n FROM v WHERE tags = 'a'").collect()[0]["n"])
query = (
    spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
    .selectExpr("body", "upper(tags) AS tags")
    .writeStream.format("rocketmq").option("nameServer", name_server).option("topic", topic + "-copy")
    .option("checkpointLocation", folder + "/ckpt").trigger(availableNow=True).start()
)
query.awaitTermination(120)
copied = spark.read.format("rocketmq").options(**{**options, "topic": topic + "-copy"}).load()
print("STREAM", copied.count(), copied.filter("tags = 'A'").count())
spark.stop()
"""


@pytest.fixture(scope="module")
def said(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program prints."""
    folder: Path = tmp_path_factory.mktemp("connect")
    topic = world.topic(queues=2, stem="connect")
    world.mq.create_topic(f"{topic}-copy", queues=2)
    world.send(topic, ["x"] * 100, queues=2, properties=lambda number: {"TAGS": "ab"[number % 2]})
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, world.mq.name_server, topic, str(folder)],
        # With SPARK_TESTING the server takes a free port instead of 15002.
        env={**bare, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_reads_work_through_connect(said: str) -> None:
    """C170: by the short name and in SQL, from a client that is no JVM's."""
    assert "CLIENT pyspark.sql.connect" in said
    assert "BATCH 100" in said
    assert "SQL 50" in said


def test_what_is_wrong_is_told_through_connect(said: str) -> None:
    """The condition and the nearest name arrive at the client."""
    assert "REFUSED True True" in said


def test_streams_and_the_sink_work_through_connect(said: str) -> None:
    """From one topic to another, each message once."""
    assert "STREAM 100 50" in said
