"""Half messages: what their properties say, and what their queues tell at start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from rmq_core.broker.decisions import Decisions
from rmq_core.protocol.message import HALF_TOPIC, OP_HALF_TOPIC, find_property
from rmq_core.protocol.record import StoredRecord, decode_pull_body
from rmq_core.store.message_store import MessageStore
from rmq_core.store.queue_reader import GetStatus

log = logging.getLogger(__name__)

FIRST_OFFSET: Final = b"TRAN_PREPARED_QUEUE_OFFSET"
CHECK_TIMES: Final = b"TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
_READ_COUNT: Final = 32


def first_offset(half: StoredRecord, offset: int) -> int:
    """Where the half message that is at `offset` now stood before it was put again for the first time."""
    return _number(find_property(half.property_bytes, FIRST_OFFSET), offset)


def immunity_of(half: StoredRecord, default_ms: int) -> int | None:
    """How long nobody is asked about this half message; None where it does not say."""
    text = find_property(half.property_bytes, IMMUNITY)
    if text is None:
        return None
    seconds = _number(text, -1)
    return default_ms if seconds < 0 else seconds * 1000


def check_times(half: StoredRecord) -> int:
    """How often its producer was asked about this half message."""
    return _number(find_property(half.property_bytes, CHECK_TIMES), 0)


def _number(text: bytes | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else default


# What the queues tell at start


def read_decisions(store: MessageStore, half_offset: int, op_offset: int) -> Decisions:
    """The decisions behind the group's positions (-1: none yet), as the queues tell them. Blocks."""
    done = _clamped(store, HALF_TOPIC, half_offset)
    op_done = _clamped(store, OP_HALF_TOPIC, op_offset)
    decisions = Decisions(done, op_done)
    for data in _records(store, OP_HALF_TOPIC, op_done):
        for op in decode_pull_body(data):
            halves = [int(text) for text in op.body.split(b",") if text.isdigit() and len(text) < 19]
            for offset in halves:
                decisions.decide(offset, op.log_offset + op.size)
            decisions.note_op(op.queue_offset, halves)
    # Most half messages are no copies: only the records that may be are decoded.
    marker = FIRST_OFFSET + b"\x01"
    for data in _records(store, HALF_TOPIC, done):
        if marker in data:
            for half in decode_pull_body(data):
                if marker in half.property_bytes:
                    decisions.renew(first_offset(half, half.queue_offset), half.queue_offset)
    undecided = store.max_offset(HALF_TOPIC, 0) - decisions.done - len(decisions)
    log.info("%d half messages are undecided", undecided)
    return decisions


def _clamped(store: MessageStore, topic: str, offset: int) -> int:
    return min(max(offset, store.min_offset(topic, 0)), store.max_offset(topic, 0))


def _records(store: MessageStore, topic: str, offset: int) -> Iterator[bytes]:
    while True:
        got = store.get(topic, 0, offset, _READ_COUNT, may_wait=True)
        if got.status is GetStatus.FOUND:
            yield b"".join(got.parts)
        if got.next_offset <= offset:
            return
        offset = got.next_offset
