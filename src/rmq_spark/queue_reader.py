"""Ranges of queues as Arrow batches, on an executor.

Pulls     go out ahead, over connections that the worker keeps for later tasks; a thread pulls and decodes while
          Spark takes the batches before.
Batches   have about 10,000 rows or 4 MB. Answers of brokers that give little are put together first.
Memory    What is in flight and what is decoded are each bounded by half of fetchBufferBytes, but one message always
          fits. Compressed bodies are inflated in small lots.
Loss      A range that is not there any more fails the task, or is passed over with one warning: failOnDataLoss.
"""

from __future__ import annotations

import gc
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_core.client.subscriptions import subscription
from rmq_core.columnar import find_records
from rmq_core.errors import BrokerError, NoRouteError, OffsetGoneError, RemoteProtocolError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.filter import parse_tags
from rmq_core.protocol.message import MessageQueue, unwrap_namespace
from rmq_core.store.inner_messages import decode_messages, sys_flags
from rmq_spark.compiled import LOOPS
from rmq_spark.connections import POOL, named_errors
from rmq_spark.options import Settings
from rmq_spark.planner import Loss, LossKind, QueueRange, loss_error

if TYPE_CHECKING:
    from rmq_core.client.queue_client import QueueClient

_log: Final = logging.getLogger(__name__)

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 << 20
COMPRESSED_BYTES: Final = 256 << 10
"""Stored bytes of compressed bodies that are inflated at once."""

SIDE_BY_SIDE: Final = 8
"""Ranges of a task whose first messages are asked for at once."""

_is_frozen: list[bool] = []


