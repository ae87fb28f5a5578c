"""An hour of traffic as a broker would have stored it: what 02_inside_the_store looks into.

The hour is made up, the directory is not: it is written by the store of the broker, with a clock that runs ahead.
"""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rmq_core.clock import SystemClock
from rmq_core.config import StoreSettings
from rmq_core.protocol.message import dlq_topic, encode_properties, retry_topic
from rmq_core.store.message_store import MessageStore, PutStatus

START: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)
MINUTES: Final = 60
SLOW: Final = range(31, 36)
"""The minutes in which the disk was slow."""
LOST: Final = "order-4711"
"""The order that a customer asks about."""
GROUP: Final = "billing"
_HOST: Final = bytes([10, 0, 0, 7, 0, 0, 0xC3, 0x50])
_STATES: Final = ("paid", "shipped", "returned")


class _Clock(SystemClock):
    """Stands where it is told to."""

    at_ms = round(START.timestamp() * 1000)

    def now_ms(self) -> int:
        return self.at_ms


class _Hour:
    """Writes the hour, second by second."""

    def __init__(self, folder: Path) -> None:
        self.clock = _Clock()
        settings = StoreSettings(
            store_path_root_dir=str(folder),
            mapped_file_size_commit_log=16 << 20,
            max_hash_slot_num=50_000,
            max_index_num=200_000,
        )
        self.store = MessageStore(settings, clock=self.clock)
        self.pick = random.Random(7)
        self.written = 0

    def put(
        self, topic: str, queue: int, body: bytes, properties: dict[str, str], latency_ms: float, retries: int = 0
    ) -> None:
        self.written += 1
        named = {"UNIQ_KEY": f"0A000007{self.written:024X}", **properties}
        born_ms = self.clock.at_ms - round(latency_ms)
        put = self.store.put(
            topic,
            queue,
            body,
            encode_properties(named),
            born_time_ms=born_ms,
            born_host=_HOST,
            reconsume_times=retries,
        )
        assert put.status is PutStatus.PUT_OK, put.reason

    def order(self, number: int, latency_ms: float) -> None:
        pick = self.pick
        note = "x" * min(int(pick.lognormvariate(4.5, 1.0)), 20_000)
        body = json.dumps({"id": number, "amount": round(pick.uniform(5, 500), 2), "note": note}).encode()
        self.put("Orders", number % 4, body, {"TAGS": pick.choice(_STATES), "KEYS": f"order-{number}"}, latency_ms)
        if number % 3 == 0:
            paid = json.dumps({"order": number}).encode()
            self.put("Payments", number % 2, paid, {"KEYS": f"order-{number}"}, latency_ms)

    def fail(self, times: int) -> None:
        """The lost order, as the broker stores one that its consumer refuses again and again."""
        body = json.dumps({"id": 4711, "amount": "twelve"}).encode()
        kept = {"KEYS": LOST, "TAGS": "paid", "RETRY_TOPIC": "Orders", "RECONSUME_TIME": str(times)}
        topic = retry_topic(GROUP) if times < 4 else dlq_topic(GROUP)
        self.put(topic, 0, body, kept, 0, retries=times)


def an_hour(folder: Path, *, per_second: int = 6) -> int:
    """Write the hour into a directory that does not exist yet; returns how many messages it has."""
    hour = _Hour(folder)
    hour.store.open()
    number = 1
    for second in range(MINUTES * 60):
        minute = second // 60
        hour.clock.at_ms = round(START.timestamp() * 1000) + second * 1000 + hour.pick.randrange(900)
        wave = per_second * (1 + 0.6 * math.sin(minute / MINUTES * 2 * math.pi))
        for _ in range(max(round(hour.pick.gauss(wave, 1)), 0)):
            slow_ms = hour.pick.expovariate(1 / 1500) if minute in SLOW else 0
            if number == 4711:
                body = json.dumps({"id": number, "amount": "twelve"}).encode()
                hour.put("Orders", number % 4, body, {"TAGS": "paid", "KEYS": LOST}, 3)
            else:
                hour.order(number, 2 + hour.pick.expovariate(1 / 8) + slow_ms)
            number += 1
        if number > 4711 and second % 60 == 30 and (times := (second - 790) // 60) in range(1, 5):
            hour.fail(times)
        hour.store.end_pass()
    hour.store.close()
    return hour.written
