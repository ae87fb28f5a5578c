"""Which messages a micro-batch takes, which task reads them, and what is lost. Pure functions.

Limits    are divided in proportion to backlog: limit x backlog / all backlog, below one rounded up, else down.
Tasks     get an ordered list of ranges. Large ranges are cut (minPartitions, maxRecordsPerPartition), small ones
          put together (minRowsPerPartition). The same ranges and options always give the same tasks.
Loss      is decided here, so that driver and tests see it alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmq_core.protocol.message import MessageQueue
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.offsets import QueueOffsets, queue_name


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Messages of one queue, from one queue offset to before another."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many offsets it spans; where a filter leaves holes it has fewer messages."""
        return self.end - self.start


# How much


def limit(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], max_rows: int) -> QueueOffsets:
    """Ends that take about max_rows from start on, at most up to end. Queues without backlog keep their offset.

    A queue that is only in one of both keeps that offset.
    """
    backlog = {queue: max(end[queue] - start[queue], 0) for queue in end if queue in start}
    total = sum(backlog.values())
    limited = {**start, **end}
    if total <= max_rows:
        return limited
    for queue, size in backlog.items():
        if size:
            share = max(max_rows * size // total, 1)
            limited[queue] = min(start[queue] + share, end[queue])
    return limited


def is_due(backlog: int, *, min_rows: int | None, waited_ms: float | None, delay_max_ms: float) -> bool:
    """Whether a micro-batch may run: enough messages are there, or the wait was long enough.

    waited_ms is the time since the last micro-batch; None for the first one of a run, which never waits.
    """
    return min_rows is None or backlog >= min_rows or waited_ms is None or waited_ms >= delay_max_ms


# Tasks


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """The ranges that hold something, in the order of their queues."""
    return [QueueRange(queue, start[queue], end[queue]) for queue in sorted(end) if start[queue] < end[queue]]


def pack(
    ranges: Sequence[QueueRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    min_rows: int = 1,
) -> list[tuple[QueueRange, ...]]:
    """What each task reads. Every offset is in exactly one of them; no task is empty.

    min_partitions is a hint: there may be more, and fewer where there is not enough to read.
    """
    pieces = cut(ranges, min_partitions=min_partitions, max_records=max_records)
    total = sum(piece.count for piece in pieces)
    wanted = min_rows if min_partitions is None else min(min_rows, total // min_partitions)
    to_spare = len(pieces) - (min_partitions or 1)
    tasks: list[list[QueueRange]] = []
    rows = 0
    for piece in pieces:
        fits = max_records is None or rows + piece.count <= max_records
        if tasks and rows < wanted and fits and to_spare > 0:
            tasks[-1].append(piece)
            rows += piece.count
            to_spare -= 1
        else:
            tasks.append([piece])
            rows = piece.count
    return [tuple(task) for task in tasks]


def cut(
    ranges: Sequence[QueueRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[QueueRange]:
    """Ranges of at most max_records, and at least about min_partitions of them where there is enough to read."""
    pieces = [each for each in sorted(ranges) if each.count > 0]
    if max_records is not None:
        pieces = [part for each in pieces for part in _parts(each, -(-each.count // max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(each.count for each in pieces)
    is_whole = [_rounded(each.count * min_partitions, total) <= 1 for each in pieces]
    large = sum(each.count for each, whole in zip(pieces, is_whole, strict=True) if not whole)
    wanted = max(min_partitions - sum(is_whole), 1)
    return [
        part
        for each, whole in zip(pieces, is_whole, strict=True)
        for part in ([each] if whole else _parts(each, max(_rounded(each.count * wanted, large), 1)))
    ]


def _rounded(numerator: int, denominator: int) -> int:
    """The quotient rounded to the nearest whole number, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)


def _parts(whole: QueueRange, count: int) -> list[QueueRange]:
    """So many parts; each takes what remains divided by the parts left, so the later ones are the larger."""
    parts, start = [], whole.start
    for left in range(min(count, whole.count), 0, -1):
        end = start + (whole.end - start) // left
        parts.append(QueueRange(whole.queue, start, end))
        start = end
    return parts


# Loss


class LossKind(StrEnum):
    """What happened to messages that were to be read."""

    QUEUE_GONE = "the queue is gone; its topic was deleted or shrunk"
    DELETED = "retention deleted them before they were read"
    WENT_BACK = "the queue ends before it; its topic was deleted and made again, or the broker lost its files"
    ENDS_EARLY = "the queue ends before it; its topic was made again with fewer messages"
    NOT_FROM_START = "the queue is new and its first messages are already deleted"


@dataclass(frozen=True, slots=True)
class Loss:
    """One span of a queue that cannot be read any more."""

    queue: MessageQueue
    start: int
    end: int
    kind: LossKind

    def __str__(self) -> str:
        span = f"[{self.start}, {self.end})"
        if self.kind is LossKind.QUEUE_GONE and self.start == self.end:
            span = f"from {self.start} on"
        elif self.kind is LossKind.WENT_BACK:
            span = f"offset went from {self.start} back to {self.end}"
        return f"{queue_name(self.queue)} {span}: {self.kind}"


def data_loss(
    positions: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    *,
    new: Collection[MessageQueue] = (),
    away: Collection[MessageQueue] = (),
) -> list[Loss]:
    """What cannot be read of queues that stand at some positions, in the order of the queues.

    earliest, latest: the offsets of all queues that are there. new: those that appeared while the query ran. away:
    queues of brokers that do not answer, which are not gone.
    """
    losses = []
    for queue in sorted(positions):
        position = positions[queue]
        if queue in away:
            continue
        if queue not in latest or queue not in earliest:
            losses.append(Loss(queue, position, position, LossKind.QUEUE_GONE))
        elif latest[queue] < position:
            losses.append(Loss(queue, position, latest[queue], LossKind.WENT_BACK))
        elif earliest[queue] > position:
            losses.append(Loss(queue, position, earliest[queue], LossKind.DELETED))
    losses += [
        Loss(queue, 0, earliest[queue], LossKind.NOT_FROM_START)
        for queue in sorted(new)
        if queue not in positions and earliest.get(queue, 0) > 0
    ]
    return losses


def loss_error(losses: Sequence[Loss], *, group: str | None) -> SparkRocketMQError:
    """What a query fails with that may not lose anything."""
    shown = "; ".join(str(each) for each in losses[:20])
    more = f"; and {len(losses) - 20} more" if len(losses) > 20 else ""
    of_group = f" (group {group})" if group else ""
    return SparkRocketMQError(
        Condition.DATA_LOSS,
        f"messages that were to be read{of_group} are gone: {shown}{more}. To go on without them, and only get a "
        "warning, set failOnDataLoss=false",
        losses=[str(each) for each in losses],
        group=group,
    )