def read_ranges(
    settings: Settings, columns: Sequence[str], ranges: Sequence[QueueRange]
) -> Iterator[pa.RecordBatch]:
    """The messages of some ranges, in their order, with these columns.

    Raises SparkRocketMQError: DATA_LOSS where failOnDataLoss says so, UNREACHABLE where a broker is away for longer
    than it is waited for, REFUSED.
    """
    freeze_once()
    if settings.compiled == "off":
        LOOPS.off()
    yield from ahead(_batches(settings, tuple(columns), ranges), bytes_max=settings.fetch_buffer_bytes // 2)


def freeze_once() -> None:
    """Spark collects garbage after every task: take what is loaded out of it."""
    if not _is_frozen:
        _is_frozen.append(True)
        gc.collect()
        gc.freeze()


def _batches(
    settings: Settings, columns: tuple[str, ...], ranges: Sequence[QueueRange]
) -> Iterator[pa.RecordBatch]:
    with named_errors(settings), POOL.client(settings) as client:
        decoder = Decoder(settings, columns)
        for each, buffer in _side_by_side(client, settings, ranges):
            yield from decoder.add(each, buffer)
        yield from decoder.finish()


# Pulling


def _side_by_side(
    client: QueueClient, settings: Settings, ranges: Sequence[QueueRange]
) -> Iterator[tuple[QueueRange, memoryview]]:
    """The records of ranges in order; of several ranges the first answers are asked for at once."""
    ahead_max = min(len(ranges), SIDE_BY_SIDE)
    bytes_max = max(settings.fetch_buffer_bytes // 2 // max(ahead_max, 1), 1)
    if ahead_max <= 1:
        for each in ranges:
            yield from ((each, buffer) for buffer in _buffers(client, settings, each, bytes_max))
        return
    started: deque[tuple[QueueRange, Iterator[memoryview], Future[memoryview | None]]] = deque()
    rest = iter(ranges)
    with ThreadPoolExecutor(ahead_max, thread_name_prefix="rmq-spark-ranges") as pool:
        try:
            while True:
                for each in itertools.islice(rest, ahead_max - len(started)):
                    buffers = _buffers(client, settings, each, bytes_max)
                    started.append((each, buffers, pool.submit(next, buffers, None)))
                if not started:
                    return
                each, buffers, first = started.popleft()
                buffer = first.result()
                while buffer is not None:
                    yield each, buffer
                    buffer = next(buffers, None)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _buffers(client: QueueClient, settings: Settings, wanted: QueueRange, bytes_max: int) -> Iterator[memoryview]:
    """The records of a range; what is not there is passed over if it may be."""
    queue, start = wanted.queue, wanted.start
    by = subscription(client.on_wire(queue.topic), tags=settings.tags or "*", sql=settings.sql)
    while start < wanted.end:
        try:
            pieces = client.read(
                queue,
                start,
                wanted.end,
                subscription=by,
                bytes_in_flight_max=bytes_max,
                count_max=settings.pull_batch_size,
            )
            for piece in pieces:
                if len(piece.buffer):
                    yield piece.buffer
                start = piece.end
        except (OffsetGoneError, BrokerError, NoRouteError) as error:
            lost = _loss(client, error, QueueRange(queue, start, wanted.end))
            if settings.fail_on_data_loss:
                raise loss_error([lost], group=settings.group) from None
            _log.warning("messages are lost: %s", lost)
            start = lost.end


def _loss(client: QueueClient, error: OffsetGoneError | BrokerError | NoRouteError, rest: QueueRange) -> Loss:
    """What cannot be read of the rest of a range. Raises the error itself where it says something else."""
    queue, start, end = rest.queue, rest.start, rest.end
    if isinstance(error, OffsetGoneError):
        if error.available_from > start:
            return Loss(queue, start, min(error.available_from, end), LossKind.DELETED)
        return Loss(queue, start, end, LossKind.ENDS_EARLY)
    # A broker knows of a deletion before name servers do.
    is_gone = isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
    if not is_gone and not client.is_gone(queue):
        raise error
    return Loss(queue, start, end, LossKind.QUEUE_GONE)


# Decoding


class Decoder:
    """Puts buffers together and takes them apart again as batches of the right size."""

    def __init__(self, settings: Settings, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._namespace = settings.namespace
        # Brokers compare hashes of tags: what only hashes alike is dropped here.
        self._tags = sorted(parse_tags(settings.tags).tags) if settings.tags is not None else []
        self._decoded = (*columns, "tags") if self._tags and "tags" not in columns else columns
        self._pending: list[memoryview] = []
        self._size = 0
        self._of: QueueRange | None = None

    def add(self, source: QueueRange, buffer: memoryview) -> Iterator[pa.RecordBatch]:
        """Batches that are full with these records of a range."""
        if self._of is not None and self._must_not_mix(self._of, source):
            yield from self.finish()
        self._of = source
        self._pending.append(buffer)
        self._size += len(buffer)
        if self._size >= BATCH_BYTES // 2:
            yield from self.finish()

    @staticmethod
    def _must_not_mix(one: QueueRange, other: QueueRange) -> bool:
        return one is not other and one.queue.broker_name != other.queue.broker_name

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is left."""
        if self._of is None or not self._pending:
            return
        pending, self._pending, self._size = self._pending, [], 0
        buffer = pending[0] if len(pending) == 1 else memoryview(b"".join(pending))
        pending.clear()
        yield from self._decode(buffer, self._of.queue)

    def _decode(self, buffer: memoryview, queue: MessageQueue) -> Iterator[pa.RecordBatch]:
        found = find_records(buffer)
        if found.stop != len(buffer):
            raise RemoteProtocolError(f"{queue}: the broker sent something other than records at byte {found.stop}")
        is_compressed = bool((sys_flags(buffer, found.positions) & flags.COMPRESSED).any())
        for low, high in cut(found.sizes, COMPRESSED_BYTES if is_compressed else BATCH_BYTES):
            for batch in decode_messages(
                buffer,
                found.positions[low:high],
                columns=self._decoded,
                include_properties=False,
                broker=queue.broker_name,
                base=0,
            ):
                LOOPS.decoded(batch.num_rows)
                if (rows := self._finished(batch)).num_rows:
                    yield rows

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._tags:
            batch = batch.filter(pc.is_in(batch.column("tags"), pa.array(self._tags)))
            batch = batch.select(list(self._columns))
        if self._namespace and "topic" in self._columns:
            place = self._columns.index("topic")
            topics = batch.column(place).dictionary_encode()
            bare = pa.array([unwrap_namespace(name) for name in topics.dictionary.to_pylist()], pa.string())
            batch = batch.set_column(place, batch.schema.field(place), bare.take(topics.indices))
        return batch


def cut(sizes: np.ndarray[Any, np.dtype[np.int32]], size_max: int) -> Iterator[tuple[int, int]]:
    """Rows cut into lots of at most so many bytes and BATCH_ROWS, but of one row at least."""
    ends = np.cumsum(sizes, dtype=np.int64)
    low = 0
    while low < len(sizes):
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + size_max, side="right"))
        high = min(max(high, low + 1), low + BATCH_ROWS)
        yield low, high
        low = high


# Ahead of Spark


def ahead(batches: Iterator[pa.RecordBatch], *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The same batches, made by a thread while those before are used; at most so many bytes of them, or one."""
    made = _Ahead(batches, bytes_max)
    try:
        while (batch := made.take()) is not None:
            yield batch
    finally:
        made.close()


class _Ahead:
    """What ahead() shares with its thread."""

    def __init__(self, batches: Iterator[pa.RecordBatch], bytes_max: int) -> None:
        self._batches = batches
        self._bytes_max = bytes_max
        self._ready: deque[pa.RecordBatch] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._is_wanted = True
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rmq-spark-prefetch", daemon=True)
        self._thread.start()

    def take(self) -> pa.RecordBatch | None:
        """The next batch; None at the end. Raises what making it raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_over)
            if self._ready:
                batch = self._ready.popleft()
                self._size -= batch.nbytes
                self._changed.notify_all()
                return batch
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def close(self) -> None:
        """No more batches are wanted; the thread ends at the next one."""
        with self._changed:
            self._is_wanted = False
            self._ready.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(batch):
                    break
        except BaseException as error:  # raised again where the batches are taken
            self._error = error
        finally:
            _close(self._batches)
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: not self._is_wanted or not self._ready or self._size + batch.nbytes <= self._bytes_max
            )
            if self._is_wanted:
                self._ready.append(batch)
                self._size += batch.nbytes
                self._changed.notify_all()
            return self._is_wanted


def _close(iterator: Iterator[Any]) -> None:
    close: Callable[[], None] | None = getattr(iterator, "close", None)
    if close is not None:
        close()
