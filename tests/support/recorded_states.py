"""The states that our broker is brought into before a recorded request is replayed.

A builder reads the request and, where that is what tells two states apart, the recorded answer. Requests that name
a place in the log, or a time, are given ours.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rmq_core.broker.broker import Broker
from rmq_core.broker.groups import group_config
from rmq_core.broker.topics import topic_config
from rmq_core.errors import RocketMQError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.channel import Channel
from rmq_core.net.dispatch import Dispatcher
from rmq_core.protocol import bodies, fastjson
from rmq_core.protocol import requests as r
from rmq_core.protocol.command import Command, decode_command
from rmq_core.protocol.message import CHECK_MAX_TIME_TOPIC, MessageQueue, decode_properties, encode_properties
from rmq_core.protocol.record import decode_pull_body
from rmq_core.protocol.request import NoFields
from support.brokers import Client, Cluster, subscription
from support.recorded import RECORDS, Case

QUEUES = 8
COUNT = 3
"""Messages of each queue that is used."""
BORN_HOST = bytes([127, 0, 0, 1, 0, 0, 0x30, 0x39])


@dataclass(eq=False)
class Scene:
    """A broker, and the request that it is prepared for."""

    cluster: Cluster
    case: Case
    request: Command = field(init=False)
    members: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.request = decode_command(self.case.exchange.request.frame)
        self.ext: dict[str, str] = dict(self.request.ext or {})

    @property
    def broker(self) -> Broker:
        return self.cluster.broker

    @property
    def body(self) -> Any:
        """The request's JSON body; an empty object where it has none."""
        try:
            value = fastjson.loads(self.request.body)
        except RocketMQError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def answer(self) -> Any:
        """The recorded answer's JSON body; an empty object where it has none."""
        body = b"" if self.case.exchange.response is None else self.case.answer.body
        return fastjson.loads(body) if body[:1] == b"{" else {}

    @property
    def topic(self) -> str:
        for name in ("topic", "originTopic", "b"):
            if name in self.ext:
                return self.ext[name]
        if "statsKey" in self.ext:
            return self.ext["statsKey"].split("@")[0]
        queues = self.body.get("mqSet") or [{}]
        return str(self.body.get("topic") or queues[0].get("topic") or "Topic")

    @property
    def group(self) -> str:
        for name in ("consumerGroup", "group", "groupName", "srcGroup", "compareGroup"):
            if name in self.ext:
                return self.ext[name]
        return str(self.body.get("consumerGroup") or self.body.get("group") or "CG_recorded")

    def number(self, *names: str, default: int = 0) -> int:
        return next((int(self.ext[name]) for name in names if self.ext.get(name)), default)

    @property
    def queue_id(self) -> int:
        return self.number("queueId", "e")

    # What it is made of

    def make_topic(self, name: str | None = None, *, queues: int = QUEUES, perm: int = 6) -> None:
        name = name or self.topic
        self.broker.topics.table[name] = topic_config(name, queues, perm)

    def make_group(self) -> None:
        self.broker.groups.table[self.group] = group_config(self.group)

    def put(
        self, count: int = COUNT, *, topic: str | None = None, queue_id: int | None = None, **given: str
    ) -> int:
        """Put messages; returns where the last one lies in the log."""
        log_offset = 0
        for number in range(count):
            properties = {"TAGS": "TagA", "KEYS": "key", "UNIQ_KEY": f"{number:032X}", **given}
            log_offset = self.broker.put(
                topic or self.topic,
                self.queue_id if queue_id is None else queue_id,
                b"body %d" % number,
                encode_properties(properties),
                born_time_ms=self.broker.now_ms(),
                born_host=BORN_HOST,
            ).log_offset
            self.broker.stats.sent(topic or self.topic, self.queue_id if queue_id is None else queue_id, 100)
        return log_offset

    async def subscribe(self, text: str = "*", *, sub_version: int | None = None, kind: str = "TAG") -> None:
        """Connect a consumer of the request's group and topic."""
        version = self.number("subVersion", default=1) if sub_version is None else sub_version
        subscribed = subscription(self.topic, text, sub_version=version, expression_type=kind)
        await self.join(bodies.ConsumerData(self.group, subscription_data_set=(subscribed,)))

    async def join(
        self, group: bodies.ConsumerData, *, client_id: str = "client-1", producer: str = "PG_recorded"
    ) -> None:
        """Connect a client that answers what it is asked as the recorded one did."""
        answer = self.case.answer if self.case.exchange.response is not None else None
        codes = (r.GetConsumerStatusFromClient, r.GetConsumerRunningInfo, r.ConsumeMessageDirectly)
        quiet = (r.PushReplyMessageToClient, r.NotifyConsumerIdsChanged, r.ResetConsumerClientOffset)
        dispatcher = Dispatcher(
            handlers={
                **{each.code: functools.partial(_tell, self, answer) for each in codes},
                **{each.code: _accept for each in quiet},
            }
        )
        client = Client(Channel(self.broker.address, dispatcher=dispatcher))
        self.members.append(client)
        data = bodies.HeartbeatData(client_id, (bodies.ProducerData(producer),), (group,))
        await client.call(r.HeartBeat(), data.encode())

    def point_to(self, log_offset: int) -> None:
        """Have the request name this place in the log."""
        host = self.broker.store_host.hex().upper()
        for name in ("offset", "commitLogOffset"):
            if name in self.ext:
                self.ext[name] = str(log_offset)
        if "msgId" in self.ext and len(self.ext["msgId"]) == 32:
            self.ext["msgId"] = f"{host}{log_offset:016X}"

    def commit(self, offset: int = 1) -> None:
        for queue_id in range(self.broker.topics.table[self.topic].read_queue_nums):
            self.broker.offsets.commit(self.group, self.topic, queue_id, offset)


