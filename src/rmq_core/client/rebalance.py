"""Which queues of a topic are ours now.

A consumer that cannot be told keeps what it has: no route, no broker that answers, a list of members without us, or
a strategy that fails give None. An empty answer means that there is nothing for us, and is another thing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmq_core.client.allocate import Allocate
from rmq_core.client.routes import TopicRoute
from rmq_core.errors import ClientError, NoRouteError, RocketMQError
from rmq_core.protocol.bodies import GetConsumerListByGroupResponseBody
from rmq_core.protocol.message import MessageQueue, is_retry_topic
from rmq_core.protocol.requests import GetConsumerListByGroup

if TYPE_CHECKING:
    from rmq_core.client.instance import ClientInstance

logger = logging.getLogger(__name__)


async def owned_queues(
    instance: ClientInstance, group: str, topic: str, *, strategy: Allocate, broadcasting: bool
) -> frozenset[MessageQueue] | None:
    """Our queues of a topic, named as on the wire; None where it cannot be told now."""
    try:
        route = await instance.route(topic)
    except RocketMQError as error:
        if not (is_retry_topic(topic) and isinstance(error, NoRouteError)):  # the first heartbeat makes that topic
            logger.warning("%s: the queues of %s cannot be divided now: %s", group, topic, error)
        return None
    queues = sorted(route.read_queues)
    if broadcasting or not queues:
        return frozenset(queues)
    members = await group_members(instance, group, route)
    if members is None:
        return None
    if instance.client_id not in members:
        logger.info("%s: the broker does not list %s as a member yet", group, instance.client_id)
        return None
    try:
        dealt = frozenset(strategy(instance.client_id, queues, sorted(members)) or ())
    except Exception as error:  # a function of the user's, or one that lacks a room's name
        logger.warning("%s: the strategy cannot divide the queues of %s: %s", group, topic, error)
        return None
    if strange := dealt - frozenset(queues):
        logger.warning("%s: the strategy names what is no queue of %s: %s", group, topic, strange)
    return dealt & frozenset(queues)


async def group_members(instance: ClientInstance, group: str, route: TopicRoute) -> Sequence[str] | None:
    """The client ids of a group's members, by the first broker of a topic that answers; None where none does.

    Every member asks in the same order, so that all of them see the list of one broker.
    """
    problem: RocketMQError | None = None
    for name in sorted({queue.broker_name for queue in route.read_queues}):
        try:
            address = instance.broker(name).address
            answer = await instance.call(address, GetConsumerListByGroup(group))
            members = GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list
        except RocketMQError as error:
            problem = error
            continue
        if members:
            return sorted(set(members))
        problem = ClientError(f"broker {name} knows no member")
    logger.warning("%s: no broker of %s tells its members: %s", group, route.topic, problem)
    return None
