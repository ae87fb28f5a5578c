"""The state of a pulled queue: what counts as progress, whatever the order in which things happen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq_core.client.pull_queue import Cache, CacheLimits, PulledQueue, Taken, fair_shares, take_in_turn
from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import Host, StoredRecord

QUEUE = MessageQueue("Orders", "broker-a", 0)
LIMITS = CacheLimits(
    count_max=10, size_max_bytes=10_000, queue_count_max=4, queue_size_max_bytes=5_000, span_max=50
)


def message(offset: int, *, size: int = 100) -> ReceivedMessage:
    host = Host.of("127.0.0.1", 1)
    return ReceivedMessage(
        StoredRecord("Orders", 0, offset, offset * 1000, b"", b"", 0, host, 0, host, size=size), QUEUE
    )


def new_queue(cache: Cache | None = None, queue: MessageQueue = QUEUE) -> PulledQueue:
    return PulledQueue(queue, queue, cache or Cache(LIMITS), lambda state: None)


def offsets(taken: Taken | None) -> list[int]:
    return [] if taken is None else [each.queue_offset for each in taken.messages]


def test_progress_is_the_lowest_offset_that_is_not_finished() -> None:
    """Two pieces, the later one finished first; then the gap that a filter left behind the last message."""
    queue = new_queue()
    queue.append([message(3), message(4), message(5)], next_offset=9)
    first, second = queue.take(2), queue.take(5)
    assert (offsets(first), offsets(second)) == ([3, 4], [5])
    assert first is not None
    assert second is not None
    second.finish()
    assert queue.progress == 3
    first.advance(4)
    assert queue.progress == 4
    first.advance(5)
    assert queue.progress == 9


def test_what_is_put_back_comes_again_in_order() -> None:
    """Two pieces put back in the wrong order, the first of them finished in part."""
    queue = new_queue()
    queue.append([message(number) for number in range(6)], next_offset=6)
    first, second = queue.take(3), queue.take(2)
    assert first is not None
    assert second is not None
    first.advance(2)
    first.put_back()
    second.put_back()
    assert queue.progress == 2
    assert offsets(queue.take(9)) == [2, 3, 4, 5]


def test_nothing_given_before_a_jump_counts_after_it() -> None:
    """Finishes and puts back what was taken before a seek: neither progress nor the waiting messages change."""
    queue = new_queue()
    queue.append([message(number) for number in range(4)], next_offset=4)
    first, second = queue.take(1), queue.take(1)
    assert first is not None
    assert second is not None
    queue.jump(2)
    first.finish()
    second.put_back()
    assert (queue.progress, list(queue.waiting)) == (2, [])
    assert not first.is_wanted


def test_a_queue_that_is_paused_or_leaving_gives_nothing() -> None:
    """What waits stays there over a pause, and is thrown away with the queue."""
    cache = Cache(LIMITS)
    queue = new_queue(cache)
    queue.append([message(0)], next_offset=1)
    queue.is_paused = True
    assert queue.take(1) is None
    queue.is_paused = False
    queue.is_leaving = True
    assert queue.take(1) is None
    queue.discard()
    assert (cache.count, cache.size_bytes) == (0, 0)


def test_a_cache_is_full_by_count_and_by_bytes_for_one_queue_and_for_all() -> None:
    """Fills one limit after the other."""
    cache = Cache(LIMITS)
    queues = [new_queue(cache) for _ in range(3)]
    queues[0].append([message(number) for number in range(4)], next_offset=4)
    assert not cache.has_room(queues[0])
    assert cache.has_room(queues[1])
    queues[1].append([message(0, size=5_000)], next_offset=1)
    assert not cache.has_room(queues[1])
    queues[2].append([message(0, size=4_600)], next_offset=1)
    assert not cache.has_room(new_queue(cache))
    queues[1].take(1)
    assert cache.has_room(queues[1])


def test_a_queue_whose_messages_lie_far_apart_is_full_by_its_span() -> None:
    """A filter left two messages out of sixty: nothing more is fetched until the first of them is given out."""
    cache = Cache(LIMITS)
    queue = new_queue(cache)
    queue.append([message(0), message(60)], next_offset=61)
    assert not cache.has_room(queue)
    queue.take(1)
    assert cache.has_room(queue)


def test_a_paused_queue_holds_no_room_that_others_need() -> None:
    """Pauses a queue that fills the cache: its messages leave it, and are the next to be fetched again."""
    cache = Cache(LIMITS)
    queue = new_queue(cache)
    queue.append([message(number) for number in range(10)], next_offset=10)
    taken = queue.take(3)
    assert taken is not None
    queue.pause()
    assert (cache.count, cache.size_bytes) == (0, 0)
    assert (queue.next_offset, queue.progress) == (3, 0)
    taken.finish()
    assert queue.progress == 3


def test_queues_that_are_always_full_give_in_equal_shares() -> None:
    """Three of nine queues are hot, two of them neighbours: after ninety rounds each has given the same."""
    cache = Cache(LIMITS)
    queues = [new_queue(cache, MessageQueue("Orders", "broker-a", number)) for number in range(9)]
    hot = queues[0], queues[1], queues[5]
    for count_max in (1, 4, 40):
        given = dict.fromkeys((queue.queue for queue in hot), 0)
        for _ in range(90):
            for queue in hot:
                missing = 50 - len(queue.waiting)
                start = queue.next_offset or 0
                queue.append([message(start + number) for number in range(missing)], next_offset=start + missing)
            for taken in take_in_turn(queues, count_max):
                given[taken.queue] += len(taken.messages)
        assert sum(given.values()) == 90 * count_max
        assert max(given.values()) - min(given.values()) <= 1


def test_one_message_is_not_held_up_by_a_queue_that_is_always_full() -> None:
    """A full queue and one with a single message: the next piece has both."""
    cache = Cache(LIMITS)
    hot, cold = (new_queue(cache, MessageQueue("Orders", "broker-a", number)) for number in range(2))
    hot.append([message(number) for number in range(100)], next_offset=100)
    assert [len(taken.messages) for taken in take_in_turn([hot, cold], 10)] == [10]
    cold.append([message(0)], next_offset=1)
    assert sorted(len(taken.messages) for taken in take_in_turn([hot, cold], 10)) == [1, 9]


@given(wanted=st.lists(st.integers(0, 50), max_size=8), total=st.integers(0, 120))
def test_shares_use_everything_up_and_differ_only_where_somebody_wants_less(wanted: list[int], total: int) -> None:
    """Nothing is left while somebody wants more, and no one who does got two less than another."""
    shares = fair_shares(wanted, total)
    assert sum(shares) == min(total, sum(wanted))
    assert all(share <= count for share, count in zip(shares, wanted, strict=True))
    unsatisfied = [share for share, count in zip(shares, wanted, strict=True) if share < count]
    assert all(max(shares) - share <= 1 for share in unsatisfied)


class QueueMachine(RuleBasedStateMachine):
    """Messages 0, 1, 2, … through any order of fetching, taking, finishing, putting back and jumping."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(LIMITS)
        self.queue = new_queue(self.cache)
        self.taken: list[Taken] = []
        self.unfinished: set[int] = set()
        self.next = 0
        self.queue.append((), next_offset=0)

    @rule(count=st.integers(0, 3), skipped=st.integers(0, 2))
    def fetch(self, count: int, skipped: int) -> None:
        found = range(self.next, self.next + count)
        self.next += count + skipped
        self.unfinished |= set(found)
        self.queue.append([message(offset) for offset in found], next_offset=self.next)

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        taken = self.queue.take(count)
        if taken is not None:
            self.taken.append(taken)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        taken = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.unfinished -= set(offsets(taken))
        taken.finish()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        taken = self.taken[data.draw(st.integers(0, len(self.taken) - 1))]
        to = data.draw(st.sampled_from(offsets(taken)))
        self.unfinished -= {offset for offset in offsets(taken) if offset < to}
        taken.advance(to)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1))).put_back()

    @rule(data=st.data())
    def jump(self, data: st.DataObject) -> None:
        self.next = data.draw(st.integers(0, self.next))
        self.queue.jump(self.next)
        self.taken.clear()
        self.unfinished.clear()

    @invariant()
    def progress_is_what_a_crash_may_forget(self) -> None:
        assert self.queue.progress == min(self.unfinished, default=self.next)

    @invariant()
    def the_cache_counts_what_waits(self) -> None:
        waiting = [each.queue_offset for each in self.queue.waiting]
        assert waiting == sorted(waiting)
        assert (self.cache.count, self.cache.size_bytes) == (len(waiting), 100 * len(waiting))


TestQueueMachine = QueueMachine.TestCase


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_pieces_cover_what_waits_without_gap_or_overlap(counts: list[int]) -> None:
    """Takes pieces of any size."""
    queue = new_queue()
    queue.append([message(offset) for offset in range(12)], next_offset=12)
    given_out = [offset for count in counts for offset in offsets(queue.take(count))]
    assert given_out == list(range(min(sum(counts), 12)))
