"""Positions in queues: as JSON for Spark's checkpoints and for users, and where a query starts and ends.

JSON      {"v":1,"queues":{topic:{broker:{"0":n}}}}: topics, brokers and queues sorted, whole numbers only. Spark
          compares offsets as text, so equal positions give equal bytes. "start" is where a query began and stands
          in its first batch only; "seek" is where a reset of the group was followed.
Users     write the inner part, {topic:{broker:{"0":n}}}; -1 is the latest offset and -2 the earliest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rmq_core.protocol.message import MessageQueue
from rmq_spark.errors import Condition, SparkRocketMQError

if TYPE_CHECKING:
    from rmq_core.client.queue_client import QueueClient
    from rmq_spark.options import Settings

QueueOffsets: TypeAlias = dict[MessageQueue, int]
"""An offset for each of some queues."""

LATEST: Final = -1
EARLIEST: Final = -2
VERSION: Final = 1
EXAMPLE: Final = '{"Orders":{"broker-a":{"0":23,"1":-1}}}'


@dataclass(frozen=True, slots=True)
class Positions:
    """What a JSON offset of the stream holds."""

    queues: QueueOffsets
    start: QueueOffsets = field(default_factory=dict)
    """Where the query began; in the first batch only."""
    seek: QueueOffsets = field(default_factory=dict)
    """Queues that a reset moved before this batch, and where to."""


def to_json(
    offsets: Mapping[MessageQueue, int],
    *,
    start: Mapping[MessageQueue, int] | None = None,
    seek: Mapping[MessageQueue, int] | None = None,
) -> dict[str, Any]:
    """The JSON form, always in the same order; parts that are empty or None are left out."""
    made: dict[str, Any] = {"v": VERSION, "queues": nested(offsets)}
    if start:
        made["start"] = nested(start)
    if seek:
        made["seek"] = nested(seek)
    return made


def nested(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """{topic: {broker: {queue: offset}}}, sorted."""
    made: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        brokers = made.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = int(offsets[queue])
    return made


def from_json(value: object) -> Positions:
    """The positions in a JSON offset. Raises SparkRocketMQError (BAD_OFFSETS) where it is not one of ours."""
    if not isinstance(value, dict) or not isinstance(value.get("queues"), dict):
        raise _bad_offsets(
            f"{_shown(value)} is no offset of this source; was the checkpoint written by another one?"
        )
    if value.get("v") != VERSION:
        raise _bad_offsets(
            f"offsets of version {value.get('v')!r} were written by another release of rmq-spark; this one reads "
            f"version {VERSION}"
        )
    unknown = sorted(set(value) - {"v", "queues", "start", "seek"})
    if unknown:
        raise _bad_offsets(f"an offset with {', '.join(unknown)} was written by another release of rmq-spark")
    try:
        return Positions(*(flattened(value.get(part, {})) for part in ("queues", "start", "seek")))
    except ValueError as error:
        raise _bad_offsets(f"{_shown(value)}: {error}") from None


def flattened(value: object) -> QueueOffsets:
    """The opposite of nested(). Raises ValueError saying what is wrong."""
    offsets: QueueOffsets = {}
    for topic, brokers in _items(value, "topics"):
        for broker, queues in _items(brokers, f"brokers of topic {topic}"):
            for queue_id, offset in _items(queues, f"queues of {topic} on broker {broker}"):
                if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
                    raise ValueError(f"{topic}/{broker}/{queue_id} has {offset!r}, not a whole number")
                offsets[MessageQueue(topic, broker, _queue_id(queue_id))] = offset
    return offsets


def _items(value: object, what: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} stands in place of the {what}")
    return value.items()


def _queue_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not the number of a queue")
    return int(text)


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _bad_offsets(text: str) -> SparkRocketMQError:
    return SparkRocketMQError(Condition.BAD_OFFSETS, text)


# Where a query starts and ends


def starting_offsets(client: QueueClient, settings: Settings, queues: Sequence[MessageQueue]) -> QueueOffsets:
    """Where a query without a checkpoint begins: by startingTimestamp, startingOffsetsByTimestamp, startingOffsets.

    Raises SparkRocketMQError where a queue has no message at the start time, or where JSON names other queues.
    """
    times = settings.starting_offsets_by_timestamp
    if settings.starting_timestamp is not None:
        return _from_times(client, dict.fromkeys(queues, settings.starting_timestamp), settings)
    if times is not None:
        check_same_queues("startingOffsetsByTimestamp", times, queues)
        return _from_times(client, times, settings)
    starts = settings.starting_offsets
    if isinstance(starts, dict):
        check_same_queues("startingOffsets", starts, queues)
        return _resolved(client, starts)
    if starts != "group":
        return client.max_offsets(queues) if starts == "latest" else client.min_offsets(queues)
    progress = client.group_offsets(queues)
    without = [queue for queue in queues if progress.get(queue) is None]
    edge = client.max_offsets if settings.fallback_offsets == "latest" else client.min_offsets
    found = edge(without) if without else {}
    return {queue: offset if (offset := progress.get(queue)) is not None else found[queue] for queue in queues}


def ending_offsets(client: QueueClient, settings: Settings, queues: Sequence[MessageQueue]) -> QueueOffsets:
    """Where a batch ends: by endingTimestamp, endingOffsetsByTimestamp, endingOffsets. No match: the end."""
    times = settings.ending_offsets_by_timestamp
    if settings.ending_timestamp is not None:
        times = dict.fromkeys(queues, settings.ending_timestamp)
    elif times is not None:
        check_same_queues("endingOffsetsByTimestamp", times, queues)
    if times is not None:
        found = first_at(client, times)
        latest = client.max_offsets([queue for queue in queues if found[queue] is None])
        return {queue: latest[queue] if (offset := found[queue]) is None else offset for queue in queues}
    ends = settings.ending_offsets
    if isinstance(ends, dict):
        check_same_queues("endingOffsets", ends, queues)
        return _resolved(client, ends)
    return client.max_offsets(queues)


def check_same_queues(name: str, given: Collection[MessageQueue], wanted: Collection[MessageQueue]) -> None:
    """Whether an option names exactly the queues that are read. Raises SparkRocketMQError (BAD_OPTION)."""
    if set(given) != set(wanted):
        raise SparkRocketMQError(
            Condition.BAD_OPTION,
            f"option {name} must name exactly the queues that are read (-1 is the latest, -2 the earliest offset): "
            f"it names {queue_names(given)}; to be read are {queue_names(wanted)}",
            option=name,
        )


def _resolved(client: QueueClient, offsets: QueueOffsets) -> QueueOffsets:
    earliest = client.min_offsets([queue for queue, offset in offsets.items() if offset == EARLIEST])
    latest = client.max_offsets([queue for queue, offset in offsets.items() if offset == LATEST])
    return {**offsets, **earliest, **latest}


def _from_times(client: QueueClient, times: QueueOffsets, settings: Settings) -> QueueOffsets:
    found = first_at(client, times)
    without = [queue for queue, offset in found.items() if offset is None]
    if without:
        earliest, latest = client.min_offsets(without), client.max_offsets(without)
        for queue in sorted(without):
            is_empty = earliest[queue] == latest[queue]
            if not is_empty and settings.starting_offsets_by_timestamp_strategy == "error":
                raise SparkRocketMQError(
                    Condition.NO_MESSAGE_AT_TIME,
                    f"{queue_name(queue)} has no message at or after {times[queue]}; "
                    "startingOffsetsByTimestampStrategy=latest starts it at its end",
                    queue=queue_name(queue), time_ms=times[queue],
                )  # fmt: skip
            found[queue] = latest[queue]
    return {queue: offset for queue, offset in found.items() if offset is not None}


def first_at(client: QueueClient, times: QueueOffsets) -> dict[MessageQueue, int | None]:
    """The first message of each queue that was stored at or after a time; None where there is none."""
    before = client.max_offsets(list(times))
    found: dict[MessageQueue, int | None] = {}
    for time_ms in sorted(set(times.values())):
        found.update(client.offsets_by_time([queue for queue in times if times[queue] == time_ms], time_ms))
    after = client.max_offsets(list(times))
    for queue, offset in list(found.items()):
        assert offset is not None
        # Where no message is so young 4.9 answers with the last one there is, 5.x with the end of the queue.
        if offset >= after[queue]:
            found[queue] = None
        elif offset >= before[queue] - 1 and _store_time_ms(client, queue, offset) < times[queue]:
            found[queue] = offset + 1 if offset + 1 < after[queue] else None
    return found


def _store_time_ms(client: QueueClient, queue: MessageQueue, offset: int) -> int:
    from rmq_core.protocol.record import decode_pull_body

    for piece in client.read(queue, offset, offset + 1):
        for record in decode_pull_body(piece.buffer):
            return record.store_time_ms
    return 0  # it was deleted meanwhile


def queue_name(queue: MessageQueue) -> str:
    """A queue as errors and logs name it."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def queue_names(queues: Iterable[MessageQueue], *, count_max: int = 20) -> str:
    """Queues in a line, the first of them where they are many."""
    ordered = sorted(queues)
    more = len(ordered) - count_max
    text = ", ".join(map(queue_name, ordered[:count_max]))
    return (f"{text} and {more} more" if more > 0 else text) or "none"
