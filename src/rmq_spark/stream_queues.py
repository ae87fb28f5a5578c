"""Which queues a stream reads and how far they reach, looked after by a thread.

Fresh     Spark asks about 90 times a second. It is answered from the last look; who needs a newer one has it taken,
          and waits for it no longer than was agreed.
Found     Topics and queues are looked up every few seconds. A queue is gone only if its broker is alive and has it
          no more; the queues of a broker that does not answer are `away` and keep what was known of them.
Failures  of later looks are logged, once each; the first one is the caller's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rmq_core.client.blocking_routes import AWAY
from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import NoRouteError, RocketMQError
from rmq_core.protocol.message import MessageQueue
from rmq_spark.errors import SparkRocketMQError
from rmq_spark.offsets import QueueOffsets, queue_names
from rmq_spark.options import Settings
from rmq_spark.queues import find_queues, topics_to_read

_log: Final = logging.getLogger(__name__)

PAUSE_LEAST_S: Final = 0.05
"""Between two looks, while somebody waits for news."""
SHARE: Final = 10
"""The pause is so many times what a look took: many queues are looked at less often."""
PAUSE_MOST_S: Final = 5.0
FIND_MOST_S: Final = 10.0
"""So long a start waits to hear what became of the queues of its checkpoint."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was there at one moment (of the monotonic clock)."""

    at: float
    earliest: Mapping[MessageQueue, int]
    latest: Mapping[MessageQueue, int]
    away: frozenset[MessageQueue]
    """Queues whose broker does not answer: their offsets are the last that were known, if there are any."""

    def reachable(self) -> QueueOffsets:
        """The ends of the queues that can be read now."""
        return {queue: end for queue, end in self.latest.items() if queue not in self.away}


