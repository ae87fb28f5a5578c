"""Store directories as DataFrames, without a broker."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_core import open_store
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.file_reader import RocketMQFileReader
from rmq_spark.options import Scope, parse
from rmq_spark.rows import checked_columns, spark_schema
from support.spark_world import broker_of_its_own, eventually, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 3000
GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a topic of 3,000 messages in three queues and one of 40 with large bodies."""
    folder = tmp_path_factory.mktemp("offline") / "store"
    with broker_of_its_own(storePathRootDir=str(folder)) as world:
        world.topic(queues=3, name="Orders")
        world.topic(queues=1, name="Large")
        world.send("Orders", [f"{number}" for number in range(COUNT)], queues=3,
                   properties=lambda number: {"KEYS": f"k{number}", "TAGS": "ab"[number % 2]})  # fmt: skip
        world.send("Large", [bytes([number]) * 500_000 for number in range(40)], queue=0)
    return folder


def reader(store: Path | str, **options: str) -> RocketMQFileReader:
    settings = parse({"path": str(store), **options}, Scope.READ)
    return RocketMQFileReader(settings, checked_columns(spark_schema(settings), settings))


def rows(store: Path | str, **options: str) -> list[dict[str, Any]]:
    made = reader(store, **options)
    return [row for partition in made.partitions() for batch in made.read(partition) for row in batch.to_pylist()]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in found if row["topic"] == "Orders")


