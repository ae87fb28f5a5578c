"""RocketMQ under OpenMessaging's names: access point, producer, push and pull consumers, resources.

    access_point = messaging_access_point("oms:rocketmq://127.0.0.1:9876/default:default")
    with access_point.create_producer() as producer:
        producer.send(producer.create_bytes_message("Orders", b"42"))

Queue     OpenMessaging calls a queue what RocketMQ calls a topic.
Names     Methods are those of OpenMessaging 0.3 in Python's spelling; keys of headers and attributes are its own.
Address   oms:rocketmq://[user:secret@]host:port[,host:port]/region:deployment. A cluster of ours has neither region
          nor deployment: both may be anything.
"""

from __future__ import annotations

import concurrent.futures
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, Self

from rmq_core.client.blocking.lite_pull import LitePullConsumer
from rmq_core.client.blocking.producer import Producer as RocketMQProducer
from rmq_core.client.blocking.push_consumer import PushConsumer as RocketMQPushConsumer
from rmq_core.client.listen_results import RetryLater
from rmq_core.client.options import ClientArguments, Credentials
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_results import SendResult as RocketMQSendResult
from rmq_core.errors import ClientError
from rmq_core.protocol.message import RESERVED, Message, MessageQueue

logger = logging.getLogger(__name__)

IMPLEMENTATION: Final = "rocketmq"
UNACKNOWLEDGED_MAX: Final = 10_000
_URL: Final = re.compile(r"oms:([a-z]+)://(?:([^:@/]+):([^@/]+)@)?([^/@]+)/([^:/]+):([^:/]+)")
_RECEIVE_TIMEOUT_MS: Final = 5_000


class Keys:
    """Keys of attributes and headers."""

    CONSUMER_ID = "CONSUMER_ID"
    """Of a consumer: its group."""
    PRODUCER_ID = "PRODUCER_ID"
    """Of a producer: its group."""
    OPERATION_TIMEOUT = "OPERATION_TIMEOUT"
    """Milliseconds for a send or a receive."""
    MESSAGE_ID = "MESSAGE_ID"
    DESTINATION = "DESTINATION"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    BORN_HOST = "BORN_HOST"
    STORE_TIMESTAMP = "STORE_TIMESTAMP"
    STORE_HOST = "STORE_HOST"
    SHARDING_KEY = "SHARDING_KEY"
    SEARCH_KEYS = "SEARCH_KEYS"
    TAGS = "TAGS"
    REDELIVERED_NUMBER = "REDELIVERED_NUMBER"


@dataclass
class BytesMessage:
    """A message with its headers."""

    queue: str
    body: bytes
    sys_headers: dict[str, str] = field(default_factory=dict)
    """What the system knows: of a message to be sent, SEARCH_KEYS, TAGS and SHARDING_KEY count."""
    user_headers: dict[str, str] = field(default_factory=dict)

    def put_user_header(self, key: str, value: str) -> Self:
        """Set a header of the application."""
        self.user_headers[key] = value
        return self

    def put_sys_header(self, key: str, value: str) -> Self:
        """Set a header of the system."""
        self.sys_headers[key] = value
        return self

    @property
    def message_id(self) -> str | None:
        """Once it was sent or received."""
        return self.sys_headers.get(Keys.MESSAGE_ID)


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message that was stored."""

    message_id: str


def messaging_access_point(url: str, attributes: Mapping[str, str] | None = None) -> MessagingAccessPoint:
    """The door to a cluster. Raises ValueError where the address is none of OpenMessaging for RocketMQ."""
    return MessagingAccessPoint(url, attributes)


class MessagingAccessPoint:
    """Makes producers and consumers of one cluster."""

    def __init__(self, url: str, attributes: Mapping[str, str] | None = None) -> None:
        parts = _URL.fullmatch(url)
        if parts is None:
            raise ValueError(
                f"url: {url!r} is not like oms:rocketmq://[user:secret@]host:port[,host:port]/region:deployment"
            )
        implementation, user, secret, addresses, _, _ = parts.groups()
        if implementation != IMPLEMENTATION:
            raise ValueError(f"url: this is an implementation of {IMPLEMENTATION}, not of {implementation}")
        self._attributes = dict(attributes or {})
        self._client: ClientArguments = {"name_server": addresses.split(",")}
        if user is not None:
            self._client["credentials"] = Credentials(user, secret)

    @property
    def attributes(self) -> Mapping[str, str]:
        """What it was made with."""
        return MappingProxyType(self._attributes)

    def implementation_version(self) -> str:
        """The version of OpenMessaging that this follows."""
        return "0.3.0"

    def create_producer(self, attributes: Mapping[str, str] | None = None) -> Producer:
        """A producer; its PRODUCER_ID is the group."""
        return Producer(self._client, {**self._attributes, **(attributes or {})})

    def create_push_consumer(self, attributes: Mapping[str, str] | None = None) -> PushConsumer:
        """A consumer that calls listeners; needs a CONSUMER_ID."""
        return PushConsumer(self._client, {**self._attributes, **(attributes or {})})

    def create_pull_consumer(self, attributes: Mapping[str, str] | None = None) -> PullConsumer:
        """A consumer that is asked; needs a CONSUMER_ID."""
        return PullConsumer(self._client, {**self._attributes, **(attributes or {})})


class _Service(ABC):
    """What has attributes, starts and ends."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self._attributes = dict(attributes)

    @property
    def attributes(self) -> Mapping[str, str]:
        """What it was made with."""
        return MappingProxyType(self._attributes)

    @abstractmethod
    def startup(self) -> None:
        """Begin."""

    @abstractmethod
    def shutdown(self) -> None:
        """End."""

    def _timeout_ms(self, default: int | None) -> int | None:
        text = self._attributes.get(Keys.OPERATION_TIMEOUT)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"{Keys.OPERATION_TIMEOUT} must be milliseconds, not {text!r}")
        return int(text)

    def _consumer_group(self) -> str:
        group = self._attributes.get(Keys.CONSUMER_ID)
        if not group:
            raise ValueError(f"attributes: a consumer needs a {Keys.CONSUMER_ID}, which is its group")
        return group

    def __enter__(self) -> Self:
        self.startup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


