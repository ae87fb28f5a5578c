"""A store directory as a DataFrame, without a broker: here, or wherever fsspec reaches.

Splits    With a topic along its queues, else along the log, each of about splitBytes; small queues share a task.
Damage    Records that cannot be read are skipped and said in the executor's log, or fail the query: onCorrupt.
Changes   A running broker may write to the directory: what is there when Spark plans is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmq_core.errors import StoreError
from rmq_core.store.reader import LogRange, QueueRange, StoreReader, open_store
from rmq_spark.compiled import LOOPS
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Settings
from rmq_spark.queue_reader import BATCH_BYTES, ahead, freeze_once
from rmq_spark.shipping import Shippable

_log: Final = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: later ones are no times."""
_ROWS_OF_A_TASK: Final = 10_000

Range: TypeAlias = QueueRange | LogRange


class RocketMQFileReader(Shippable, DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, settings: Settings, columns: tuple[str, ...]) -> None:
        self._settings = settings
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        try:
            with _store(settings) as store:
                ranges: Sequence[Range]
                if settings.topic is not None:
                    return [InputPartition(each) for each in _packed(_queue_ranges(store, settings)) or [()]]
                start, end = _time(settings.starting_timestamp), _time(settings.ending_timestamp)
                whole = store.log_range(start=start, end=end)
                ranges = [
                    LogRange(max(each.start, whole.start), min(each.end, whole.end))
                    for each in store.splits(settings.split_bytes)
                    if isinstance(each, LogRange)
                ]
                return [InputPartition((each,)) for each in ranges if each.start < each.end] or [InputPartition(())]
        except (StoreError, OSError) as error:
            raise _bad_store(settings, error) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_once()
        if self._settings.compiled == "off":
            LOOPS.off()
        yield from ahead(_batches(self._settings, self._columns, partition.value), bytes_max=4 * BATCH_BYTES)


def _store(settings: Settings) -> StoreReader:
    assert settings.path is not None
    return open_store(settings.path, commit_log=settings.commit_log_path, **settings.file_options)


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else _EPOCH + timedelta(milliseconds=min(ms, _LATEST_MS))


def _bad_store(settings: Settings, error: Exception) -> SparkRocketMQError:
    return SparkRocketMQError(Condition.CORRUPT_STORE, f"store {settings.path}: {error}", path=settings.path)


def _queue_ranges(store: StoreReader, settings: Settings) -> list[QueueRange]:
    """The splits of the topic, cut to the wanted queue and times."""
    assert settings.topic is not None
    start, end = _time(settings.starting_timestamp), _time(settings.ending_timestamp)
    try:
        ranges = store.queue_ranges(settings.topic, queue=settings.queue_id, start=start, end=end)
    except StoreError as error:
        raise SparkRocketMQError(Condition.UNKNOWN_TOPIC, str(error), topic=settings.topic) from None
    wanted = {each.queue_id: each for each in ranges}
    found = []
    for split in store.splits(settings.split_bytes, settings.topic):
        if isinstance(split, QueueRange) and (whole := wanted.get(split.queue_id)) is not None:
            part = replace(split, start=max(split.start, whole.start), end=min(split.end, whole.end))
            if part.start < part.end:
                found.append(part)
    return found


def _packed(ranges: Sequence[QueueRange]) -> list[tuple[QueueRange, ...]]:
    """Small ranges together: a task costs more than they do."""
    tasks: list[list[QueueRange]] = []
    rows = _ROWS_OF_A_TASK
    for each in ranges:
        if rows < _ROWS_OF_A_TASK:
            tasks[-1].append(each)
        else:
            tasks.append([each])
            rows = 0
        rows += each.end - each.start
    return [tuple(task) for task in tasks]


def _batches(settings: Settings, columns: tuple[str, ...], ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    if not ranges:
        return
    try:
        with _store(settings) as store:
            for each in ranges:
                yield from _rows(store, settings, columns, each)
            _say_what_was_skipped(store, settings)
    except (StoreError, OSError) as error:
        raise _bad_store(settings, error) from None


def _rows(
    store: StoreReader, settings: Settings, columns: tuple[str, ...], range_: Range
) -> Iterator[pa.RecordBatch]:
    """The rows of a range in batches that Spark takes well; those of the log cut to the wanted times."""
    is_timed = isinstance(range_, LogRange) and (
        settings.starting_timestamp is not None or settings.ending_timestamp is not None
    )
    decoded = (*columns, "storeTimestamp") if is_timed and "storeTimestamp" not in columns else columns
    on_corrupt: Literal["fail", "skip"] = "fail" if settings.on_corrupt == "fail" else "skip"
    for rows in store.read_range(range_, columns=decoded, broker=settings.broker_name, on_corrupt=on_corrupt):
        LOOPS.decoded(rows.num_rows)
        batch = _between(rows, settings).select(list(columns)) if is_timed else rows
        if batch.num_rows:
            yield from _sliced(batch)


def _between(batch: pa.RecordBatch, settings: Settings) -> pa.RecordBatch:
    times = batch.column("storeTimestamp")
    start, end = _time(settings.starting_timestamp), _time(settings.ending_timestamp)
    wanted = pa.array([True] * batch.num_rows)
    if start is not None:
        wanted = pc.and_(wanted, pc.greater_equal(times, pa.scalar(start, times.type)))
    if end is not None:
        wanted = pc.and_(wanted, pc.less(times, pa.scalar(end, times.type)))
    return batch.filter(wanted)


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    parts = max(-(-batch.nbytes // BATCH_BYTES), 1)
    step = max(-(-batch.num_rows // parts), 1)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _say_what_was_skipped(store: StoreReader, settings: Settings) -> None:
    for damage in store.report.damages:
        _log.warning(
            "%s: [%d, %d) of the log is skipped: %s", settings.path, damage.start, damage.end, damage.reason
        )
    for gone in store.report.removed:
        _log.warning("%s: retention removed %s while it was read", settings.path, gone)
    if store.report.damages:
        _log.warning("%s: %d damaged regions were skipped", settings.path, len(store.report.damages))
