"""Fetches one queue ahead of its reader, as long as it is ours.

Answers   Messages wait for the reader. An offset that does not exist moves us to where the broker says: forward
          without losing what waits, backward from there anew. A reset by an administrator starts anew, and is
          stored.
Errors    Nothing ends the loop: it heartbeats where the broker does not know us, asks for the route again where a
          broker is away, and goes on after a pause. A damaged record holds the queue there, and is logged, until it
          is gone or somebody seeks behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from rmq_core.client.instance import ClientInstance
from rmq_core.client.offset_store import OffsetStore
from rmq_core.client.pull_queue import Cache, PulledQueue
from rmq_core.client.pulls import Pulled, PullRouter, PullStatus
from rmq_core.client.received import decode_messages
from rmq_core.client.subscriptions import matches
from rmq_core.errors import BrokerError, ClientClosedError, ClientError, ConnectError, RocketMQError
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import is_retry_topic

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
BUSY_RETRY_MS: Final = 20
_UNKNOWN_TO_BROKER: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)


class PullLoop:
    """The pulls of one queue; start() and stop() as often as needed."""

    def __init__(
        self,
        state: PulledQueue,
        instance: ClientInstance,
        router: PullRouter,
        store: OffsetStore,
        cache: Cache,
        *,
        subscription: Callable[[], SubscriptionData | None],
        first_offset: Callable[[PulledQueue], Awaitable[int]],
        count_max: int,
        suspend_ms: int,
        namespace: str = "",
    ) -> None:
        """subscription is asked before each pull (None: not now), first_offset where the state knows no offset."""
        self.state = state
        self._instance = instance
        self._router = router
        self._store = store
        self._cache = cache
        self._subscription = subscription
        self._first_offset = first_offset
        self._count_max = count_max
        self._suspend_ms = suspend_ms
        self._namespace = namespace
        self._task: asyncio.Task[None] | None = None
        self._last_problem = ""

    def start(self) -> None:
        """Go on from where the state is."""
        if self._task is None or self._task.done():
            self._task = self._instance.spawn(self._run())

    async def stop(self) -> None:
        """End; what is in flight is dropped."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        state = self.state
        while not state.is_leaving:
            try:
                if state.next_offset is None:
                    await self._begin()
                elif state.is_paused or not self._cache.has_room(state):
                    await self._cache.room.wait()
                else:
                    await self._pull(state.next_offset)
                self._last_problem = ""
            except ClientClosedError:
                return
            except RocketMQError as error:
                await self._recover(error)
            except Exception:  # a defect in one round must not end all later ones
                logger.exception("pulling of %s failed", state.queue)
                await self._instance.clock.sleep(RETRY_MS)

    async def _begin(self) -> None:
        generation = self.state.generation
        offset = await self._first_offset(self.state)
        if generation == self.state.generation:
            self.state.append((), next_offset=offset)

    async def _pull(self, offset: int) -> None:
        state = self.state
        generation, subscription = state.generation, self._subscription()
        if subscription is None:
            await self._instance.clock.sleep(BUSY_RETRY_MS)
            return
        pulled = await self._router.pull(
            state.wire,
            offset=offset,
            subscription=subscription,
            count_max=self._count_max,
            suspend_ms=self._suspend_ms,
            send_expression=True,
            lite=True,
        )
        if generation != state.generation or offset != state.next_offset or state.is_paused or state.is_leaving:
            return
        state.pulled_time_ms = self._instance.clock.now_ms()
        match pulled.status:
            case PullStatus.FOUND:
                self._take(pulled, offset, subscription)
            case PullStatus.NO_NEW_MESSAGE | PullStatus.NO_MATCHED_MESSAGE:
                state.append((), next_offset=pulled.next_offset)
            case PullStatus.OFFSET_ILLEGAL:
                self._correct(pulled, offset)
            case PullStatus.OFFSET_RESET:
                logger.info("%s was reset to %d", state.queue, pulled.next_offset)
                self._place(pulled.next_offset)
                await self._store_place()

    def _take(self, pulled: Pulled, offset: int, subscription: SubscriptionData) -> None:
        state = self.state
        messages = decode_messages(
            pulled.body,
            state.wire,
            self._namespace,
            min_offset=pulled.min_offset,
            max_offset=pulled.max_offset,
        )
        next_offset = max([pulled.next_offset, *(message.queue_offset + 1 for message in messages[-1:])])
        wanted = [each for each in messages if each.queue_offset >= offset and matches(subscription, each)]
        state.append(wanted, next_offset=next_offset)

    def _correct(self, pulled: Pulled, offset: int) -> None:
        logger.warning(
            "%s has nothing at offset %d, it holds [%d, %d); going on at %d",
            self.state.queue, offset, pulled.min_offset, pulled.max_offset, pulled.next_offset,
        )  # fmt: skip
        if pulled.next_offset > offset:
            self.state.append((), next_offset=pulled.next_offset)
        else:
            self.state.jump(pulled.next_offset)

    async def seek(self, offset: int) -> None:
        """Throw away what was fetched and go on there."""
        # First the jump: whoever seeks at the same time must find either the old pull or the last jump.
        self.state.jump(offset)
        await self._restart()

    async def reset(self, offset: int) -> None:
        """An administrator moves the group: seek, and store the new place whether progress is stored or not."""
        self._place(offset)
        await self._restart()
        await self._store_place()

    def _place(self, offset: int) -> None:
        self.state.jump(offset)
        self._store.update(self.state.wire, offset)

    async def _store_place(self) -> None:
        try:
            await self._store.persist_one(self.state.wire, acknowledged=True)
        except RocketMQError as error:
            logger.warning("the reset of %s is stored later: %s", self.state.queue, error)

    async def _restart(self) -> None:
        was_started = self._task is not None
        await self.stop()
        if was_started:
            self.start()

    async def _recover(self, error: RocketMQError) -> None:
        state, instance = self.state, self._instance
        code = error.code if isinstance(error, BrokerError) else None
        if code == ResponseCode.FLOW_CONTROL:
            await instance.clock.sleep(BUSY_RETRY_MS)
            return
        problem = f"{type(error).__name__}: {error}"
        is_news = problem != self._last_problem
        logger.log(
            logging.WARNING if is_news and not is_retry_topic(state.wire.topic) else logging.DEBUG,
            "pulling of %s failed, trying again: %s", state.queue, problem,
        )  # fmt: skip
        self._last_problem = problem
        with contextlib.suppress(RocketMQError):
            if code in _UNKNOWN_TO_BROKER:
                await instance.heartbeat()
            elif isinstance(error, ClientError):
                await instance.route(state.wire.topic, refresh=True)
            if is_news and (code in _UNKNOWN_TO_BROKER or isinstance(error, ConnectError)):
                return  # what was just mended is tried at once; a connection that broke opens again
        await instance.clock.sleep(RETRY_MS)
