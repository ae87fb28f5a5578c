"""A store beside a model of it: steps of any kind and order, and after each of them both must agree.

The model is one list for each queue. It knows which messages were acknowledged, where each stands in the log, and
how far the log may have been cut at its start.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rmq_core.clock import ManualClock
from rmq_core.store.message_store import MessageStore, PutStatus
from support.forgetful import ForgetfulDisk
from support.stores import put, records_of, small_settings

QUEUES = (("Orders", 0), ("Orders", 1), ("Events", 0))
FOREVER_MS = (1 << 63) - 1


class SteppedClock(ManualClock):
    """A clock that also goes on where no event loop runs."""

    def step(self, by_ms: int) -> None:
        self._now_ms += by_ms


@dataclass(slots=True)
class Sent:
    """A message that the store took."""

    number: int
    log_offset: int
    end: int
    is_acknowledged: bool = False


@dataclass
class StoreWorld:
    """See above. All choices come from `chance`."""

    root: Path
    chance: random.Random
    skip: Callable[[Path], bool] | None = None
    """Syncs that are left out."""
    clock: SteppedClock = field(default_factory=SteppedClock)
    sent: dict[tuple[str, int], list[Sent]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    number: int = 0
    start_max: int = 0
    """The log may begin here at most."""

    def __post_init__(self) -> None:
        self.disk = ForgetfulDisk(self.root, skip=self.skip)
        self.store = self._opened()

    def _opened(self) -> MessageStore:
        settings = small_settings(self.root, flush_disk_type="SYNC_FLUSH", file_reserved_time=1)
        store = MessageStore(settings, clock=self.clock, disk=self.disk)
        store.open()
        return store

    # Steps

    def send(self) -> None:
        """One to eight messages in one pass, in any queues, of any size."""
        waiting: list[Sent] = []
        self.clock.step(self.chance.choice((0, 1, 700, 4000)))
        for _ in range(self.chance.randint(1, 8)):
            topic, queue_id = self.chance.choice(QUEUES)
            result = put(
                self.store, self.number, topic=topic, queue_id=queue_id, size=self.chance.choice((8, 60, 900))
            )
            assert result.queue_offset == len(self.sent[topic, queue_id]), (
                "a queue offset was given twice or left out"
            )
            waiting.append(Sent(self.number, result.log_offset, result.end))
            self.sent[topic, queue_id].append(waiting[-1])
            self.number += 1
        self.store.end_pass()
        for each in waiting:
            self.store.when_durable(each.end, self._acknowledgement(each))

    @staticmethod
    def _acknowledgement(sent: Sent) -> Callable[[PutStatus], None]:
        def hear(status: PutStatus) -> None:
            sent.is_acknowledged = status is PutStatus.PUT_OK

        return hear

    def flush(self) -> None:
        self.store.flusher.flush()
        self.store.poll()

    def write(self) -> None:
        """What the keeper does each second."""
        self.store.queues.write_out()
        assert self.store.index is not None
        self.store.index.build()
        self.store.index.index.write_out()
        self.store.checkpoint.store()

    def keep(self) -> None:
        self.store.keep_all()
        self.store.poll()

    def allocate(self) -> None:
        self.store.log.allocate_ahead()

    def expire(self) -> None:
        """The disk is so full that old files go, whatever their age."""
        self.disk.used = 0.88
        self.store.retention.run()
        self.disk.used = 0.1
        self.start_max = max(self.start_max, self.store.log.start)

    def restart(self) -> None:
        self.store.close()
        for messages in self.sent.values():
            for each in messages:
                each.is_acknowledged = True
        self.store = self._opened()

    def kill(self) -> None:
        """The process ends; what it wrote is still in the system's memory."""
        self.disk.close()
        self._let_go()
        self._come_back()

    def cut(self) -> None:
        """The power fails."""
        self.disk.power_cut(self.chance)
        self._let_go()
        self.disk = ForgetfulDisk(self.root, skip=self.skip)
        self._come_back()

    def _let_go(self) -> None:
        assert self.store._lock is not None
        self.store._lock.close()

    def _come_back(self) -> None:
        self.store = self._opened()
        for queue, messages in self.sent.items():
            kept = self.store.max_offset(*queue)
            lost = messages[kept:]
            assert not any(each.is_acknowledged for each in lost), f"an acknowledged message of {queue} is gone"
            del messages[kept:]
            for each in messages:  # whoever reads them now may rely on them
                each.is_acknowledged = True

    # Agreement

    def check(self) -> None:
        """Readers see all confirmed messages, in order, with their bodies, and no others."""
        store = self.store
        assert store.log.start <= self.start_max
        for queue, messages in self.sent.items():
            visible = [each for each in messages if each.end <= store.confirmed_offset]
            assert store.max_offset(*queue) == len(visible)
            assert store.max_offset(*queue, is_committed=False) == len(messages)
            alive = [each for each in visible if each.log_offset >= store.log.start]
            assert store.min_offset(*queue) <= len(visible) - len(alive)
            records = records_of(store, *queue)[-len(alive) :] if alive else []
            assert [int(record.body[:8]) for record in records] == [each.number for each in alive]
            assert [record.log_offset for record in records] == [each.log_offset for each in alive]
            times = [record.store_time_ms for record in records]
            assert times == sorted(times)

    def check_keys(self) -> None:
        """Each visible message is found by its own key and by its id."""
        self.store.rebuild_index()
        for (topic, _), messages in self.sent.items():
            for each in messages:
                if self.store.log.start <= each.log_offset and each.end <= self.store.confirmed_offset:
                    for key in (f"k{each.number}", f"id-{each.number}"):
                        assert each.log_offset in self.store.query(topic, key, 64, 0, FOREVER_MS), each

    def close(self) -> None:
        self.store.close()


STEPS: dict[str, Callable[[StoreWorld], None]] = {
    "send": StoreWorld.send,
    "flush": StoreWorld.flush,
    "write": StoreWorld.write,
    "keep": StoreWorld.keep,
    "allocate": StoreWorld.allocate,
    "expire": StoreWorld.expire,
    "restart": StoreWorld.restart,
    "kill": StoreWorld.kill,
    "cut": StoreWorld.cut,
}


def take(world: StoreWorld, steps: list[str]) -> None:
    """Take the steps; raises AssertionError at the first disagreement."""
    try:
        for step in steps:
            STEPS[step](world)
            world.check()
            if step in ("restart", "kill", "cut"):
                world.check_keys()
        world.restart()
        world.check()
        world.check_keys()
    finally:
        world.store.close()
