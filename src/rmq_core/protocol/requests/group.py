"""Subscription groups of a broker, and what they consume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class UpdateAndCreateSubscriptiongroup(Request[NoFields]):
    """Create or change a group."""

    code: ClassVar = 200
    body: ClassVar = bodies.SubscriptionGroupConfig


@dataclass(frozen=True, slots=True)
class UpdateAndCreateSubscriptiongroupList(Request[NoFields]):
    """Create or change several groups, 5.3."""

    code: ClassVar = 225
    body: ClassVar = bodies.SubscriptionGroupList


@dataclass(frozen=True, slots=True)
class TotalGroups(Header):
    """How many groups there are, where the answer is a page of them."""

    total_group_num: Int32 | None = None


@dataclass(frozen=True, slots=True)
class GetAllSubscriptiongroupConfig(Request[TotalGroups]):
    """All groups."""

    code: ClassVar = 201
    reply: ClassVar = TotalGroups
    reply_body: ClassVar = bodies.SubscriptionGroupWrapper
    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


@dataclass(frozen=True, slots=True)
class DeleteSubscriptiongroup(Request[NoFields]):
    """Delete a group; 4.9 and 5.x name the switch for its offsets differently."""

    code: ClassVar = 207
    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None


@dataclass(frozen=True, slots=True)
class GetConsumeStats(Request[NoFields]):
    """How far a group is behind."""

    code: ClassVar = 208
    reply_body: ClassVar = bodies.ConsumeStats
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True)
class QueryTopicConsumeByWho(Request[NoFields]):
    """The groups that consume a topic."""

    code: ClassVar = 300
    reply_body: ClassVar = bodies.GroupList
    topic: str


@dataclass(frozen=True, slots=True)
class QueryConsumeTimeSpan(Request[NoFields]):
    """Times of what a group has read of a topic."""

    code: ClassVar = 303
    reply_body: ClassVar = bodies.QueryConsumeTimeSpanBody
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class QueryTopicsByConsumer(Request[NoFields]):
    """The topics that a group consumes."""

    code: ClassVar = 343
    reply_body: ClassVar = bodies.TopicList
    group: str


@dataclass(frozen=True, slots=True)
class QuerySubscriptionByConsumer(Request[NoFields]):
    """What a group subscribes to on a topic."""

    code: ClassVar = 345
    reply_body: ClassVar = bodies.QuerySubscriptionResponseBody
    group: str
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class GetSubscriptiongroupConfig(Request[NoFields]):
    """One group."""

    code: ClassVar = 352
    reply_body: ClassVar = bodies.SubscriptionGroupConfig
    group: str


@dataclass(frozen=True, slots=True)
class UpdateAndGetGroupForbidden(Request[NoFields]):
    """Whether a group may read a topic; readable changes it."""

    code: ClassVar = 353
    reply_body: ClassVar = bodies.GroupForbidden
    group: str
    topic: str
    readable: bool | None = None


@dataclass(frozen=True, slots=True)
class SuspendConsumer(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 209


@dataclass(frozen=True, slots=True)
class ResumeConsumer(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 210


@dataclass(frozen=True, slots=True)
class ResetConsumerOffsetInConsumer(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 211


@dataclass(frozen=True, slots=True)
class ResetConsumerOffsetInBroker(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 212


@dataclass(frozen=True, slots=True)
class AdjustConsumerThreadPool(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 213


@dataclass(frozen=True, slots=True)
class WhoConsumeTheMessage(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 214
