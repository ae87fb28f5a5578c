"""A logging handler that sends records to a topic.

Never waits   emit() formats the record and puts it into a bounded queue; a thread of its own sends what is there,
              in batches. Where the queue is full, or a batch cannot be sent, records are dropped and counted.
Never loops   Records of this package, and those that come up while records are being sent, are left out.
Ends          flush() waits until what was logged so far is sent; close() does so for a while, and then gives up.
              logging.shutdown() comes too late: the handler closes itself before the clients' loop ends.
Fork          A child begins with an empty queue and a producer of its own.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Unpack

from rmq_core.client.blocking.producer import Producer
from rmq_core.client.loop_thread import enter, is_client_thread
from rmq_core.client.producer_options import ProducerArguments
from rmq_core.client.send_results import BatchSendError
from rmq_core.errors import RocketMQError
from rmq_core.protocol.message import Message, topic_name_problem

BATCH_COUNT: Final = 256
BATCH_BYTES: Final = 256 << 10
BODY_BYTES_MAX: Final = 1 << 20
_TRUNCATED: Final = b" ... (truncated)"
_RETRY_S: Final = (0.1, 0.5, 2.0, 5.0)
_COMPLAINT_S: Final = 60.0
_OWN: Final = "rmq_core"


class RocketMQHandler(logging.Handler):
    """`logging.getLogger().addHandler(RocketMQHandler("Logs"))`.

    The body is what the formatter makes of the record; the level is the tag, and `level`, `logger` and `at` are
    properties. `dropped` counts what could not be sent.
    """

    def __init__(
        self,
        topic: str,
        *,
        group: str = "rmq-logging",
        level: int | str = logging.NOTSET,
        queue_count_max: int = 10_000,
        close_timeout_ms: int = 2_000,
        **producer: Unpack[ProducerArguments],
    ) -> None:
        problem = topic_name_problem(topic)
        if problem is not None:
            raise ValueError(f"topic: {problem}")
        for what, value in (("queue_count_max", queue_count_max), ("close_timeout_ms", close_timeout_ms)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{what} must be 1 or more, not {value!r}")
        super().__init__(level)
        self._topic = topic
        self._close_timeout_s = close_timeout_ms / 1000
        self._queue_count_max = queue_count_max
        self._make_producer: Callable[[], Producer] = lambda: Producer(group, **producer)
        self._make_producer()  # wrong arguments are told now, and not by a thread
        self._clients = enter()  # kept: an interpreter that is about to end starts no loop any more
        self.dropped = 0
        self._complained_at = -_COMPLAINT_S
        self._is_ended = False
        self._begin()
        # Registered after the clients' loop has registered its end, and so called before it.
        self._at_exit = functools.partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._queue: deque[Message] = deque()
        self._changed = threading.Condition()
        self._in_hand = 0
        self._is_leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<RocketMQHandler to {self._topic} ({logging.getLevelName(self.level)}), {self.dropped} dropped>"

    # What loggers call

    def filter(self, record: logging.LogRecord) -> Any:
        """Leave out what sending brings forth. Here, where the handler's lock, which flush() may hold, is not."""
        name = record.name.split(".", 1)[0]
        is_from_sending = name == _OWN or (name == "asyncio" and is_client_thread())
        if self._is_ended or is_from_sending or threading.current_thread() is self._thread:
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record. Never waits and never raises."""
        try:
            message = self._message(record)
        except Exception:
            self.handleError(record)
            return
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            if len(self._queue) + self._in_hand >= self._queue_count_max:
                self._drop(1, "the queue is full")
                return
            self._queue.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmq-logging", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _message(self, record: logging.LogRecord) -> Message:
        body = self.format(record).encode(errors="replace")
        if len(body) > BODY_BYTES_MAX:
            body = body[: BODY_BYTES_MAX - len(_TRUNCATED)] + _TRUNCATED
        properties = {
            "level": _clean(record.levelname),
            "logger": _clean(record.name),
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        }
        return Message(self._topic, body, tags=_clean(record.levelname), properties=properties)

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until everything logged so far is sent or dropped; without a time, close_timeout_ms at most."""
        timeout_s = self._close_timeout_s if timeout_ms is None else timeout_ms / 1000
        if self._pid != os.getpid() or threading.current_thread() is self._thread or is_client_thread():
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._in_hand, timeout_s)

    def close(self) -> None:
        """Send what is there, for close_timeout_ms at most, and end. Idempotent."""
        if self._is_ended:
            return
        if self._pid != os.getpid():
            self._begin()  # the parent's lock may have been held when this child was forked
        self.flush()
        self._is_ended = True
        atexit.unregister(self._at_exit)
        self._is_leaving.set()
        with self._changed:
            self._drop(len(self._queue), "the handler was closed")
            self._queue.clear()
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._close_timeout_s)
        self._clients.let_go()
        super().close()

    # The thread

    def _run(self) -> None:
        with _LateProducer(self._make_producer) as producer:
            while (batch := self._next()) is not None:
                self._send(producer, batch)
                with self._changed:
                    self._in_hand = 0
                    self._changed.notify_all()

    def _next(self) -> list[Message] | None:
        """The next batch, waited for; None at the end."""
        with self._changed:
            while not self._queue:
                if self._is_leaving.is_set():
                    return None
                self._changed.wait()
            batch: list[Message] = []
            size = 0
            while self._queue and len(batch) < BATCH_COUNT and (not batch or size < BATCH_BYTES):
                batch.append(self._queue.popleft())
                size += len(batch[-1].body)
            self._in_hand = len(batch)
            return batch

    def _send(self, producer: _LateProducer, batch: list[Message]) -> None:
        """Send a batch, however often it takes, until the handler is closed."""
        for attempt in range(len(_RETRY_S) + 1):
            try:
                producer.get().send_batch(batch)
                return
            except BatchSendError as error:
                batch, reason = list(error.unsent), error.reason
                if not batch:
                    return
            except RocketMQError as error:
                reason = str(error)
            except Exception as error:  # the thread must live: what comes later may be sent
                reason = f"{type(error).__name__}: {error}"
            if attempt == len(_RETRY_S) or self._is_leaving.wait(_RETRY_S[attempt]):
                break
        with self._changed:
            self._drop(len(batch), reason)

    def _drop(self, count: int, reason: str) -> None:
        """Count what is lost, and say so from time to time; the lock is held."""
        if not count:
            return
        self.dropped += count
        now = time.monotonic()
        if logging.raiseExceptions and sys.stderr is not None and now - self._complained_at >= _COMPLAINT_S:
            self._complained_at = now
            sys.stderr.write(f"RocketMQHandler: {self.dropped} log records were not sent: {reason}\n")


def _close(reference: weakref.ref[RocketMQHandler]) -> None:
    handler = reference()
    if handler is not None:
        handler.close()


class _LateProducer:
    """A producer that is made by the thread that uses it."""

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._made: Producer | None = None

    def get(self) -> Producer:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __enter__(self) -> _LateProducer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            self._made.close()


def _clean(text: str) -> str:
    """Text that can be a tag or a property: without what separates them on the wire."""
    return "".join(each if each.isprintable() and each != "|" else "_" for each in text) or "_"
