"""The servers of the matrix, each started once for all tests that need it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import rmq_core
from interop.apache import apache, mqadmin
from interop.artifacts import ROCKETMQ
from rmq_core import Admin
from rmq_core.errors import BrokerError
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.requests import GetRouteinfoByTopic, UpdateAndCreateTopic

SERVERS: Final = ("ours", *(f"apache-{version}" for version in ROCKETMQ))

_SETTINGS: Final = {
    # Otherwise new groups begin at 0 while a queue's first message is in memory, wherever they ask to begin.
    "accessMessageInMemoryMaxRatio": "0",
    "enablePropertyFilter": "true",
    "messageDelayLevel": "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s",
    # The first check of a half message is a minute away otherwise. Under three seconds 5.3 would ask about decided
    # ones too: it writes its decisions down in batches.
    "transactionTimeOut": "6000",
    "transactionCheckInterval": "2000",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running name server with its broker."""

    name: str
    name_server: str
    broker_name: str
    broker: str
    home: Path

    def create_topic(self, topic: str, *, queues: int = 4) -> None:
        """Make a topic, and wait until the name server knows it."""
        make = UpdateAndCreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        with BlockingChannel(self.broker) as broker:
            broker.call(make, timeout_ms=10_000)
        self.wait_for_topic(topic)

    def wait_for_topic(self, topic: str) -> None:
        """Return when the name server knows it."""
        with BlockingChannel(self.name_server) as names:
            wait_until(lambda: _is_known(names, topic), f"the name server never heard of {topic}")

    def committed(self, group: str, topic: str) -> list[int | None]:
        """How far a group has come in each queue; None where it has not begun."""
        with Admin(name_server=self.name_server) as admin:
            offsets = admin.offsets(group, topic)
        return [offsets[queue] for queue in sorted(offsets)]

    def wait_for_progress(self, group: str, topic: str, count: int) -> None:
        """Return when a group has committed so many messages: what a client has told us it has not yet finished."""
        wait_until(
            lambda: sum(offset or 0 for offset in self.committed(group, topic)) == count,
            f"{group} never committed all it took",
        )

    def wait_until_read(self, group: str, topic: str) -> None:
        """Return when a group has committed everything that there is."""
        with Admin(name_server=self.name_server) as admin:
            wait_until(lambda: _is_read(admin, group, topic), f"{group} never committed all of {topic}")

    def mqadmin(self, version: str, *arguments: str) -> str:
        """What Apache's tool of that version prints, and how it ends."""
        done = mqadmin(version, *arguments, "-n", self.name_server, home=self.home)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def wait_until(is_done: Callable[[], bool], otherwise: str, timeout_s: float = 30) -> None:
    """Ask again and again. Raises AssertionError saying otherwise where it never becomes true."""
    deadline = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def _is_read(admin: Admin, group: str, topic: str) -> bool:
    offsets = admin.offsets(group, topic)
    return all(offset == admin.max_offset(queue) for queue, offset in offsets.items())


def _is_known(names: BlockingChannel, topic: str) -> bool:
    try:
        names.call(GetRouteinfoByTopic(topic))
    except BrokerError:
        return False
    return True


@contextlib.contextmanager
def running(name: str, home: Path, *, kill: bool = False, **settings: str) -> Iterator[Server]:
    """Start it, and stop its broker in the end, or kill it. Settings of TLS hold for the name server too."""
    used = {**_SETTINGS, **settings}
    if name == "ours":
        with rmq_core.embedded(home / "store", **used) as broker:
            yield Server(name, broker.name_server, settings.get("brokerName", "embedded"), broker.address, home)
            if kill:
                broker.kill()
        return
    # Apache's programs have settings of TLS in a file of their own.
    tls = {key: used.pop(key) for key in list(used) if key.startswith("tls.")}
    home.mkdir(parents=True, exist_ok=True)
    (home / "tls.properties").write_text("".join(f"{key}={value}\n" for key, value in tls.items()))
    options = [f"-Dtls.config.file={home / 'tls.properties'}"] if tls else []
    with apache(name.removeprefix("apache-"), home, kill=kill, options=options, **used) as pair:
        yield Server(name, pair.name_server, settings.get("brokerName", "apache"), pair.broker, home)
