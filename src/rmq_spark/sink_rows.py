"""Rows to messages: a RecordBatch becomes requests for queues, column by column.

Batch     Rows of one queue become one request, in their order, up to a number of messages and of bytes. What a
          batch may not hold (delay, delivery time, retry topics) and what is large goes singly, in its place.
Refused   A row that cannot be a message raises BAD_ROW, which names column and value, before anything is made of
          the rows beside it. Reserved names among the properties are dropped: they would come back to life.
Identity  Each message has a unique key and, for consumers that drop duplicates, an identity that a task tried again
          gives its row once more (sink_dedup).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_core.client.identity import new_unique_key
from rmq_core.client.sending import BATCH_OVERHEAD, MESSAGE_SIZE_MAX, Outgoing, SendRules
from rmq_core.protocol.compression import CompressionType, compress
from rmq_core.protocol.message import (
    DLQ_PREFIX,
    FORBIDDEN_SEND_TOPICS,
    PROPERTIES_SIZE_MAX,
    RETRY_PREFIX,
    MessageQueue,
    Property,
    topic_name_problem,
)
from rmq_core.protocol.requests import SendBatchMessage, SendMessageV2
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Settings
from rmq_spark.sink_columns import SinkPlan
from rmq_spark.sink_dedup import DEDUP_PROPERTY, RowIdentities
from rmq_spark.sink_parts import (
    Bools,
    Longs,
    MapPairs,
    UniqueKeys,
    binary,
    concatenated,
    first_with_separator,
    fixed,
    hex_digits,
    joined,
    nulls,
    pair,
    sizes,
    spans,
    text,
)
from rmq_spark.sink_queues import NoSuchQueueError, QueueChoice

REQUEST_BYTES_MAX: Final = 512 << 10
"""A batch ends before it grows over this: brokers copy it, and wait for it, as a whole."""
COMPRESS_OVER_BYTES: Final = 4096
DELAY_LEVEL_MAX: Final = 18
_BODY_MAX: Final = 15 << 20
"""What a frame can hold, whatever the broker allows."""
_ROWS_MAX: Final = 20_000
_BYTES_MAX: Final = 256 << 20
_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")])


@dataclass(slots=True)
class _Rows:
    """Messages of one topic, as columns; all binary columns are without nulls."""

    topic: str
    count: int
    bodies: pa.Array
    properties: pa.Array
    """As written; without those that every message gets here."""
    flags: NDArray[np.int32]
    is_single: Bools
    is_timed: Bools
    queues: Longs
    sys_flags: NDArray[np.int32]


class RowEncoder:
    """Makes the requests of one task."""

    def __init__(
        self,
        plan: SinkPlan,
        settings: Settings,
        rules: SendRules,
        *,
        queues: Callable[[str], Sequence[MessageQueue]],
        identities: RowIdentities,
        first_turn: int,
        now_ms: Callable[[], int],
    ) -> None:
        """queues: those of a topic that can be sent to. first_turn: where rows without a key begin."""
        self._plan = plan
        self._settings = settings
        self._rules = rules
        self._find_queues = queues
        self._identities = identities
        self._first_turn = first_turn
        self._now_ms = now_ms
        self._choices: dict[str, QueueChoice] = {}
        self._keys = UniqueKeys(bytes.fromhex(new_unique_key())[:6] + os.urandom(4))
        self._kind = None if settings.compression == "none" else CompressionType[settings.compression.upper()]
        self._wait = f"{Property.WAIT.value}\x01{'true' if settings.wait_store else 'false'}\x02"
        self.rows = 0
        """How many rows have become messages."""

    def requests(self, batch: pa.RecordBatch) -> Iterator[tuple[MessageQueue, Outgoing]]:
        """The requests of some rows, those of each queue in the order of the rows. Raises SparkRocketMQError."""
        step = max(min(_ROWS_MAX, batch.num_rows * _BYTES_MAX // max(batch.nbytes, 1)), 1)
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            for topic, rows in self._by_topic(piece):
                encoded = self._encoded(topic, rows)
                yield from self._cut(encoded)
            self.rows += piece.num_rows

    # What is in the columns

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        fixed_topic = self._settings.topic
        if fixed_topic is not None:
            yield fixed_topic, batch
            return
        assert self._plan.topic is not None
        column = batch.column(self._plan.topic)
        if column.null_count:
            row = int(np.flatnonzero(nulls(column))[0])
            raise self._bad(row, "topic", None, "it is null; fill it, or give the option topic")
        encoded = column.dictionary_encode()
        which = encoded.indices.to_numpy(zero_copy_only=False)
        topics: list[str] = encoded.dictionary.to_pylist()
        for number, topic in enumerate(topics):
            rows = np.flatnonzero(which == number)
            if problem := topic_name_problem(topic):
                raise self._bad(int(rows[0]), "topic", topic, problem)
            yield topic, batch if len(topics) == 1 else batch.take(pa.array(rows))

    def _encoded(self, topic: str, batch: pa.RecordBatch) -> _Rows:
        if topic in FORBIDDEN_SEND_TOPICS:
            raise self._bad(0, "topic", topic, "it belongs to the broker; nobody can send to it")
        plan, count = self._plan, batch.num_rows
        bodies = self._bodies(batch.column(plan.body))
        sharding_keys = self._text(batch, plan.sharding_key, "shardingKey", None)
        parts = [
            self._pair(batch, plan.tags, "tags", Property.TAGS, self._settings.tags),
            self._pair(batch, plan.keys, "keys", Property.KEYS, self._settings.keys),
        ]
        if sharding_keys is not None:
            parts.append(pair(Property.SHARDING_KEY.value, sharding_keys))
        if self._rules.namespace:
            parts.append(text(f"{Property.INSTANCE_ID.value}\x01{self._rules.namespace}\x02".encode()))
        delays, is_delayed, is_timed = self._delays(batch)
        parts += [*delays, *self._user_properties(batch)]
        properties = _all_of(parts, count)
        flags = np.zeros(count, np.int32)
        if plan.flag is not None:
            flags = batch.column(plan.flag).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        queue_ids = None if plan.queue_id is None else batch.column(plan.queue_id).cast(pa.int32())
        queues = self._queues(topic, count, queue_ids, sharding_keys)
        properties = joined(self._dedup(topic, batch, bodies, properties, flags, queue_ids), properties)
        self._check_properties(properties)
        bodies, sys_flags = self._compressed(bodies)
        is_single = is_delayed | is_timed | (sizes(bodies) + sizes(properties) > REQUEST_BYTES_MAX)
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            is_single[:] = True
        return _Rows(topic, count, bodies, properties, flags, is_single, is_timed, queues, sys_flags)

    def _bodies(self, column: pa.Array) -> pa.Array:
        bodies = binary(column)
        found = sizes(bodies)
        if not found.all():
            row = int(np.flatnonzero(found == 0)[0])
            what = "null" if bodies[row].as_py() is None else "empty"
            raise self._bad(row, "body", what, "RocketMQ has no messages without a body; filter such rows out")
        if found.max(initial=0) > _BODY_MAX:
            row = int(found.argmax())
            reason = f"a body has {found[row]} bytes, and a request holds {_BODY_MAX} at most"
            raise self._bad(
                row, "body", f"{found[row]} bytes", f"{reason}; brokers take {MESSAGE_SIZE_MAX} by default"
            )
        return bodies

    def _text(self, batch: pa.RecordBatch, place: int | None, name: str, default: str | None) -> pa.Array | None:
        if place is None:
            return None if default is None else pa.array([default.encode()] * batch.num_rows, pa.binary())
        column = batch.column(place)
        column = binary(column if pa.types.is_string(column.type) else column.cast(pa.string()))
        if (row := first_with_separator(column)) is not None:
            raise self._bad(
                row, name, column[row].as_py(), "it holds U+0001 or U+0002, which separate properties; replace them"
            )
        return column if default is None else column.fill_null(default.encode())

    def _pair(
        self, batch: pa.RecordBatch, place: int | None, name: str, property_: Property, default: str | None
    ) -> Any:
        if place is None:
            return text(b"" if default is None else f"{property_.value}\x01{default}\x02".encode())
        column = self._text(batch, place, name, default)
        assert column is not None
        return pair(property_.value, column)

    def _user_properties(self, batch: pa.RecordBatch) -> list[pa.Array]:
        if self._plan.properties is None:
            return []
        pairs = MapPairs(batch.column(self._plan.properties))
        if (row := pairs.first_with_separator()) is not None:
            shown = batch.column(self._plan.properties)[row].as_py()
            reason = "a name or value holds U+0001 or U+0002, which separate properties; replace them"
            raise self._bad(row, "properties", dict(shown), reason)
        return [pairs.written()]

    def _delays(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], Bools, Bools]:
        """The properties of delayed and timed rows, and which rows these are."""
        is_delayed = is_timed = np.zeros(batch.num_rows, np.bool_)
        parts: list[pa.Array] = []
        if self._plan.delay_level is not None:
            levels = batch.column(self._plan.delay_level).cast(pa.int32()).fill_null(0)
            numbers = levels.to_numpy(zero_copy_only=False)
            wrong = (numbers < 0) | (numbers > DELAY_LEVEL_MAX)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise self._bad(row, "delayTimeLevel", int(numbers[row]), f"levels go from 0 to {DELAY_LEVEL_MAX}")
            is_delayed = numbers > 0
            parts.append(_pair_where(Property.DELAY, levels, is_delayed))
        if self._plan.deliver_time is not None:
            times = _milliseconds(batch.column(self._plan.deliver_time))
            is_timed = ~nulls(times)
            wrong = is_timed & (times.fill_null(0).to_numpy(zero_copy_only=False) < 0)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise self._bad(row, "deliverTime", times[row].as_py(), "it lies before 1970")
            parts.append(_pair_where(Property.TIMER_DELIVER_MS, times.fill_null(0), is_timed))
            if (is_delayed & is_timed).any():
                row = int(np.flatnonzero(is_delayed & is_timed)[0])
                raise self._bad(row, "deliverTime", times[row].as_py(), "give it or delayTimeLevel, not both")
        return parts, is_delayed, is_timed

    def _queues(self, topic: str, count: int, queue_ids: pa.Array | None, sharding_keys: pa.Array | None) -> Longs:
        choice = self._choices.get(topic)
        if choice is None:
            choice = self._choices[topic] = QueueChoice(
                self._find_queues(topic), run_max=self._settings.batch_size, first=self._first_turn
            )
        try:
            return choice.choose(count, queue_ids, sharding_keys)
        except NoSuchQueueError as error:
            numbers = sorted({each.queue_id for each in choice.queues})
            reason = f"topic {topic} has the queues {numbers[0]} to {numbers[-1]}; drop the column or correct it"
            raise self._bad(error.row, "queueId", error.queue_id, reason) from None

    def _dedup(
        self,
        topic: str,
        batch: pa.RecordBatch,
        bodies: pa.Array,
        properties: pa.Array,
        flags: NDArray[np.int32],
        queue_ids: pa.Array | None,
    ) -> pa.Array:
        """The property by which a consumer knows a message that comes again."""
        if self._plan.dedup_key is not None:
            own = self._text(batch, self._plan.dedup_key, "dedupKey", None)
            assert own is not None
            return pair(DEDUP_PROPERTY, own)
        head = np.zeros(len(flags), np.dtype([("flag", ">i4"), ("queue", ">i4"), ("body_size", ">i4")]))
        head["flag"], head["body_size"] = flags, sizes(bodies)
        head["queue"] = -1 if queue_ids is None else queue_ids.fill_null(-1).to_numpy(zero_copy_only=False)
        contents = joined(fixed(head.view(np.uint8).reshape(-1, 12)), bodies, properties, text(topic.encode()))
        digits = hex_digits(self._identities.of(contents))
        return fixed(concatenated((DEDUP_PROPERTY.encode() + b"\x01", digits, b"\x02"), len(flags)))

    def _check_properties(self, properties: pa.Array) -> None:
        found = sizes(properties)
        over = PROPERTIES_SIZE_MAX - 128  # room for the unique key and WAIT
        if found.max(initial=0) > over:
            row = int(found.argmax())
            raise self._bad(
                row,
                "properties",
                f"{found[row]} bytes",
                f"tags, keys and properties have {over} bytes of room in all",
            )

    def _compressed(self, bodies: pa.Array) -> tuple[pa.Array, NDArray[np.int32]]:
        sys_flags = np.zeros(len(bodies), np.int32)
        if self._kind is None:
            return bodies, sys_flags
        large = np.flatnonzero(sizes(bodies) >= COMPRESS_OVER_BYTES)
        if not len(large):
            return bodies, sys_flags
        values: list[bytes] = bodies.to_pylist()
        for row in large.tolist():
            packed = compress(values[row], self._kind)
            if len(packed) < len(values[row]):
                values[row], sys_flags[row] = packed, self._kind.sys_flag
        return pa.array(values, pa.binary()), sys_flags

    # Requests

    def _cut(self, rows: _Rows) -> Iterator[tuple[MessageQueue, Outgoing]]:
        """Put the rows of each queue behind one another and make requests of them."""
        queues, order = rows.queues, None
        if (np.diff(queues) < 0).any():
            order = np.argsort(queues, kind="stable")
            taken = pa.array(order)
            queues = queues[order]
            rows = _Rows(
                rows.topic, rows.count, rows.bodies.take(taken), rows.properties.take(taken), rows.flags[order],
                rows.is_single[order], rows.is_timed[order], queues, rows.sys_flags[order],
            )  # fmt: skip
        now_ms = self._now_ms()
        elapsed_ms = int(new_unique_key(now_ms)[20:28], 16)
        keys = self._keys.take(rows.count, elapsed_ms)
        own = fixed(concatenated((b"UNIQ_KEY\x01", keys, b"\x02"), rows.count))
        records = self._records(rows, own)
        ends, _ = spans(records)
        raw = memoryview(records.buffers()[2])
        choice = self._choices[rows.topic]
        for low, high in self._stretches(rows, ends):
            queue = choice.queues[int(queues[low])]
            first_id = keys[low].tobytes().decode()
            if high - low == 1:
                yield queue, self._single(rows, own, low, first_id, now_ms)
                continue
            body = bytes(raw[int(ends[low]) : int(ends[high])])
            yield queue, self._outgoing(rows, SendBatchMessage, low, body, self._wait, first_id, now_ms)

    def _records(self, rows: _Rows, own: pa.Array) -> pa.Array:
        """Each row as it stands in a batch."""
        property_sizes = sizes(rows.properties) + sizes(own)
        head = np.zeros(rows.count, _HEAD)
        head["flag"], head["body_size"] = rows.flags, sizes(rows.bodies)
        head["size"] = BATCH_OVERHEAD + head["body_size"] + property_sizes
        heads = fixed(head.view(np.uint8).reshape(rows.count, _HEAD.itemsize))
        shorts = fixed(property_sizes.astype(">u2").view(np.uint8).reshape(rows.count, 2))
        return joined(heads, rows.bodies, shorts, own, rows.properties)

    def _stretches(self, rows: _Rows, ends: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
        """Ranges of rows that share a request."""
        count_max = self._settings.batch_size
        changes = (np.diff(rows.queues) != 0) | (np.diff(rows.sys_flags) != 0)
        changes |= rows.is_single[1:] | rows.is_single[:-1]
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.count]
        for low, high in itertools.pairwise(bounds):
            start = low
            while start < high:
                fitting = int(np.searchsorted(ends, int(ends[start]) + REQUEST_BYTES_MAX, side="right")) - 1
                end = min(high, start + count_max, max(fitting, start + 1))
                yield start, end
                start = end

    def _single(self, rows: _Rows, own: pa.Array, row: int, msg_id: str, now_ms: int) -> Outgoing:
        properties = own[row].as_py() + rows.properties[row].as_py()
        written = str(properties, "utf-8", "replace") + self._wait
        return self._outgoing(rows, SendMessageV2, row, rows.bodies[row].as_py(), written, msg_id, now_ms)

    def _outgoing(
        self, rows: _Rows, request: Any, row: int, body: bytes, properties: str, first_id: str, now_ms: int
    ) -> Outgoing:
        is_batch = request is SendBatchMessage
        return Outgoing(
            request,
            self._rules.topic(rows.topic),
            body,
            properties,
            (first_id,),  # names the request in errors; those of the others are in the body
            int(rows.sys_flags[row]),
            0 if is_batch else int(rows.flags[row]),
            now_ms,
            is_timed=bool(rows.is_timed[row]),
        )

    def _bad(self, row: int, column: str, value: object, reason: str) -> SparkRocketMQError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "…"
        return SparkRocketMQError(
            Condition.BAD_ROW, f"column {column} is {shown}: {reason} (row {self.rows + row} of the task)",
            column=column, row=self.rows + row, reason=reason,
        )  # fmt: skip


def _all_of(parts: list[Any], count: int) -> pa.Array:
    if any(isinstance(part, pa.Array) for part in parts):
        return joined(*parts)
    same = b"".join(part.as_py() for part in parts)
    return fixed(concatenated((same,), count))


def _pair_where(name: Property, numbers: pa.Array, wanted: Bools) -> pa.Array:
    digits = binary(numbers.cast(pa.string()))
    return pair(name.value, pc.if_else(pa.array(wanted), digits, text(b"")))


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    return column.cast(pa.int64())
