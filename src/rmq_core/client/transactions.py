"""Sends messages that become visible only when a local transaction has committed.

Send    The broker stores a half message; then the local transaction runs; then the broker is told its outcome. What
        was not stored as safely as it should be is rolled back, and nothing runs.
Check   A broker that hears no outcome asks, this producer or another one of its group, also after a restart. The
        questions wait for one worker, 2,000 of them; what cannot be told now is asked again later.
Start   Every broker of the topics hears of this producer before start() returns: one that has not sent yet would
        never be asked.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import IntEnum
from types import TracebackType
from typing import Final, Self, TypeAlias, Unpack

from rmq_core.client.options import shows
from rmq_core.client.producer_core import ProducerCore, Ready, Role
from rmq_core.client.producer_options import ProducerArguments, ProducerOptions
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_hooks import SendKind, SendMode, Told
from rmq_core.client.send_results import SendResult
from rmq_core.client.sending import Outgoing, outgoing
from rmq_core.errors import RocketMQError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.message import (
    Message,
    MessageQueue,
    Property,
    topic_name_problem,
    unwrap_namespace,
)
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.record import StoredRecord
from rmq_core.protocol.requests import CheckTransactionState, EndTransaction

logger = logging.getLogger(__name__)

CHECKS_WAITING_MAX: Final = 2_000


class TransactionDecision(IntEnum):
    """What became of a local transaction."""

    COMMIT = flags.TRANSACTION_COMMIT
    ROLLBACK = flags.TRANSACTION_ROLLBACK
    UNKNOWN = flags.TRANSACTION_NONE
    """Not to be told yet: the broker will ask."""


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """What a local transaction is run for: the message, stored but not visible yet."""

    message: Message
    sent: SendResult

    @property
    def transaction_id(self) -> str:
        """By which the outcome can be found again when the broker asks."""
        return self.sent.transaction_id or self.sent.msg_id

    @property
    def msg_id(self) -> str:
        return self.sent.msg_id

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def tags(self) -> str | None:
        return self.message.tags

    @property
    def keys(self) -> tuple[str, ...]:
        return self.message.key_list

    @property
    def properties(self) -> Mapping[str, str]:
        return self.message.properties


Execute: TypeAlias = Callable[[HalfMessage], TransactionDecision | Awaitable[TransactionDecision | None] | None]
Check: TypeAlias = Callable[[ReceivedMessage], TransactionDecision | Awaitable[TransactionDecision | None] | None]


@dataclass(frozen=True, slots=True)
class TransactionResult(SendResult):
    """Where the half message was stored, and what was decided about it."""

    decision: TransactionDecision = TransactionDecision.UNKNOWN


def transaction_result(sent: SendResult, decision: TransactionDecision) -> TransactionResult:
    """Both in one."""
    return TransactionResult(**{each.name: getattr(sent, each.name) for each in fields(sent)}, decision=decision)


def checked_decision(given: object) -> TransactionDecision:
    """What user code decided; None means unknown. Raises TypeError for anything else."""
    if given is None:
        return TransactionDecision.UNKNOWN
    if not isinstance(given, TransactionDecision):
        raise TypeError(f"a transaction is decided by a TransactionDecision, not by {given!r}")
    return given


@dataclass(frozen=True, slots=True)
class _Question:
    peer: str
    asked: CheckTransactionState
    half: StoredRecord


class TransactionRole(Role):
    """Takes the questions of brokers."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.questions: asyncio.Queue[_Question] = asyncio.Queue(CHECKS_WAITING_MAX)

    def check_transaction(self, peer: str, question: CheckTransactionState, half: StoredRecord) -> None:
        try:
            self.questions.put_nowait(_Question(peer, question, half))
        except asyncio.QueueFull:
            logger.warning(
                "%s: %d questions about transactions wait already; one of %s will come again",
                self.group, CHECKS_WAITING_MAX, peer,
            )  # fmt: skip


