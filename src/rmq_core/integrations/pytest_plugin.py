"""A broker for tests: the fixture `rocketmq`.

    def test_orders_are_billed(rocketmq):
        topic = rocketmq.topic()
        with Producer("shop", name_server=rocketmq.name_server) as producer:
            producer.send(Message(topic, b"42"))

The broker starts with the first test of a session that asks for it, on free ports and with a temporary store, and
ends with the session; under pytest-xdist every worker has its own. Tests share it, so each takes topics of its own.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rmq_core.embedded_broker import EmbeddedBroker

_NAME_MAX = 60


class RocketMQ:
    """A running broker, and fresh topics and groups of it."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<rocketmq at {self.name_server}>"

    @property
    def name_server(self) -> str:
        """What clients connect to."""
        return self._broker.name_server

    @property
    def address(self) -> str:
        """The broker itself."""
        return self._broker.address

    @property
    def store_path(self) -> Path:
        """Where the broker keeps its files."""
        return self._broker.store_path

    def topic(self, *, queues: int = 4) -> str:
        """The name of a new topic."""
        name = self._fresh("topic")
        self._broker.create_topic(name, queues=queues)
        return name

    def group(self) -> str:
        """A name for a group that nobody else has."""
        return self._fresh("group")

    def log(self) -> str:
        """The last lines that the broker logged."""
        return self._broker.log()

    def _fresh(self, kind: str) -> str:
        # The test's own name, so that the broker's log tells whose topic it was.
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("::")[2]
        return f"{kind}-{next(self._numbers)}-{re.sub('[^a-zA-Z0-9_-]+', '-', test)[:_NAME_MAX]}".rstrip("-")


@pytest.fixture(scope="session")
def rocketmq() -> Iterator[RocketMQ]:
    """A broker of this session: `name_server`, `topic()`, `group()`, `store_path`, `log()`."""
    from rmq_core.embedded_broker import embedded

    with embedded() as broker:
        yield RocketMQ(broker)
