"""How busy a broker is: one loop has no queue whose length would say.

Busy      The loop is late, a flush lets its senders wait, or too much is not on disk. Sends are then refused with
          the code and the remark that clients take as "try another broker".
Late      Several times in a row: one stop of the loop, a machine that was busy elsewhere for a moment or a big
          collection, is over when it is noticed, and refusing sends afterwards would only lose them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

INTERVAL_MS: Final = 50
LATE_TIMES: Final = 3
FLUSH_WAIT_MAX_MS: Final = 1000
UNFLUSHED_MAX: Final = 256 << 20


class Load:
    """Measures from time to time and says in Broker.busy what it found."""

    interval_ms: Final = INTERVAL_MS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._last_ms = broker.clock.monotonic_ms()
        self._late_times = 0

    def measure(self) -> None:
        """Look at the loop's delay and at what waits for the disk."""
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        late_ms = now_ms - self._last_ms - INTERVAL_MS
        self._last_ms = now_ms
        is_late = late_ms > broker.settings.wait_time_mills_in_send_queue
        self._late_times = self._late_times + 1 if is_late else 0
        store = broker.store
        waiting_ms = store.oldest_waiter_ms
        unflushed = store.log.end - store.log.flushed
        if not broker.settings.broker_fast_failure_enable:
            broker.busy = None
        elif unflushed > UNFLUSHED_MAX or waiting_ms > FLUSH_WAIT_MAX_MS:
            broker.busy = (
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{waiting_ms:.0f}ms, size of queue: {unflushed}"
            )
        elif self._late_times >= LATE_TIMES:
            broker.busy = (
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{late_ms:.0f}ms, size of queue: {broker.long_polls.count}"
            )
        else:
            broker.busy = None
