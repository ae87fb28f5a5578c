"""What pulling consumers are to their client instance, whichever way they pull: a member of a group."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmq_core.client.consumer_options import consume_from_where, consumer_group
from rmq_core.client.offset_store import FileOffsets, OffsetStore, RemoteOffsets, offset_file
from rmq_core.client.options import ClientOptions
from rmq_core.client.pull_options import Assignment
from rmq_core.client.queue_offsets import StartFrom
from rmq_core.client.received import bare_name
from rmq_core.client.subscriptions import is_by_tags
from rmq_core.errors import BrokerError
from rmq_core.protocol.bodies import (
    CheckClientRequestBody,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeType,
    MessageModel,
    ProcessQueueInfo,
    SubscriptionData,
)
from rmq_core.protocol.codes import CURRENT_VERSION, ResponseCode
from rmq_core.protocol.message import MessageQueue, topic_name_problem, wrap_namespace
from rmq_core.protocol.record import StoredRecord
from rmq_core.protocol.requests import CheckClientConfig

if TYPE_CHECKING:
    from rmq_core.client.instance import ClientInstance

logger = logging.getLogger(__name__)
_MIB: Final = 1 << 20


CALL_BACK_TIMEOUT_MS: Final = 30_000
TRY_AGAIN_MS: Final = 1_000


async def tell(call_back: Callable[..., Any], *arguments: object) -> None:
    """Call a function of the user's, or await its coroutine for so long at most; what it raises is logged."""
    try:
        async with asyncio.timeout(CALL_BACK_TIMEOUT_MS / 1000):
            result = call_back(*arguments)
            if inspect.isawaitable(result):
                await result
    except Exception:  # it must not stop what goes on around it
        logger.exception("the call-back %r failed", call_back)


class PullRole:
    """Membership of a group that asks for its messages itself. Names inside are those on the wire."""

    def __init__(
        self,
        group: str,
        options: ClientOptions,
        *,
        broadcasting: bool = False,
        start_from: StartFrom = "latest",
    ) -> None:
        self.group = wrap_namespace(options.namespace, consumer_group(group))
        self.subscriptions: dict[str, SubscriptionData] = {}
        """What heartbeats say we read, by topic."""
        self.options = options
        self.is_closed = False
        self.instance: ClientInstance
        self._is_trying_again = False
        self._model = MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING
        self._start_from = start_from
        self._started_ms = options.clock.now_ms()

    # Names

    def wire_topic(self, topic: str) -> str:
        """Raises TypeError and ValueError where it can be no topic."""
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        if problem := topic_name_problem(topic):
            raise ValueError(problem)
        return wrap_namespace(self.options.namespace, topic)

    def wire(self, queue: MessageQueue) -> MessageQueue:
        """The queue as brokers name it."""
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"queue must be MessageQueue, not {type(queue).__name__}")
        return MessageQueue(self.wire_topic(queue.topic), queue.broker_name, queue.queue_id)

    def bare(self, queue: MessageQueue) -> MessageQueue:
        """The queue as users name it."""
        return MessageQueue(bare_name(self.options.namespace, queue.topic), queue.broker_name, queue.queue_id)

    # What the instance asks

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=self._model,
            consume_from_where=consume_from_where(self._start_from),
            subscription_data_set=tuple(each for _, each in sorted(self.subscriptions.items())),
            unit_mode=False,
        )

    def info(self, queues: Mapping[MessageQueue, ProcessQueueInfo]) -> ConsumerRunningInfo:
        """A look inside, as administrators know it from Java."""
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self.options.name_servers),
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_ACTIVELY.value,
                "PROP_CLIENT_VERSION": str(CURRENT_VERSION),
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "messageModel": self._model.value,
            },
            subscription_set=tuple(each for _, each in sorted(self.subscriptions.items())),
            mq_table=dict(queues),
        )

    async def consume_directly(self, record: StoredRecord, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"{self.group} asks for its messages itself and has no listener for this one"
        )

    # What it needs to work

    def try_again_soon(self) -> None:
        """Divide the queues again before the next regular round."""

        def wake() -> None:
            self._is_trying_again = False
            if not self.is_closed:
                self.instance.rebalance_soon()

        if not self._is_trying_again:
            self._is_trying_again = True
            self.instance.clock.call_later(TRY_AGAIN_MS, wake)

    def assignment(
        self,
        topic: str,
        owned: Collection[MessageQueue],
        *,
        given: Collection[MessageQueue],
        taken: Collection[MessageQueue],
    ) -> Assignment:
        """What users are told of a change."""
        return Assignment(
            bare_name(self.options.namespace, topic),
            frozenset(map(self.bare, owned)),
            frozenset(map(self.bare, given)),
            frozenset(map(self.bare, taken)),
        )

    def offset_store(self, instance: ClientInstance, offset_dir: str | Path | None) -> OffsetStore:
        """On the brokers, or in a file where every member reads everything."""
        if self._model is MessageModel.CLUSTERING:
            return RemoteOffsets(instance, self.group)
        assert self.options.instance_name is not None  # consumer_options()
        return FileOffsets(offset_file(offset_dir, instance_name=self.options.instance_name, group=self.group))

    async def check_filter(self, instance: ClientInstance, wanted: SubscriptionData) -> None:
        """Ask a broker of the topic whether it can filter so. Raises BrokerError with what it answers."""
        if is_by_tags(wanted):
            return
        route = await instance.route(wanted.topic)
        body = CheckClientRequestBody(instance.client_id, self.group, wanted).encode()
        for name in sorted({queue.broker_name for queue in route.read_queues}):
            await instance.call(instance.broker(name).address, CheckClientConfig(), body)


def queue_info(
    *, progress: int, offsets: Sequence[int], size_bytes: int, pulled_time_ms: int, is_dropped: bool
) -> ProcessQueueInfo:
    """What administrators see of a queue; offsets are those of what waits, in order."""
    return ProcessQueueInfo(
        commit_offset=progress,
        cached_msg_min_offset=offsets[0] if offsets else 0,
        cached_msg_max_offset=offsets[-1] if offsets else 0,
        cached_msg_count=len(offsets),
        cached_msg_size_in_mib=size_bytes // _MIB,
        dropped=is_dropped,
        last_pull_timestamp=pulled_time_ms,
        last_consume_timestamp=pulled_time_ms,
    )


def checked_queues(queues: Collection[MessageQueue], *, what: str = "queues") -> list[MessageQueue]:
    """Raises TypeError where it is no collection of queues."""
    if isinstance(queues, MessageQueue | str):
        raise TypeError(f"{what} must be a list of MessageQueue")
    for queue in queues:
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"{what} must hold MessageQueue, not {type(queue).__name__}")
    return list(dict.fromkeys(queues))
