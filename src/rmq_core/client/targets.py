"""Where sends to one topic may go: the queues of its route, whose turn it is, and writers of their frames."""

from __future__ import annotations

import itertools
import random

from rmq_core.client.fault import FaultTable
from rmq_core.client.routes import TopicRoute
from rmq_core.client.selectors import Selector, sharded_index
from rmq_core.client.sending import FrameWriter, SendRules
from rmq_core.errors import NoRouteError
from rmq_core.protocol.message import Message, MessageQueue, topic_name_problem


class Target:
    """One topic, as one route has it. Any thread may ask; only the counter of turns ever changes."""

    __slots__ = ("_rules", "_turns", "_writers", "queues", "route", "topic", "wire_topic")

    def __init__(self, topic: str, route: TopicRoute, rules: SendRules) -> None:
        """Raises NoRouteError where no broker takes messages of the topic."""
        self.topic = topic
        """As users call it."""
        self.wire_topic = route.topic
        self.route = route
        self.queues = tuple(
            MessageQueue(topic, each.broker_name, each.queue_id)
            for each in sorted(route.write_queues, key=lambda each: (each.broker_name, each.queue_id))
        )
        if not self.queues:
            raise NoRouteError(f"no broker takes messages of topic {topic} now")
        self._rules = rules
        self._turns = itertools.count(random.randrange(1 << 16))
        self._writers: dict[tuple[str, int], FrameWriter] = {}

    def next_queue(self, avoid: str | None, faults: FaultTable | None) -> MessageQueue:
        """The queue whose turn it is, on another broker than the one to avoid if there is one."""
        queues, number = self.queues, next(self._turns)
        if faults is not None:
            return faults.choose(queues, number, avoid)
        queue = queues[number % len(queues)]
        if avoid is None or queue.broker_name != avoid:
            return queue
        for step in range(1, len(queues)):
            other = queues[(number + step) % len(queues)]
            if other.broker_name != avoid:
                return other
        return queue

    def fixed_queue(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None
    ) -> MessageQueue | None:
        """The one queue that the message must go to; None where it may be any. Raises what the selector raises."""
        if queue is not None:
            return queue
        if selector is not None:
            chosen = selector(self.queues, message)
            if not isinstance(chosen, MessageQueue) or chosen not in self.queues:
                raise ValueError(f"selector must give one of the queues it was given, not {chosen!r}")
            return chosen
        if message.sharding_key is not None:
            return self.queues[sharded_index(message.sharding_key, len(self.queues))]
        return None

    def writer(self, queue: MessageQueue) -> FrameWriter:
        """Writes frames for that queue."""
        place = (queue.broker_name, queue.queue_id)
        writer = self._writers.get(place)
        if writer is None:
            writer = self._writers[place] = FrameWriter(self.wire_topic, queue, self._rules)
        return writer


def check_queue(topic: str, queue: MessageQueue | None, selector: Selector | None) -> None:
    """Raises TypeError, ValueError where they do not go with the topic or with each other."""
    if queue is not None:
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"queue must be a MessageQueue, not {type(queue).__name__}")
        if queue.topic != topic:
            raise ValueError(f"queue belongs to topic {queue.topic}, the message to {topic}")
        if selector is not None:
            raise ValueError("give either queue or selector")
    if selector is not None and not callable(selector):
        raise TypeError(f"selector must be callable, not {type(selector).__name__}")


def check_topic(topic: str) -> None:
    """Raises TypeError, ValueError for what is no topic's name."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    if problem := topic_name_problem(topic):
        raise ValueError(problem)