async def _accept(context: Any, call: Call[Any]) -> Answer[NoFields]:
    return Answer(NoFields())


async def _tell(scene: Scene, recorded: Command | None, context: Any, call: Call[Any]) -> Answer[NoFields]:
    if call.command.code == r.GetConsumerStatusFromClient.code:
        queue = MessageQueue(call.header.topic, "broker-a", 0)
        return Answer(NoFields(), bodies.GetConsumerStatusBody({queue: 3}).encode())
    return Answer(NoFields(), b"" if recorded is None else recorded.body)


# The builders


async def bare(scene: Scene) -> None:
    """A broker that nobody has used."""


async def used(scene: Scene) -> None:
    """The topic, with messages in its queues, and the group, with offsets, are there."""
    scene.make_topic(queues=scene.answer.get("readQueueNums", QUEUES))
    scene.make_group()
    for queue_id in {0, min(scene.queue_id, QUEUES - 1)}:
        scene.put(queue_id=queue_id)
    scene.commit()


async def empty(scene: Scene) -> None:
    """The topic is there, and nothing in it; the group is known."""
    scene.make_topic(queues=max(QUEUES, min(scene.queue_id, 9) + 1))
    scene.make_group()


async def filled(scene: Scene) -> None:
    """The queue goes on behind the offset that is asked for, with messages that the group wants."""
    scene.make_topic()
    await scene.subscribe()
    scene.put(scene.number("queueOffset") + COUNT)


async def at_the_end(scene: Scene) -> None:
    """The queue ends where the request asks."""
    scene.make_topic()
    await scene.subscribe()
    scene.put(scene.number("queueOffset"))


async def unwanted(scene: Scene) -> None:
    """The queue holds only messages that the group does not subscribe to."""
    scene.make_topic()
    await scene.subscribe("Other")
    scene.put(scene.number("queueOffset") + COUNT)


async def moved(scene: Scene) -> None:
    """The queue does not reach the offset, or the group's offset was reset."""
    scene.make_topic()
    await scene.subscribe()
    scene.put()
    if 0 <= scene.number("queueOffset") <= COUNT:
        scene.broker.offsets.assign_reset(scene.group, scene.topic, scene.queue_id, 0)


async def stale(scene: Scene) -> None:
    """The group is online with an older subscription than the request knows."""
    scene.make_topic()
    kind = scene.ext.get("expressionType", "TAG")
    text = "*" if kind == "TAG" else "a > 1"
    newest = scene.number("subVersion", default=1)
    await scene.subscribe(text, sub_version=newest - 1, kind=kind)
    if kind != "TAG":
        members = scene.broker.clients.consumer_group(scene.group)
        assert members is not None
        newer = subscription(scene.topic, text, sub_version=newest, expression_type=kind)
        members.subscriptions[scene.topic] = newer


