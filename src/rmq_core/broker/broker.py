"""What a handler may touch: the parts of a broker, and how messages are put from the event loop.

Put       put() appends; the end of the pass writes what all calls of the pass appended, before any of their
          answers goes out. If that fails, the connections that were to hear of it are closed, and nothing is
          accepted any more.
Durable   stored() waits for the disk where the settings and the message ask for it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmq_core.clock import Clock, Timer
from rmq_core.config import BrokerSettings, ClientSettings, ServerSettings, StoreSettings
from rmq_core.protocol.message import SCHEDULE_TOPIC, find_property
from rmq_core.protocol.message_id import UniqueKeyFactory, month_range_ms
from rmq_core.store.dispatcher import Appended
from rmq_core.store.message_store import MessageStore, Put, PutStatus

if TYPE_CHECKING:
    from rmq_core.broker.assignments import Assignments
    from rmq_core.broker.clients import Clients
    from rmq_core.broker.configuration import Configuration
    from rmq_core.broker.consumer_offsets import ConsumerOffsetManager
    from rmq_core.broker.filters import ConsumerFilterManager
    from rmq_core.broker.groups import Groups
    from rmq_core.broker.longpoll import LongPolls
    from rmq_core.broker.queue_locks import QueueLocks
    from rmq_core.broker.registration import Registration
    from rmq_core.broker.schedule import Schedule
    from rmq_core.broker.stats import Stats
    from rmq_core.broker.topics import Topics
    from rmq_core.broker.transactions import Transactions

log = logging.getLogger(__name__)
T = TypeVar("T")

POOL_THREADS: Final = 4


class Broker:
    """The parts of one broker; app.py makes them, starts and stops them."""

    topics: Topics
    groups: Groups
    offsets: ConsumerOffsetManager
    clients: Clients
    filters: ConsumerFilterManager
    queue_locks: QueueLocks
    long_polls: LongPolls
    schedule: Schedule
    transactions: Transactions
    stats: Stats
    configuration: Configuration
    assignments: Assignments
    registration: Registration

    def __init__(
        self,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        server_settings: ServerSettings,
        client_settings: ClientSettings,
        *,
        clock: Clock,
        store: MessageStore,
        pass_end_soon: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.store_settings = store_settings
        self.server_settings = server_settings
        self.client_settings = client_settings
        self.clock = clock
        self.store = store
        self.address = ""
        """ip:port that clients are told."""
        self.store_host = b""
        """The same as records hold it."""
        self.boot_time_ms = clock.now_ms()
        self.busy: str | None = None
        """Why sends are refused for the moment; None where they are not."""
        self.pass_end_soon = pass_end_soon
        """Have what is put now written at the end of this pass."""
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="broker")
        self._timers: dict[int, Timer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self._keys: UniqueKeyFactory | None = None

    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def is_master(self) -> bool:
        return self.settings.broker_id == 0

    # Work beside the loop

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run what may block in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let a coroutine go on behind the present call; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work behind a call failed", exc_info=error)

    def every(
        self, interval_ms: float | Callable[[], float], action: Callable[[], object | Awaitable[object]]
    ) -> None:
        """Repeat an action until the broker stops; each time begins an interval after the last one ended."""
        number = len(self._timers)
        interval = interval_ms if callable(interval_ms) else lambda: interval_ms

        def again() -> None:
            if not self._is_stopping:
                self._timers[number] = self.clock.call_later(interval(), start)

        def start() -> None:
            try:
                result = action()
            except Exception:  # the next time may go well
                log.exception("a periodic task failed")
                result = None
            if inspect.iscoroutine(result):
                self.begin(finish(result))
            else:
                again()

        async def finish(work: Coroutine[Any, Any, object]) -> None:
            try:
                await work
            finally:
                again()

        again()

    async def stop_work(self) -> None:
        """End the periodic actions and what still goes on behind calls."""
        self._is_stopping = True
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close_pool(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    # Messages

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        *,
        born_time_ms: int,
        born_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Put:
        """Append a message; it is written at the end of this pass."""
        self.pass_end_soon()
        put = self.store.put(
            topic,
            queue_id,
            body,
            properties,
            born_time_ms=born_time_ms,
            born_host=born_host,
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
        )
        if put.status is not PutStatus.PUT_OK:
            self.stats.failures += 1
        return put

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        *,
        extra_properties: bytes,
        born_time_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> Put:
        """Append the messages of a client's batch; they are written at the end of this pass.

        Raises RemoteProtocolError where the bytes are no batch.
        """
        self.pass_end_soon()
        return self.store.put_batch(
            topic,
            queue_id,
            batch,
            extra_properties=extra_properties,
            born_time_ms=born_time_ms,
            born_host=born_host,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
        )

    def unique_key(self) -> str:
        """An id for a message that came without one, or that the broker makes itself."""
        now_ms = self.clock.now_ms()
        if self._keys is None:
            offset_ms = int((datetime.now().astimezone().utcoffset() or timedelta()).total_seconds() * 1000)
            self._keys = UniqueKeyFactory(
                ip=self.store_host[:-4],
                pid=os.getpid(),
                hash_bytes=os.urandom(4),
                month_range_ms=functools.partial(month_range_ms, utc_offset_ms=offset_ms),
            )
        return self._keys.next(now_ms)

    def end_pass(self) -> None:
        """Write what this pass put. Raises StoreError where that failed."""
        self.store.end_pass()

    def waits_for_disk(self, properties: bytes) -> bool:
        """Whether the sender of a message with these properties hears of it only once it is durable."""
        return self.store.flusher.is_sync and find_property(properties, b"WAIT") != b"false"

    async def stored(self, put: Put, properties: bytes) -> PutStatus:
        """What became of a message that was put, once its sender may be told."""
        if put.status is not PutStatus.PUT_OK or not self.waits_for_disk(properties):
            return put.status
        return await self.durable(put.end)

    async def durable(self, end: int) -> PutStatus:
        """Return when the log is on disk up to an offset, or why it is not."""
        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def tell(status: PutStatus) -> None:
            if not future.done():
                future.set_result(status)

        self.store.when_durable(end, tell)
        return await future

    async def written(self) -> bool:
        """Return behind the end of this pass: whether what it put is in the log."""
        self.pass_end_soon()
        # The end of the pass is in the loop's queue before the call-back that wakes this up.
        await asyncio.sleep(0)
        return self.store.failure is None

    def arrived(self, appended: list[Appended]) -> None:
        """Readers can see these messages now."""
        for queue in {each[0] for each in appended}:
            if queue.topic == SCHEDULE_TOPIC:
                self.schedule.arrived(queue.queue_id + 1)
        self.long_polls.arrived(appended)
