"""A message as users send it, its properties as text and bytes, and the names of topics and groups.

Properties   `name \\x01 value \\x02` after one another in UTF-8. Some writers leave out the last \\x02, so
             readers take both forms and whoever appends inserts it. Names may repeat: the last one counts.
             What has no name or no value does not exist.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from rmq_core.errors import LocalProtocolError

PROPERTIES_SIZE_MAX: Final = 32767
NAME_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""Properties whose names begin so are for the client alone and are never stored."""


class Property(StrEnum):
    """Property names that have a meaning of their own."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQUE_KEY = "UNIQ_KEY"
    EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    INNER_NUM = "INNER_NUM"
    INNER_BASE = "INNER_BASE"
    DUP_INFO = "DUP_INFO"
    CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_ID = "__transactionId__"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    INSTANCE_ID = "INSTANCE_ID"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    CLUSTER = "CLUSTER"
    MSG_TYPE = "MSG_TYPE"
    POP_CK = "POP_CK"
    POP_CK_OFFSET = "POP_CK_OFFSET"
    FIRST_POP_TIME = "1ST_POP_TIME"
    SHARDING_KEY = "__SHARDINGKEY"
    FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
    REDIRECT = "REDIRECT"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    TRACE_CONTEXT = "TRACE_CONTEXT"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_DEL_UNIQUE_KEY = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
    BORN_HOST = "__BORNHOST"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    TRANSIENT_TOPIC_SYS_FLAG = "__RMQ.TRANSIENT.TOPIC_SYS_FLAG"
    TRANSIENT_GROUP_SYS_FLAG = "__RMQ.TRANSIENT.GROUP_SYS_FLAG"
    CRC32 = "__CRC32#"
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
    START_DELIVER_TIME = "__STARTDELIVERTIME"


RESERVED: Final[frozenset[str]] = frozenset(name.value for name in Property)
"""Names that users cannot give to properties of their own; those with TRANSIENT_PREFIX are reserved too."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The properties as bytes, each pair closed by \\x02; pairs without a name or a value are left out.

    Raises LocalProtocolError where a reader would not find the same pairs, or above PROPERTIES_SIZE_MAX.
    """
    pairs = [f"{name}\x01{value}\x02" for name, value in properties.items() if name and value]
    text = "".join(pairs)
    if text.count("\x02") != len(pairs):
        raise LocalProtocolError("a property contains the character U+0002, which separates properties")
    if text.count("\x01") != len(pairs) and any("\x01" in name for name in properties):
        raise LocalProtocolError("a property name contains the character U+0001, which ends names")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a property is not text: {error}") from error
    if len(encoded) > PROPERTIES_SIZE_MAX:
        raise LocalProtocolError(f"{len(encoded)} bytes of properties, more than {PROPERTIES_SIZE_MAX}")
    return encoded


def decode_properties(properties: bytes | memoryview) -> dict[str, str]:
    """Every pair that has a name and a value; bytes that are not UTF-8 become U+FFFD."""
    decoded = {}
    for pair in str(properties, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            decoded[name] = value
    return decoded


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """The value decode_properties() would give, without decoding the others."""
    needle = b"\x02" + name + b"\x01"
    at = properties.rfind(needle)
    while at >= 0:
        if value := _value_at(properties, at + len(needle)):
            return value
        at = properties.rfind(needle, 0, at)
    if properties.startswith(needle[1:]):
        return _value_at(properties, len(needle) - 1) or None
    return None


def _value_at(properties: bytes, start: int) -> bytes:
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def append_properties(properties: bytes, more: bytes) -> bytes:
    """Both after one another, with the separator between them where the first has none at its end."""
    if properties and more and not properties.endswith(b"\x02"):
        return properties + b"\x02" + more
    return properties + more


def remove_property(properties: bytes, name: bytes) -> bytes:
    """The same bytes without any pair of that name."""
    start = name + b"\x01"
    if start not in properties:
        return properties
    return b"".join(
        pair for pair in re.findall(rb"[^\x02]*\x02|[^\x02]+", properties) if not pair.startswith(start)
    )


# Topics and groups

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYNC_BROKER_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRACE_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
"""A broker adds its cluster's name, its own, and the cluster's reply topic."""

FORBIDDEN_SEND_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
BUILT_IN_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"

TOPIC_NAME_MAX: Final = 127
DERIVED_TOPIC_NAME_MAX: Final = 255
"""For retry and dead-letter topics, which carry the name of a group."""
GROUP_NAME_MAX: Final = 255
"""What 4.9 allows, and so what a broker must serve; clients of 5.x allow 120."""

_NAMESPACE_SEPARATOR: Final = "%"
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """Where messages go that a group failed to consume."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where messages go that a group failed to consume too often."""
    return DLQ_PREFIX + group


