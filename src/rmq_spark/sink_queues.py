"""Which queue each row goes to: by queueId, else by the hash of its sharding key, else by turns in runs.

Hashes are Java's, and queues are counted by broker and number, so that producers of both kinds agree. Where several
brokers have a queue of that number, the number decides between them too: one number is always one queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_core.columnar import hash_keys
from rmq_core.protocol.message import MessageQueue
from rmq_spark.sink_parts import Bools, Longs, nulls

_RUN_MIN: Final = 256
"""Rows without a key that go to one queue together: requests with few messages cost more for each."""
_SPREAD_MIN: Final = 8
"""Few rows are spread over so many queues all the same."""


class NoSuchQueueError(Exception):
    """A queueId that the topic does not have."""

    def __init__(self, row: int, queue_id: int) -> None:
        super().__init__(row, queue_id)
        self.row = row
        self.queue_id = queue_id


class QueueChoice:
    """Chooses among the queues of one topic; rows without a key take turns from call to call."""

    def __init__(self, queues: Sequence[MessageQueue], *, run_max: int, first: int) -> None:
        self.queues = queues
        self._run_max = run_max
        self._turn = first
        self._by_id: dict[int, int] = {}
        for queue_id in sorted({each.queue_id for each in queues}):
            places = [place for place, each in enumerate(queues) if each.queue_id == queue_id]
            self._by_id[queue_id] = places[queue_id % len(places)]

    def choose(self, count: int, queue_ids: pa.Array | None, sharding_keys: pa.Array | None) -> Longs:
        """The place of each row's queue among the queues. Raises NoSuchQueueError."""
        chosen = np.full(count, -1, np.int64)
        if queue_ids is not None:
            self._by_number(chosen, queue_ids)
        if sharding_keys is not None:
            self._by_key(chosen, sharding_keys)
        is_free = chosen < 0
        if is_free.any():
            chosen[is_free] = self._by_turns(int(is_free.sum()))
        return chosen

    def _by_number(self, chosen: Longs, queue_ids: pa.Array) -> None:
        given = ~nulls(queue_ids)
        if not given.any():
            return
        numbers = queue_ids.fill_null(-1).to_numpy(zero_copy_only=False)
        for number in np.unique(numbers[given]).tolist():
            rows: Bools = given & (numbers == number)
            if number not in self._by_id:
                raise NoSuchQueueError(int(np.flatnonzero(rows)[0]), number)
            chosen[rows] = self._by_id[number]

    def _by_key(self, chosen: Longs, sharding_keys: pa.Array) -> None:
        encoded = sharding_keys.dictionary_encode()
        keys: list[bytes] = encoded.dictionary.to_pylist()
        if not keys:
            return
        places = np.abs(hash_keys(keys).astype(np.int64)) % len(self.queues)
        has_key = np.array([bool(key) for key in keys])
        which: NDArray[np.int32] = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        wanted = (chosen < 0) & ~nulls(encoded.indices) & has_key[which]
        chosen[wanted] = places[which[wanted]]

    def _by_turns(self, count: int) -> Longs:
        least = min(self._run_max, _RUN_MIN, -(-count // _SPREAD_MIN))
        run = min(self._run_max, max(-(-count // len(self.queues)), least))
        turns = np.arange(count) // run
        chosen: Longs = (turns + self._turn) % len(self.queues)
        self._turn = (self._turn + int(turns[-1]) + 1) % len(self.queues)
        return chosen
