"""Records of the log, sorted by queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_core.columnar import DispatchColumns
from rmq_core.protocol import sys_flag as flags

HIDDEN: Final = (flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK)
"""Transaction types of records that no queue shows."""


class QueueGroup(NamedTuple):
    """Records with consecutive offsets of one queue."""

    topic: str
    queue_id: int
    queue_offset: int
    rows: NDArray[np.int64]
    following: int
    """Queue offset of the queue's next group here; -1 where this is its last."""

    @property
    def is_new_beginning(self) -> bool:
        """Whether the queue was made anew with it; higher offsets follow one that is damaged to 0."""
        return self.queue_offset == 0 and self.following <= len(self.rows)


def is_shown(columns: DispatchColumns) -> NDArray[np.bool_]:
    """Which records stand in queues."""
    kinds = columns.sys_flags & flags.TRANSACTION_MASK
    shown: NDArray[np.bool_] = (kinds != HIDDEN[0]) & (kinds != HIDDEN[1])
    return shown


def is_batch(columns: DispatchColumns, batch_topics: set[str]) -> NDArray[np.bool_]:
    """Which records belong to batch consume queues."""
    names = [topic.decode("utf-8", "replace") in batch_topics for topic in columns.topics]
    inner: NDArray[np.bool_] = columns.sys_flags & flags.INNER_BATCH != 0
    return inner | np.array(names, np.bool_)[columns.topic_ids]


def group_by_queue(columns: DispatchColumns, batch_topics: set[str]) -> Iterator[QueueGroup]:
    """The records of ordinary queues, each run of consecutive queue offsets together, in their order."""
    rows = np.flatnonzero(is_shown(columns) & ~is_batch(columns, batch_topics))
    if not len(rows):
        return
    width = int(columns.queue_ids.max()) + 1
    keys = columns.topic_ids[rows].astype(np.int64) * width + columns.queue_ids[rows]
    if len(columns.topics) * width <= 1 << 16:
        keys = keys.astype(np.uint16)  # for these numpy has a sort that takes linear time
    order = rows[np.argsort(keys, kind="stable")]
    topic_ids, queue_ids = columns.topic_ids[order], columns.queue_ids[order]
    offsets = columns.queue_offsets[order]
    is_other = (np.diff(topic_ids) != 0) | (np.diff(queue_ids) != 0)
    breaks = is_other | (np.diff(offsets) != 1)
    bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(order)]
    for start, end in itertools.pairwise(bounds):
        topic = columns.topics[topic_ids[start]].decode("utf-8", "replace")
        following = -1 if end == len(order) or is_other[end - 1] else int(offsets[end])
        yield QueueGroup(topic, int(queue_ids[start]), int(offsets[start]), order[start:end], following)