def test_a_store_is_a_dataframe(spark: SparkSession, store: Path) -> None:
    """By .load(path), by option, and as a view in SQL, while nothing runs there."""
    frame = spark.read.format("rocketmq").load(str(store))
    assert frame.filter("topic = 'Orders'").count() == COUNT
    by_topic = spark.read.format("rocketmq").option("topic", "Orders").option("queueId", "1").load(str(store))
    assert by_topic.count() == COUNT // 3
    options = f"path '{store}', brokerName 'broker-a'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING rocketmq OPTIONS ({options})")
    found = spark.sql("SELECT broker, tags, count(*) AS n FROM log WHERE topic = 'Orders' GROUP BY broker, tags")
    assert sorted(map(tuple, found.collect())) == [("broker-a", "a", COUNT // 2), ("broker-a", "b", COUNT // 2)]


@pytest.mark.parametrize("topic", [None, "Orders"])
@pytest.mark.parametrize("split", ["1k", "40k", "1m", "128m"])
def test_splits_of_every_size_give_every_message_once(store: Path, topic: str | None, split: str) -> None:
    """Byte ranges that cut through records, and queues cut between them."""
    options = {"splitBytes": split} if topic is None else {"splitBytes": split, "topic": topic}
    if topic is None and split == "1k":
        options["splitBytes"] = "7919"  # a prime: no split begins where a record does
    made = reader(store, **options)
    partitions = made.partitions()
    if topic is None:
        assert len(partitions) >= {"1k": 1000, "40k": 100, "1m": 20, "128m": 1}[split]
    assert numbers(rows(store, **options)) == list(range(COUNT))


def test_small_ranges_share_a_task_and_large_ones_do_not(store: Path) -> None:
    """Three queues of a thousand are one task; splits below the size of a body are one message each."""
    assert len(reader(store, topic="Orders").partitions()) == 1
    assert len(reader(store, topic="Large", splitBytes="40k").partitions()[0].value) == 40


def test_times_cut_queues_and_the_log_alike(store: Path) -> None:
    """The boundaries are store times of real messages: the start is included, the end is not."""
    every = rows(store, topic="Orders")
    times = sorted(row["storeTimestamp"] for row in every)
    start, end = times[COUNT // 3], times[2 * COUNT // 3]
    expected = sorted(int(row["body"]) for row in every if start <= row["storeTimestamp"] < end)
    window = {"startingTimestamp": _ms(start), "endingTimestamp": _ms(end)}
    assert numbers(rows(store, topic="Orders", **window)) == expected
    assert numbers(rows(store, **window)) == expected
    assert numbers(rows(store, **window, columns="topic,body")) == expected
    assert numbers(rows(store, endingTimestamp=_ms(times[0]))) == []
    assert numbers(rows(store, startingTimestamp=_ms(times[-1] + timedelta(days=1)), topic="Orders")) == []
    assert numbers(rows(store, startingTimestamp="0", endingTimestamp=str(2**50))) == list(range(COUNT))


def _ms(time: datetime) -> str:
    return str(round((time - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)))


def test_columns_ask_for_what_is_decoded(store: Path) -> None:
    """The order is the user's; the time window's own column does not show."""
    found = rows(store, topic="Orders", columns="keys,queueOffset", startingTimestamp="0")
    assert set(found[0]) == {"keys", "queueOffset"}
    assert list(found[0]) == ["keys", "queueOffset"]
    assert len(found) == COUNT


def test_batches_of_large_bodies_stay_small(store: Path) -> None:
    """40 bodies of half a megabyte are 20 MB: no batch may hold them all."""
    made = reader(store, topic="Large")
    sizes = [batch.nbytes for partition in made.partitions() for batch in made.read(partition)]
    assert sum(sizes) > 20_000_000
    assert len(sizes) >= 4


def test_an_empty_window_has_no_rows(spark: SparkSession, store: Path) -> None:
    """One partition of nothing, by way of Spark: with a topic and without."""
    frame = spark.read.format("rocketmq").option("endingTimestamp", "1")
    assert frame.load(str(store)).count() == 0
    assert frame.option("topic", "Orders").load(str(store)).count() == 0


def test_a_missing_store_topic_or_queue_is_named(tmp_path: Path, store: Path) -> None:
    """What is not there must not look empty."""
    cases: list[tuple[dict[str, str], str, Condition]] = [
        ({"path": str(tmp_path / "none")}, "none", Condition.CORRUPT_STORE),
        ({"path": str(store), "topic": "Nope"}, "Nope", Condition.UNKNOWN_TOPIC),
        ({"path": str(store), "topic": "Orders", "queueId": "9"}, "9", Condition.UNKNOWN_TOPIC),
    ]
    for options, text, condition in cases:
        made = RocketMQFileReader(parse(options, Scope.READ), ("body",))
        with pytest.raises(SparkRocketMQError, match=text) as error:
            made.partitions()
        assert error.value.condition is condition


def damaged(store: Path, folder: Path) -> tuple[Path, int]:
    """A copy of the store in which ten bytes in the middle of a message of Orders are wrong."""
    import shutil

    copy = folder / "damaged"
    shutil.copytree(store, copy)
    at = rows(store, topic="Orders", columns="commitLogOffset,body")[500]["commitLogOffset"]
    log = sorted((copy / "commitlog").iterdir())[0]
    with log.open("r+b") as file:
        file.seek(at + 84)
        file.write(os.urandom(10))
    return copy, at


def test_damage_is_skipped_and_said_or_fails_by_the_option(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One record of 3,000 is damaged: 2,999 rows and a line in the log, or an error with its place."""
    copy, at = damaged(store, tmp_path)
    for options in ({}, {"topic": "Orders"}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert len(numbers(rows(copy, **options))) == COUNT - 1
        assert "1 damaged regions were skipped" in caplog.text
        with pytest.raises(SparkRocketMQError, match=str(at)) as error:
            rows(copy, **options, onCorrupt="fail")
        assert error.value.condition is Condition.CORRUPT_STORE


def test_a_store_behind_fsspec_reads_alike(store: Path) -> None:
    """Every file of the store, copied into fsspec's memory file system."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(store), "/offline-store", recursive=True)
    try:
        assert rows("memory://offline-store", topic="Orders") == rows(store, topic="Orders")
        assert numbers(rows("memory://offline-store")) == list(range(COUNT))
    finally:
        memory.rm("/offline-store", recursive=True)


def test_a_running_brokers_store_is_read_up_to_what_was_planned(tmp_path: Path) -> None:
    """Messages that come between planning and reading are left to the next load."""
    with broker_of_its_own(storePathRootDir=str(tmp_path / "live")) as world:
        topic = world.topic(queues=1)
        world.send(topic, [f"{number}" for number in range(100)], queue=0)
        folder = tmp_path / "live"
        eventually(lambda: stored(folder, topic, 100), "the queue's files to follow the log")
        made = reader(folder, topic=topic)
        planned = made.partitions()
        world.send(topic, ["later"], queue=0)
        assert sum(batch.num_rows for each in planned for batch in made.read(each)) == 100


def test_the_reader_agrees_with_the_store_reader(store: Path) -> None:
    """All columns, against rmq_core.open_store()."""
    with open_store(store) as opened:
        expected = opened.to_arrow("Orders", columns="all", broker="b").to_pylist()
    found = rows(store, topic="Orders", columns="all", brokerName="b")
    assert sorted(found, key=lambda row: row["commitLogOffset"]) == sorted(
        expected, key=lambda row: row["commitLogOffset"]
    )