class Producer(_Service):
    """Sends messages; safe to use from many threads."""

    def __init__(self, client: ClientArguments, attributes: Mapping[str, str]) -> None:
        super().__init__(attributes)
        self._time_ms = self._timeout_ms(None)
        self._producer = RocketMQProducer(self._attributes.get(Keys.PRODUCER_ID, "oms-producer"), **client)

    def startup(self) -> None:
        """Connect; the first send does the same."""
        self._producer.start()

    def shutdown(self) -> None:
        """Wait for what is in flight, and leave."""
        self._producer.close()

    def create_bytes_message(self, queue: str, body: bytes) -> BytesMessage:
        """A message to be sent."""
        return BytesMessage(queue, body)

    def send(self, message: BytesMessage) -> SendResult:
        """Send and wait until it is stored."""
        return _sent(message, self._producer.send(_to_rocketmq(message), timeout_ms=self._time_ms))

    def send_async(self, message: BytesMessage) -> concurrent.futures.Future[SendResult]:
        """Send; the future gives what send() gives or raises."""
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()

        def done(inner: concurrent.futures.Future[RocketMQSendResult]) -> None:
            error = inner.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(_sent(message, inner.result()))

        future.set_running_or_notify_cancel()
        self._producer.send_async(_to_rocketmq(message), timeout_ms=self._time_ms).add_done_callback(done)
        return future

    def send_oneway(self, message: BytesMessage) -> None:
        """Hand it to the network."""
        self._producer.send_oneway(_to_rocketmq(message), timeout_ms=self._time_ms)


class Context:
    """By which a listener says that a message is consumed. Without ack() it comes again."""

    def __init__(self) -> None:
        self.is_acknowledged = False

    def ack(self) -> None:
        """The message is consumed."""
        self.is_acknowledged = True


MessageListener = Callable[[BytesMessage, Context], None]


class PushConsumer(_Service):
    """Calls listeners with the messages of the queues that are attached."""

    def __init__(self, client: ClientArguments, attributes: Mapping[str, str]) -> None:
        super().__init__(attributes)
        self._consumer = RocketMQPushConsumer(self._consumer_group(), **client)
        self._queues: set[str] = set()

    def attach_queue(self, queue: str, listener: MessageListener) -> Self:
        """Have a listener called with a queue's messages."""

        def handle(message: ReceivedMessage) -> None:
            context = Context()
            listener(_from_rocketmq(message), context)
            if not context.is_acknowledged:
                raise RetryLater

        self._consumer.subscribe(queue, handle)
        self._queues.add(queue)
        return self

    def detach_queue(self, queue: str) -> Self:
        """Consume a queue no more."""
        if queue not in self._queues:
            raise ValueError(f"queue: {queue} is not attached")
        self._consumer.unsubscribe(queue)
        self._queues.discard(queue)
        return self

    def startup(self) -> None:
        """Begin to consume."""
        self._consumer.start()

    def shutdown(self) -> None:
        """Wait for running listeners, and leave."""
        self._consumer.close()

    def suspend(self) -> None:
        """Call no listener until resume()."""
        self._consumer.suspend()

    def resume(self) -> None:
        """Go on."""
        self._consumer.resume()

    @property
    def is_suspended(self) -> bool:
        """Whether suspend() holds."""
        return self._consumer.is_suspended


