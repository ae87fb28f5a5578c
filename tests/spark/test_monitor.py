"""Progress and metrics of streaming queries. Scenario numbers are those of docs/connector-scenarios.md."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rmq_core.client.blocking.admin import Admin
from rmq_core.protocol.message import MessageQueue
from rmq_spark import monitor
from rmq_spark.monitor import Prometheus, QueryState, QueueState, lines, state_of, watch
from rmq_spark.offsets import to_json
from support.spark_world import World, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Q = [MessageQueue("T", "a", number) for number in range(3)]


def progress(*, start: Any, end: Any, latest: Any, rows: int = 0, rate: float = 0.0) -> Any:
    """A progress as Spark gives it: offsets are JSON text."""
    source = SimpleNamespace(
        startOffset=start and json.dumps(to_json(start)),
        endOffset=end if isinstance(end, str) else json.dumps(to_json(end)),
        latestOffset=latest and json.dumps(to_json(latest)),
        numInputRows=rows,
        processedRowsPerSecond=rate,
    )
    return SimpleNamespace(id="id-1", name=None, batchId=4, sources=[source], durationMs={"triggerExecution": 12})


def test_lag_is_what_lies_between_the_end_offset_and_the_latest() -> None:
    """C220: consumed 1 and 2, latest 3 and 6: behind by 2 at least, 4 at most, 3.0 on average."""
    state = state_of(progress(start={Q[0]: 0, Q[1]: 0}, end={Q[0]: 1, Q[1]: 2}, latest={Q[0]: 3, Q[1]: 6}, rows=3))
    assert state is not None
    assert (state.lag, state.lag_min, state.lag_max, state.lag_average) == (6, 2, 4, 3.0)
    assert (state.rows, state.passed_offsets, state.offsets_without_row) == (3, 3, 0)


def test_offsets_without_a_row_are_counted() -> None:
    """C089: ten offsets gave four rows; a queue that is new in the batch does not count."""
    state = state_of(progress(start={Q[0]: 5}, end={Q[0]: 15, Q[1]: 90}, latest=None, rows=4, rate=float("nan")))
    assert state is not None
    assert (state.passed_offsets, state.offsets_without_row, state.lag) == (10, 6, 0)
    assert state.rows_per_second == 0.0


def test_other_sources_are_passed_over() -> None:
    """Offsets of files, numbers, and text that is no JSON."""
    for other in ('{"logOffset":0}', "7", "not JSON", '{"v":99,"queues":{}}'):
        assert state_of(progress(start=None, end=other, latest=None)) is None


def test_a_state_is_told_in_words() -> None:
    """With ages and lost offsets, and the queues that are behind."""
    queues = (QueueState(Q[0], 5, 1_505, 61.04), QueueState(Q[1], 7, 7), QueueState(Q[2], 1, 2))
    told = list(lines(QueryState("id-1", "orders", 3, 20_000, 4_321.0, 900, 20_010, queues), queues=True))
    assert told == [
        "orders micro-batch 3: 20,000 rows, 4,321 rows/s, lag 1,501, oldest unread 61.0 s, 10 offsets "
        "without a row",
        "  T a 0: lag 1,500, oldest unread 61.0 s",
        "  T a 2: lag 1",
    ]


def test_a_failing_report_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    """A look-on must not disturb the query."""

    def fail(state: QueryState) -> None:
        raise OSError("the console is gone")

    event: Any = SimpleNamespace(progress=progress(start=None, end={Q[0]: 1}, latest=None))
    monitor.RocketMQListener(fail).onQueryProgress(event)
    assert "the console is gone" in caplog.text


def scraped(exporter: Prometheus) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics") as answer:
        found = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {
        name: float(value) for name, value in found if not name.startswith("rmq_spark_") or "_created" not in name
    }


def start(spark: SparkSession, world: World, topic: str, folder: Path, **options: str) -> StreamingQuery:
    rows = spark.readStream.format("rocketmq").options(**world.options, topic=topic, **options).load()
    return rows.writeStream.format("noop").option("checkpointLocation", str(folder)).queryName("watched").start()


def test_a_running_query_is_shown_with_true_lag_and_age(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """C221, C222, C224: one message a micro-batch of ten; lag must fall to nothing and agree with the broker's."""
    topic, group = world.topic(queues=2), world.fresh("G")
    world.send(topic, [f"{n}" for n in range(10)], queues=2)
    seen: list[QueryState] = []
    listener = watch(spark, report=seen.append, name_server=world.mq.name_server)
    exporter = Prometheus(port=0)
    exported = watch(spark, report=exporter, name_server=world.mq.name_server)
    query = start(spark, world, topic, tmp_path, group=group, fallbackOffsets="earliest", maxOffsetsPerTrigger="1")
    try:
        eventually(lambda: seen and seen[-1].lag == 0, "the last message")
        behind = [state for state in seen if state.lag]
        assert [state.lag for state in seen] == sorted((state.lag for state in seen), reverse=True)
        assert behind
        assert all(0 <= (state.oldest_unread_s or -1) < 600 for state in behind)
        assert seen[-1].oldest_unread_s is None
        assert sum(state.rows for state in seen) == 10
        assert {state.name for state in seen} == {"watched"}
        with Admin(name_server=world.mq.name_server) as admin:
            eventually(lambda: admin.lag(group, topic=topic).count == 0, "the group's progress")
        eventually(
            lambda: scraped(exporter).get('rmq_spark_rows_total{query="watched"}') == 10.0, "ten rows exported"
        )
        figures = scraped(exporter)
        assert figures['rmq_spark_lag{query="watched"}'] == 0
        queue = f'query="watched",queue="0",topic="{topic}"'
        assert figures[f'rmq_spark_queue_lag{{broker="embedded",{queue}}}'] == 0
        assert figures['rmq_spark_offsets_without_row_total{query="watched"}'] == 0
        query.stop()
        eventually(lambda: not scraped(exporter), "nothing about a query that is over")
    finally:
        query.stop()
        for each in (listener, exported):
            spark.streams.removeListener(each)
            each.close()
        exporter.close()
