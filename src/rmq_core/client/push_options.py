"""What a push consumer is told, checked: wrong arguments raise before anything is sent, and name themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmq_core.client.arguments import whole_number, yes_or_no
from rmq_core.client.consumer_options import ConsumerOptions, MemberArguments
from rmq_core.client.flow import FlowLimits
from rmq_core.client.options import ClientArguments
from rmq_core.client.queue_offsets import StartFrom, checked_start_from
from rmq_core.client.send_back import RECONSUME_FOR_EVER, RECONSUME_TIMES_MAX

_INT32_MAX: Final = 2**31 - 1
BATCH_MAX: Final = 1_024
CONCURRENCY_MAX: Final = 1_000


class ListenerArguments(MemberArguments, total=False):
    """Those of `PushOptions`."""

    start_from: StartFrom
    concurrency: int
    ordered: bool
    batch_size_max: int
    cache_count_max: int
    cache_size_max_bytes: int
    queue_cache_size_max_bytes: int
    span_max: int
    topic_cache_count_max: int | None
    topic_cache_size_max_bytes: int | None
    reconsume_times_max: int | None
    consume_timeout_ms: int
    suspend_ms: int
    pull_batch_size: int
    pull_interval_ms: int


class PushArguments(ClientArguments, ListenerArguments, total=False):
    """What every push consumer takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(ConsumerOptions):
    """start_from      where a group begins that has never consumed: "latest", "earliest" or a datetime
    concurrency     how many listeners run at once; may be set again at any time
    ordered         the messages of a queue one after another, in their order, failures included
    batch_size_max  above 1 listeners get lists of up to so many messages
    cache_count_max       messages of a queue that are fetched ahead of the listeners
    cache_size_max_bytes  the same in bytes over all queues; queue_cache_size_max_bytes per queue
    span_max              how far apart, in offsets, unfinished messages of an unordered queue may be
    topic_cache_count_max, topic_cache_size_max_bytes   limits per topic, shared out among its queues
    reconsume_times_max   tries after the first one before a message goes to the dead letters; by default 16,
                          and where order matters without end
    consume_timeout_ms    a listener that holds an unordered message longer loses it to a later try
    suspend_ms            the pause before an ordered message that failed comes again
    pull_batch_size, pull_interval_ms   messages asked for at once, and the pause between two pulls
    """

    start_from: StartFrom = "latest"
    concurrency: int = 20
    ordered: bool = False
    batch_size_max: int = 1
    cache_count_max: int = 1_000
    cache_size_max_bytes: int = 256 << 20
    queue_cache_size_max_bytes: int = 100 << 20
    span_max: int = 2_000
    topic_cache_count_max: int | None = None
    topic_cache_size_max_bytes: int | None = None
    reconsume_times_max: int | None = None
    consume_timeout_ms: int = 900_000
    suspend_ms: int = 1_000
    pull_batch_size: int = 32
    pull_interval_ms: int = 0

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        checked_start_from(self.start_from)
        checked_concurrency(self.concurrency)
        yes_or_no("ordered", self.ordered)
        for name, low, high in (
            ("batch_size_max", 1, BATCH_MAX),
            ("cache_count_max", 1, _INT32_MAX),
            ("cache_size_max_bytes", 1, None),
            ("queue_cache_size_max_bytes", 1, None),
            ("span_max", 1, None),
            ("consume_timeout_ms", 1, None),
            ("suspend_ms", 1, None),
            ("pull_batch_size", 1, BATCH_MAX),
            ("pull_interval_ms", 0, 65_535),
        ):
            whole_number(name, getattr(self, name), low=low, high=high)
        for name, low, high in (
            ("topic_cache_count_max", 1, None),
            ("topic_cache_size_max_bytes", 1, None),
            ("reconsume_times_max", 0, _INT32_MAX),
        ):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), low=low, high=high)

    @property
    def limits(self) -> FlowLimits:
        """How much may be fetched ahead."""
        return FlowLimits(
            queue_count_max=self.cache_count_max,
            queue_size_max_bytes=self.queue_cache_size_max_bytes,
            size_max_bytes=self.cache_size_max_bytes,
            span_max=None if self.ordered else self.span_max,
            topic_count_max=self.topic_cache_count_max,
            topic_size_max_bytes=self.topic_cache_size_max_bytes,
        )

    @property
    def tries_max(self) -> int:
        """reconsume_times_max, or what goes for it where it was not given."""
        if self.reconsume_times_max is not None:
            return self.reconsume_times_max
        return RECONSUME_FOR_EVER if self.ordered else RECONSUME_TIMES_MAX


def checked_concurrency(concurrency: int) -> int:
    """Raises TypeError and ValueError."""
    return whole_number("concurrency", concurrency, low=1, high=CONCURRENCY_MAX)
