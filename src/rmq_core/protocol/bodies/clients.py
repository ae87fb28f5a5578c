"""What clients say of themselves, and what brokers say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32, Wire
from rmq_core.protocol.message import MessageQueue


class ConsumeType(StrEnum):
    """Who asks for messages: the application, the client for it, or the broker's POP."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each member of a group gets every message, or each message goes to one member."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a new group begins."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body):
    """What a group wants of a topic."""

    topic: str = ""
    sub_string: str | None = None
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int32, ...] = ()
    sub_version: int = 0
    expression_type: str | None = None
    class_filter_mode: bool | None = None


@dataclass(frozen=True, slots=True)
class ConsumerData(Body):
    """One group that a client consumes for."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool | None = None


@dataclass(frozen=True, slots=True)
class ProducerData(Body):
    """One group that a client produces for."""

    group_name: str


@dataclass(frozen=True, slots=True)
class HeartbeatData(Body):
    """Who a client is and what it does; sent to every broker that it uses."""

    client_id: Annotated[str, Wire("clientID")]
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: Int32 | None = None
    without_sub: bool | None = None


@dataclass(frozen=True, slots=True)
class CheckClientRequestBody(Body):
    """Asks whether the broker can filter by a subscription."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ClientConnection(Body):
    """A connected client."""

    client_id: str | None = None
    client_addr: str | None = None
    language: str | None = None
    version: Int32 = 0


@dataclass(frozen=True, slots=True)
class ConsumerConnection(Body):
    """The members of a group and what it subscribes to."""

    connection_set: tuple[ClientConnection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@dataclass(frozen=True, slots=True)
class ProducerConnection(Body):
    """The clients that produce for a group."""

    connection_set: tuple[ClientConnection, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerInfo(Body):
    """A producing client and when it was last heard of."""

    client_id: str | None = None
    remote_ip: Annotated[str | None, Wire("remoteIP")] = None
    language: str | None = None
    version: Int32 = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ProducerTableInfo(Body):
    """All producers of a broker by group."""

    data: dict[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetConsumerListByGroupResponseBody(Body):
    """The client ids of a group's members."""

    consumer_id_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo(Body):
    """What a consumer has fetched of a queue and not finished."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Annotated[Int32, Wire("cachedMsgSizeInMiB")] = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: Annotated[bool, Wire("droped")] = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class PopProcessQueueInfo(Body):
    """What a POP consumer has not acknowledged."""

    wait_ack_count: Int32 = 0
    dropped: Annotated[bool, Wire("droped")] = False
    last_pop_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStatus(Body):
    """Rates of a consumer on one topic."""

    pull_rt: Annotated[float, Wire("pullRT")] = 0.0
    pull_tps: Annotated[float, Wire("pullTPS")] = 0.0
    consume_rt: Annotated[float, Wire("consumeRT")] = 0.0
    consume_ok_tps: Annotated[float, Wire("consumeOKTPS")] = 0.0
    consume_failed_tps: Annotated[float, Wire("consumeFailedTPS")] = 0.0
    consume_failed_msgs: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(Body):
    """A consumer looked at from inside."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] | None = None
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """What a listener made of a message that it was handed directly."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult(Body):
    """How the consumption of one message went."""

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: int = 0