def pop_retry_topic(group: str, topic: str, *, v2: bool = False) -> str:
    """Where POP puts messages of one topic that a group failed to consume."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def is_retry_topic(name: str) -> bool:
    """Whether the topic holds a group's retries."""
    return name.startswith(RETRY_PREFIX)


def is_dlq_topic(name: str) -> bool:
    """Whether the topic holds a group's dead letters."""
    return name.startswith(DLQ_PREFIX)


def is_system_topic(name: str) -> bool:
    """Whether the topic belongs to RocketMQ itself, whatever broker it is on."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Whether the group belongs to RocketMQ itself."""
    return name.startswith(SYSTEM_GROUP_PREFIX)


@functools.lru_cache(maxsize=1024)  # every message asks
def topic_name_problem(name: str) -> str | None:
    """What is wrong with a topic's name, for the message of an error; None if it may be used."""
    is_derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _name_problem("topic", name, DERIVED_TOPIC_NAME_MAX if is_derived else TOPIC_NAME_MAX)


def group_name_problem(name: str, *, length_max: int = GROUP_NAME_MAX) -> str | None:
    """What is wrong with a group's name, for the message of an error; None if it may be used."""
    return _name_problem("group", name, length_max)


def _name_problem(what: str, name: str, length_max: int) -> str | None:
    if not name:
        return f"the {what} name is empty"
    if len(name) > length_max:
        return f"the {what} name is {len(name)} characters long, more than {length_max}"
    if not _NAME.fullmatch(name):
        return f"the {what} name {name!r} has characters other than letters, digits and % | _ -"
    return None


def wrap_namespace(namespace: str, name: str) -> str:
    """The name of a topic or group within a namespace. System names, and names already in it, stay as they are."""
    prefix, rest = _split_prefix(name)
    start = namespace + _NAMESPACE_SEPARATOR
    if not namespace or not name or _is_system_name(name) or rest.startswith(start):
        return name
    return f"{prefix}{start}{rest}"


def unwrap_namespace(name: str) -> str:
    """The name of a topic or group without its namespace, if it has one."""
    prefix, rest = _split_prefix(name)
    namespace, separator, bare = rest.partition(_NAMESPACE_SEPARATOR)
    if not namespace or not separator or _is_system_name(name):
        return name
    return prefix + bare


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system_name(name: str) -> bool:
    return is_system_topic(name) or is_system_group(name)


