"""What producers are told besides what every client is; wrong values raise and name the argument."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, cast

from rmq_core.client.options import ClientArguments, ClientOptions, client_options
from rmq_core.client.sending import MESSAGE_SIZE_MAX, SendRules
from rmq_core.protocol.compression import CompressionType
from rmq_core.protocol.message import DEFAULT_PRODUCER_GROUP, group_name_problem, wrap_namespace

_LEVELS: Final = {CompressionType.ZLIB: (0, 9), CompressionType.LZ4: (0, 16), CompressionType.ZSTD: (1, 22)}


class ProducerArguments(ClientArguments, total=False):
    """Keyword arguments that every producer takes."""

    timeout_ms: float
    """For a whole send, all attempts included; 3,000 where not given."""
    retries: int
    """How often a send is tried again, on another broker where there is one; 2 where not given."""
    retry_unless_ok: bool
    """Whether a message that was stored, but not as safely as it should be, is sent again elsewhere."""
    in_flight_max: int
    """Sends without an answer; one more waits until there is room. 10,000 where not given."""
    in_flight_bytes_max: int
    """The same in bytes; 64 MiB where not given."""
    message_size_max: int
    """Bytes of a body before it is compressed, and of a batch; 4 MiB where not given, which brokers take too."""
    compress_over_bytes: int
    """Bodies from this size on are compressed; 4,096 where not given."""
    compression: CompressionType
    compression_level: int
    default_topic_queues: int
    """Queues per broker of a topic that the first message creates; 4 where not given."""
    avoid_faulty: bool
    """Whether brokers that were slow or failed are left alone for a while."""
    detect_faulty: bool
    """Whether brokers that failed are probed in the background, and used again once they answer."""
    auto_batch: bool
    """Whether sends are held back for up to `auto_batch_ms` to share requests."""
    auto_batch_ms: float
    auto_batch_bytes: int
    """A batch of this size goes out at once; 32 KiB where not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The arguments of a producer, checked."""

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
        check_timeout("timeout_ms", self.timeout_ms)
        check_timeout("auto_batch_ms", self.auto_batch_ms)
        for name, low in (
            ("retries", 0),
            ("in_flight_max", 1),
            ("in_flight_bytes_max", 1),
            ("message_size_max", 1),
            ("compress_over_bytes", 0),
            ("default_topic_queues", 1),
            ("auto_batch_bytes", 1),
        ):
            check_whole(name, getattr(self, name), at_least=low)
        for name in ("retry_unless_ok", "avoid_faulty", "detect_faulty", "auto_batch"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be bool, not {type(getattr(self, name)).__name__}")
        if not isinstance(self.compression, CompressionType):
            raise TypeError(f"compression must be a CompressionType, not {self.compression!r}")
        low, high = _LEVELS[self.compression]
        check_whole("compression_level", self.compression_level, at_least=low)
        if self.compression_level > high:
            raise ValueError(f"compression_level of {self.compression.name} is at most {high}")

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


_OWN: Final = frozenset(each.name for each in fields(ProducerOptions))


def producer_options(arguments: ProducerArguments) -> tuple[ProducerOptions, ClientOptions]:
    """Check what the user wrote. Raises TypeError and ValueError naming the argument."""
    own = {name: value for name, value in arguments.items() if name in _OWN}
    rest = {name: value for name, value in arguments.items() if name not in _OWN}
    return ProducerOptions(**cast(dict[str, Any], own)), client_options(cast(ClientArguments, rest))


def check_group(group: str) -> str:
    """The name of a producer group. Raises TypeError, ValueError."""
    if not isinstance(group, str):
        raise TypeError(f"group must be str, not {type(group).__name__}")
    if problem := group_name_problem(group):
        raise ValueError(problem)
    if group == DEFAULT_PRODUCER_GROUP:
        raise ValueError(f"group must not be {DEFAULT_PRODUCER_GROUP}; choose a name of your own")
    return group


def check_timeout(name: str, value: float) -> float:
    """A time in milliseconds. Raises TypeError, ValueError naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of milliseconds, not {type(value).__name__}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be more than 0, not {value}")
    return value


def check_whole(name: str, value: int, *, at_least: int) -> None:
    """A whole number. Raises TypeError, ValueError naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int, not {type(value).__name__}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {value}")
