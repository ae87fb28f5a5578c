"""Micro-batches of a stream: where each ends, what its tasks read, and what the group has done.

Offsets   Spark's checkpoint is the truth; the group's progress on the brokers follows it. The moment is
          latestOffset(start): Spark asks for what comes behind `start` once that is durable, after the last batch
          too.
Replays   read what the offsets say and nothing else: an end holds where its batch began in each queue that did not
          simply go on.
Copies    Spark makes this object several times and pickles it. What is open lives in the one that runs the query,
          made when it is first asked.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rmq_core.protocol.message import MessageQueue
from rmq_spark.connections import named_errors
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.offsets import Positions, QueueOffsets, from_json, queue_names, starting_offsets, to_json
from rmq_spark.options import Settings
from rmq_spark.planner import Loss, is_due, loss_error, pack
from rmq_spark.shipping import Shippable
from rmq_spark.stream_driver import StreamDriver
from rmq_spark.stream_plan import Plan, batch_ranges, plan
from rmq_spark.stream_queues import Look

_log: Final = logging.getLogger(__name__)

FRESH_S: Final = 0.1
"""An answer about the ends of queues may be so old."""
LOOK_WAIT_S: Final = 1.0
"""So long a trigger waits for a newer one: a broker that hangs must not hold the others up."""
IDLE_WAIT_S: Final = 0.1
"""So long a trigger that finds nothing waits for news, instead of being asked again at once."""
STORE_WAIT_S: Final = 2.0
"""So long a run that ends by itself waits for the group's progress to be stored."""

Offset = dict[str, Any]


class RocketMQStreamReader(Shippable, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of one query."""

    def __init__(self, settings: Settings, columns: tuple[str, ...]) -> None:
        self._settings = settings
        self._columns = columns
        self._driver: StreamDriver | None = None
        self._initial: Offset | None = None
        self._durable: Offset | None = None
        self._frozen: QueueOffsets | None = None
        self._following: QueueOffsets = {}
        self._batch_at: float | None = None
        self._warned: set[Loss] = set()
        self._shown: QueueOffsets = {}

    def _open(self, expected: Collection[MessageQueue] = ()) -> StreamDriver:
        if self._driver is None:
            self._driver = StreamDriver(self._settings, expected)
        return self._driver

    # Where it begins and ends

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names
        if self._initial is None:  # asked for at least twice, and `latest` moves
            with named_errors(self._settings):
                driver = self._open()
                queues = driver.watch.queues()
                self._initial = to_json(starting_offsets(driver.client, self._settings, queues))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        settings = self._settings
        if settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(settings.max_offsets_per_trigger)
        # Anything but ReadAllAvailable, which Spark gives where all options are to be ignored.
        if settings.min_offsets_per_trigger is not None:
            return ReadMinRows(settings.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with named_errors(self._settings):
            look = self._open().watch.look(age_max_s=0, wait_s=LOOK_WAIT_S)
        self._frozen = look.reachable()
        if look.away:
            _log.warning("brokers are away, and their queues wait for the next run: %s", queue_names(look.away))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        positions = from_json(start)
        with named_errors(self._settings):
            driver = self._open(positions.queues)
            driver.watch.expect(positions.queues)
            self._is_durable(start, positions)
            look = driver.watch.look(age_max_s=FRESH_S, wait_s=LOOK_WAIT_S)
            deadline = time.monotonic() + IDLE_WAIT_S
            while True:
                end = self._end_of(start, positions, look, limit)
                left_s = deadline - time.monotonic()
                # A run that takes what was there has nothing to wait for.
                if end != start or left_s <= 0 or self._frozen is not None:
                    return end
                seen_at = look.at
                look = driver.watch.wait(lambda look, seen_at=seen_at: look.at > seen_at, left_s)  # type: ignore[misc]

    def _end_of(self, start: Offset, positions: Positions, look: Look, limit: ReadLimit) -> Offset:
        """The end of the batch behind start; start itself where there is nothing for one."""
        resets = self._resets_to_follow()
        planned = plan(positions.queues, look, resets=resets, frozen=self._frozen)
        self._shown = {
            **planned.begin,
            **{queue: end for queue, end in look.latest.items() if queue in planned.begin},
        }
        self._report(planned.losses)
        is_first = start == self._initial
        if not planned.seek and not planned.losses and not self._is_due(planned, limit):
            return start
        ends = planned.limited(limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if ends == positions.queues and not planned.seek and not is_first:
            return start
        self._following = {queue: offset for queue, offset in resets.items() if queue in planned.seek}
        self._batch_at = time.monotonic()
        return to_json(ends, start=positions.queues if is_first else None, seek=planned.seek)

    def _is_due(self, planned: Plan, limit: ReadLimit) -> bool:
        settings = self._settings
        if (
            isinstance(limit, ReadAllAvailable)
            or self._frozen is not None
            or settings.min_offsets_per_trigger is None
        ):
            return True
        waited_ms = None if self._batch_at is None else (time.monotonic() - self._batch_at) * 1000
        return planned.backlog > 0 and is_due(
            planned.backlog,
            min_rows=settings.min_offsets_per_trigger,
            waited_ms=waited_ms,
            delay_max_ms=settings.max_trigger_delay,
        )

    def _report(self, losses: list[Loss]) -> None:
        if losses and self._settings.fail_on_data_loss:
            raise loss_error(losses, group=self._settings.group)
        for loss in losses:
            if loss not in self._warned:
                self._warned.add(loss)
                _log.warning("messages are lost: %s", loss)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return to_json(self._shown) if self._shown else None

    # The group

    def _is_durable(self, start: Offset, positions: Positions) -> None:
        driver = self._open()
        progress = driver.progress
        if progress is None or start == self._durable:
            return
        is_known = self._durable is not None
        self._durable = start
        if not is_known:
            progress.start(positions.queues)
        if start == self._initial:  # nothing was read yet
            return
        progress.followed(self._following)
        self._following = {}
        progress.durable(positions.queues)
        if self._frozen is not None:
            progress.flush(STORE_WAIT_S)

    def _resets_to_follow(self) -> QueueOffsets:
        progress = self._open().progress
        resets = progress.resets() if progress is not None else {}
        if not resets or progress is None:
            return {}
        how = self._settings.on_group_reset
        if how == "fail":
            raise SparkRocketMQError(
                Condition.GROUP_RESET,
                f"group {self._settings.group} was reset while the query ran ({queue_names(resets)}), and "
                "onGroupReset=fail; with follow the query goes on from there",
                group=self._settings.group, queues=queue_names(resets),
            )  # fmt: skip
        if how == "ignore":
            _log.warning("the group was reset on %s; onGroupReset=ignore: the query goes on", queue_names(resets))
            progress.followed(resets, is_ignored=True)
            return {}
        return resets

    def commit(self, end: Offset) -> None:
        """Nothing: the call behind the next batch says the same of this one, and of the last one too."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # Tasks

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        settings = self._settings
        tasks = pack(
            batch_ranges(from_json(start), from_json(end)),
            min_partitions=settings.min_partitions,
            max_records=settings.max_records_per_partition,
            min_rows=settings.min_rows_per_partition,
        )
        # Spark would make one partition of none, and ask for what is in it.
        return [InputPartition(ranges) for ranges in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from rmq_spark.queue_reader import read_ranges

        settings = self._settings
        if settings.shared_group:
            # A pull under the group's name would take a reset away from a member that it waits for.
            settings = dataclasses.replace(settings, group=None)
        return read_ranges(settings, self._columns, partition.value)
