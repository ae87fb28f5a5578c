"""What users' hooks see of a send: check_send, before_send and after_send of `rmq_core.client.hooks`.

Hooks run where the send was called: on the caller's thread in the blocking forms, never on their loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from rmq_core.client.hooks import Hooks
from rmq_core.client.send_results import SendResult
from rmq_core.protocol.message import Message, MessageQueue


class SendMode(Enum):
    """What the caller waits for."""

    SYNC = "sync"
    ASYNC = "async"
    ONE_WAY = "one-way"


class SendKind(Enum):
    """What kind of message it is to the broker."""

    NORMAL = "normal"
    BATCH = "batch"
    DELAY = "delay"
    ORDERED = "ordered"
    HALF = "half"
    REPLY = "reply"


@dataclass(slots=True)
class SendContext:
    """One send. Hooks may look at everything, and keep something of their own in `notes`."""

    group: str
    namespace: str
    client_id: str
    mode: SendMode
    kind: SendKind
    messages: tuple[Message, ...]
    msg_ids: tuple[str, ...]
    queue: MessageQueue | None
    """Where the message must go; afterwards where it went."""
    results: tuple[SendResult, ...] = ()
    """One for each message, where they were stored; empty for one-way sends."""
    error: BaseException | None = None
    notes: object = None

    @property
    def message(self) -> Message:
        return self.messages[0]

    @property
    def result(self) -> SendResult | None:
        return self.results[0] if self.results else None

    @property
    def is_success(self) -> bool:
        return self.error is None


class SendHooks:
    """The hooks of one producer."""

    def __init__(self, hooks: Hooks, *, group: str, namespace: str, client_id: str) -> None:
        self._hooks = hooks
        self._who = (group, namespace, client_id)
        self.are_wanted = hooks.has("check_send", "before_send", "after_send")

    def before(
        self,
        messages: Sequence[Message],
        msg_ids: tuple[str, ...],
        mode: SendMode,
        *,
        queue: MessageQueue | None,
        kind: SendKind | None = None,
    ) -> SendContext:
        """Raises what a check_send raises."""
        context = SendContext(*self._who, mode, kind or kind_of(messages), tuple(messages), msg_ids, queue)
        self._hooks.check("check_send", context)
        self._hooks.tell("before_send", context)
        return context

    def after(self, context: SendContext, *results: SendResult, error: BaseException | None = None) -> None:
        """Tell how it ended."""
        context.results, context.error = results, error
        if results:
            context.queue = results[0].queue
        self._hooks.tell("after_send", context)


def kind_of(messages: Sequence[Message]) -> SendKind:
    """What the messages themselves say."""
    if len(messages) > 1:
        return SendKind.BATCH
    message = messages[0]
    if message.delay_level is not None or message.delay is not None or message.deliver_at is not None:
        return SendKind.DELAY
    return SendKind.NORMAL if message.sharding_key is None else SendKind.ORDERED


class Told:
    """Tells hooks how a send ended; without a context it does nothing."""

    __slots__ = ("_context", "_hooks", "_results")

    def __init__(self, hooks: SendHooks, context: SendContext | None) -> None:
        self._hooks = hooks
        self._context = context
        self._results: tuple[SendResult, ...] = ()

    def tell(self, result: SendResult) -> SendResult:
        self._results = (result,)
        return result

    def tell_all(self, results: tuple[SendResult, ...]) -> tuple[SendResult, ...]:
        self._results = results
        return results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None:
            self._hooks.after(self._context, *self._results, error=error)
