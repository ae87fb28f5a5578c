"""What a broker has sent and received: by topic, queue and group, over the last minute, hour and day.

Count     One addition per field and message, at the place of a queue; everything else (topics, groups, the broker)
          is added up when somebody asks.
Sample    Every ten seconds the sums of a kind are copied as one array. A window is the difference between the last
          sample and an older one, so that figures never depend on when they are asked for.
Crash     Nothing is kept: a broker counts from its start.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmq_core.clock import Clock
from rmq_core.config import BrokerSettings
from rmq_core.protocol.bodies import BrokerStatsData, BrokerStatsItem
from rmq_core.protocol.message import LMQ_PREFIX, is_system_topic

SAMPLE_MS: Final = 10_000
SAMPLES_PER_TEN_MINUTES: Final = 60
SAMPLES_PER_HOUR: Final = 360

COUNT, SIZE, CALLS, WAITED = range(4)
"""Fields of a counter: messages, their bytes, the calls that brought them, milliseconds those calls waited."""
FIELDS: Final = 4

K = TypeVar("K", bound=Hashable)
Sums = NDArray[np.int64]

PutKey = tuple[str, int]
"""(topic, queue id)"""
GetKey = tuple[str, int, str]
"""(topic, queue id, group)"""
BackKey = tuple[str, str]
"""(topic, group)"""


@dataclass(frozen=True, slots=True)
class Sample:
    """All sums of a kind at one time. A counter that is younger lies behind its end, or is zero in it."""

    time_ms: int
    sums: Sums

    def total(self, places: Iterable[int], field: int) -> int:
        size = len(self.sums)
        return sum(int(self.sums[place + field]) for place in places if place < size)


class Counters(Generic[K]):
    """Counters of one kind, each FIELDS numbers from its place on."""

    def __init__(self, time_ms: int, *, recent_max: int = 6) -> None:
        """recent_max: how many samples are kept besides the last one."""
        self.places: dict[K, int] = {}
        self.sums = array("q")
        self.last = Sample(time_ms, np.zeros(0, np.int64))
        self.recent: deque[Sample] = deque(maxlen=recent_max)
        self._hour: deque[Sample] = deque(maxlen=6)
        self._day: deque[Sample] = deque(maxlen=24)
        self._born_ms: dict[int, int] = {}
        self._changed_ms = np.zeros(0, np.int64)
        """When each counter was last seen to have counted."""
        self._free: list[int] = []
        self._taken = 0

    def add(self, key: K) -> int:
        """The place of a new counter."""
        if self._free:
            place = self._free.pop()
        else:
            place = len(self.sums)
            self.sums.extend([0] * FIELDS)
        self.places[key] = place
        self._born_ms[place] = self.last.time_ms
        return place

    def remove(self, key: K) -> tuple[int, ...]:
        """Forget a counter and return what it had counted."""
        place = self.places.pop(key)
        end = place + FIELDS
        counted = tuple(self.sums[place:end])
        self.sums[place:end] = array("q", [0] * FIELDS)
        for sample in {id(each): each for each in (self.last, *self.recent, *self._hour, *self._day)}.values():
            sample.sums[place:end] = 0
        self._free.append(place)
        return counted

    def sample(self, time_ms: int) -> None:
        """Remember the sums as they are now."""
        self.recent.append(self.last)
        if self._taken % SAMPLES_PER_TEN_MINUTES == 0:
            self._hour.append(self.last)
        if self._taken % SAMPLES_PER_HOUR == 0:
            self._day.append(self.last)
        self._taken += 1
        sums = np.array(self.sums, np.int64)
        before, size = self.last.sums, len(self.last.sums)
        changed = np.ones(len(sums) // FIELDS, np.bool_)
        changed[: size // FIELDS] = (sums[:size] != before).reshape(-1, FIELDS).any(axis=1)
        self._changed_ms = np.where(changed, time_ms, np.resize(self._changed_ms, len(changed)))
        self.last = Sample(time_ms, sums)

    def idle(self, since_ms: int) -> list[K]:
        """Counters that have not counted since a time."""
        places = set((np.flatnonzero(self._changed_ms < since_ms) * FIELDS).tolist()) - set(self._free)
        return [key for key, place in self.places.items() if place in places] if places else []

    def view(self, places: list[int], field: int) -> BrokerStatsData:
        """A field of some counters together, over the last minute, hour and day."""
        return BrokerStatsData(
            self._item(self.recent, places, field),
            self._item(self._hour, places, field),
            self._item(self._day, places, field),
        )

    def per_second(self, places: list[int], field: int, seconds: int) -> float:
        """How fast a field grew over so many seconds, or since there are samples."""
        earliest_ms = self.last.time_ms - seconds * 1000
        first = next((each for each in self.recent if each.time_ms >= earliest_ms), None)
        return 0.0 if first is None else self._window(first, places, field).tps

    def _item(self, samples: deque[Sample], places: list[int], field: int) -> BrokerStatsItem:
        return self._window(samples[0], places, field) if samples else BrokerStatsItem()

    def _window(self, first: Sample, places: list[int], field: int) -> BrokerStatsItem:
        total = self.last.total(places, field) - first.total(places, field)
        calls = self.last.total(places, CALLS) - first.total(places, CALLS)
        # A counter that appeared within the window has counted from the sample before on.
        start_ms = max(first.time_ms, min((self._born_ms[place] for place in places), default=0))
        elapsed_ms = self.last.time_ms - start_ms
        return BrokerStatsItem(
            total,
            round(total * 1000 / elapsed_ms, 3) if elapsed_ms > 0 else 0.0,
            round(total / calls, 3) if calls else 0.0,
        )


class Stats:
    """The statistics of one broker."""

    interval_ms: Final = SAMPLE_MS

    def __init__(self, clock: Clock, *, cluster: str, settings: BrokerSettings | None = None) -> None:
        self._clock = clock
        self._cluster = cluster
        self._settings = settings or BrokerSettings()
        now_ms = clock.now_ms()
        self._puts: Counters[PutKey] = Counters(now_ms)
        self._gets: Counters[GetKey] = Counters(now_ms)
        self._backs: Counters[BackKey] = Counters(now_ms)
        self._broker: Counters[str] = Counters(now_ms, recent_max=SAMPLES_PER_TEN_MINUTES)
        for name in _BROKER_NAMES:
            self._broker.add(name)
        self._removed = {name: np.zeros(FIELDS, np.int64) for name in _BROKER_NAMES}
        self._system_rows: dict[str, set[int]] = {"PUT": set(), "GET": set()}
        """Counters of system topics."""
        self._queues_of: dict[str, list[int]] = {}
        """Topic → places of its queues."""
        self._queues_of_group: dict[BackKey, list[int]] = {}
        self.misses = 0
        """Pulls that found nothing."""
        self.failures = 0
        """Messages that the store did not take."""
        self.longest_put_ms = 0
        self.longest_get_ms = 0
        self._slow_puts = [0] * len(_LIMITS_MS)
        self._day = self._today()
        self.put_yesterday = self.put_today = self.got_yesterday = self.got_today = 0
        """Messages up to the start of yesterday, and of today."""

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone().date()

    # Counting

    def sent(self, topic: str, queue_id: int, size: int, count: int = 1) -> None:
        """A call has put messages into a queue."""
        puts = self._puts
        place = puts.places.get((topic, queue_id))
        if place is None:
            place = self._new_put(topic, queue_id)
        sums = puts.sums
        sums[place] += count
        sums[place + 1] += size
        sums[place + 2] += 1

    def got(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        """A call has got messages from a queue."""
        gets = self._gets
        place = gets.places.get((topic, queue_id, group))
        if place is None:
            place = self._new_get(topic, queue_id, group)
        sums = gets.sums
        sums[place] += count
        sums[place + 1] += size
        sums[place + 2] += 1

    def _new_put(self, topic: str, queue_id: int) -> int:
        if self._is_unwanted(topic):
            topic, queue_id = LMQ_PREFIX, 0
            if (known := self._puts.places.get((topic, queue_id))) is not None:
                return known
        place = self._puts.add((topic, queue_id))
        self._queues_of.setdefault(topic, []).append(place)
        self._note_system("PUT", topic, place)
        return place

    def _new_get(self, topic: str, queue_id: int, group: str) -> int:
        if self._is_unwanted(topic):
            topic, queue_id, group = LMQ_PREFIX, 0, LMQ_PREFIX
            if (known := self._gets.places.get((topic, queue_id, group))) is not None:
                return known
        place = self._gets.add((topic, queue_id, group))
        self._queues_of_group.setdefault((topic, group), []).append(place)
        self._note_system("GET", topic, place)
        return place

    def _is_unwanted(self, topic: str) -> bool:
        """Whether a topic is one of the many light ones, which are then counted together."""
        return topic.startswith(LMQ_PREFIX) and not self._settings.enable_lmq_stats

    def _note_system(self, kind: str, topic: str, place: int) -> None:
        if is_system_topic(topic):
            self._system_rows[kind].add(place // FIELDS)
        else:
            self._system_rows[kind].discard(place // FIELDS)  # of another topic, before

    def sent_back(self, group: str, topic: str) -> None:
        """A consumer has sent a message back, to get it again later."""
        place = self._backs.places.get((topic, group))
        if place is None:
            place = self._backs.add((topic, group))
        self._backs.sums[place] += 1
        self._backs.sums[place + CALLS] += 1

    def put_waited(self, topic: str, queue_id: int, waited_ms: int) -> None:
        """A call that put messages was answered so much later. Calls answered in their pass are not told."""
        place = self._puts.places.get((topic, queue_id))
        if place is not None:
            self._puts.sums[place + WAITED] += waited_ms
        self.longest_put_ms = max(self.longest_put_ms, waited_ms)
        for number in range(len(_LIMITS_MS) - 1, -1, -1):
            if waited_ms > _LIMITS_MS[number]:
                self._slow_puts[number] += 1
                return

    def get_waited(self, group: str, topic: str, queue_id: int, waited_ms: int) -> None:
        """A call that got messages had to wait for the disk."""
        place = self._gets.places.get((topic, queue_id, group))
        if place is not None:
            self._gets.sums[place + WAITED] += waited_ms
        self.longest_get_ms = max(self.longest_get_ms, waited_ms)

    def remove_topic(self, topic: str) -> None:
        """Forget what was counted for a topic, but for the broker's totals."""
        self._remove_puts([key for key in self._puts.places if key[0] == topic])
        self._remove_gets([key for key in self._gets.places if key[0] == topic])
        for back_key in [key for key in self._backs.places if key[0] == topic]:
            self._backs.remove(back_key)

    def remove_group(self, group: str) -> None:
        """Forget what was counted for a group, but for the broker's totals."""
        self._remove_gets([key for key in self._gets.places if key[2] == group])
        for back_key in [key for key in self._backs.places if key[1] == group]:
            self._backs.remove(back_key)

    def _remove_gets(self, keys: list[GetKey]) -> None:
        for key in keys:
            place, of_group = self._gets.places[key], (key[0], key[2])
            self._retire("GET", key[0], self._gets.remove(key))
            _forget(self._queues_of_group, of_group, place)

    def _remove_puts(self, keys: list[PutKey]) -> None:
        for key in keys:
            place = self._puts.places[key]
            self._retire("PUT", key[0], self._puts.remove(key))
            _forget(self._queues_of, key[0], place)

    def _drop_idle(self, now_ms: int) -> None:
        idle_min = self._settings.max_stats_idle_time_in_minutes
        if idle_min < 0:
            return
        since_ms = now_ms - idle_min * 60_000
        self._remove_puts(self._puts.idle(since_ms))
        self._remove_gets(self._gets.idle(since_ms))
        for key in self._backs.idle(since_ms):
            self._backs.remove(key)

    def _retire(self, kind: str, topic: str, counted: tuple[int, ...]) -> None:
        self._removed[f"BROKER_{kind}_NUMS"] += counted
        if not is_system_topic(topic):
            self._removed[f"BROKER_{kind}_NUMS_WITHOUT_SYSTEM_TOPIC"] += counted

    # Sampling

    def sample(self) -> None:
        """Called every interval_ms: what is viewed is as of the last call."""
        now_ms = self._clock.now_ms()
        for counters in (self._puts, self._gets, self._backs):
            counters.sample(now_ms)
        self._add_up("PUT", self._puts.last.sums)
        self._add_up("GET", self._gets.last.sums)
        self._broker.sums[self._broker.places["MISSES"]] = self.misses
        self._broker.sample(now_ms)
        self._drop_idle(now_ms)
        today = self._today()
        if today != self._day:
            self._day = today
            self.put_yesterday, self.put_today = self.put_today, self.put_total
            self.got_yesterday, self.got_today = self.got_today, self.got_total

    def _add_up(self, kind: str, sums: Sums) -> None:
        rows = sums.reshape(-1, FIELDS)
        total = rows.sum(axis=0)
        others = total - rows[sorted(self._system_rows[kind])].sum(axis=0)
        for name, added in ((f"BROKER_{kind}_NUMS", total), (f"BROKER_{kind}_NUMS_WITHOUT_SYSTEM_TOPIC", others)):
            place = self._broker.places[name]
            self._broker.sums[place : place + FIELDS] = array("q", (added + self._removed[name]).tolist())

    # Viewing

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """A counter by the names that Apache's tools use; None where nothing has been counted under them."""
        if name in _BROKER_NAMES and name != "MISSES":
            return self._broker.view([self._broker.places[name]], COUNT) if key == self._cluster else None
        if name.startswith("QUEUE_") and not self._settings.enable_detail_stat:
            return None
        parts = key.split("@")
        if name in _PUT_FIELDS:
            places = self._put_places(name, parts)
            return self._puts.view(places, _PUT_FIELDS[name]) if places else None
        if name in _GET_FIELDS:
            places = self._get_places(name, parts)
            return self._gets.view(places, _GET_FIELDS[name]) if places else None
        if name == "SNDBCK_PUT_NUMS" and len(parts) == 2:
            place = self._backs.places.get((parts[0], parts[1]))
            return None if place is None else self._backs.view([place], COUNT)
        return None

    def _put_places(self, name: str, parts: list[str]) -> list[int]:
        if len(parts) == 1 and name.startswith("TOPIC_PUT_") and name != "TOPIC_PUT_LATENCY":
            return self._queues_of.get(parts[0], [])
        if name == "TOPIC_PUT_LATENCY":
            parts = parts[::-1]
        if len(parts) != 2 or name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE") or not parts[1].isdecimal():
            return []
        place = self._puts.places.get((parts[0], int(parts[1])))
        return [] if place is None else [place]

    def _get_places(self, name: str, parts: list[str]) -> list[int]:
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            return self._queues_of_group.get((parts[0], parts[1]), []) if len(parts) == 2 else []
        if len(parts) != 3:
            return []
        queue_id, topic, group = parts if name == "GROUP_GET_LATENCY" else (parts[1], parts[0], parts[2])
        place = self._gets.places.get((topic, int(queue_id), group)) if queue_id.isdecimal() else None
        return [] if place is None else [place]

    def topic_put_tps(self, topic: str) -> float:
        """Messages a second that a topic received in the last minute."""
        item = self._puts.view(self._queues_of.get(topic, []), COUNT).stats_minute
        return 0.0 if item is None else item.tps

    def consume_tps(self, group: str, topic: str) -> float:
        """Messages a second that a group got of a topic in the last minute."""
        item = self._gets.view(self._queues_of_group.get((topic, group), []), COUNT).stats_minute
        return 0.0 if item is None else item.tps

    # Of the whole broker

    def _total(self, counters: Counters[PutKey] | Counters[GetKey], kind: str, field: int) -> int:
        now = np.frombuffer(counters.sums, np.int64)[field::FIELDS].sum() if counters.sums else 0
        return int(now) + int(self._removed[f"BROKER_{kind}_NUMS"][field])

    @property
    def put_total(self) -> int:
        """Messages received since the start."""
        return self._total(self._puts, "PUT", COUNT)

    @property
    def put_size_total(self) -> int:
        return self._total(self._puts, "PUT", SIZE)

    @property
    def got_total(self) -> int:
        """Messages handed out since the start."""
        return self._total(self._gets, "GET", COUNT)

    @property
    def found_total(self) -> int:
        """Pulls that found messages."""
        return self._total(self._gets, "GET", CALLS)

    def put_durations(self) -> list[tuple[str, int]]:
        """How many calls took how long until they were answered."""
        calls = self._total(self._puts, "PUT", CALLS)
        return [("[<=0ms]", max(calls - sum(self._slow_puts), 0)), *zip(_RANGES, self._slow_puts, strict=True)]

    def put_latency_ms(self, share: float) -> int:
        """A time in which so large a share of all calls was answered."""
        durations = self.put_durations()
        wanted = share * sum(count for _, count in durations)
        counted = 0
        for limit_ms, (_, count) in zip(_LIMITS_MS, durations, strict=False):
            counted += count
            if counted >= wanted:
                return limit_ms
        return self.longest_put_ms

    def put_tps(self) -> str:
        """Messages a second received over 10, 60 and 600 seconds."""
        return self._rates((("BROKER_PUT_NUMS", COUNT),))

    def found_tps(self) -> str:
        """Pulls a second that found messages."""
        return self._rates((("BROKER_GET_NUMS", CALLS),))

    def miss_tps(self) -> str:
        return self._rates((("MISSES", COUNT),))

    def pull_tps(self) -> str:
        """All pulls a second."""
        return self._rates((("BROKER_GET_NUMS", CALLS), ("MISSES", COUNT)))

    def transferred_tps(self) -> str:
        """Messages a second handed out."""
        return self._rates((("BROKER_GET_NUMS", COUNT),))

    def _rates(self, counted: tuple[tuple[str, int], ...]) -> str:
        rates = (
            sum(self._broker.per_second([self._broker.places[name]], field, seconds) for name, field in counted)
            for seconds in (10, 60, 600)
        )
        return " ".join(f"{rate:.3f}" for rate in rates)

    # Listed, for metrics

    def puts(self) -> list[tuple[str, int, int]]:
        """(topic, messages, bytes) since the start."""
        return [
            (topic, self._now(self._puts.sums, places, COUNT), self._now(self._puts.sums, places, SIZE))
            for topic, places in self._queues_of.items()
        ]

    def gets(self) -> list[tuple[str, str, int, int]]:
        """(topic, group, messages, bytes) since the start."""
        return [
            (*key, self._now(self._gets.sums, places, COUNT), self._now(self._gets.sums, places, SIZE))
            for key, places in self._queues_of_group.items()
        ]

    def backs(self) -> list[tuple[str, str, int]]:
        """(topic, group, messages sent back) since the start."""
        return [(*key, self._backs.sums[place]) for key, place in self._backs.places.items()]

    @staticmethod
    def _now(sums: array[int], places: list[int], field: int) -> int:
        return sum(sums[place + field] for place in places)


def _forget(table: dict[K, list[int]], key: K, place: int) -> None:
    places = table[key]
    places.remove(place)
    if not places:
        del table[key]


_BROKER_NAMES: Final = (
    "BROKER_PUT_NUMS",
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
    "BROKER_GET_NUMS",
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC",
    "MISSES",
)
_PUT_FIELDS: Final = {
    "TOPIC_PUT_NUMS": COUNT,
    "TOPIC_PUT_SIZE": SIZE,
    "TOPIC_PUT_LATENCY": WAITED,
    "QUEUE_PUT_NUMS": COUNT,
    "QUEUE_PUT_SIZE": SIZE,
}
_GET_FIELDS: Final = {
    "GROUP_GET_NUMS": COUNT,
    "GROUP_GET_SIZE": SIZE,
    "GROUP_GET_LATENCY": WAITED,
    "QUEUE_GET_NUMS": COUNT,
    "QUEUE_GET_SIZE": SIZE,
}
_LIMITS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_RANGES: Final = (
    "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]", "[3~4s]",
    "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
