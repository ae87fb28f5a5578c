"""Spark's batch, stream and sink on Apache's broker; its mqadmin sees how far the query's group is."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interop.apache import apache
from interop.artifacts import ROCKETMQ
from interop.servers import Server
from rmq_core import Message, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("default")  # Spark's own code warns about itself


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    import rmq_spark

    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = rmq_spark.session(
            "interop",
            master="local[2]",
            **{
                "spark.ui.enabled": "false",
                "spark.local.dir": str(folder),
                "spark.driver.bindAddress": "127.0.0.1",
            },
        )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="module", params=ROCKETMQ)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp(f"spark-{request.param}")
    with apache(request.param, home) as pair:
        yield Server(request.param, pair.name_server, "apache", pair.broker, home)


def _fill(server: Server, topic: str, numbers: range) -> list[str]:
    """Messages of our producer."""
    bodies = [f"{number:04d}" for number in numbers]
    with Producer("filler", name_server=server.name_server) as producer:
        producer.send_batch([Message(topic, body.encode(), tags="a", keys=body) for body in bodies])
    return bodies


def _bodies(rows: DataFrame) -> list[str]:
    return sorted(bytes(row["body"]).decode() for row in rows.collect())


def _offsets_seen(server: Server, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Broker's and group's offset by queue, from Apache's `mqadmin consumerProgress`."""
    lines = [line.split() for line in server.mqadmin(server.name, "consumerProgress", "-g", group).splitlines()]
    return {(line[0], int(line[2])): (int(line[3]), int(line[4])) for line in lines if line[1:2] == ["apache"]}


def test_batch_and_sink(spark: SparkSession, server: Server) -> None:
    """A data frame is written to Apache's broker and read back, with its tags, keys and properties."""
    server.create_topic("Written")
    names = {"nameServer": server.name_server, "topic": "Written"}
    rows = [(f"row {number}", "red", f"k{number}", {"shop": f"s{number}"}) for number in range(200)]
    frame = spark.createDataFrame(rows, "body string, tags string, keys string, properties map<string,string>")
    frame.write.format("rocketmq").options(**names).mode("append").save()
    read = spark.read.format("rocketmq").options(includeProperties="true", **names).load()
    found = [
        (bytes(row["body"]).decode(), row["tags"], row["keys"], row["properties"]["shop"]) for row in read.collect()
    ]
    assert sorted(found) == sorted((body, tags, keys, held["shop"]) for body, tags, keys, held in rows)
    assert {row["broker"] for row in read.select("broker").collect()} == {"apache"}
    assert _bodies(read.where("tags = 'blue'")) == []


def test_a_stream_goes_on_and_mqadmin_sees_its_group(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Two runs from one checkpoint give each message once; after each, Apache's tool shows no lag."""
    topic, group = "Streamed", "spark-group"
    server.create_topic(topic)
    sent: list[str] = []
    for run in range(2):
        sent += _fill(server, topic, range(run * 1000, run * 1000 + 100))
        stream = (
            spark.readStream.format("rocketmq")
            .options(nameServer=server.name_server, topic=topic, group=group, startingOffsets="earliest")
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .options(path=str(tmp_path / "rows"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180)
        assert _bodies(spark.read.parquet(str(tmp_path / "rows"))) == sent
        seen = {place: offsets for place, offsets in _offsets_seen(server, group).items() if place[0] == topic}
        assert len(seen) == 4
        assert all(end == stored for end, stored in seen.values())
        assert sum(end for end, _ in seen.values()) == len(sent)


def test_a_stream_into_the_sink(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """From one topic to another on Apache's broker, every message once without a failure."""
    for topic in ("From", "To"):
        server.create_topic(topic)
    sent = _fill(server, "From", range(300))
    names = {"nameServer": server.name_server}
    stream = spark.readStream.format("rocketmq").options(topic="From", startingOffsets="earliest", **names).load()
    query = (
        stream.select("body", "tags", "keys")
        .writeStream.format("rocketmq")
        .options(topic="To", checkpointLocation=str(tmp_path / "checkpoint"), **names)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    assert _bodies(spark.read.format("rocketmq").options(topic="To", **names).load()) == sent
