"""Subscription groups as a broker keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rmq_core.protocol.bodies.topics import DataVersion
from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32


class GroupRetryPolicyType(StrEnum):
    """How the delay of the next attempt follows from their number."""

    EXPONENTIAL = "EXPONENTIAL"
    CUSTOMIZED = "CUSTOMIZED"


@dataclass(frozen=True, slots=True)
class ExponentialRetryPolicy(Body):
    """initial × multiplier ^ attempts, at most max; milliseconds."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2


@dataclass(frozen=True, slots=True)
class CustomizedRetryPolicy(Body):
    """The delay of each attempt in milliseconds."""

    next: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupRetryPolicy(Body):
    """When a message that failed comes again."""

    type: GroupRetryPolicyType = GroupRetryPolicyType.CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class SimpleSubscriptionData(Body):
    """A subscription that a group was declared with."""

    topic: str = ""
    expression_type: str | None = None
    expression: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig(Body):
    """One group and its switches. None where the sender is older than the field."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_message_orderly: bool | None = None
    group_retry_policy: GroupRetryPolicy | None = None
    group_sys_flag: Int32 | None = None
    consume_timeout_minute: Int32 | None = None
    subscription_data_set: tuple[SimpleSubscriptionData, ...] | None = None
    attributes: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionGroupWrapper(Body):
    """All groups of a broker. forbiddenTable: group → topic → bits, bit 2 forbids reading."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion | None = None
    forbidden_table: dict[str, dict[str, Int32]] | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionGroupList(Body):
    """Groups to create."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupForbidden(Body):
    """Whether a group may read a topic."""

    topic: str | None = None
    group: str | None = None
    readable: bool | None = None


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """Names of groups."""

    group_list: tuple[str, ...] = ()
