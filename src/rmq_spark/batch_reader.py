"""One bounded read of queues. The range is fixed when Spark plans the DataFrame, and stays for all its actions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmq_core.client.queue_client import QueueClient
from rmq_spark.connections import named_errors, open_client
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.offsets import QueueOffsets, ending_offsets, queue_name, starting_offsets
from rmq_spark.options import Settings
from rmq_spark.planner import Loss, LossKind, loss_error, pack, ranges_between
from rmq_spark.queues import find_queues
from rmq_spark.shipping import Shippable

if TYPE_CHECKING:
    from rmq_core.protocol.message import MessageQueue

_log: Final = logging.getLogger(__name__)


class RocketMQBatchReader(Shippable, DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, settings: Settings, columns: tuple[str, ...]) -> None:
        self._settings = settings
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        with named_errors(settings), open_client(settings) as client:
            start, end = bounds(client, settings)
        tasks = pack(
            ranges_between(start, end),
            min_partitions=settings.min_partitions,
            max_records=settings.max_records_per_partition,
            min_rows=settings.min_rows_per_partition,
        )
        # Spark would make one partition of none, and ask for what is in it.
        return [InputPartition(ranges) for ranges in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from rmq_spark.queue_reader import read_ranges

        return read_ranges(self._settings, self._columns, partition.value)


def bounds(client: QueueClient, settings: Settings) -> tuple[QueueOffsets, QueueOffsets]:
    """Where a batch starts and ends, from one look at the queues."""
    queues = find_queues(client, settings)
    start = starting_offsets(client, settings, queues)
    end = ending_offsets(client, settings, queues)
    latest = client.max_offsets(queues)
    for queue in queues:
        if end[queue] > latest[queue]:
            raise SparkRocketMQError(
                Condition.BAD_OFFSETS,
                f"{queue_name(queue)} is to be read up to {end[queue]}, and ends at {latest[queue]}",
                queue=queue_name(queue), end=end[queue], latest=latest[queue],
            )  # fmt: skip
    _check_order(settings, start, end, latest)
    return {queue: min(start[queue], end[queue]) for queue in queues}, end


def _check_order(settings: Settings, start: QueueOffsets, end: QueueOffsets, latest: QueueOffsets) -> None:
    losses = []
    for queue in sorted(start):
        if start[queue] > latest[queue]:
            losses.append(Loss(queue, start[queue], latest[queue], LossKind.WENT_BACK))
        elif start[queue] > end[queue]:
            raise _past_the_end(queue, start[queue], end[queue])
    if losses and settings.fail_on_data_loss:
        raise loss_error(losses, group=settings.group)
    for loss in losses:
        _log.warning("messages are lost: %s", loss)


def _past_the_end(queue: MessageQueue, start: int, end: int) -> SparkRocketMQError:
    return SparkRocketMQError(
        Condition.BAD_OFFSETS,
        f"{queue_name(queue)}: resolved start {start} lies past resolved end {end}",
        queue=queue_name(queue), start=start, end=end,
    )  # fmt: skip
