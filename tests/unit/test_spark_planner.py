"""The planner of the Spark connector: limits, cutting and packing of ranges, loss. Scenario numbers are those of
docs/connector-scenarios.md."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.protocol.message import MessageQueue
from rmq_spark.errors import Condition
from rmq_spark.planner import (
    LossKind,
    QueueRange,
    cut,
    data_loss,
    is_due,
    limit,
    loss_error,
    pack,
    ranges_between,
)


def queue(number: int, topic: str = "T", broker: str = "a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


def ranges(*spans: tuple[int, int]) -> list[QueueRange]:
    return [QueueRange(queue(number), *span) for number, span in enumerate(spans)]


def spans(pieces: list[QueueRange]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in pieces]


def taken(limit_rows: int, *backlogs: int) -> list[int]:
    start = {queue(number): 1000 * number for number in range(len(backlogs))}
    end = {queue(number): 1000 * number + size for number, size in enumerate(backlogs)}
    limited = limit(start, end, limit_rows)
    return [limited[each] - start[each] for each in sorted(start)]


# Limits


@pytest.mark.parametrize(
    ("rows", "backlogs", "expected"),
    [
        (10, (101, 11, 1), [8, 1, 1]),
        (10, (93, 10, 0), [9, 1, 0]),
        (10, (84, 9, 0), [9, 1, 0]),
        (20, (21, 11, 1), [12, 6, 1]),
        (9, (90, 9, 1), [8, 1, 1]),
        (100, (1000, 500, 250), [57, 28, 14]),
        (1000, (400, 300, 5), [400, 300, 5]),
        (1, (5, 5), [1, 1]),
    ],
)
def test_a_limit_is_divided_in_proportion_to_backlog(
    rows: int, backlogs: tuple[int, ...], expected: list[int]
) -> None:
    """C048-C053: figures worked out by the rule, with rounding in both directions."""
    assert taken(rows, *backlogs) == expected


@given(st.lists(st.integers(0, 10**12), max_size=20), st.integers(1, 10**9))
def test_limits_never_stall_never_overshoot_and_name_every_queue(backlogs: list[int], rows: int) -> None:
    """Random backlogs: a queue with something to read moves, none passes its end, the sum stays near the limit."""
    result = taken(rows, *backlogs)
    assert all((0 < took <= size) if size else took == 0 for took, size in zip(result, backlogs, strict=True))
    assert sum(result) <= max(rows + len(backlogs) - 1, min(rows, sum(backlogs)))


def test_a_queue_known_on_one_side_only_keeps_its_offset() -> None:
    """A vanished queue and a new one must both stay in the end of the batch."""
    start, end = {queue(0): 5, queue(1): 7}, {queue(1): 100, queue(2): 9}
    assert limit(start, end, 10) == {queue(0): 5, queue(1): 17, queue(2): 9}


def test_a_minimum_holds_back_until_the_delay_but_never_the_first_batch() -> None:
    """C055, C058, C059: 16 of 15 run, 6 wait, and 10 run once 5 s have passed."""
    assert is_due(16, min_rows=15, waited_ms=0, delay_max_ms=5000)
    assert not is_due(6, min_rows=15, waited_ms=10, delay_max_ms=5000)
    assert not is_due(10, min_rows=15, waited_ms=4999, delay_max_ms=5000)
    assert is_due(10, min_rows=15, waited_ms=5000, delay_max_ms=5000)
    assert is_due(1, min_rows=15, waited_ms=None, delay_max_ms=5000)
    assert is_due(0, min_rows=None, waited_ms=0, delay_max_ms=5000)


# Cutting


@pytest.mark.parametrize(
    ("given_spans", "minimum", "maximum", "expected"),
    [
        pytest.param([(1, 2), (1, 1)], None, None, [(1, 2)], id="C111"),
        pytest.param([(1, 2), (1, 2), (1, 2)], 3, None, [(1, 2), (1, 2), (1, 2)], id="C112"),
        pytest.param([(1, 5)], 4, None, [(1, 2), (2, 3), (3, 4), (4, 5)], id="C113"),
        pytest.param([(1, 5), (1, 21)], 4, None, [(1, 5), (1, 7), (7, 14), (14, 21)], id="C114"),
        pytest.param([(1, 1), (1, 21)], 4, None, [(1, 6), (6, 11), (11, 16), (16, 21)], id="C115"),
        pytest.param([(1, 5), (1, 21)], 1, None, [(1, 5), (1, 21)], id="C116"),
        pytest.param([(1, 11)], 3, None, [(1, 4), (4, 7), (7, 11)], id="C117"),
        pytest.param([(1, 5), (1, 2), (1, 6)], None, 4, [(1, 5), (1, 2), (1, 3), (3, 6)], id="C120"),
        pytest.param([(1, 40)], 1, 20, [(1, 20), (20, 40)], id="C121"),
        pytest.param([(0, 100)], None, None, [(0, 100)], id="C122 unset"),
        pytest.param([(0, 100)], 1, None, [(0, 100)], id="C122 one"),
        pytest.param([(0, 100)], 4, None, [(0, 25), (25, 50), (50, 75), (75, 100)], id="C122 four"),
        pytest.param([(0, 2)], 5, None, [(0, 1), (1, 2)], id="C125"),
        pytest.param([], 5, 3, [], id="nothing"),
    ],
)
def test_ranges_are_cut_as_worked_out(
    given_spans: list[tuple[int, int]], minimum: int | None, maximum: int | None, expected: list[tuple[int, int]]
) -> None:
    """C108-C122, C125: each case worked out by hand from the rule."""
    assert spans(cut(ranges(*given_spans), min_partitions=minimum, max_records=maximum)) == expected


@pytest.mark.parametrize(
    ("sizes", "minimum", "expected"),
    [((10_000, 15_000, 20_000), 9, [5000] * 9), ((1, 1, 10_000), 6, [1, 1, 2500, 2500, 2500, 2500])],
)
def test_parts_are_as_large_as_one_another(sizes: tuple[int, ...], minimum: int, expected: list[int]) -> None:
    """C118, C119."""
    pieces = cut(ranges(*((0, size) for size in sizes)), min_partitions=minimum)
    assert [piece.count for piece in pieces] == expected


spans_of = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=12)


@given(spans_of, st.none() | st.integers(1, 50), st.none() | st.integers(10, 10**5), st.integers(1, 10**4))
def test_tasks_cover_every_offset_once_in_order(
    sizes: list[tuple[int, int]], minimum: int | None, maximum: int | None, rows: int
) -> None:
    """Random ranges and options: the tasks laid end to end are the ranges; none is empty or above the maximum."""
    wanted = ranges(*((start, start + size) for start, size in sizes))
    tasks = pack(wanted, min_partitions=minimum, max_records=maximum, min_rows=rows)
    assert all(tasks)
    flat = [piece for task in tasks for piece in task]
    assert flat == sorted(flat)
    for each in wanted:
        own = [piece for piece in flat if piece.queue == each.queue]
        assert [piece.start for piece in own] + [each.end] == [each.start] + [piece.end for piece in own] or not own
        assert sum(piece.count for piece in own) == each.count
    if maximum is not None:
        assert all(sum(piece.count for piece in task) <= maximum for task in tasks)
    assert tasks == pack(list(reversed(wanted)), min_partitions=minimum, max_records=maximum, min_rows=rows)
    if minimum is not None:
        pieces = cut(wanted, min_partitions=minimum, max_records=maximum)
        assert len(tasks) >= min(minimum, len(pieces))


def test_many_small_queues_share_a_task() -> None:
    """64 queues with one message each would cost 64 tasks; 64 with enough to do keep theirs."""
    assert len(pack(ranges(*[(0, 1)] * 64), min_rows=10_000)) == 1
    assert len(pack(ranges(*[(0, 10_000)] * 64), min_rows=10_000)) == 64
    assert len(pack(ranges(*[(0, 1)] * 64), min_rows=10_000, min_partitions=8)) == 8


def test_at_least_the_asked_number_of_tasks() -> None:
    """C123: queues of 10, 10 and 1, and six tasks wanted, although packing would want one."""
    assert len(pack(ranges((0, 10), (0, 10), (0, 1)), min_partitions=6, min_rows=10_000)) >= 6


def test_tasks_are_ordered_by_topic_broker_queue_and_start() -> None:
    """C105, C127: equal numbers of queues on two brokers stay apart."""
    start = {queue(0, "B", "b"): 1, queue(0, "B", "a"): 2, queue(10, "A"): 3, queue(2, "A"): 4, queue(3, "A"): 9}
    end = dict.fromkeys(start, 9)
    found = [(each.queue.topic, each.queue.broker_name, each.queue.queue_id) for each in ranges_between(start, end)]
    assert found == [("A", "a", 2), ("A", "a", 10), ("B", "a", 0), ("B", "b", 0)]


# Loss


def test_each_kind_of_loss_is_told_apart() -> None:
    """C078, C082, C083, C106: gone, deleted, gone back, new and not from its start; a broker away is none."""
    positions = {queue(0): 5, queue(1): 5, queue(2): 5, queue(3): 5, queue(4): 5, queue(5): 5}
    earliest = {queue(1): 9, queue(2): 0, queue(3): 5, queue(6): 3, queue(7): 0}
    latest = {queue(1): 20, queue(2): 4, queue(3): 5, queue(6): 8, queue(7): 8}
    losses = data_loss(positions, earliest, latest, new=[queue(6), queue(7)], away=[queue(4), queue(5)])
    assert [(loss.queue.queue_id, loss.start, loss.end, loss.kind) for loss in losses] == [
        (0, 5, 5, LossKind.QUEUE_GONE),
        (1, 5, 9, LossKind.DELETED),
        (2, 5, 4, LossKind.WENT_BACK),
        (6, 0, 3, LossKind.NOT_FROM_START),
    ]


def test_the_error_of_a_loss_names_queues_spans_group_and_the_option() -> None:
    """C079, C088: reads the text that a user sees."""
    losses = data_loss({queue(0): 0, queue(1): 2}, {queue(0): 30, queue(1): 0}, {queue(0): 50, queue(1): 1})
    error = loss_error(losses, group="spark-orders")
    assert error.condition is Condition.DATA_LOSS
    for part in ("[ROCKETMQ_DATA_LOSS]", "T/a/0 [0, 30)", "offset went from 2 back to 1", "spark-orders",
                 "failOnDataLoss"):  # fmt: skip
        assert part in str(error)


def test_a_loss_of_many_queues_is_told_in_short() -> None:
    """16,000 vanished queues must not make an error of megabytes."""
    losses = data_loss({queue(number): 1 for number in range(16_000)}, {}, {})
    assert len(losses) == 16_000
    assert len(str(loss_error(losses, group=None))) < 4000
