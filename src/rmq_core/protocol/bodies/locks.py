"""Locks of queues for orderly consumption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Wire
from rmq_core.protocol.message import MessageQueue


@dataclass(frozen=True, slots=True)
class LockBatchRequestBody(Body):
    """Queues that a client wants to hold."""

    consumer_group: str | None = None
    client_id: str | None = None
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool | None = None


@dataclass(frozen=True, slots=True)
class UnlockBatchRequestBody(Body):
    """Queues that a client gives back."""

    consumer_group: str | None = None
    client_id: str | None = None
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool | None = None


@dataclass(frozen=True, slots=True)
class LockBatchResponseBody(Body):
    """The queues that the client holds now."""

    locked: Annotated[tuple[MessageQueue, ...], Wire("lockOKMQSet")] = ()
