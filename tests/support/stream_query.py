"""A streaming query without Spark: the stream reader called in Spark's order, in this process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumerConnection
from rmq_core.protocol.message import MessageQueue
from rmq_spark.offsets import from_json
from rmq_spark.source import RocketMQDataSource
from rmq_spark.stream_queues import Look
from rmq_spark.stream_reader import RocketMQStreamReader
from support.threaded import Threaded, until

TOPIC, GROUP = "Orders", "spark-orders"


def queue(number: int, *, topic: str = TOPIC, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


class Query:
    """What Spark's engine does with one source: a checkpoint, batches, restarts."""

    def __init__(self, running: Threaded, **options: Any) -> None:
        self.options = {"nameServer": running.name_server, "topic": TOPIC, "group": GROUP, **options}
        if "subscribe" in options or "subscribePattern" in options or "assign" in options:
            del self.options["topic"]
        self.options = {key: str(value) for key, value in self.options.items() if value is not None}
        self.offsets: list[tuple[str, str]] = []
        """The offset log: start and end of each batch, as text."""
        self.committed = 0
        self.rows: list[str] = []
        self.reader = self.new_reader()

    def new_reader(self) -> RocketMQStreamReader:
        source = pickle.loads(pickle.dumps(RocketMQDataSource(self.options)))
        reader = source.streamReader(source.schema())
        assert isinstance(reader, RocketMQStreamReader)
        return reader

    def restart(self, **options: Any) -> None:
        self.reader.stop()
        self.options |= {key: str(value) for key, value in options.items()}
        self.reader = self.new_reader()

    def crash(self) -> None:
        """The process is gone without a word; only its connections end."""
        driver = self.reader._driver
        if driver is not None:
            driver.close(flush_s=0)
        self.reader = self.new_reader()

    def start(self) -> str:
        if self.committed:
            return self.offsets[self.committed - 1][1]
        return json.dumps(self.reader.initialOffset())

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Plan a batch and log it; False where there is nothing for one."""
        assert len(self.offsets) == self.committed
        start = self.start()
        chosen = self.reader.getDefaultReadLimit() if limit is None else limit
        end = json.dumps(self.reader.latestOffset(json.loads(start), chosen))
        self.reader.reportLatestOffset()
        if end == start and self.committed:
            return False
        self.offsets.append((start, end))
        return True

    def tasks(self) -> list[str]:
        """Run the last batch's tasks, each with a copy of the reader as executors have it."""
        start, end = map(json.loads, self.offsets[self.committed])
        parts = self.reader.partitions(start, end)
        rows = []
        for part in pickle.loads(pickle.dumps(parts)):
            for batch in self.new_reader().read(part):
                rows += [bytes(body).decode() for body in batch.column("body").to_pylist()]
        return rows

    def commit(self, rows: list[str]) -> list[str]:
        self.rows += rows
        self.committed += 1
        return rows

    def batch(self, limit: ReadLimit | None = None) -> list[str] | None:
        """One whole batch, None where there is none."""
        return self.commit(self.tasks()) if self.plan(limit) else None

    def until_rows(self, limit: ReadLimit | None = None) -> list[str]:
        """Batches until one has rows."""
        found: list[str] = []

        def has_rows() -> bool:
            found.extend(self.batch(limit) or ())
            return bool(found)

        until(has_rows, "a batch with rows")
        return found

    def see(self, is_there: Callable[[Look], bool]) -> None:
        """Wait until the driver's watch has seen something."""
        driver = self.reader._open()
        until(lambda: is_there(driver.watch.look(age_max_s=0, wait_s=1)), "the watch sees it")

    def positions(self) -> dict[MessageQueue, int]:
        return from_json(json.loads(self.offsets[self.committed - 1][1])).queues

    def last_end(self) -> dict[str, Any]:
        end = json.loads(self.offsets[-1][1])
        assert isinstance(end, dict)
        return end


def group_offset(
    running: Threaded, number: int = 0, *, topic: str = TOPIC, group: str = GROUP, app: int = 0
) -> int:
    """What the broker has, by a look into it; -1 where it has nothing."""
    return running.cluster.apps[app].broker.offsets.query(group, topic, number)


def members(running: Threaded, group: str = GROUP) -> list[str | None]:
    try:
        answer = running.do(running.client().call(r.GetConsumerConnectionList(group)))
    except BrokerError:
        return []
    return [each.client_id for each in ConsumerConnection.decode(answer.body).connection_set]


def reset(running: Threaded, offset: int, *, number: int = 0) -> None:
    request = r.InvokeBrokerToResetOffset(TOPIC, GROUP, -1, is_force=True, queue_id=number, offset=offset)
    running.do(running.client().call(request))
