"""One pull of one queue, and where it goes: to the master, or to the slave that the last answer suggested.

Who pulls decides what to do with an answer; what went wrong is raised: BrokerError with the broker's code,
ConnectError, CallTimeoutError, NoRouteError where no broker of that name is known, UnsupportedError where the
broker is too old for the filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rmq_core.client.instance import ClientInstance
from rmq_core.client.routes import MASTER, BrokerAddress
from rmq_core.errors import BrokerError, ClientError, NoRouteError, UnsupportedError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.codes import V4_1_0_SNAPSHOT, V5_0_0, ResponseCode
from rmq_core.protocol.message import MessageQueue

COMMIT_FLAG: Final = 0x1
SUSPEND_FLAG: Final = 0x2
SUBSCRIPTION_FLAG: Final = 0x4
LITE_FLAG: Final = 0x10

TAG: Final = "TAG"
RESET_REMARK: Final = "OFFSET_RESET"
ANSWER_MARGIN_MS: Final = 15_000
"""How much longer than the broker may hold a pull we wait for its answer: brokers look only every five seconds."""
PLAIN_TIMEOUT_MS: Final = 10_000
"""How long we wait for an answer that the broker may not hold back."""


class PullStatus(Enum):
    """What a pull found."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    NO_MATCHED_MESSAGE = "no matched message"
    """There are messages, and those looked at are not wanted: go on at next_offset."""
    OFFSET_ILLEGAL = "offset illegal"
    """There is nothing at that offset, and never will be: go on at next_offset."""
    OFFSET_RESET = "offset reset"
    """An administrator moves the group to next_offset."""


_STATUSES: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: bytes = b""
    """Whole stored records, one behind the other."""


async def pull(
    instance: ClientInstance,
    queue: MessageQueue,
    *,
    group: str,
    offset: int,
    subscription: SubscriptionData | None = None,
    count_max: int = 32,
    suspend_ms: int = 0,
    commit_offset: int | None = None,
    send_expression: bool = False,
    lite: bool = False,
    broker_id: int = MASTER,
    only_master: bool = False,
    timeout_ms: float | None = None,
    size_max_bytes: int | None = None,
) -> Pulled:
    """Ask for messages of a wire-named queue from an offset on.

    suspend_ms       how long the broker may hold the pull while there is nothing; 0: it answers at once
    commit_offset    the group's progress, stored on the way; slaves, which keep none, are not told
    send_expression  name the subscription in the pull itself: for groups that send no heartbeats
    """
    broker = await broker_of(instance, queue, MASTER if only_master else broker_id, only_master=only_master)
    version = instance.versions.get(broker.address, V5_0_0)
    if subscription is not None and (subscription.expression_type or TAG) != TAG and version < V4_1_0_SNAPSHOT:
        raise UnsupportedError(f"broker {queue.broker_name} is too old for {subscription.expression_type} filters")
    flags = LITE_FLAG if lite else 0
    if suspend_ms > 0:
        flags |= SUSPEND_FLAG
    if commit_offset is not None and not broker.is_slave:
        flags |= COMMIT_FLAG
    if send_expression:
        flags |= SUBSCRIPTION_FLAG
    # Brokers of 4.9 know pulls of lite consumers only under the common code.
    kind = r.LitePullMessage if lite and version >= V5_0_0 else r.PullMessage
    request = kind(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count_max,
        sys_flag=flags,
        commit_offset=commit_offset if flags & COMMIT_FLAG and commit_offset is not None else 0,
        suspend_timeout_millis=suspend_ms,
        sub_version=subscription.sub_version if subscription is not None else 0,
        subscription=subscription.sub_string if subscription is not None and send_expression else None,
        expression_type=(subscription.expression_type if subscription is not None else None) or TAG,
        max_msg_bytes=size_max_bytes,
    )
    if timeout_ms is None:
        timeout_ms = suspend_ms + ANSWER_MARGIN_MS if suspend_ms > 0 else PLAIN_TIMEOUT_MS
    answer = await instance.call(broker.address, request, timeout_ms=timeout_ms)
    header = answer.header
    status = _STATUSES[ResponseCode(answer.code)]
    if status is PullStatus.OFFSET_ILLEGAL and answer.remark == RESET_REMARK:
        status = PullStatus.OFFSET_RESET
    return Pulled(
        status,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
        answer.body if status is PullStatus.FOUND else b"",
    )


async def broker_of(
    instance: ClientInstance, queue: MessageQueue, broker_id: int = MASTER, *, only_master: bool = False
) -> BrokerAddress:
    """The process to ask about a queue; the topic's route is fetched where none names its broker.

    Raises NoRouteError, or ConnectError where no name server answers.
    """
    found = instance.routes.find(queue.broker_name, broker_id, only_this=only_master)
    if found is None:
        await instance.route(queue.topic, refresh=True)
        found = instance.routes.find(queue.broker_name, broker_id, only_this=only_master)
    if found is None:
        raise NoRouteError(f"no route names an address of broker {queue.broker_name}")
    return found


class PullRouter:
    """Pulls where the last answer for a queue suggested; back at the master where that one fails."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}

    def suggested(self, queue: MessageQueue) -> int:
        """The broker id that the next pull goes to."""
        return self._suggested.get(queue, MASTER)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is no longer ours, or what was suggested does not answer."""
        self._suggested.pop(queue, None)

    async def pull(
        self,
        queue: MessageQueue,
        *,
        offset: int,
        subscription: SubscriptionData | None = None,
        count_max: int = 32,
        suspend_ms: int = 0,
        commit_offset: int | None = None,
        send_expression: bool = False,
        lite: bool = False,
        timeout_ms: float | None = None,
        size_max_bytes: int | None = None,
    ) -> Pulled:
        """pull() of the router's group."""
        try:
            pulled = await pull(
                self._instance,
                queue,
                group=self._group,
                offset=offset,
                subscription=subscription,
                count_max=count_max,
                suspend_ms=suspend_ms,
                commit_offset=commit_offset,
                send_expression=send_expression,
                lite=lite,
                broker_id=self._suggested.get(queue, MASTER),
                timeout_ms=timeout_ms,
                size_max_bytes=size_max_bytes,
            )
        except (ClientError, BrokerError):
            self.forget(queue)
            raise
        if pulled.suggested_broker_id != MASTER:
            self._suggested[queue] = pulled.suggested_broker_id
        else:
            self._suggested.pop(queue, None)
        return pulled
