"""The clients of `rmq_core` with coroutines, and the values they take and give.

They live on the loop that starts them. Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_core.client.admin import Admin
    from rmq_core.client.listen_results import ConsumeResult, RetryLater, SuspendQueue
    from rmq_core.client.lite_pull import LitePullConsumer
    from rmq_core.client.options import Credentials
    from rmq_core.client.producer import Producer
    from rmq_core.client.pull_consumer import PullConsumer
    from rmq_core.client.pull_schedule import PullSchedule
    from rmq_core.client.push_consumer import PushConsumer
    from rmq_core.client.received import ReceivedMessage
    from rmq_core.client.send_results import BatchSendError, SendError, SendResult, SendStatus
    from rmq_core.client.transactions import TransactionDecision, TransactionProducer
    from rmq_core.errors import RocketMQError
    from rmq_core.protocol.message import Message, MessageQueue

_HOMES = {
    "Admin": "rmq_core.client.admin",
    "BatchSendError": "rmq_core.client.send_results",
    "ConsumeResult": "rmq_core.client.listen_results",
    "Credentials": "rmq_core.client.options",
    "LitePullConsumer": "rmq_core.client.lite_pull",
    "Message": "rmq_core.protocol.message",
    "MessageQueue": "rmq_core.protocol.message",
    "Producer": "rmq_core.client.producer",
    "PullConsumer": "rmq_core.client.pull_consumer",
    "PullSchedule": "rmq_core.client.pull_schedule",
    "PushConsumer": "rmq_core.client.push_consumer",
    "ReceivedMessage": "rmq_core.client.received",
    "RetryLater": "rmq_core.client.listen_results",
    "RocketMQError": "rmq_core.errors",
    "SendError": "rmq_core.client.send_results",
    "SendResult": "rmq_core.client.send_results",
    "SendStatus": "rmq_core.client.send_results",
    "SuspendQueue": "rmq_core.client.listen_results",
    "TransactionDecision": "rmq_core.client.transactions",
    "TransactionProducer": "rmq_core.client.transactions",
}

__all__ = [
    "Admin",
    "BatchSendError",
    "ConsumeResult",
    "Credentials",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullSchedule",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
    "RocketMQError",
    "SendError",
    "SendResult",
    "SendStatus",
    "SuspendQueue",
    "TransactionDecision",
    "TransactionProducer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
