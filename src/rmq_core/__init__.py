"""Apache RocketMQ in Python: clients, broker, name server, and message stores read offline.

The clients here are the blocking forms; `rmq_core.aio` has the same names with coroutines. A name is loaded when
it is first used: who needs only a part does not pay for the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_core.client.blocking.admin import Admin
    from rmq_core.client.blocking.lite_pull import LitePullConsumer
    from rmq_core.client.blocking.producer import Producer
    from rmq_core.client.blocking.pull_consumer import PullConsumer, PullSchedule
    from rmq_core.client.blocking.push_consumer import PushConsumer
    from rmq_core.client.blocking.transactions import TransactionProducer
    from rmq_core.client.group_member import GroupMember
    from rmq_core.client.listen_results import ConsumeResult, RetryLater, SuspendQueue
    from rmq_core.client.options import Credentials
    from rmq_core.client.queue_client import QueueClient
    from rmq_core.client.received import ReceivedMessage
    from rmq_core.client.send_results import BatchSendError, SendError, SendResult, SendStatus
    from rmq_core.client.transactions import TransactionDecision
    from rmq_core.embedded_broker import EmbeddedBroker, embedded
    from rmq_core.errors import RocketMQError
    from rmq_core.protocol.message import Message, MessageQueue
    from rmq_core.store.reader import open_store

_HOMES = {
    "Admin": "rmq_core.client.blocking.admin",
    "BatchSendError": "rmq_core.client.send_results",
    "ConsumeResult": "rmq_core.client.listen_results",
    "Credentials": "rmq_core.client.options",
    "EmbeddedBroker": "rmq_core.embedded_broker",
    "GroupMember": "rmq_core.client.group_member",
    "LitePullConsumer": "rmq_core.client.blocking.lite_pull",
    "Message": "rmq_core.protocol.message",
    "MessageQueue": "rmq_core.protocol.message",
    "Producer": "rmq_core.client.blocking.producer",
    "PullConsumer": "rmq_core.client.blocking.pull_consumer",
    "PullSchedule": "rmq_core.client.blocking.pull_consumer",
    "PushConsumer": "rmq_core.client.blocking.push_consumer",
    "QueueClient": "rmq_core.client.queue_client",
    "ReceivedMessage": "rmq_core.client.received",
    "RetryLater": "rmq_core.client.listen_results",
    "RocketMQError": "rmq_core.errors",
    "SendError": "rmq_core.client.send_results",
    "SendResult": "rmq_core.client.send_results",
    "SendStatus": "rmq_core.client.send_results",
    "SuspendQueue": "rmq_core.client.listen_results",
    "TransactionDecision": "rmq_core.client.transactions",
    "TransactionProducer": "rmq_core.client.blocking.transactions",
    "embedded": "rmq_core.embedded_broker",
    "open_store": "rmq_core.store.reader",
}

__all__ = [
    "Admin",
    "BatchSendError",
    "ConsumeResult",
    "Credentials",
    "EmbeddedBroker",
    "GroupMember",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullSchedule",
    "PushConsumer",
    "QueueClient",
    "ReceivedMessage",
    "RetryLater",
    "RocketMQError",
    "SendError",
    "SendResult",
    "SendStatus",
    "SuspendQueue",
    "TransactionDecision",
    "TransactionProducer",
    "embedded",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
