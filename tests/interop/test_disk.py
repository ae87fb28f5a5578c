"""One store directory under our broker and Apache's in turn: each goes on where the other stopped or was killed.

A Java client sends and reads throughout, so that the only thing that changes is the broker. After each turn our
offline reader sees every message, and `verify` finds nothing.
"""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rmq_core
from interop.artifacts import ROCKETMQ
from interop.clients import CLIENTS
from interop.driver import Driver
from interop.servers import Server, running
from rmq_core.protocol import fastjson
from rmq_core.store.verify import verify

TOPIC = "Turns"
SETTINGS = {
    "brokerName": "turns",
    "brokerClusterName": "DefaultCluster",
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "enablePropertyFilter": "true",
    "flushConsumerOffsetInterval": "200",
}


class Turns:
    """A store directory, and what it must hold."""

    def __init__(self, home: Path, version: str, **of_apache: str) -> None:
        self.home = home
        self.version = version
        self._of_apache = of_apache
        """Settings of Apache's broker alone."""
        self.sent: list[str] = []
        self.committed: set[str] = set()
        self._may_repeat: set[str] = set()
        self._number = 0

    @property
    def store(self) -> Path:
        return self.home / "store"

    def take(self, server_name: str, *, kill: bool) -> None:
        """Let one broker have the directory: read all that is there, add to it, stop or kill the broker."""
        self._number += 1
        turn = self._number
        own = {} if server_name == "ours" else self._of_apache
        with running(server_name, self.home, kill=kill, **SETTINGS, **own) as server:
            if turn == 1:
                for topic in (TOPIC, "Failing"):
                    server.create_topic(topic)
            with CLIENTS[f"java-{self.version}-json"].start(server.name_server) as client:
                self._read_all(client, turn)
                self._send(client, server, turn)
                self._group_goes_on(client, server, turn)
                self._retry(client, turn)
        if kill:
            self._may_repeat |= {*self.sent}
        elif server_name != "ours":
            # Apache's brokers store the offset of the delayed message they delivered last, not the one behind it;
            # and 5.3 writes down three seconds later that a transaction was decided.
            self._may_repeat |= {f"delayed {turn}", f"committed {turn}"}

    def _read_all(self, client: Driver, turn: int) -> None:
        client.ask("push", name=f"R{turn}", topic=TOPIC)
        if self.sent:
            client.wait(lambda events: {each["body"] for each in events} >= {*self.sent}, 90)
        client.ask("stop", name=f"R{turn}")
        client.forget()

    def _send(self, client: Driver, server: Server, turn: int) -> None:
        """Every kind of message that the log can hold."""
        common: dict[str, Any] = {"name": "P", "topic": TOPIC}
        client.ask("producer", name="P", compressOver=2000)
        plain = [f"plain {turn} {number}" for number in range(40)]
        client.ask("send_many", body=f"plain {turn} ", count=40, tags="a", keys="k", **common)
        client.ask("batch", bodies=[f"batch {turn} {number}" for number in range(5)], **common)
        client.ask("send", size=3000 + turn, **common)
        client.ask("send", body=f"delayed {turn}", delayLevel=1, **common)
        client.ask("producer", name="T", checks=True)
        # A killed broker of 5.3 may have lost which way it went, and asks again: the answer is the same.
        decided = {"name": "T", "topic": TOPIC}
        client.ask("transaction", body=f"committed {turn}", decide="commit", check="commit", **decided)
        client.ask("transaction", body=f"rolled back {turn}", decide="rollback", check="rollback", **decided)
        # Enough for the log to go into another file, which is 1 MiB here.
        client.ask("send_many", body="f" * 3000 + f" {turn} ", count=120, name="P", topic="Filler")
        self.sent += [*plain, *(f"batch {turn} {number}" for number in range(5)), "x" * (3000 + turn)]
        self.sent += [f"delayed {turn}", f"committed {turn}"]
        for name in ("P", "T"):
            client.ask("stop", name=name)

    def _group_goes_on(self, client: Driver, server: Server, turn: int) -> None:
        """The same group in every turn gets what is new, and what it had before only where that may be."""
        client.ask("push", name="Same", topic=TOPIC)
        wanted = {*self.sent} - self.committed
        events = client.wait(lambda events: {each["body"] for each in events} >= wanted, 90)
        again = {each["body"] for each in events} & self.committed - self._may_repeat
        assert not again, f"turn {turn} gave {sorted(again)[:5]} to the group a second time"
        server.wait_until_read("Same", TOPIC)
        client.ask("stop", name="Same")
        self.committed = {*self.sent}

    def _retry(self, client: Driver, turn: int) -> None:
        """A message that fails once comes again, by way of its group's retry topic and the schedule."""
        body = f"retried {turn}"
        client.forget()
        client.ask("producer", name="P")
        client.ask("send", name="P", topic="Failing", body=body)
        client.ask("push", name="Failing", topic="Failing", failures=1)
        client.wait(lambda events: [each["body"] for each in events].count(body) >= 2, 90)
        for name in ("Failing", "P"):
            client.ask("stop", name=name)

    def check_offline(self) -> None:
        """Our reader sees every message, once unless it may repeat, and every file agrees with the log."""
        with rmq_core.open_store(self.store) as store:
            # The whole log: the queues of a killed broker of ours may lack their last second.
            rows = store.to_arrow(columns=["topic", "body"]).to_pylist()
        found = Counter(row["body"].decode() for row in rows if row["topic"] == TOPIC)
        assert found.keys() == {*self.sent}
        retried = {row["body"].decode() for row in rows if row["topic"] == "%RETRY%Failing"}
        assert retried == {f"retried {turn}" for turn in range(1, self._number + 1)}
        assert {body for body, count in found.items() if count > 1} <= self._may_repeat
        checked = verify(self.store)
        assert checked.is_clean, checked.problems
        for table in (self.store / "config").glob("*.json"):
            fastjson.loads(table.read_bytes())


@pytest.mark.parametrize("version", ROCKETMQ)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", ["ours", "apache"])
def test_brokers_take_turns_on_one_directory(version: str, first: str, kill: bool, tmp_path: Path) -> None:
    """Four turns; each broker reads everything, adds every kind of message, and stops or is killed."""
    _take_turns(Turns(tmp_path, version), first, kill=kill)


@pytest.mark.parametrize("version", ROCKETMQ)
def test_addresses_of_both_kinds_in_one_log(version: str, tmp_path: Path) -> None:
    """Apache's broker and its clients have IPv6 addresses, ours IPv4 ones."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    turns = Turns(tmp_path, version, brokerIP1="::1")
    _take_turns(turns, "apache", kill=False)
    with rmq_core.open_store(turns.store) as store:
        hosts = {row["storeHost"] for row in store.to_arrow(columns=["storeHost"]).to_pylist()}
    assert {host.rpartition(":")[0].strip("[]") for host in hosts} == {"::1", "127.0.0.1"}


def _take_turns(turns: Turns, first: str, *, kill: bool) -> None:
    names = ["ours", f"apache-{turns.version}"]
    for name in names if first == "ours" else reversed(names):
        turns.take(name, kill=kill)
        turns.check_offline()
        turns.take("ours" if name != "ours" else names[1], kill=kill)
        turns.check_offline()
