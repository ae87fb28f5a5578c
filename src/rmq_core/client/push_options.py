"""What a push consumer is told, checked: wrong arguments raise before anything is sent, and name themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from rmq_core.client.allocate import Allocate, allocate_strategy
from rmq_core.client.flow import FlowLimits
from rmq_core.client.push_queues import StartFrom
from rmq_core.client.send_back import RECONSUME_FOR_EVER, RECONSUME_TIMES_MAX
from rmq_core.protocol.bodies import ConsumeFromWhere
from rmq_core.protocol.message import DEFAULT_CONSUMER_GROUP, group_name_problem

_INT32_MAX: Final = 2**31 - 1
BATCH_MAX: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """The arguments of a push consumer."""

    start_from: StartFrom
    concurrency: int
    ordered: bool
    broadcasting: bool
    batch_size_max: int
    strategy: Allocate
    limits: FlowLimits
    reconsume_times_max: int
    consume_timeout_ms: int
    suspend_ms: int
    pull_batch_size: int
    pull_interval_ms: int
    offset_dir: Path | None

    @property
    def consume_from_where(self) -> ConsumeFromWhere:
        """start_from as heartbeats say it."""
        if self.start_from == "latest":
            return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        if self.start_from == "earliest":
            return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


def push_options(
    *,
    start_from: StartFrom,
    concurrency: int,
    ordered: bool,
    broadcasting: bool,
    batch_size_max: int,
    allocate: str | Allocate,
    cache_count_max: int,
    cache_size_max_bytes: int,
    queue_cache_size_max_bytes: int,
    span_max: int,
    topic_cache_count_max: int | None,
    topic_cache_size_max_bytes: int | None,
    reconsume_times_max: int | None,
    consume_timeout_ms: int,
    suspend_ms: int,
    pull_batch_size: int,
    pull_interval_ms: int,
    offset_dir: str | Path | None,
) -> PushOptions:
    """Check them. Raises TypeError and ValueError naming the argument."""
    if reconsume_times_max is None:
        reconsume_times_max = RECONSUME_FOR_EVER if ordered else RECONSUME_TIMES_MAX
    if offset_dir is not None and not isinstance(offset_dir, str | Path):
        raise TypeError(f"offset_dir must be a path, not {type(offset_dir).__name__}")
    return PushOptions(
        start_from=_checked_start(start_from),
        concurrency=whole_number("concurrency", concurrency, low=1, high=1_000),
        ordered=_yes_or_no("ordered", ordered),
        broadcasting=_yes_or_no("broadcasting", broadcasting),
        batch_size_max=whole_number("batch_size_max", batch_size_max, low=1, high=BATCH_MAX),
        strategy=allocate_strategy(allocate),
        limits=FlowLimits(
            queue_count_max=whole_number("cache_count_max", cache_count_max, low=1, high=_INT32_MAX),
            queue_size_max_bytes=whole_number("queue_cache_size_max_bytes", queue_cache_size_max_bytes, low=1),
            size_max_bytes=whole_number("cache_size_max_bytes", cache_size_max_bytes, low=1),
            span_max=None if ordered else whole_number("span_max", span_max, low=1),
            topic_count_max=_optional("topic_cache_count_max", topic_cache_count_max),
            topic_size_max_bytes=_optional("topic_cache_size_max_bytes", topic_cache_size_max_bytes),
        ),
        reconsume_times_max=whole_number("reconsume_times_max", reconsume_times_max, low=0, high=_INT32_MAX),
        consume_timeout_ms=whole_number("consume_timeout_ms", consume_timeout_ms, low=1),
        suspend_ms=whole_number("suspend_ms", suspend_ms, low=1),
        pull_batch_size=whole_number("pull_batch_size", pull_batch_size, low=1, high=BATCH_MAX),
        pull_interval_ms=whole_number("pull_interval_ms", pull_interval_ms, low=0, high=65_535),
        offset_dir=None if offset_dir is None else Path(offset_dir),
    )


def checked_group(group: str) -> str:
    """The name of a consumer group. Raises TypeError and ValueError."""
    if not isinstance(group, str):
        raise TypeError(f"group must be str, not {type(group).__name__}")
    if problem := group_name_problem(group):
        raise ValueError(problem)
    if group == DEFAULT_CONSUMER_GROUP:
        raise ValueError(f"group must not be {DEFAULT_CONSUMER_GROUP}, which everybody could use; give it a name")
    return group


def whole_number(what: str, value: int, *, low: int, high: int = 2**63 - 1) -> int:
    """A number within its bounds. Raises TypeError and ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be int, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{what} must lie between {low} and {high}, and {value} does not")
    return value


def _optional(what: str, value: int | None) -> int | None:
    return None if value is None else whole_number(what, value, low=1)


def _yes_or_no(what: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {type(value).__name__}")
    return value


def _checked_start(start_from: StartFrom) -> StartFrom:
    if isinstance(start_from, datetime):
        if start_from.utcoffset() is None:
            raise ValueError("start_from has no time zone; give one, as in datetime(..., tzinfo=UTC)")
    elif start_from not in ("latest", "earliest"):
        raise ValueError(f"start_from must be 'latest', 'earliest' or a datetime, not {start_from!r}")
    return start_from
