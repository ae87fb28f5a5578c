"""What consumers that ask for their messages themselves are told, checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmq_core.client.arguments import function_or_none, whole_number, yes_or_no
from rmq_core.client.consumer_options import ConsumerArguments, ConsumerOptions
from rmq_core.client.pull_queue import CacheLimits
from rmq_core.client.queue_offsets import StartFrom, checked_start_from
from rmq_core.client.send_back import RECONSUME_TIMES_MAX
from rmq_core.protocol.message import MessageQueue

SUSPEND_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Assignment:
    """How the queues of a topic that a consumer reads have changed."""

    topic: str
    queues: frozenset[MessageQueue]
    """What it reads from now on."""
    given: frozenset[MessageQueue]
    taken: frozenset[MessageQueue]


OnAssignment: TypeAlias = Callable[[Assignment], Awaitable[None] | None]


class LiteArguments(ConsumerArguments, total=False):
    """Those of `LiteOptions`."""

    auto_commit: bool
    start_from: StartFrom
    on_assignment: OnAssignment | None
    pull_batch_size: int
    suspend_ms: int
    cache_count_max: int
    cache_size_max_bytes: int
    queue_cache_count_max: int
    queue_cache_size_max_bytes: int
    span_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteOptions(ConsumerOptions):
    """auto_commit      whether what is done is stored by itself, every five seconds and at the end
    start_from       where a group begins on a queue it has no progress of: "latest", "earliest" or a datetime
    on_assignment    called with an Assignment when queues come and go; may seek in those given, and commit
    pull_batch_size  messages asked for at once
    suspend_ms       how long a broker may hold a pull that finds nothing
    cache_count_max, cache_size_max_bytes              how much is fetched ahead over all queues
    queue_cache_count_max, queue_cache_size_max_bytes  the same per queue
    span_max         how far apart, in offsets, messages of a queue that are fetched ahead may be
    """

    auto_commit: bool = True
    start_from: StartFrom = "latest"
    on_assignment: OnAssignment | None = None
    pull_batch_size: int = 32
    suspend_ms: int = SUSPEND_MS
    cache_count_max: int = 10_000
    cache_size_max_bytes: int = 256 << 20
    queue_cache_count_max: int = 1_000
    queue_cache_size_max_bytes: int = 100 << 20
    span_max: int = 2_000

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        yes_or_no("auto_commit", self.auto_commit)
        checked_start_from(self.start_from)
        function_or_none("on_assignment", self.on_assignment)
        whole_number("suspend_ms", self.suspend_ms, low=0)
        for name in (
            "pull_batch_size",
            "cache_count_max",
            "cache_size_max_bytes",
            "queue_cache_count_max",
            "queue_cache_size_max_bytes",
            "span_max",
        ):
            whole_number(name, getattr(self, name))

    @property
    def limits(self) -> CacheLimits:
        """How much may be fetched ahead."""
        return CacheLimits(
            count_max=self.cache_count_max,
            size_max_bytes=self.cache_size_max_bytes,
            queue_count_max=self.queue_cache_count_max,
            queue_size_max_bytes=self.queue_cache_size_max_bytes,
            span_max=self.span_max,
        )


class PullArguments(ConsumerArguments, total=False):
    """Those of `PullOptions`."""

    topics: Collection[str]
    on_assignment: OnAssignment | None
    suspend_ms: int
    reconsume_times_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions(ConsumerOptions):
    """topics               registered at the start: their queues are divided between the group's members
    on_assignment        called with an Assignment when queues come and go
    suspend_ms           how long a broker may hold pull_blocking()
    reconsume_times_max  how often a message that is sent back is delivered again
    """

    topics: Collection[str] = ()
    on_assignment: OnAssignment | None = None
    suspend_ms: int = SUSPEND_MS
    reconsume_times_max: int = RECONSUME_TIMES_MAX

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        if isinstance(self.topics, str) or not isinstance(self.topics, Collection):
            raise TypeError("topics must be a list of str")
        function_or_none("on_assignment", self.on_assignment)
        whole_number("suspend_ms", self.suspend_ms)
        whole_number("reconsume_times_max", self.reconsume_times_max, low=0)


class ScheduleArguments(ConsumerArguments, total=False):
    """Those of `ScheduleOptions`."""

    suspend_ms: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions(ConsumerOptions):
    """suspend_ms   how long a broker may hold pull_blocking()
    concurrency  how many tasks run at once
    """

    suspend_ms: int = SUSPEND_MS
    concurrency: int = 20

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        whole_number("suspend_ms", self.suspend_ms)
        whole_number("concurrency", self.concurrency)
