"""What the next micro-batch reads. Pure.

A batch goes from its start to its end offset. Queues that begin somewhere else stand in the end's "seek": those
that a reset of the group moved, those that lost messages, and new ones. So a replay reads the same, whatever came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_core.protocol.message import MessageQueue
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.offsets import Positions, QueueOffsets, queue_names
from rmq_spark.planner import Loss, LossKind, QueueRange, data_loss, limit, ranges_between
from rmq_spark.stream_queues import Look


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a batch would begin in each queue, and up to where there is something for it."""

    begin: QueueOffsets
    ends: QueueOffsets
    seek: QueueOffsets
    losses: list[Loss] = field(default_factory=list)

    @property
    def backlog(self) -> int:
        return sum(max(end - self.begin[queue], 0) for queue, end in self.ends.items())

    def limited(self, max_rows: int | None) -> QueueOffsets:
        """The end of each queue if the batch takes about so many messages at most."""
        if max_rows is None:
            return {**self.begin, **self.ends}
        return limit(self.begin, self.ends, max_rows)


def plan(
    start: Mapping[MessageQueue, int],
    look: Look,
    *,
    resets: Mapping[MessageQueue, int] | None = None,
    frozen: Mapping[MessageQueue, int] | None = None,
) -> Plan:
    """From start on, what a look shows. frozen: the ends at which a run that takes only what was there stops.

    Losses are in the plan, and left out of what it reads. Raises SparkRocketMQError (OFFSETS_CHANGED) where a queue
    of frozen is gone.
    """
    if frozen is not None:
        check_frozen(frozen, look)
    begin = dict(start)
    seek: QueueOffsets = {}
    for queue, target in (resets or {}).items():
        if queue in begin and queue not in look.away and queue in look.latest:
            seek[queue] = min(max(target, look.earliest[queue]), look.latest[queue])
    begin.update(seek)
    new = [
        queue
        for queue in look.latest
        if queue not in begin and queue not in look.away and (frozen is None or queue in frozen)
    ]
    losses = data_loss(begin, look.earliest, look.latest, new=new, away=look.away)
    for queue in new:
        begin[queue] = seek[queue] = look.earliest[queue]
    for loss in losses:
        if loss.kind is LossKind.QUEUE_GONE:
            del begin[loss.queue]
            seek.pop(loss.queue, None)
        elif loss.kind is not LossKind.NOT_FROM_START:
            begin[loss.queue] = seek[loss.queue] = look.earliest[loss.queue]
    ends = {queue: end for queue, end in look.reachable().items() if queue in begin}
    if frozen is not None:
        ends = {queue: min(end, max(frozen.get(queue, 0), begin[queue])) for queue, end in ends.items()}
    return Plan(begin, ends, seek, losses)


def check_frozen(frozen: Mapping[MessageQueue, int], look: Look) -> None:
    """Whether the queues that a run is to finish are still there. Raises SparkRocketMQError (OFFSETS_CHANGED)."""
    gone = [queue for queue in frozen if queue not in look.latest and queue not in look.away]
    if gone:
        raise SparkRocketMQError(
            Condition.OFFSETS_CHANGED,
            f"this run was to read what was there when it began, and queues of that are gone: {queue_names(gone)}; "
            f"there are {queue_names(look.latest)}. A new run goes by what is there now",
            gone=queue_names(gone),
        )


def batch_ranges(start: Positions, end: Positions) -> list[QueueRange]:
    """What a batch reads, of its offsets alone: the same in each replay.

    Raises SparkRocketMQError (BAD_OFFSETS) where offsets do not belong together.
    """
    begin = {**start.queues, **end.start, **end.seek}
    unknown = [queue for queue in end.queues if queue not in begin]
    if unknown:
        raise SparkRocketMQError(
            Condition.BAD_OFFSETS,
            f"a batch ends in queues where it does not begin: {queue_names(unknown)}; was the checkpoint changed?",
        )
    return ranges_between(begin, end.queues)
