"""An application of listeners and a template, by decorators.

    app = App()

    @app.listener("Orders", group="billing", tags="paid")
    def bill(order: Order): ...

    app.template.send("Orders", Order(42), tags="paid")
    app.run()

Listeners   get the body as their first parameter asks for it, and are ordinary functions still: tests call them.
            Those of one group share a consumer. What a listener raises, a body that does not fit included, means
            that the message comes again later.
Life        start() begins with all listeners, run() does so until SIGINT or SIGTERM, close() ends. The template
            works from the first send on, started or not.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from rmq_core.client.blocking.producer import Producer
from rmq_core.client.blocking.push_consumer import PushConsumer
from rmq_core.client.blocking.transactions import TransactionProducer
from rmq_core.client.loop_thread import is_client_thread
from rmq_core.client.options import ClientArguments, client_options
from rmq_core.client.producer_options import ProducerArguments
from rmq_core.client.push_options import ListenerArguments
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.signals import on_interrupt
from rmq_core.client.transactions import HalfMessage, TransactionResult
from rmq_core.client.workers import TaskWorkers, ThreadWorkers
from rmq_core.errors import ClientClosedError, ClientError, RocketMQError
from rmq_core.integrations.binding import bind, bind_with_argument
from rmq_core.integrations.conversion import to_body
from rmq_core.integrations.settings import spring_settings
from rmq_core.integrations.template import Template
from rmq_core.protocol.message import Message, Property

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L")
DEFAULT_GROUP: Final = "rmq-app"
_POLL_S: Final = 0.5
"""Waiting without end cannot be interrupted on every system."""


@dataclass(frozen=True, slots=True)
class _Consuming:
    """The consumer of a group, and what it was made with."""

    consumer: PushConsumer
    options: ListenerArguments


class App:
    """Listeners, transactions and a template that talk to one cluster."""

    def __init__(
        self,
        *,
        group: str = DEFAULT_GROUP,
        producer: ProducerArguments | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """group and producer are the template's; everything else is for all clients."""
        client_options(client)
        self._client = client
        self._group = group
        self._producer_arguments: ProducerArguments = {**(producer or {}), **client}
        Producer(group, **self._producer_arguments)  # wrong arguments are told here
        self._producer: Producer | None = None
        self._making = threading.Lock()
        self._consuming: dict[str, _Consuming] = {}
        self._topics: dict[str, set[str]] = {}
        self._transactions: dict[str, TransactionProducer] = {}
        self._ended = threading.Event()
        self._is_started = self._is_closing = self._is_closed = False
        self.template = Template(self._the_producer)
        """Sends plain objects."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """An app from settings such as `{"rocketmq": {"name-server": "…", "producer": {"group": "…"}}}`."""
        return cls(**spring_settings(settings))

    def __repr__(self) -> str:
        groups = ", ".join(self._consuming) or "no listeners"
        state = "closed" if self._is_closed else "started" if self._is_started else "not started"
        return f"<App {self._group!r}: {groups}, {state}>"

    def _the_producer(self) -> Producer:
        with self._making:
            if self._is_closed:
                raise ClientClosedError("this App was closed; make a new one")
            if self._producer is None:
                self._producer = Producer(self._group, **self._producer_arguments)
            return self._producer

    # Listeners

    def listener(
        self,
        topic: str,
        *,
        group: str,
        tags: str | None = None,
        sql: str | None = None,
        into: Any = None,
        **consumer: Unpack[ListenerArguments],
    ) -> Callable[[L], L]:
        """Have a function, or a class with `on_message`, called with the messages of a topic.

        into stands in for the type hint of its first parameter. Listeners of one group must agree on the other
        arguments. Raises TypeError and ValueError when it decorates.
        """

        def decorate(target: L) -> L:
            function = _function_of(target, "on_message")
            is_batch = consumer.get("batch_size_max", 1) > 1
            self._listen(topic, group, tags, sql, bind(function, into=into, is_batch=is_batch), consumer)
            return target

        return decorate

    def responder(
        self,
        topic: str,
        *,
        group: str,
        tags: str | None = None,
        sql: str | None = None,
        into: Any = None,
        **consumer: Unpack[ListenerArguments],
    ) -> Callable[[F], F]:
        """Have a function answer requests: what it returns is converted and sent back to who asked."""
        if consumer.get("batch_size_max", 1) > 1:
            raise ValueError("batch_size_max: requests are answered one by one")

        def decorate(function: F) -> F:
            self._listen(topic, group, tags, sql, self._answering(bind(function, into=into)), consumer)
            return function

        return decorate

    def _answering(self, function: Callable[[Any], Any]) -> Callable[[ReceivedMessage], Any]:
        if inspect.iscoroutinefunction(function):

            async def answer_later(message: ReceivedMessage) -> None:
                body = to_body(await function(message))
                await asyncio.to_thread(self._reply, message, body)

            return answer_later

        def answer(message: ReceivedMessage) -> None:
            self._reply(message, to_body(function(message)))

        return answer

    def _reply(self, message: ReceivedMessage, body: bytes) -> None:
        if Property.REPLY_TO_CLIENT not in message.properties:
            logger.warning("nobody asked for a reply to %r: it is no request", message)
            return
        try:
            self._the_producer().reply(message, body)
        except RocketMQError as error:  # who asked has gone; to ask the function again would not bring them back
            logger.warning("the reply to %r could not be delivered: %s", message, error)

    def _listen(
        self,
        topic: str,
        group: str,
        tags: str | None,
        sql: str | None,
        handler: Callable[[Any], Any],
        options: ListenerArguments,
    ) -> None:
        if self._is_closing:
            raise ClientClosedError("this App was closed; make a new one")
        known = self._consuming.get(group)
        if known is not None and known.options != options:
            raise ValueError(f"group: {group} has a listener with other settings; give this one a group of its own")
        if topic in self._topics.get(group, ()):
            raise ValueError(f"topic: group {group} listens to {topic} already; give this listener another group")
        if known is None:
            known = _Consuming(PushConsumer(group, **options, **self._client), options)
        known.consumer.subscribe(topic, handler, tags=tags, sql=sql)
        self._consuming[group] = known
        self._topics.setdefault(group, set()).add(topic)
        if self._is_started:
            known.consumer.start()

    # Transactions

    def transaction_listener(self, group: str, *, topics: Sequence[str]) -> Callable[[L], L]:
        """Have a class, or an object, decide transactions that the template sends.

        `execute(value, argument)` runs the local transaction and returns a TransactionDecision; `check(value)` says
        later, also after a restart, what became of it. Both get the value as their first parameter asks for it.
        """

        def decorate(target: L) -> L:
            if group in self._transactions:
                raise ValueError(f"group: there is a transaction listener {group} already")
            listener: Any = target() if isinstance(target, type) else target
            for name in ("execute", "check"):
                if not callable(getattr(listener, name, None)):
                    raise TypeError(f"a transaction listener has the method {name}, and {target!r} has not")
            execute = bind_with_argument(listener.execute)
            producer = TransactionProducer(
                group, topics=topics, check=bind(listener.check), **self._producer_arguments
            )
            self._transactions[group] = producer

            def send(message: Message, argument: object, timeout_ms: float | None) -> TransactionResult:
                def run(half: HalfMessage) -> Any:
                    return execute(half, argument)

                return producer.send(message, execute=run, timeout_ms=timeout_ms)

            self.template.add_transactions(group, send)
            if self._is_started:
                producer.start()
            return target

        return decorate

    # Life

    def start(self) -> Self:
        """Begin with all listeners. Idempotent."""
        if self._is_closing:
            raise ClientClosedError("this App was closed; make a new one")
        if not self._is_started:
            self._is_started = True
            try:
                for producer in self._transactions.values():
                    producer.start()
                for consuming in self._consuming.values():
                    consuming.consumer.start()
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Stop the listeners, wait for those that run, and then end the template. Idempotent.

        From inside a listener it asks for that and returns.
        """
        with self._making:
            if self._is_closing:
                return
            self._is_closing = True
        if ThreadWorkers.owner_here() or TaskWorkers.owner_here() or is_client_thread():
            threading.Thread(target=self._end, name="rmq-app-close", daemon=True).start()
        else:
            self._end()

    def _end(self) -> None:
        """Listeners first: those that still run may use the template."""
        for consuming in self._consuming.values():
            consuming.consumer.close()
        self._is_closed = True
        for producer in (*self._transactions.values(), self._producer):
            if producer is not None:
                producer.close()
        self._ended.set()

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, or until close(). A second signal does not wait for listeners."""
        if not self._consuming and not self._transactions:
            raise ClientError("this App has no listeners: there is nothing to run")
        asked = threading.Event()
        with on_interrupt(asked.set):  # first: a signal may come as soon as the first listener runs
            self.start()
            while not asked.wait(_POLL_S) and not self._ended.is_set():
                pass
        self.close()
        self._ended.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _function_of(target: object, method: str) -> Callable[..., Any]:
    """A listener's function: the target, or the method of an object that is made of it."""
    if isinstance(target, type):
        found: Callable[..., Any] | None = getattr(target(), method, None)
        if found is None or not callable(found):
            raise TypeError(f"a listener class has the method {method}, and {target.__name__} has not")
        return found
    if not callable(target):
        raise TypeError(f"a listener is a function or a class, not {type(target).__name__}")
    return target
