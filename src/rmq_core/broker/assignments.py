"""Which queues a member of a group consumes, where members ask the broker for it. Always by pulling.

The queues are those of all brokers: the name servers know them, and what they said is kept for a while. Where none
of them answers, this broker's own queues are better than nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.protocol.bodies import MessageModel, QueryAssignmentRequestBody, TopicRouteData
from rmq_core.protocol.codes import Permission
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.requests import GetRouteinfoByTopic

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

ROUTES_MAX: Final = 10_000

Strategy = Callable[[int, int, int], range]
"""(queues, members, this member) → which of the queues."""


def average(queues: int, members: int, member: int) -> range:
    """Neighbouring queues, as equally as they can be shared."""
    share, rest = divmod(queues, members)
    start = member * share + min(member, rest)
    return range(start, start + share + (member < rest))


def average_by_circle(queues: int, members: int, member: int) -> range:
    """Each queue to the next member in turn."""
    return range(member, queues, members)


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": average, "AVG_BY_CIRCLE": average_by_circle}


class Assignments:
    """Shares queues among the members of groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[str, tuple[float, list[MessageQueue]]] = {}

    async def of(self, wanted: QueryAssignmentRequestBody) -> list[MessageQueue] | None:
        """The queues of a member; None where they cannot be told, and it keeps those it has."""
        topic, group = wanted.topic or "", wanted.consumer_group or ""
        queues = await self._queues(topic)
        if not queues:
            return None
        is_shared = wanted.message_model is not MessageModel.BROADCASTING
        if not is_shared or not self._broker.settings.server_load_balancer_enable:
            return queues
        strategy = STRATEGIES.get(wanted.strategy_name or "AVG")
        known = self._broker.clients.consumer_group(group)
        members = sorted({member.client_id for member in known.members.values()}) if known is not None else []
        if strategy is None or not members:
            return None
        if wanted.client_id not in members:
            return []
        share = strategy(len(queues), len(members), members.index(wanted.client_id))
        return [queues[number] for number in share]

    async def _queues(self, topic: str) -> list[MessageQueue]:
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        kept_ms = broker.settings.load_balance_poll_name_server_interval
        known = self._routes.get(topic)
        if known is not None and now_ms - known[0] < kept_ms:
            return known[1] or self._own(topic)
        try:
            answer = await broker.registration.ask(GetRouteinfoByTopic(topic))
            queues = _readable(topic, TopicRouteData.decode(answer.body))
        except BrokerError:  # the name servers know no such topic
            queues = []
        except RocketMQError:
            queues = [] if known is None else known[1]
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (now_ms, queues)
        return queues or self._own(topic)

    def _own(self, topic: str) -> list[MessageQueue]:
        config = self._broker.topics.get(topic)
        count = 0 if config is None or not config.perm & Permission.READ else config.read_queue_nums
        return [MessageQueue(topic, self._broker.settings.broker_name, number) for number in range(count)]


def _readable(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    return [
        MessageQueue(topic, data.broker_name, number)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & Permission.READ
        for number in range(data.read_queue_nums)
    ]
