"""Acknowledgements of popped messages, many in one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32, Wire

_LONG_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


@dataclass(frozen=True, slots=True)
class BatchAck(Body):
    """Messages of one popped batch: bit i of bit_set acknowledges start_offset + i."""

    consumer_group: Annotated[str | None, Wire("c")] = None
    topic: Annotated[str | None, Wire("t")] = None
    retry: Annotated[str | None, Wire("r")] = None
    start_offset: Annotated[int, Wire("so")] = 0
    queue_id: Annotated[Int32, Wire("q")] = 0
    revive_queue_id: Annotated[Int32, Wire("rq")] = 0
    pop_time: Annotated[int, Wire("pt")] = 0
    invisible_time: Annotated[int, Wire("it")] = 0
    bit_set: Annotated[bytes, Wire("b")] = b""

    @property
    def offsets(self) -> tuple[int, ...]:
        """The queue offsets that are acknowledged."""
        return tuple(
            self.start_offset + 8 * position + bit
            for position, byte in enumerate(self.bit_set)
            for bit in range(8)
            if byte >> bit & 1
        )


@dataclass(frozen=True, slots=True)
class BatchAckMessageRequestBody(Body):
    """Acknowledgements for one broker. Some clients write the names of their fields out."""

    acks: tuple[BatchAck, ...] = ()
    broker_name: str | None = None

    @classmethod
    def from_json(cls, value: Any) -> Self:
        acks = value.get("acks") if isinstance(value, dict) else None
        if isinstance(acks, list):
            short = [
                {_LONG_NAMES.get(key, key): item for key, item in ack.items()} if isinstance(ack, dict) else ack
                for ack in acks
            ]
            value = {**value, "acks": short}
        return super(BatchAckMessageRequestBody, cls).from_json(value)
