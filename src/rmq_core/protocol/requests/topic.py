"""Topics of a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class TopicSettings(Header):
    """A topic to create or change; attributes are written `+key=value,-key`."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    default_topic: str | None = None
    topic_sys_flag: Int32 | None = None
    order: bool | None = None
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True)
class UpdateAndCreateTopic(TopicSettings, Request[NoFields]):
    """Create or change a topic."""

    code: ClassVar = 17


@dataclass(frozen=True, slots=True)
class UpdateAndCreateTopicList(Request[NoFields]):
    """Create or change several topics, 5.3."""

    code: ClassVar = 18
    body: ClassVar = bodies.CreateTopicListRequestBody


@dataclass(frozen=True, slots=True)
class TotalTopics(Header):
    """How many topics there are, where the answer is a page of them."""

    total_topic_num: Int32 | None = None


@dataclass(frozen=True, slots=True)
class GetAllTopicConfig(Request[TotalTopics]):
    """All topics."""

    code: ClassVar = 21
    reply: ClassVar = TotalTopics
    reply_body: ClassVar = bodies.TopicConfigSerializeWrapper
    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


@dataclass(frozen=True, slots=True)
class GetTopicConfigList(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 22


@dataclass(frozen=True, slots=True)
class GetTopicNameList(Request[NoFields]):
    """Declared by Apache, served by nobody."""

    code: ClassVar = 23


@dataclass(frozen=True, slots=True)
class GetTopicStatsInfo(Request[NoFields]):
    """The ranges of a topic's queues."""

    code: ClassVar = 202
    reply_body: ClassVar = bodies.TopicStatsTable
    topic: str


@dataclass(frozen=True, slots=True)
class DeleteTopicInBroker(Request[NoFields]):
    """Delete a topic with its queues and offsets."""

    code: ClassVar = 215
    topic: str


@dataclass(frozen=True, slots=True)
class GetSystemTopicListFromBroker(Request[NoFields]):
    """The names of the topics a broker keeps for itself."""

    code: ClassVar = 305
    reply_body: ClassVar = bodies.TopicList


@dataclass(frozen=True, slots=True)
class CleanUnusedTopic(Request[NoFields]):
    """Delete queues of topics that are gone."""

    code: ClassVar = 316


@dataclass(frozen=True, slots=True)
class GetTopicConfig(Request[NoFields]):
    """One topic."""

    code: ClassVar = 351
    reply_body: ClassVar = bodies.TopicConfigAndQueueMapping
    topic: str


@dataclass(frozen=True, slots=True)
class UpdateAndCreateStaticTopic(TopicSettings, Request[NoFields]):
    """Create or change a topic with logical queues."""

    code: ClassVar = 513
    body: ClassVar = bodies.TopicQueueMappingDetail
