"""What tests of the Spark connector do to brokers: send, store progress and look, by raw requests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rmq_core import open_store
from rmq_core.embedded_broker import EmbeddedBroker
from rmq_core.errors import BrokerError, StoreError
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import SubscriptionGroupConfig
from rmq_core.protocol.message import encode_properties

_numbers = itertools.count(1)


@dataclass
class World:
    """A running broker and a raw connection to it."""

    mq: EmbeddedBroker
    channel: BlockingChannel = field(init=False)

    def __post_init__(self) -> None:
        self.channel = BlockingChannel(self.mq.address)

    @property
    def options(self) -> dict[str, str]:
        """What every query needs."""
        return {"nameServer": self.mq.name_server}

    def fresh(self, stem: str) -> str:
        """A name nobody has used yet."""
        return f"{stem}-{next(_numbers)}"

    def topic(self, *, queues: int = 4, stem: str = "T", name: str | None = None) -> str:
        """A new topic."""
        made = name or self.fresh(stem)
        self.mq.create_topic(made, queues=queues)
        return made

    def send(
        self,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        queue: int | None = None,
        queues: int = 4,
        properties: dict[str, str] | Callable[[int], dict[str, str]] | None = None,
        raw_properties: str | None = None,
        **header: Any,
    ) -> list[int]:
        """Send messages, turn about to each queue or all to one; returns their queue offsets."""
        calls = []
        for number, body in enumerate(bodies):
            given = properties(number) if callable(properties) else properties or {}
            text = encode_properties(given).decode() if raw_properties is None else raw_properties
            fields = {
                "producer_group": "PG", "topic": topic, "default_topic": "TBW102", "default_topic_queue_nums": 4,
                "queue_id": number % queues if queue is None else queue, "sys_flag": 0,
                "born_timestamp": 1_700_000_000_000, "flag": 0, "properties": text, "reconsume_times": 0,
                "unit_mode": False, "batch": False, **header,
            }  # fmt: skip
            encoded = body.encode() if isinstance(body, str) else body
            calls.append(self.channel.start(r.SendMessageV2(**fields), encoded, timeout_ms=30_000))
            if len(calls) % 500 == 0:
                calls[-1].wait()
        return [call.wait().header.queue_offset for call in calls]

    def progress(self, group: str, topic: str, queue: int) -> int | None:
        """The group's next offset on the broker."""
        request = r.QueryConsumerOffset(group, topic, queue, set_zero_if_not_found=False)
        try:
            return int(self.channel.call(request, timeout_ms=10_000).header.queue_offset)
        except BrokerError as error:
            if error.code == 22:
                return None
            raise

    def group(self, *, stem: str = "G") -> str:
        """A new consumer group."""
        made = self.fresh(stem)
        body = SubscriptionGroupConfig(group_name=made).encode()
        self.channel.call(r.UpdateAndCreateSubscriptiongroup(), body, timeout_ms=10_000)
        return made

    def set_progress(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Store the group's progress as a consumer does."""
        for queue, offset in offsets.items():
            self.channel.call(r.UpdateConsumerOffset(group, topic, queue, offset), timeout_ms=10_000)

    def delete_topic(self, topic: str) -> None:
        """Take it from the broker and from the name server."""
        self.channel.call(r.DeleteTopicInBroker(topic), timeout_ms=10_000)
        host = self.mq.name_server.split(";")[0]
        names = BlockingChannel(host)
        try:
            names.call(r.DeleteTopicInNamesrv(topic), timeout_ms=10_000)
        finally:
            names.close()

    def close(self) -> None:
        self.channel.close()


def eventually(condition: Callable[[], Any], what: str, *, timeout_s: float = 60) -> Any:
    """Wait until the condition gives something true, and return that; fail saying what was waited for."""
    deadline = monotonic() + timeout_s
    waiting = threading.Event()
    while not (found := condition()):
        assert monotonic() < deadline, f"waited in vain for: {what}"
        waiting.wait(0.05)
    return found


@contextmanager
def broker_of_its_own(**settings: Any) -> Iterator[World]:
    """A broker that a test may kill, fill or starve."""
    from rmq_core.embedded_broker import embedded

    with embedded(**settings) as mq:
        world = World(mq)
        try:
            yield world
        finally:
            world.close()


def stored(folder: Path, topic: str, count: int) -> bool:
    """Whether the files of a running broker show so many messages of a topic: queues follow the log."""
    with open_store(folder) as store:
        try:
            return store.count(topic) == count
        except StoreError:  # the topic has no queue yet
            return False


def bodies_of(rows: Sequence[Any]) -> list[str]:
    """The bodies of collected rows as text, sorted."""
    return sorted(bytes(row["body"]).decode() for row in rows)
