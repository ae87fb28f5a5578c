"""The blocks of docs/spark.md run, in their order, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rmq_spark
from support.spark_world import World, broker_of_its_own, eventually, stored

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_every_block_of_the_guide_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only addresses and folders are put in; register() does nothing: it would stay for all tests."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.setattr(rmq_spark, "register", lambda session: None)
    with broker_of_its_own(storePathRootDir=str(tmp_path / "store")) as world:
        for topic in ("Orders", "Counts"):
            world.topic(name=topic, queues=2)
        world.send("Orders", ["a", "b", "c"], queues=2, properties={"TAGS": "paid"})
        eventually(lambda: stored(tmp_path / "store", "Orders", 3), "the queue's files to follow the log")
        names: dict[str, Any] = {}
        filled_in = {
            "127.0.0.1:9876": world.mq.name_server,
            '"store/"': repr(str(tmp_path / "store")),
            '"ckpt"': repr(str(tmp_path / "ckpt")),
        }
        for block in blocks:
            text = block
            for written, used in filled_in.items():
                text = text.replace(written, used)
            exec(compile(text, str(GUIDE), "exec"), names)
            if "query" in names and names["query"].isActive:
                names["query"].processAllAvailable()
        assert names["spark"] is spark
        assert names["orders"].count() == 4
        assert _bodies(spark, world, "Orders") == {"a", "b", "c", '{"id": 42}'}


def _bodies(spark: SparkSession, world: World, topic: str) -> set[str]:
    frame = spark.read.format("rocketmq").options(**world.options, topic=topic).load()
    return {row[0] for row in frame.selectExpr("CAST(body AS STRING)").collect()}