class QueueWatch:
    """Looks; start() it, close() it."""

    def __init__(
        self,
        client: QueueClient,
        settings: Settings,
        *,
        on_topics: Callable[[tuple[str, ...]], None] | None = None,
        discovery_s: float = 5.0,
    ) -> None:
        """on_topics hears, on the watch's thread, when other topics are read than before."""
        self._client = client
        self._settings = settings
        self._on_topics = on_topics
        self._discovery_s = discovery_s
        self._queues: tuple[MessageQueue, ...] = ()
        self._lost: frozenset[MessageQueue] = frozenset()
        """Queues that routes do not name, while their broker is not there either."""
        self._expected: frozenset[MessageQueue] = frozenset()
        self._topics: tuple[str, ...] = ()
        self._finding = threading.Lock()
        self._finder: threading.Thread | None = None
        self._found_at = float("-inf")
        self._earliest_at = float("-inf")
        self._news = threading.Condition()
        self._wanted = threading.Event()
        self._look: Look | None = None
        self._is_closed = False
        self._trouble = self._find_trouble = ""
        self._thread = threading.Thread(target=self._run, name="rmq-spark-queues", daemon=True)

    def start(self, expected: Collection[MessageQueue] = ()) -> Look:
        """Take the first look here, and go on in a thread. Raises what keeps it from being taken.

        With queues of a checkpoint it begins without name servers and brokers too: those are away then.
        """
        try:
            self._queues = find_queues(self._client, self._settings)
        except (*AWAY, SparkRocketMQError) as error:
            if not expected:
                raise
            self._troubled(str(error))
        self._told_topics()
        self._found_at = self._earliest_at = time.monotonic()
        failures: dict[MessageQueue, RocketMQError] = {}
        try:
            latest = self._client.max_offsets(self._queues)
        except AWAY as error:
            latest = self._client.max_offsets(self._queues, failures=failures)
            if not latest and not expected:
                raise
            self._troubled(str(error))
        earliest = self._client.min_offsets(list(latest), failures=failures)
        away = frozenset(queue for queue in self._queues if queue not in latest or queue not in earliest)
        self._look = Look(time.monotonic(), earliest, latest, away)
        self._thread.start()
        self.expect(expected)
        return self._look

    def close(self) -> None:
        """End the thread, as soon as it is done with its look."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()
        self._wanted.set()

    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that routes name, sorted."""
        return self._queues

    def look(self, *, age_max_s: float, wait_s: float) -> Look:
        """A look that is not older than that, or the last one where it takes longer than wait_s to take another."""
        oldest = time.monotonic() - age_max_s
        return self.wait(lambda look: look.at >= oldest, wait_s)

    def wait(self, is_good: Callable[[Look], bool], wait_s: float) -> Look:
        """Take looks until one is good or the time is over; the last one."""
        deadline = time.monotonic() + wait_s
        with self._news:
            while True:
                assert self._look is not None
                left_s = deadline - time.monotonic()
                if is_good(self._look) or left_s <= 0 or self._is_closed:
                    return self._look
                self._wanted.set()
                self._news.wait(left_s)

    def expect(self, queues: Collection[MessageQueue]) -> None:
        """These were read before: what became of those that are not here is found out now.

        Where that cannot be found out they are away.
        """
        missing = frozenset(queues) - {*self._queues, *self._lost}
        if not missing:
            return
        self._expected |= missing
        try:
            self._find()
        except RocketMQError as error:
            self._troubled(str(error))
            with self._finding:
                self._lost |= missing
        now = time.monotonic()
        self.wait(lambda look: look.at >= now, FIND_MOST_S)

    # The thread

    def _run(self) -> None:
        while not self._is_closed:
            self._wanted.wait()
            self._wanted.clear()
            if self._is_closed:
                return
            began = time.monotonic()
            try:
                look = self._taken()
            except Exception as error:  # whatever it is, the stream goes on with what was known
                self._troubled(f"{type(error).__name__}: {error}")
                look = None
            with self._news:
                if look is not None:
                    self._look = look
                self._news.notify_all()
            took_s = time.monotonic() - began
            with self._news:
                pause_s = min(max(SHARE * took_s, PAUSE_LEAST_S), PAUSE_MOST_S)
                self._news.wait_for(lambda: self._is_closed, pause_s)

    def _troubled(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            if text:
                _log.warning("looking after queues: %s; what was known of them is used", text)

    def _taken(self) -> Look:
        assert self._look is not None
        last = self._look
        trouble = self._find_trouble
        if time.monotonic() - self._found_at >= self._discovery_s and (
            self._finder is None or not self._finder.is_alive()
        ):
            # A name server that hangs must not keep brokers from being asked.
            self._finder = threading.Thread(target=self._find_beside, name="rmq-spark-routes", daemon=True)
            self._finder.start()
        known = [*self._queues, *self._lost]
        failures: dict[MessageQueue, RocketMQError] = {}
        at = time.monotonic()
        latest = self._client.max_offsets(known, failures=failures)
        earliest = {queue: last.earliest[queue] for queue in known if queue in last.earliest}
        stale = self._stale(last, latest)
        missing: dict[MessageQueue, RocketMQError] = {}
        earliest |= self._client.min_offsets([queue for queue in stale if queue in latest], failures=missing)
        for queue in missing:
            latest.pop(queue, None)
        away = frozenset(queue for queue in known if queue not in latest)
        latest |= {queue: last.latest[queue] for queue in away if queue in last.latest}
        if failures or missing:
            trouble = trouble or str(next(iter((failures | missing).values())))
        self._troubled(trouble)
        return Look(at, earliest, latest, away)

    def _stale(self, last: Look, latest: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Queues whose beginning has to be asked for: all now and then, else those that are new or shrank."""
        now = time.monotonic()
        if now - self._earliest_at >= self._discovery_s:
            self._earliest_at = now
            return list(latest)
        return [
            queue
            for queue, end in latest.items()
            if queue not in last.earliest or end < last.latest.get(queue, 0) or queue in last.away
        ]

    def _find_beside(self) -> None:
        try:
            self._find()
            self._find_trouble = ""
        except RocketMQError as error:
            self._find_trouble = str(error)
        self._found_at = time.monotonic()

    def _find(self) -> None:
        with self._finding:
            self._find_alone()

    def _find_alone(self) -> None:
        client, settings = self._client, self._settings
        # Routes and brokers cannot be asked for at one moment: only a broker that is there before and after counts.
        alive = set(client.brokers())
        found: set[MessageQueue] = set()
        for topic in topics_to_read(client, settings):
            try:
                found.update(client.queues(topic, refresh=True))
            except NoRouteError:
                continue
        alive &= set(client.brokers())
        if settings.assign:
            found &= set(settings.assign)
        before = {*self._queues, *self._lost, *self._expected}
        gone = {queue for queue in before - found if queue.broker_name in alive}
        if gone:
            _log.warning("queues are gone: %s", queue_names(gone))
        if found - before:
            _log.info("new queues: %s", queue_names(found - before))
        self._lost = frozenset(before - found - gone)
        self._queues = tuple(sorted(found))
        self._expected = frozenset()
        self._told_topics()

    def _told_topics(self) -> None:
        topics = tuple(sorted({queue.topic for queue in (*self._queues, *self._lost)}))
        if topics != self._topics:
            self._topics = topics
            if self._on_topics is not None:
                self._on_topics(topics)