async def online(scene: Scene) -> None:
    """The group's consumer and the named producer are connected, and have consumed some of what is there."""
    table = scene.answer.get("subscriptionTable") or {scene.topic: {"topic": scene.topic, "subString": "*"}}
    for topic in {scene.topic, *table}:
        scene.make_topic(topic)
    is_known = scene.case.answer_code == 0
    group = {"groupName": scene.group, "subscriptionDataSet": list(table.values())}
    known = ("consumeType", "messageModel", "consumeFromWhere")
    await scene.join(
        bodies.ConsumerData.from_json(
            {**group, **{key: scene.answer[key] for key in known if key in scene.answer}}
        ),
        client_id=(scene.ext.get("clientId") or scene.body.get("clientId") if is_known else None) or "client-1",
        producer=scene.ext.get("producerGroup", "PG_recorded") if is_known else "PG_recorded",
    )
    place = scene.put(queue_id=0)
    scene.put(queue_id=1)
    scene.commit(2)
    scene.point_to(place)


async def placed(scene: Scene) -> None:
    """The request names a message that is there; its key is found, too."""
    await used(scene)
    key = scene.ext.get("key", "key")
    topic, queue_id = scene.topic, 0
    if scene.case.exchange.code in RECORDS:
        recorded = decode_pull_body(scene.case.answer.body, verify_crc=True)[0]
        topic, queue_id = recorded.topic, recorded.queue_id
    scene.point_to(scene.put(1, topic=topic, queue_id=queue_id, UNIQ_KEY=key, KEYS=key))
    if "endTimestamp" in scene.ext:
        scene.ext["endTimestamp"] = str((1 << 63) - 1)


async def half(scene: Scene) -> None:
    """A message of a transaction waits to be decided, or was given up."""
    if scene.case.exchange.code == r.ResumeCheckHalfMessage.code:
        scene.point_to(scene.put(1, topic=CHECK_MAX_TIME_TOPIC, queue_id=0, REAL_TOPIC="Half", REAL_QID="0"))
        return
    answer = await scene.cluster.client().send(
        "Half",
        properties={"TRAN_MSG": "true", "PGROUP": scene.ext.get("producerGroup", "PG"), "UNIQ_KEY": "1"},
        sys_flag=4,
        producer_group=scene.ext.get("producerGroup", "PG"),
    )
    scene.point_to(int(answer.header.msg_id[16:], 16))
    if "tranStateTableOffset" in scene.ext:
        scene.ext["tranStateTableOffset"] = str(answer.header.queue_offset)


async def answered(scene: Scene) -> None:
    """Who is to get the reply is connected."""
    properties = scene.ext.get("i") or scene.ext.get("properties") or ""
    client_id = decode_properties(properties.encode()).get("REPLY_TO_CLIENT", "client-1")
    await scene.join(bodies.ConsumerData("CG_replies"), client_id=client_id)


async def strict(scene: Scene) -> None:
    """Topics and groups must be made by hand."""
    scene.broker.settings.auto_create_subscription_group = False
    scene.broker.settings.auto_create_topic_enable = False
    scene.make_topic()
    scene.put(queue_id=0)
    if scene.case.exchange.code == r.InvokeBrokerToResetOffset.code:
        scene.broker.groups.table.pop(scene.group, None)


async def forbidden(scene: Scene) -> None:
    """What was sent or pulled is not permitted."""
    await used(scene)
    if "TRAN_MSG" in scene.ext.get("i", ""):
        scene.broker.settings.reject_transaction_message = True
    else:
        scene.broker.settings.broker_permission = 0
        scene.make_topic(perm=0)


async def absent(scene: Scene) -> None:
    """Others use the broker; the topic that the request names is not there."""
    scene.make_group()
    scene.make_topic("Another")
    scene.put(topic="Another", queue_id=0)


BUILDERS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        bare, used, empty, filled, at_the_end, unwanted, moved, stale, online, placed, half, answered, strict,
        forbidden, absent,
    )
}  # fmt: skip
