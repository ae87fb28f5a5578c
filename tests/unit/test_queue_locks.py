"""Orderly locks: one client of a group per queue, for a minute at a time."""

from __future__ import annotations

import asyncio

from rmq_core.broker.queue_locks import EXPIRE_MS, QueueLocks
from rmq_core.clock import ManualClock
from rmq_core.protocol.message import MessageQueue

QUEUES = [MessageQueue("Orders", "broker-a", number) for number in range(4)]


def test_a_queue_has_one_holder_per_group() -> None:
    """Two clients of a group and one of another want the same queues; the first asks twice."""
    locks = QueueLocks(ManualClock())
    assert locks.lock("CG", "one", QUEUES[:3]) == QUEUES[:3]
    assert locks.lock("CG", "two", QUEUES[1:]) == QUEUES[3:]
    assert locks.lock("CG", "one", QUEUES) == QUEUES[:3]
    assert locks.lock("CG-2", "two", QUEUES) == QUEUES


def test_only_the_holder_gives_a_queue_back() -> None:
    """Another client's unlock changes nothing; the own one frees the queue at once."""
    locks = QueueLocks(ManualClock())
    locks.lock("CG", "one", QUEUES)
    locks.unlock("CG", "two", QUEUES)
    locks.unlock("nobody", "one", QUEUES)
    assert locks.lock("CG", "two", QUEUES) == []
    locks.unlock("CG", "one", QUEUES[:2])
    assert locks.lock("CG", "two", QUEUES) == QUEUES[:2]
    locks.unlock("CG", "two", QUEUES)
    locks.unlock("CG", "one", QUEUES)
    assert not locks.is_held("CG")


def test_a_lock_ends_a_minute_after_it_was_renewed_last() -> None:
    """Renewed just in time it holds for another minute; not renewed, another client takes it over."""

    async def main() -> None:
        clock = ManualClock()
        locks = QueueLocks(clock)
        locks.lock("CG", "one", QUEUES[:2])
        await clock.advance(EXPIRE_MS)
        assert locks.is_held("CG")
        assert locks.lock("CG", "two", QUEUES[:1]) == []
        assert locks.lock("CG", "one", QUEUES[:1]) == QUEUES[:1]
        await clock.advance(1)
        assert locks.lock("CG", "two", QUEUES[:2]) == QUEUES[1:2]
        await clock.advance(EXPIRE_MS)
        assert locks.lock("CG", "two", QUEUES[:1]) == QUEUES[:1]
        await clock.advance(EXPIRE_MS + 1)
        assert not locks.is_held("CG")
        assert not locks.is_held("nobody")

    asyncio.run(main())


def test_locks_of_clients_that_never_came_back_are_forgotten() -> None:
    """A client that locks queues under ever new names does not fill the memory."""

    async def main() -> None:
        clock = ManualClock()
        locks = QueueLocks(clock)
        for number in range(100):
            locks.lock(f"CG-{number}", "one", [MessageQueue(f"T{each}", "b", 0) for each in range(10)])
        await clock.advance(EXPIRE_MS + 1)
        locks.lock("CG-new", "one", QUEUES)
        assert list(locks._held) == ["CG-new"]

    asyncio.run(main())
