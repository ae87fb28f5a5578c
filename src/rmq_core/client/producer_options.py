"""What producers are told besides what every client is; wrong values raise and name the argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmq_core.client.arguments import checked_group, milliseconds, whole_number, yes_or_no
from rmq_core.client.options import ClientArguments
from rmq_core.client.sending import MESSAGE_SIZE_MAX, SendRules
from rmq_core.protocol.compression import CompressionType
from rmq_core.protocol.message import DEFAULT_PRODUCER_GROUP, wrap_namespace

_LEVELS: Final = {CompressionType.ZLIB: (0, 9), CompressionType.LZ4: (0, 16), CompressionType.ZSTD: (1, 22)}


class ProducerArguments(ClientArguments, total=False):
    """Those of `ProducerOptions`."""

    timeout_ms: float
    retries: int
    retry_unless_ok: bool
    in_flight_max: int
    in_flight_bytes_max: int
    message_size_max: int
    compress_over_bytes: int
    compression: CompressionType
    compression_level: int
    default_topic_queues: int
    avoid_faulty: bool
    detect_faulty: bool
    auto_batch: bool
    auto_batch_ms: float
    auto_batch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """timeout_ms           for a whole send, all attempts included
    retries              how often a send is tried again, on another broker where there is one
    retry_unless_ok      whether what was stored, but not as safely as it should be, is sent again elsewhere
    in_flight_max        sends without an answer; one more waits until there is room
    in_flight_bytes_max  the same in bytes
    message_size_max     bytes of a body before it is compressed, and of a batch; by default what brokers take too
    compress_over_bytes  bodies from this size on are compressed, by `compression` and `compression_level`
    default_topic_queues queues per broker of a topic that the first message creates
    avoid_faulty         whether brokers that were slow or failed are left alone for a while
    detect_faulty        whether brokers that failed are probed in the background, and used again once they answer
    auto_batch           whether sends are held back for up to `auto_batch_ms` to share requests
    auto_batch_bytes     a batch of this size goes out at once
    """

    timeout_ms: float = 3_000
    retries: int = 2
    retry_unless_ok: bool = False
    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 64 << 20
    message_size_max: int = MESSAGE_SIZE_MAX
    compress_over_bytes: int = 4096
    compression: CompressionType = CompressionType.ZLIB
    compression_level: int = 5
    default_topic_queues: int = 4
    avoid_faulty: bool = False
    detect_faulty: bool = False
    auto_batch: bool = False
    auto_batch_ms: float = 10
    auto_batch_bytes: int = 32 << 10

    def __post_init__(self) -> None:
        milliseconds("timeout_ms", self.timeout_ms)
        milliseconds("auto_batch_ms", self.auto_batch_ms)
        for name, low in (
            ("retries", 0),
            ("in_flight_max", 1),
            ("in_flight_bytes_max", 1),
            ("message_size_max", 1),
            ("compress_over_bytes", 0),
            ("default_topic_queues", 1),
            ("auto_batch_bytes", 1),
        ):
            whole_number(name, getattr(self, name), low=low)
        for name in ("retry_unless_ok", "avoid_faulty", "detect_faulty", "auto_batch"):
            yes_or_no(name, getattr(self, name))
        if not isinstance(self.compression, CompressionType):
            raise TypeError(f"compression must be a CompressionType, not {self.compression!r}")
        low, high = _LEVELS[self.compression]
        whole_number(f"compression_level of {self.compression.name}", self.compression_level, low=low, high=high)

    def rules(self, group: str, namespace: str) -> SendRules:
        """What the encoders need to know; the group's name is the user's."""
        return SendRules(
            group=wrap_namespace(namespace, group),
            namespace=namespace,
            message_size_max=self.message_size_max,
            compress_over_bytes=self.compress_over_bytes,
            compression=self.compression,
            compression_level=self.compression_level,
            default_topic_queues=self.default_topic_queues,
        )


def producer_group(group: str) -> str:
    """The name of a producer group. Raises TypeError and ValueError."""
    return checked_group(group, reserved=DEFAULT_PRODUCER_GROUP)