class TransactionCore(ProducerCore):
    """Sends half messages and their outcome, and answers the questions about them."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        check: Check,
        arguments: ProducerArguments,
    ) -> None:
        super().__init__(group, arguments)
        if isinstance(topics, str) or not isinstance(topics, Sequence) or not topics:
            raise TypeError("topics must be a list of the topics that this producer sends to")
        for topic in topics:
            if not isinstance(topic, str):
                raise TypeError(f"topics must be text, not {type(topic).__name__}")
            if problem := topic_name_problem(topic):
                raise ValueError(f"topics: {problem}")
        if not callable(check):
            raise TypeError(f"check must be callable, not {type(check).__name__}")
        if self.options.auto_batch:
            raise ValueError("auto_batch does not go with transactions: brokers take no half messages in batches")
        self._topics = tuple(topics)
        self._check = check
        self._worker: ThreadPoolExecutor | None = None
        self._answering: asyncio.Task[None] | None = None

    def _make_role(self, group: str) -> Role:
        return TransactionRole(group)

    async def _opened(self, ready: Ready) -> None:
        for topic in self._topics:
            await self.find(ready, topic, self.options.timeout_ms)
        await ready.instance.heartbeat()
        self._answering = ready.instance.spawn(self._answer_questions(ready))

    async def _leave(self, ready: Ready) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        await super()._leave(ready)
        if self._worker is not None:
            self._worker.shutdown(wait=False)

    # The half message and its outcome

    def half(self, message: Message, first_check_after: timedelta | None) -> Outgoing:
        """The message, ready to be sent as a half one. Any thread. Raises TypeError, ValueError."""
        more = {Property.TRANSACTION_PREPARED.value: "true", Property.PRODUCER_GROUP.value: self.role.group}
        if first_check_after is not None:
            if not isinstance(first_check_after, timedelta):
                raise TypeError(f"first_check_after must be timedelta, not {type(first_check_after).__name__}")
            if first_check_after < timedelta(seconds=1):
                raise ValueError("first_check_after is counted in whole seconds, one at least")
            seconds = int(first_check_after.total_seconds())
            more[Property.CHECK_IMMUNITY_TIME_IN_SECONDS.value] = str(seconds)
        out = outgoing(message, self.rules, now_ms=self.clock.now_ms(), more=more, transaction=True)
        if message.delay_level is not None or out.is_timed:
            raise ValueError("a message in a transaction cannot have a delay")
        return out

    async def send_half(self, message: Message, out: Outgoing, time_ms: float) -> SendResult:
        """Store the half message. Raises as send() does."""
        ready = await self.ready()
        return await self.deliver(ready, out, message, None, None, time_ms)

    async def end(self, sent: SendResult, decision: TransactionDecision) -> None:
        """Tell the broker; where that fails it will ask."""
        try:
            ready = await self.ready()
            request = EndTransaction(
                producer_group=self.role.group,
                tran_state_table_offset=sent.queue_offset,
                commit_log_offset=decode_offset_message_id(sent.offset_msg_id).log_offset,
                commit_or_rollback=int(decision),
                from_transaction_check=False,
                msg_id=sent.msg_id,
                transaction_id=sent.transaction_id,
                topic=self.rules.topic(sent.queue.topic),
            )
            address = ready.instance.vip(ready.instance.broker(sent.queue.broker_name, only_this=True).address)
            await ready.instance.channel(address).oneway(request)
        except RocketMQError as error:
            logger.warning(
                "the outcome %s of %s could not be told, the broker will ask for it: %s",
                decision.name, sent.msg_id, error,
            )  # fmt: skip

    # Questions

    async def _answer_questions(self, ready: Ready) -> None:
        role = self.role
        assert isinstance(role, TransactionRole)
        while True:
            question = await role.questions.get()
            try:
                await self._answer(ready, question)
            except RocketMQError as error:
                logger.warning(
                    "a question of %s could not be answered, it will ask again: %s", question.peer, error
                )
            except Exception:  # whatever it is, the next question may be answered
                logger.exception("a question of %s could not be answered", question.peer)

    async def _answer(self, ready: Ready, question: _Question) -> None:
        half, asked = question.half, question.asked
        topic = unwrap_namespace(half.topic) if self.rules.namespace else half.topic
        address = _announced(ready, question.peer)
        broker_name = next(
            (each.broker_name for each in ready.instance.routes.brokers() if each.address == address), ""
        )
        queue = MessageQueue(topic, broker_name, half.queue_id)
        message = ReceivedMessage(half, queue, namespace=self.rules.namespace)
        decision = await self._decide(message)
        request = EndTransaction(
            producer_group=self.role.group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=int(decision),
            from_transaction_check=True,
            msg_id=message.msg_id,
            transaction_id=asked.transaction_id,
            topic=asked.topic,
        )
        await ready.instance.channel(address).oneway(request)

    async def _decide(self, message: ReceivedMessage) -> TransactionDecision:
        """Ask the user's code; a plain function has a thread of its own, for it may take its time."""
        try:
            if inspect.iscoroutinefunction(self._check):
                given = await self._check(message)
            else:
                if self._worker is None:
                    self._worker = ThreadPoolExecutor(1, f"rmq-transaction-check-{self.group}")
                given = await asyncio.get_running_loop().run_in_executor(self._worker, self._check, message)
                if inspect.isawaitable(given):
                    given = await given
            return checked_decision(given)
        except Exception:
            logger.exception("the check of %s failed; the broker will ask again", message.msg_id)
            return TransactionDecision.UNKNOWN


