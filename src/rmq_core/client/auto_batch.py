"""Sends that are held back for a moment to share a request with others of their topic.

A batch goes out when it is as large as it may be, or when its first message has waited long enough. Each message
has its own result; where the batch fails, each has its own error. Only what brokers take in batches is held back,
and nothing that must go to a certain queue.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from rmq_core.client.deliver import Sender
from rmq_core.client.send_results import SendError, SendResult
from rmq_core.client.sending import BatchPiece, is_batchable, outgoing_batch, split_result
from rmq_core.clock import Timer
from rmq_core.errors import ClientClosedError
from rmq_core.protocol.message import Message


class Waiting(Protocol):
    """Whoever waits for the result of one message, as a future does."""

    def done(self) -> bool: ...

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class _Held:
    __slots__ = ("entries", "size", "timer")

    def __init__(self, timer: Timer) -> None:
        self.entries: list[tuple[BatchPiece, Waiting]] = []
        self.size = 0
        self.timer = timer


def may_be_held(message: Message) -> bool:
    """Whether a message may share a request with others that it does not know."""
    return message.sharding_key is None and is_batchable(message)


class AutoBatches:
    """What a producer holds back."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        options = sender.options
        self._hold_ms = options.auto_batch_ms
        self._size_max = min(options.auto_batch_bytes, options.message_size_max)
        self._held: dict[tuple[str, bool], _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, piece: BatchPiece, waiting: Waiting) -> None:
        """Hold a message back; `waiting` hears what came of it."""
        key = (piece.message.topic, piece.message.wait_stored)
        held = self._held.get(key)
        if held is not None and held.size + piece.size > self._size_max:
            self._release(key)
            held = None
        if held is None:
            clock = self._sender.instance.clock
            held = self._held[key] = _Held(clock.call_later(self._hold_ms, self._release, key))
        held.entries.append((piece, waiting))
        held.size += piece.size
        if held.size >= self._size_max:
            self._release(key)

    def _release(self, key: tuple[str, bool]) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        held.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._deliver(key[0], held.entries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, topic: str, entries: list[tuple[BatchPiece, Waiting]]) -> None:
        sender = self._sender
        pieces = [piece for piece, _ in entries]
        try:
            timeout_ms = sender.options.timeout_ms
            target = sender.target(topic) or await sender.find_in_time(topic, timeout_ms)
            out = outgoing_batch(pieces, sender.rules, now_ms=sender.instance.clock.now_ms())
            result = await sender.deliver(out, target, queue=None, timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            _fail(entries, ClientClosedError("the producer was closed before the message was acknowledged"))
            raise
        except Exception as error:  # whatever it is, it belongs to those who wait
            _fail(entries, error)
            return
        for (_, waiting), own in zip(entries, split_result(result, out.msg_ids), strict=True):
            if not waiting.done():
                waiting.set_result(own)

    async def flush(self) -> None:
        """Send what is held back, and wait for the answers."""
        for key in list(self._held):
            self._release(key)
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _fail(entries: list[tuple[BatchPiece, Waiting]], error: Exception) -> None:
    for piece, waiting in entries:
        if not waiting.done():
            own = SendError(error.topic, piece.msg_id, error.tried) if isinstance(error, SendError) else error
            own.__cause__ = error.__cause__
            waiting.set_exception(own)
