"""Apache's mqadmin, 4.9.7 and 5.3.3, on our broker and on Apache's 5.3.3, whose answers ours follow: the same
commands, in an equal state, print the same once what must differ is masked."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import rmq_core
from interop.apache import write_logback
from interop.artifacts import ROCKETMQ, java_class_path
from interop.clients import CLIENTS
from interop.driver import Driver, DriverError
from interop.servers import Server, running, wait_until
from rmq_core import Message, MessageQueue, Producer
from rmq_core.errors import BrokerError

HERE: Final = Path(__file__).parent
CASES: Final[dict[str, Any]] = tomllib.loads((HERE / "mqadmin.toml").read_text())
BROKER: Final = "judged"


@dataclass(frozen=True, slots=True)
class Pair:
    """Both servers in an equal state, with the tool."""

    tool: Driver
    ours: Server
    theirs: Server
    words: dict[str, dict[str, str]]
    """What stands for {name} in a command, by server."""

    def outputs(self, command: str) -> tuple[list[str], list[str]]:
        return self._run(command, self.ours), self._run(command, self.theirs)

    def _run(self, command: str, server: Server) -> list[str]:
        arguments = [each.format(**self.words[server.name]) for each in command.split()]
        if arguments[0] not in CASES["without_name_server"]:
            arguments += ["-n", server.name_server]
        try:
            printed = self.tool.ask("mqadmin", arguments=arguments)
        except DriverError as error:
            printed = str(error)
        return masked(printed, self.words[server.name])


def masked(printed: str, words: dict[str, str]) -> list[str]:
    """The lines without what must differ: addresses, times, rates, sizes, ids, and the tool's own log."""
    lines = [
        line for line in printed.splitlines() if "|-" not in line and not line.startswith(("\tat ", "OpenJDK"))
    ]
    text = "\n".join(lines)
    for name in ("home", "client_id", "offset_msg_id", "msg_id", "broker", "name_server"):
        text = text.replace(words[name], f"<{name}>")
    for mask in CASES["masks"]:
        text = re.sub(mask["pattern"], mask["as"], text)
    return sorted(re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip())


@pytest.fixture(scope="module", params=ROCKETMQ)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    version = request.param
    home = tmp_path_factory.mktemp(f"mqadmin-{version}")
    write_logback(home)
    java = ["java", "-Xmx256m", f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"]
    with (
        running("ours", home / "ours", brokerName=BROKER) as ours,
        running(f"apache-{ROCKETMQ[-1]}", home / "theirs", brokerName=BROKER) as theirs,
        Driver([*java, "-cp", java_class_path(version), "Mqadmin"]) as tool,
        CLIENTS[f"java-{version}-json"].start(ours.name_server) as our_member,
        CLIENTS[f"java-{version}-json"].start(theirs.name_server) as their_member,
    ):
        words = {
            server.name: prepare(server, member) for server, member in ((ours, our_member), (theirs, their_member))
        }
        yield Pair(tool, ours, theirs, words)


def prepare(server: Server, member: Driver) -> dict[str, str]:
    """Topics, messages, a group that is online and one that is not, with their progress."""
    for topic in ("Orders", "Idle"):
        server.create_topic(topic, queues=2)
    with Producer("P", name_server=server.name_server) as producer:
        results = [
            producer.send(
                Message("Orders", b"body %d" % number, tags="red", keys=f"key{number}"),
                queue=MessageQueue("Orders", "judged", number % 2),
            )
            for number in range(10)
        ]
    client_id = member.ask("push", name="Online", topic="Orders")
    member.wait(lambda events: len(events) >= 10)
    member.ask("push", name="Offline", topic="Orders")
    member.wait(lambda events: len(events) >= 20)
    member.ask("stop", name="Offline")
    member.ask("producer", name="Maker")
    member.ask("send", name="Maker", topic="Idle", body="one")
    with rmq_core.Admin(name_server=server.name_server) as admin:
        for group in ("Online", "Offline"):
            wait_until(lambda group=group: _is_done(admin, group), f"{group} never stored its progress")  # type: ignore[misc]
    return {
        "client_id": client_id,
        "broker": server.broker,
        "name_server": server.name_server,
        "home": str(server.home),
        "msg_id": results[0].msg_id,
        "offset_msg_id": results[0].offset_msg_id,
    }


def _is_done(admin: rmq_core.Admin, group: str) -> bool:
    try:
        return admin.lag(group, topic="Orders").count == 0
    except BrokerError:
        return False


@pytest.mark.parametrize("command", CASES["commands"])
def test_mqadmin_prints_the_same(pair: Pair, command: str) -> None:
    """Runs one command on both and compares what it printed, line by line in any order."""
    ours, theirs = pair.outputs(command)
    allowed = CASES["differences"].get(command.split(maxsplit=1)[0], {})
    ours, theirs = (
        [line for line in lines if not any(re.search(pattern, line) for pattern in allowed.get("lines", []))]
        for lines in (ours, theirs)
    )
    assert theirs, f"{command} printed nothing on Apache's broker"
    assert ours == theirs, "\n".join(difflib.unified_diff(theirs, ours, "Apache's", "ours", lineterm="", n=0))


def test_every_difference_has_a_reason() -> None:
    """A line that may differ says why."""
    for command, allowed in CASES["differences"].items():
        assert allowed["reason"], json.dumps(command)