def _announced(ready: Ready, peer: str) -> str:
    """The address that routes name for the connection to a peer; the peer itself where none does."""
    instance = ready.instance
    for broker in instance.routes.brokers():
        if instance.is_connected(broker.address):
            connection = instance.channel(broker.address).connection
            if connection is not None and connection.peer == peer:
                return broker.address
    return peer


class TransactionProducer:
    """Sends messages in transactions, from coroutines of one loop."""

    @shows(ProducerArguments, ProducerOptions)
    def __init__(
        self, group: str, *, topics: Sequence[str], check: Check, **arguments: Unpack[ProducerArguments]
    ) -> None:
        """`check` is asked what became of a message: a plain function, on a thread of its own, or a coroutine."""
        self._core = TransactionCore(group, topics, check, arguments)
        self.group = group

    def __repr__(self) -> str:
        return self._core.describe(type(self).__name__)

    async def start(self) -> Self:
        """Make this producer known to every broker of its topics. Idempotent.

        Raises NoRouteError where nobody takes one of the topics, ConnectError where no name server answers.
        """
        await self._core.start()
        return self

    async def send(
        self,
        message: Message,
        *,
        execute: Execute,
        first_check_after: timedelta | None = None,
        timeout_ms: float | None = None,
    ) -> TransactionResult:
        """Store the message unseen, run the local transaction, and tell the broker what it decided.

        Where `execute` raises, the outcome is unknown to the broker, which will ask, and the exception is raised
        again. Raises as Producer.send() does where the message could not be stored; nothing has been run then.
        """
        if not callable(execute):
            raise TypeError(f"execute must be callable, not {type(execute).__name__}")
        core = self._core
        time_ms = core.time(timeout_ms)
        out = core.half(message, first_check_after)
        ready = await core.ready()
        context = None
        if ready.hooks.are_wanted:
            context = ready.hooks.before((message,), out.msg_ids, SendMode.ASYNC, queue=None, kind=SendKind.HALF)
        with Told(ready.hooks, context) as told:
            sent = told.tell(await core.send_half(message, out, time_ms))
        decision = TransactionDecision.ROLLBACK
        if sent.ok:
            decision = TransactionDecision.UNKNOWN
            try:
                given = execute(HalfMessage(message, sent))
                decision = checked_decision(await given if inspect.isawaitable(given) else given)
            finally:
                await core.end(sent, decision)
        else:
            await core.end(sent, decision)
        return transaction_result(sent, decision)

    async def flush(self) -> None:
        """Wait until every half message so far has been answered, or has failed."""
        await self._core.flush()

    async def close(self) -> None:
        """Wait for what is in flight, then leave. Idempotent."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