# What users build

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be sent. Wrong arguments raise TypeError or ValueError here, before anything is sent."""

    topic: str
    body: bytes
    _: KW_ONLY
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    """One key or several, by which the message can be found again."""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    sharding_key: str | None = None
    """Messages with the same one go to the same queue, in order."""
    delay_level: int | None = None
    delay: timedelta | None = None
    """Needs a broker of 5.x, like deliver_at."""
    deliver_at: datetime | None = None
    flag: int = 0
    """A number that RocketMQ carries and does not read."""
    wait_stored: bool = True
    """Whether the broker answers only after the flush and replication it is set up for."""

    def __post_init__(self) -> None:
        _check_type("topic", self.topic, str)
        if problem := topic_name_problem(self.topic):
            raise ValueError(problem)
        if self.topic in FORBIDDEN_SEND_TOPICS:
            raise ValueError(f"topic {self.topic} belongs to the broker; nobody can send to it")
        _check_type("body", self.body, bytes)
        _check_integer("flag", self.flag, low=-(2**31), high=2**31 - 1)
        _check_type("wait_stored", self.wait_stored, bool)
        for what, text in (("tags", self.tags), ("sharding_key", self.sharding_key)):
            if text is not None:
                _check_text(what, text)
        object.__setattr__(self, "keys", _checked_keys(self.keys))
        object.__setattr__(self, "properties", _checked_properties(self.properties))
        self._check_delay()

    def _check_delay(self) -> None:
        if sum(given is not None for given in (self.delay_level, self.delay, self.deliver_at)) > 1:
            raise ValueError("give only one of delay_level, delay and deliver_at")
        if self.delay_level is not None:
            _check_integer("delay_level", self.delay_level, low=1, high=2**31 - 1)
        if self.delay is not None:
            _check_type("delay", self.delay, timedelta)
            if self.delay < _MILLISECOND:
                raise ValueError("delay is less than a millisecond")
        if self.deliver_at is not None:
            _check_type("deliver_at", self.deliver_at, datetime)
            if self.deliver_at.utcoffset() is None:
                raise ValueError("deliver_at has no time zone; give one, as in datetime(..., tzinfo=UTC)")
            if self.deliver_at < _EPOCH:
                raise ValueError("deliver_at lies before 1970")

    @property
    def key_list(self) -> tuple[str, ...]:
        """The keys one by one."""
        if self.keys is None:
            return ()
        return (self.keys,) if isinstance(self.keys, str) else tuple(self.keys)

    def wire_properties(self) -> dict[str, str]:
        """Every property the message is sent with, other than those the producer adds."""
        wire = dict(self.properties)
        if self.tags is not None:
            wire[Property.TAGS.value] = self.tags
        if self.keys:
            wire[Property.KEYS.value] = KEY_SEPARATOR.join(self.key_list)
        if self.sharding_key is not None:
            wire[Property.SHARDING_KEY.value] = self.sharding_key
        if self.delay_level is not None:
            wire[Property.DELAY.value] = str(self.delay_level)
        if self.delay is not None:
            wire[Property.TIMER_DELAY_MS.value] = str(self.delay // _MILLISECOND)
        if self.deliver_at is not None:
            wire[Property.TIMER_DELIVER_MS.value] = str((self.deliver_at - _EPOCH) // _MILLISECOND)
        wire[Property.WAIT.value] = "true" if self.wait_stored else "false"
        return wire


def _check_type(what: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"{what} must be {wanted.__name__}, not {type(value).__name__}")


def _check_integer(what: str, value: int, *, low: int, high: int) -> None:
    _check_type(what, value, int)
    if isinstance(value, bool):
        raise TypeError(f"{what} must be int, not bool")
    if not low <= value <= high:
        raise ValueError(f"{what} must lie between {low} and {high}, and {value} does not")


def _check_text(what: str, value: str) -> None:
    _check_type(what, value, str)
    if not value.strip():
        raise ValueError(f"{what} is blank, and readers drop blank values; leave it out")
    if "\x01" in value or "\x02" in value:
        raise ValueError(f"{what} contains U+0001 or U+0002, which separate properties")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds half a surrogate pair, which UTF-8 cannot carry") from error


def _checked_keys(keys: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    if keys is None:
        return None
    if not isinstance(keys, str | list | tuple):
        raise TypeError(f"keys must be str or a list of str, not {type(keys).__name__}")
    for key in (keys,) if isinstance(keys, str) else keys:
        _check_text("a key", key)
        if KEY_SEPARATOR in key:
            raise ValueError(f"the key {key!r} contains a blank, which separates keys; give a list of keys")
    return keys if isinstance(keys, str) else tuple(keys)


def _checked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    _check_type("properties", properties, Mapping)
    for name, value in properties.items():
        _check_text("a property name", name)
        if name in RESERVED or name.startswith(TRANSIENT_PREFIX):
            raise ValueError(f"the property name {name} is reserved by RocketMQ; use another one")
        _check_text(f"property {name}", value)
    return dict(properties)
