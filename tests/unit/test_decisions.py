"""The book of decided half messages, against one that remembers everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.broker.decisions import Decisions


def test_the_position_passes_decided_ones_once_they_are_confirmed() -> None:
    """Decides in another order than the half messages have, and confirms bit by bit."""
    book = Decisions()
    book.decide(1, 300)
    book.decide(0, 500)
    assert not book.advance(499)
    assert book.done == 0
    assert book.is_decided(1)
    assert book.advance(500)
    assert book.done == 2
    assert not book.is_decided(2)
    assert len(book) == 0


def test_op_messages_are_passed_when_all_they_name_is() -> None:
    """One op message names several half messages, as 5.x writes them; another names one that is long decided."""
    book = Decisions(done=5, op_done=10)
    book.note_op(10, [3, 4])
    book.note_op(11, [5, 7])
    book.note_op(12, [6])
    for offset in (3, 4, 5, 7):
        book.decide(offset)
    book.advance(0)
    assert (book.done, book.op_done) == (6, 11)
    book.decide(6)
    book.advance(0)
    assert (book.done, book.op_done) == (8, 13)
    assert book.is_decided(3)


def test_the_newest_copy_stands_for_all_until_it_is_passed() -> None:
    """Renews twice, out of order too, as queues tell it at start."""
    book = Decisions()
    book.renew(0, 4)
    book.renew(0, 9)
    book.renew(0, 7)
    assert book.newest(0, 0) == book.newest(0, 4) == book.newest(0, 9) == 9
    assert book.newest(1, 1) == 1
    for offset in range(10):
        book.decide(offset)
    book.advance(0)
    assert book.newest(0, 0) == 0
    assert book.is_decided(0)
    assert not book._newest
    assert not book._first


steps = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.integers(0, 19), st.integers(0, 50)),
        st.tuples(st.just("advance"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("op"), st.integers(0, 19), st.integers(0, 50)),
        st.tuples(st.just("renew"), st.integers(0, 19), st.integers(0, 19)),
    ),
    max_size=60,
)


@given(steps)
@settings(deadline=None)
def test_any_order_of_events_gives_what_a_simple_book_gives(events: list[tuple[str, int, int]]) -> None:
    """Compares with a book that keeps every decision for ever."""
    book = Decisions()
    ends: dict[int, int] = {}
    newest: dict[int, int] = {}
    ops: list[int] = []
    done = op_done = 0
    for kind, first, second in events:
        if kind == "advance":
            while done in ends and ends[done] <= first:
                done += 1
            while op_done < len(ops) and ops[op_done] < done:
                op_done += 1
            book.advance(first)
        elif kind == "renew":
            if max(first, second) >= done and second >= first:
                newest[first] = max(newest.get(first, 0), second)
                book.renew(first, second)
        else:
            if first >= done:
                ends[first] = min(ends.get(first, second), second)
            book.decide(first, second)
            if kind == "op":
                book.note_op(len(ops), [first])
                ops.append(first)
        assert (book.done, book.op_done) == (done, op_done)
        for offset in range(20):
            assert book.is_decided(offset) is (offset < done or offset in ends)
            if newest.get(offset, 0) >= done:
                assert book.newest(offset, offset) == max(newest.get(offset, offset), offset)