class PullConsumer(_Service):
    """Gives messages when asked; what is acknowledged counts as consumed, up to the first that is not."""

    def __init__(self, client: ClientArguments, attributes: Mapping[str, str]) -> None:
        super().__init__(attributes)
        self._time_ms = self._timeout_ms(_RECEIVE_TIMEOUT_MS)
        self._consumer = LitePullConsumer(self._consumer_group(), auto_commit=False, **client)
        self._reading = threading.Lock()
        self._fetched: list[ReceivedMessage] = []
        self._open: OrderedDict[str, tuple[ReceivedMessage, bool]] = OrderedDict()
        """Messages that were given out, in their order, and whether each was acknowledged."""

    def attach_queue(self, queue: str) -> Self:
        """Read a queue."""
        self._consumer.subscribe(queue)
        return self

    def startup(self) -> None:
        """Begin to read."""
        self._consumer.start()

    def shutdown(self) -> None:
        """Leave. What was not acknowledged is read again."""
        self._consumer.close()

    def receive(self, timeout_ms: int | None = None) -> BytesMessage | None:
        """The next message; None where none comes in time."""
        with self._reading:
            if len(self._open) >= UNACKNOWLEDGED_MAX:
                raise ClientError(f"{UNACKNOWLEDGED_MAX} messages were received and not acknowledged; ack() some")
            if not self._fetched:
                time_ms = self._time_ms if timeout_ms is None else timeout_ms
                self._fetched = list(reversed(self._consumer.poll(time_ms or 0)))
            if not self._fetched:
                return None
            message = self._fetched.pop()
            self._open[message.msg_id] = (message, False)
            return _from_rocketmq(message)

    def ack(self, message_id: str) -> None:
        """A message that was received is consumed. Raises ValueError for another one."""
        with self._reading:
            if message_id not in self._open:
                raise ValueError(f"message_id: {message_id} was not received here, or is acknowledged already")
            self._open[message_id] = (self._open[message_id][0], True)
            ends: dict[MessageQueue, int] = {}
            held: set[MessageQueue] = set()
            for key, (message, is_acknowledged) in list(self._open.items()):
                if not is_acknowledged:
                    held.add(message.queue)
                elif message.queue not in held:
                    ends[message.queue] = message.queue_offset + 1
                    del self._open[key]
            for queue, end in ends.items():
                self._commit(queue, end)

    def _commit(self, queue: MessageQueue, end: int) -> None:
        try:
            self._consumer.commit({queue: end})
        except ClientError as error:
            logger.warning("what was acknowledged of %s will be read again: %s", queue, error)


def _to_rocketmq(message: BytesMessage) -> Message:
    headers = message.sys_headers
    keys = headers.get(Keys.SEARCH_KEYS)
    return Message(
        message.queue,
        message.body,
        tags=headers.get(Keys.TAGS),
        keys=keys.split(" ") if keys else None,
        sharding_key=headers.get(Keys.SHARDING_KEY),
        properties=message.user_headers,
    )


def _sent(message: BytesMessage, result: RocketMQSendResult) -> SendResult:
    message.sys_headers[Keys.MESSAGE_ID] = result.msg_id
    return SendResult(result.msg_id)


def _from_rocketmq(message: ReceivedMessage) -> BytesMessage:
    headers = {
        Keys.MESSAGE_ID: message.msg_id,
        Keys.DESTINATION: message.topic,
        Keys.BORN_TIMESTAMP: str(message.born_time_ms),
        Keys.BORN_HOST: message.born_host,
        Keys.STORE_TIMESTAMP: str(message.stored_time_ms),
        Keys.STORE_HOST: message.store_host,
        Keys.REDELIVERED_NUMBER: str(message.reconsume_times),
        Keys.SEARCH_KEYS: " ".join(message.keys),
        Keys.TAGS: message.tags or "",
        Keys.SHARDING_KEY: message.sharding_key or "",
    }
    user = {name: value for name, value in message.properties.items() if name not in RESERVED}
    return BytesMessage(
        message.topic, message.body, {name: value for name, value in headers.items() if value}, user
    )
